"""Bundles of torchtitan really train, and its own parser reads of them what was estimated.

It runs on a later torch than the builder's, in an environment of its own: `scripts/torchtitan_cpu`
installs it in ``.venv-torchtitan``; ``TORCHTITAN_PYTHON`` names the Python of another one.
``make test-torchtitan`` does both. Processors train with tests/fixtures/titan/sitecustomize.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.engines.training_programs import facts, training_engine
from recipe_core.launch.process import Launch
from recipe_core.launch.training.start import training_launch
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from tests.fixtures.paths import DATA, FIXTURES, ROOT
from tests.fixtures.ports import free_port

SHIMS = FIXTURES / "titan"
STEPS, TOKENS, BATCH = 2, 256, 2
PATIENCE_S = 900

MODELS = json.loads((DATA / "torchtitan_models.json").read_text())
"""Small models of the kinds that torchtitan trains, as config.json has them."""


def python() -> Path | None:
    """The Python that has torchtitan."""
    named = os.environ.get("TORCHTITAN_PYTHON")
    path = Path(named) if named else ROOT / ".venv-torchtitan" / "bin" / "python"
    return path if path.is_file() else None


installed = pytest.mark.skipif(
    python() is None,
    reason="NOT TESTED: starting torchtitan, because there is none (make test-torchtitan)",
)


def rendered(model: Any, split: dict[str, Any]) -> Launch:
    workload = {
        "kind": "training",
        "sequence_length": TOKENS,
        "global_batch": BATCH,
        "tokens": STEPS * BATCH * TOKENS,
    }
    asked = {
        "model": model,
        "hardware": {"device": "h100-sxm", "per_node": 2, "nodes": 1},
        "workload": workload,
        "candidate": {"engine": "torchtitan"} | split,
    }
    table, row = plan_candidate(PlanRequest.parse(asked))
    return training_launch(*table.detail(row))


def unpacked(launch: Launch, root: Path) -> Callable[[str], str]:
    """Write a launch's files; gives what fills placeholders, as a bundle's launcher does."""
    for name, text in launch.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    places = {"root": root, "run": root / "run", "model": root / "model", "head": "127.0.0.1"}
    known = {name: str(place) for name, place in places.items()} | {"port": str(free_port())}
    return lambda word: re.sub(r"\$\{(\w+)\}", lambda match: known[match[1]], word)


def tokenizer(folder: Path) -> None:
    """A tokenizer of bytes in the folder of a model."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: place for place, text in enumerate(["<s>", "</s>", *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<s>", "</s>"])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')


def test_what_is_installed_here_is_what_bundles_are_pinned_to() -> None:
    script = (ROOT / "scripts" / "torchtitan_cpu").read_text()
    container = training_engine("torchtitan").container
    assert container
    torch = facts().bases["cuda"][container.base].torch
    assert f'"{" ".join((f"torch=={torch}", *container.packages))}"' in script


PIPELINE = pytest.mark.xfail(
    reason="on gloo FSDP of torch 2.14 scatters no gradients of two types in a pipeline",
    strict=True,
)


@installed
@pytest.mark.nightly
@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("model", "split"),
    [
        ("llama", {"dp": 2, "zero_stage": 3, "recompute": "full"}),
        ("llama", {"dp": 2, "zero_stage": 2, "shard": 1}),
        ("llama", {"tp": 2, "recompute": "selective"}),
        pytest.param("llama", {"pp": 2}, marks=PIPELINE),
        ("llama", {"cp": 2, "zero_stage": 3}),
        ("deepseek", {"dp": 2, "ep": 2, "zero_stage": 3}),
        ("gpt_oss", {"dp": 2, "ep": 2, "zero_stage": 3, "recompute": "full"}),
    ],
    ids=["fsdp", "replicas", "tp", "pp", "cp", "deepseek-ep", "gpt-oss-ep"],
)
def test_a_rendered_bundle_trains(tmp_path: Path, model: str, split: dict[str, Any]) -> None:
    """Every word as rendered, on gloo: two steps, a checkpoint, and the weights at the end."""
    launch = rendered(MODELS[model], {"tp": 1, "pp": 1, "dp": 1, "micro_batch": 1} | split)
    fill = unpacked(launch, tmp_path)
    tokenizer(tmp_path / "model")
    program = python()
    assert program
    env = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SHIMS),
        "TORCHDYNAMO_DISABLE": "1",  # no compiler is needed to see that the words work
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [fill(word) for word in launch.processes[0].argv]
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    log = re.sub(r"\x1b\[[\d;]*m", "", done.stderr + done.stdout)
    assert done.returncode == 0, log[-4000:]
    losses = [float(loss) for loss in re.findall(r"step: +\d+ +loss: +([\d.]+)", log)]
    assert losses, log[-4000:]
    assert all(2 < loss < 12 for loss in losses)
    assert (tmp_path / "run" / "checkpoint" / f"step-{STEPS}").is_dir()


def parsed(launches: list[Launch], folder: Path) -> list[dict[str, Any]]:
    """The configurations that torchtitan would start with."""
    lines = []
    for number, launch in enumerate(launches):
        root = folder / str(number)
        fill = unpacked(launch, root)
        argv = launch.processes[0].argv
        words = [fill(word) for word in argv[argv.index("${root}/train.py") + 1 :]]
        lines.append(json.dumps({"script": str(root / "train.py"), "words": words}))
    done = subprocess.run(
        [str(python()), str(SHIMS / "parse.py")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in answers]


CATALOG = {
    "meta-llama/Llama-3.1-8B-Instruct": (1, "8B"),
    "meta-llama/Llama-3.1-405B-Instruct": (64, "405B"),
    "Qwen/Qwen3-8B": (1, "8B"),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (32, "235B-A22B"),
    "Qwen/Qwen3.5-35B-A3B": (4, "35B-A3B"),
    "deepseek-ai/DeepSeek-V2-Lite": (2, "16B"),
    "deepseek-ai/DeepSeek-V3": (256, "671B"),
    "openai/gpt-oss-20b": (2, "20b"),
    "openai/gpt-oss-120b": (16, "120b"),
    "moonshotai/Kimi-K2.5": (256, "Kimi-K2.5"),
    "moonshotai/Moonlight-16B-A3B-Instruct": (2, "moonlight-16B-A3B"),
}
"""Models of the catalog, nodes of eight that train them, and the flavour that they are."""


def best_splits(model: str, nodes: int, **more: Any) -> tuple[list[dict[str, Any]], list[Launch]]:
    """The best split of a model for every degree that torchtitan has."""
    asked = {
        "model": model,
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": nodes} | more.pop("place", {}),
        "workload": {
            "kind": "training",
            "sequence_length": 4096,
            "global_batch": 16 * nodes,
            "tokens": 1e11,
        },
        "options": {"engines": ["torchtitan"]},
    } | more
    table = plan(PlanRequest.parse(asked))
    splits, launches = [], []
    for name in ("tp", "pp", "cp", "ep", "virtual_stages"):
        above = (row for row in table.order if (table.candidate(row).get(name) or 1) > 1)
        for row in [*table.order[:1], *[row for row in [next(above, None)] if row is not None]]:
            if table.candidate(row) not in splits:
                splits.append(table.candidate(row))
                launches.append(training_launch(*table.detail(row)))
    return splits, launches


DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def degrees(parallel: dict[str, int]) -> dict[str, int]:
    replicas = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
    named = {short: parallel[f"{name}_parallel_degree"] for short, name in DEGREES.items()}
    return named | {"dp": replicas}


EIGHT_BITS = (
    ("h100-sxm", "Float8Linear", "Float8GroupedExperts"),
    ("b200-sxm", "MXFP8Linear", "MXFP8GroupedExperts"),
)
"""Devices, and what their products in 8 bits are in torchtitan."""


@installed
@pytest.mark.nightly
def test_its_parser_reads_what_was_estimated(tmp_path: Path) -> None:
    """Of every kind of model, and of products in 8 bits; one parser for all: it starts slowly."""
    asked = [(model, *best_splits(model, nodes)) for model, (nodes, _) in CATALOG.items()]
    for device, *_ in EIGHT_BITS:
        for model in ("meta-llama/Llama-3.1-405B-Instruct", "deepseek-ai/DeepSeek-V3"):
            place, precise = {"device": device}, {"precision": "fp8"}
            found = best_splits(model, 256, place=place, candidate=precise)
            asked.append((model, found[0][:1], found[1][:1]))
    configs = iter(parsed([launch for _, _, found in asked for launch in found], tmp_path))
    for model, splits, _ in asked[: len(CATALOG)]:
        assert splits, model
        for split in splits:
            config = next(configs)
            read = degrees(config["parallelism"])
            assert read == {name: split.get(name) or 1 for name in read}
            assert config["model_spec"]["flavor"] == CATALOG[model][1]
            assert config["compile"]["components"] == ["model", "loss"]
    for _, linear, experts in EIGHT_BITS:
        dense, routed = (" ".join(next(configs)["kinds"]) for _ in range(2))
        assert linear in dense
        assert linear in routed
        assert experts in routed
    assert next(configs, None) is None
