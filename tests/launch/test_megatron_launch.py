"""Megatron-LM's command line: parsed by its options, for models and splits of every kind."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch
from recipe_core.launch.training.start import training_launch
from recipe_core.model.catalog import catalog_model
from recipe_core.request.schema import PlanRequest
from recipe_core.search.megatron_model import megatron_model
from recipe_core.search.plans import plan_candidate
from tests.fixtures.paths import DATA

OPTIONS = DATA / "megatron-core_v0.15.0-options.txt"
"""Each option with its type (``flag``: none) and choices, as its parser has them."""
LLAMA, BIG, QWEN = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-405B", "Qwen/Qwen3-30B-A3B"
DEEPSEEK, MIXTRAL = "deepseek-ai/DeepSeek-V3", "mistralai/Mixtral-8x7B-v0.1"
TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool}
"""Of options whose words are read; the others' stay text."""
LISTED = ("moe_aux_loss_coeff", "moe_router_load_balancing_type")
"""Options that take several values, of which a bundle states one."""
SPLITS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    (LLAMA, 2, {"tp": 2, "pp": 2, "dp": 4}),
    (LLAMA, 2, {"tp": 2, "pp": 2, "dp": 4, "virtual_stages": 2}),
    (LLAMA, 2, {"tp": 1, "pp": 1, "dp": 16, "offload": "optimizer"}),
    (LLAMA, 2, {"tp": 1, "pp": 1, "dp": 16, "zero_stage": 3}),
    (LLAMA, 2, {"tp": 2, "cp": 2, "dp": 4, "precision": "fp8"}),
    (LLAMA, 2, {"tp": 2, "dp": 8, "recompute": "selective", "recompute_modules": ["layernorm"]}),
    (BIG, 16, {"tp": 8, "pp": 16, "dp": 1, "virtual_stages": 8}),
    ("Qwen/Qwen3-8B", 1, {"tp": 2, "dp": 4}),
    ("Qwen/Qwen2.5-7B", 1, {"tp": 4, "dp": 2}),
    ("mistralai/Mistral-7B-v0.1", 1, {"tp": 4, "dp": 2}),
    (MIXTRAL, 2, {"tp": 2, "pp": 2, "dp": 4, "ep": 4}),
    (QWEN, 2, {"pp": 2, "dp": 8, "ep": 8, "virtual_stages": 2, "overlap_experts": True}),
    (
        DEEPSEEK,
        32,
        {"pp": 16, "dp": 16, "ep": 16, "recompute": "selective"}
        | {"recompute_modules": ["mla_up_proj", "moe_act"]},
    ),
)


def launch(model: str, nodes: int, split: dict[str, Any]) -> Launch:
    candidate = {"engine": "megatron", "tp": 1, "pp": 1, "zero_stage": 1, "micro_batch": 1} | split
    work = {"global_batch": 512, "tokens": 1e9}
    request = {
        "model": model,
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": nodes},
        "workload": {"kind": "training", "sequence_length": 4096} | work,
        "candidate": candidate,
    }
    table, row = plan_candidate(PlanRequest.parse(request))
    return training_launch(*table.detail(row))


def words(started: Launch) -> list[str]:
    argv = started.processes[0].argv
    return list(argv[argv.index("pretrain_gpt") + 1 :])


def parser() -> argparse.ArgumentParser:
    """Megatron-LM's options, types and choices."""
    out = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for line in OPTIONS.read_text().splitlines():
        name, kind, *choices = line.split()
        if kind == "flag":
            if name != "--help":
                out.add_argument(name, action="store_true", default=None)
            continue
        listed = {"choices": choices[0].split(",")} if choices and kind.startswith("str") else {}
        many = {"nargs": kind[-1]} if kind[-1] in "*+" else {}
        out.add_argument(name, type=TYPES.get(kind.rstrip("*+"), str), **listed, **many)
    return out


@pytest.mark.parametrize(("model", "nodes", "split"), SPLITS)
def test_every_word_is_an_option_of_its_type(model: str, nodes: int, split: dict[str, Any]) -> None:
    started = launch(model, nodes, split)
    parsed = vars(parser().parse_args(words(started)))
    told = {name: value for name, value in parsed.items() if value is not None}
    expected = {name: value for name, value in started.options.items() if value is not False}
    expected |= {name: [expected[name]] for name in LISTED if name in expected}
    assert told == {k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()}
    assert megatron_model(catalog_model(model)).words.items() <= started.options.items()


@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="NOT TESTED: Megatron-LM's own parser; clone core_v0.15.0 and put it on PYTHONPATH",
)
def test_megatrons_own_parser_takes_it() -> None:
    arguments = pytest.importorskip("megatron.training.arguments")
    own = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    for model, nodes, split in SPLITS:
        parsed = own.parse_args(words(launch(model, nodes, split)))
        assert parsed.tensor_model_parallel_size == split.get("tp", 1)


def test_embedding_and_loss_are_layers_where_chunks_come_out_even_only_so() -> None:
    """Llama 3.1 405B: 126 layers and both ends are 128 chunks of 16 stages."""
    ends = {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}
    started = launch(BIG, 16, {"tp": 8, "pp": 16, "dp": 1, "virtual_stages": 8})
    assert ends <= started.options.keys()
    assert started.options["num_virtual_stages_per_pipeline_rank"] == 8
    assert "pipeline_model_parallel_layout" not in started.options
    even = launch(BIG, 2, {"tp": 8, "pp": 2, "dp": 1, "virtual_stages": 7})
    assert not ends & even.options.keys()
    listed = launch(DEEPSEEK, 2, {"pp": 4, "dp": 4, "ep": 4})
    assert listed.options["pipeline_model_parallel_layout"] == "Et*16|t*15|t*15|t*15L"
    assert not ends & listed.options.keys()


def test_selective_recomputation_is_told_by_its_modules() -> None:
    split = {"pp": 2, "dp": 8, "ep": 8, "recompute": "selective"}
    named = launch(DEEPSEEK, 2, split | {"recompute_modules": ["mla_up_proj", "layernorm"]})
    said = words(named)
    start = said.index("--recompute-modules")
    assert said[start + 1 : start + 3] == ["mla_up_proj", "layernorm"]
    plain = words(launch(LLAMA, 2, {"dp": 16, "recompute": "selective"}))
    assert plain[plain.index("--recompute-modules") + 1] == "core_attn"


SELECTIVE = {"dp": 16, "recompute": "selective"}
EXPERTS = {"dp": 16, "ep": 8}
REFUSED: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    (LLAMA, SELECTIVE | {"recompute_modules": ["moe_act"]}, "recompute_modules", "no experts"),
    (
        QWEN,
        EXPERTS | SELECTIVE | {"recompute_modules": ["mla_up_proj"]},
        "recompute_modules",
        "has no latent attention",
    ),
    (
        LLAMA,
        SELECTIVE | {"precision": "fp8", "recompute_modules": ["layernorm"]},
        "recompute_modules",
        "is scaled by earlier steps in fp8",
    ),
    (QWEN, EXPERTS | {"overlap_experts": True, "recompute": "full"}, "recompute", "full"),
    (QWEN, {"pp": 2, "dp": 8, "ep": 8, "overlap_experts": True}, "virtual_stages", "one chunk"),
    (QWEN, EXPERTS | {"precision": "fp16"}, "precision", "not in fp16"),
    ("mistralai/Mistral-7B-v0.1", {"cp": 2, "dp": 8}, "cp", "window"),
    (LLAMA, {"dp": 16, "zero_stage": 3, "offload": "optimizer"}, "zero_stage", "ZeRO-1 only"),
    ("allenai/OLMo-2-1124-7B-Instruct", {"dp": 16}, "engine", "model_type 'olmo2'"),
    ("Qwen/Qwen1.5-MoE-A2.7B", {"dp": 16}, "engine", "a gate on its shared expert"),
)


def test_what_it_cannot_be_told_is_named() -> None:
    for model, split, field, said in REFUSED:
        with pytest.raises(NoAnswer) as error:
            launch(model, 2, split)
        assert said in error.value.message
        assert error.value.field == f"candidate.{field}"
    with pytest.raises(NoAnswer, match="61 layers, or 63 with both ends, do not fill 8 chunks"):
        launch(DEEPSEEK, 2, {"pp": 4, "dp": 4, "ep": 4, "virtual_stages": 2})


def test_an_overlapped_exchange_of_tokens_has_its_words_and_connections() -> None:
    started = launch(QWEN, 2, {"dp": 16, "ep": 8, "overlap_experts": True})
    assert "--overlap-moe-expert-parallel-comm" in words(started)
    assert started.processes[0].env["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_the_optimizer_is_offloaded_with_what_it_needs() -> None:
    said = words(launch(LLAMA, 2, {"dp": 16, "offload": "optimizer"}))
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"} <= set(said)
