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

from recipe_core.engines.training_programs import program_facts, training_engine
from recipe_core.launch.process import Launch
from recipe_core.launch.start import training_launch
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.splits import row_estimates
from recipe_core.request.schema import PlanRequest
from tests.fixtures.paths import DATA, FIXTURES, ROOT
from tests.fixtures.ports import free_port
from tests.fixtures.rows import table

SHIMS = FIXTURES / "titan"

MODELS = json.loads((DATA / "torchtitan_models.json").read_text())
"""Small models of the kinds that torchtitan trains, as config.json has them."""
CATALOG = table("torchtitan", "catalog")
"""Models of the catalog, nodes of eight that train them, and the flavour that they are."""
PYTHON = Path(os.environ.get("TORCHTITAN_PYTHON") or ROOT / ".venv-torchtitan" / "bin" / "python")
installed = pytest.mark.skipif(
    not PYTHON.is_file(),
    reason="NOT TESTED: starting torchtitan, because there is none (make test-torchtitan)",
)


def run(words: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=900, **settings)


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
    torch = program_facts().bases["cuda"][container.base].torch
    assert f'"{" ".join((f"torch=={torch}", *container.packages))}"' in script


@installed
@pytest.mark.nightly
@pytest.mark.torchrun
@pytest.mark.parametrize(("model", "split"), table("torchtitan", "trained"))
def test_a_rendered_bundle_trains(tmp_path, request, model, split):
    """Every word as rendered, on gloo: two steps, a checkpoint, and the weights at the end."""
    if "pp" in split:
        reason = "on gloo FSDP of torch 2.14 scatters no gradients of two types in a pipeline"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    workload = {"kind": "training", "sequence_length": 256, "global_batch": 2}
    plain = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 1}
    asked = {
        "model": MODELS[model],
        "hardware": {"device": "h100-sxm", "per_node": 2, "nodes": 1},
        "workload": workload | {"tokens": 2 * 2 * 256},
        "candidate": plain | split,
    }
    found, row = plan_candidate(PlanRequest.parse(asked))
    launch = training_launch(*row_estimates(found, row))
    fill = unpacked(launch, tmp_path)
    tokenizer(tmp_path / "model")
    env = os.environ | {
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SHIMS),
        "TORCHDYNAMO_DISABLE": "1",  # no compiler is needed to see that the words work
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [fill(word) for word in launch.processes[0].argv]
    done = run(words, cwd=tmp_path, env=env)
    log = re.sub(r"\x1b\[[\d;]*m", "", done.stderr + done.stdout)
    assert done.returncode == 0, log[-4000:]
    losses = [float(loss) for loss in re.findall(r"step: +\d+ +loss: +([\d.]+)", log)]
    assert losses, log[-4000:]
    assert all(2 < loss < 12 for loss in losses)
    assert (tmp_path / "run" / "checkpoint" / "step-2").is_dir()


def parsed(launches: list[Launch], folder: Path) -> list[dict[str, Any]]:
    """The configurations that torchtitan would start with."""
    lines = []
    for number, launch in enumerate(launches):
        root = folder / str(number)
        fill = unpacked(launch, root)
        argv = launch.processes[0].argv
        words = [fill(word) for word in argv[argv.index("${root}/train.py") + 1 :]]
        lines.append(json.dumps({"script": str(root / "train.py"), "words": words}))
    done = run([str(PYTHON), str(SHIMS / "parse.py")], input="\n".join(lines))
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def best_splits(model: str, nodes: int, **more: Any) -> tuple[list[dict[str, Any]], list[Launch]]:
    """The best split of a model for every degree that torchtitan has."""
    asked = {
        "model": model,
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": nodes} | more.pop("place", {}),
        "workload": {"kind": "training", "sequence_length": 4096, "tokens": 1e11}
        | {"global_batch": 16 * nodes},
        "options": {"engines": ["torchtitan"]},
    } | more
    found = plan_splits(PlanRequest.parse(asked))
    splits, launches = [], []
    for name in ("tp", "pp", "cp", "ep", "virtual_stages"):
        above = (row for row in found.order if (found.candidate(row).get(name) or 1) > 1)
        for row in [*found.order[:1], *[row for row in [next(above, None)] if row is not None]]:
            if found.candidate(row) not in splits:
                splits.append(found.candidate(row))
                launches.append(training_launch(*row_estimates(found, row)))
    return splits, launches


DEGREES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


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
            names = config["parallelism"]
            read = {short: names[f"{name}_parallel_degree"] for short, name in DEGREES.items()}
            copies = names["data_parallel_replicate_degree"]
            read["dp"] = copies * names["data_parallel_shard_degree"]
            assert read == {name: split.get(name) or 1 for name in read}
            assert config["model_spec"]["flavor"] == CATALOG[model][1]
            assert config["compile"]["components"] == ["model", "loss"]
    for _, linear, experts in EIGHT_BITS:
        dense, routed = (" ".join(next(configs)["kinds"]) for _ in range(2))
        assert linear in dense
        assert linear in routed
        assert experts in routed
    assert next(configs, None) is None
