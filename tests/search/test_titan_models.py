"""Which models of the catalog torchtitan ships, and what is rendered for them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from recipe_core.engines.training_programs import training_engine
from recipe_core.launch.process import Launch
from recipe_core.launch.training.start import launch_reasons, training_launch
from recipe_core.model.catalog import catalog_ids, catalog_model
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.titan_models import (
    reads_checkpoint,
    shipped_configuration,
    titan_facts,
    unlike_shipped,
)

PLAIN = {"engine": "torchtitan", "tp": 1, "pp": 1, "zero_stage": 3, "micro_batch": 1}
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
V3 = "deepseek-ai/DeepSeek-V3"


def request(model: str, device: str, nodes: int, **parts: Any) -> PlanRequest:
    workload = {"sequence_length": 4096, "global_batch": 16 * nodes, "tokens": 1e11}
    asked = {
        "model": model,
        "hardware": {"device": device, "per_node": 8, "nodes": nodes},
        "workload": {"kind": "training"} | workload | parts.pop("workload", {}),
    }
    return PlanRequest.parse(asked | parts)


def detail(model: str, split: Any, device: str = "h100-sxm", **workload: Any) -> Any:
    """A split of a run as launches are made of."""
    asked = request(model, device, 128, candidate=PLAIN | split, workload=workload)
    table, row = plan_candidate(asked)
    return table.detail(row)


def launched(model: str, device: str = "h100-sxm", **split: Any) -> Launch:
    return training_launch(*detail(model, split, device))


def test_a_model_that_is_equal_is_found() -> None:
    titles = {
        LLAMA_8B: "llama3 8B",
        "meta-llama/Llama-3.1-405B-Instruct": "llama3 405B",
        "Qwen/Qwen3-4B": "qwen3 4B",
        "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3 235B-A22B",
        "Qwen/Qwen3.5-397B-A17B": "qwen3_5 397B-A17B",
        "deepseek-ai/DeepSeek-V2-Lite": "deepseek_v3 16B",
        V3: "deepseek_v3 671B",
        "deepseek-ai/DeepSeek-R1": "deepseek_v3 671B",
        "openai/gpt-oss-20b": "gpt_oss 20b",
        "openai/gpt-oss-120b": "gpt_oss 120b",
        "moonshotai/Kimi-K2.5": "kimi_k2_7 Kimi-K2.5",
        "moonshotai/Moonlight-16B-A3B-Instruct": "kimi_k2_7 moonlight-16B-A3B",
    }
    found = {name: shipped_configuration(catalog_model(name)) for name in titles}
    assert {name: shipped and shipped.title for name, shipped in found.items()} == titles
    # of the release that is launched
    assert titan_facts().version == training_engine("torchtitan").version


def test_a_model_that_is_not_is_refused_by_what_differs() -> None:
    for model, difference in (
        ("meta-llama/Llama-3.2-1B-Instruct", "llama3 1B, the closest, has rope_factor 8, not 32"),
        ("meta-llama/Meta-Llama-3-8B", "llama3 8B, the closest, has rope_scaling llama3, not none"),
        ("Qwen/Qwen3.5-0.8B", "tied_embeddings false, not true"),
        ("Qwen/Qwen3-Embedding-0.6B", "vocabulary 151936, not 151669"),
        ("moonshotai/Kimi-K2-Thinking", "vision true, not false"),
        ("huggyllama/llama-7b", "and 1 more"),
        ("mistralai/Mixtral-8x7B-v0.1", "it ships llama3, qwen3"),
    ):
        spec = catalog_model(model)
        assert shipped_configuration(spec) is None
        assert difference in unlike_shipped(spec)


def test_equal_models_have_equal_parameters() -> None:
    """A flavour's own name says how many: what is compared leaves nothing of size out."""
    sizes: dict[str, set[int]] = {}
    for model in map(catalog_model, catalog_ids()):
        if (found := shipped_configuration(model)) is not None:
            sizes.setdefault(found.title, set()).add(model.language_parameters)
    assert len(sizes) > 20
    assert {title for title, counts in sizes.items() if len(counts) > 1} == set()


def test_a_stored_format_is_read_or_refused() -> None:
    for model, reads in (
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B-FP8", False),
        ("Qwen/Qwen3-8B-AWQ", False),
        (V3, True),
        ("nvidia/DeepSeek-V3.1-NVFP4", False),
        ("openai/gpt-oss-20b", True),
    ):
        assert reads_checkpoint(catalog_model(model)) is reads
        split = detail(model, {"recompute": "full"}, method="finetune")
        assert ("which is stored in" in " ".join(launch_reasons(*split))) is not reads
        if reads and catalog_model(model).quantization:
            words = training_launch(*split).processes[0].argv
            assert "--checkpoint.initial-load-in-hf-quantized" in words


@pytest.mark.parametrize("model", [V3, "openai/gpt-oss-120b"])
@pytest.mark.parametrize(
    ("device", "nodes"),
    [pytest.param("h100-sxm", 256, marks=pytest.mark.nightly), ("b200-sxm", 128)],
)
def test_large_models_with_experts_have_a_bundle(model: str, device: str, nodes: int) -> None:
    table = plan(request(model, device, nodes))
    best = table.order[0]
    assert table.candidate(best)["engine"] == "torchtitan"
    assert len(training_launch(*table.detail(best)).processes) == nodes


def call(launch: Launch) -> ast.Call:
    """The call of ``model_registry`` in a bundle's script."""
    tree = ast.parse(launch.files["train.py"])
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return next(node for node in calls if getattr(node.func, "id", "") == "model_registry")


def keywords(launch: Launch) -> dict[str, str]:
    return {word.arg or "": ast.unparse(word.value) for word in call(launch).keywords}


@pytest.mark.parametrize(
    ("device", "kind"), [("h100-sxm", "Float8"), ("mi325x", "Float8"), ("b200-sxm", "MXFP8")]
)
def test_products_in_eight_bits_have_the_devices_converters(device: str, kind: str) -> None:
    launch = launched(V3, device, precision="fp8", ep=8, recompute="full")
    said = keywords(launch)["converters"]
    assert f"{kind}LinearConverter" in said
    assert f"{kind}GroupedExpertsConverter" in said
    assert "torchao" in launch.requires
    dense = launched(LLAMA_8B, device, precision="fp8")
    assert "Experts" not in keywords(dense)["converters"]
    assert "converters" not in keywords(launched(LLAMA_8B, device))


def test_ranks_of_one_sequence_share_blocks_of_attention() -> None:
    for cp, kernel in ((1, "'varlen'"), (2, "'flex'")):
        launch = launched("openai/gpt-oss-20b", cp=cp, recompute="full")
        assert keywords(launch)["attn_backend"] == kernel
        assert ast.unparse(call(launch).args[0]) == "'20b'"


def test_what_it_cannot_be_told_of_a_split_is_said() -> None:
    for model, split, length, said in (
        ("Qwen/Qwen3-235B-A22B", {"tp": 8}, 4096, "4 key/value heads are not divisible by tp 8"),
        ("moonshotai/Kimi-K2.5", {"cp": 2}, 4096, "cut sequences of moonshotai/Kimi-K2.5"),
        ("Qwen/Qwen3-32B", {"cp": 4}, 4224, "4,224 tokens are not divisible by 512: cp 4"),
        (V3, {"pp": 8, "virtual_stages": 4}, 4096, "do not fill 32 chunks"),
    ):
        parts = detail(model, split, global_batch=8192, sequence_length=length)
        assert said in " ".join(launch_reasons(*parts))


def test_layers_are_dealt_out_over_any_number_of_stages() -> None:
    """61 layers over 16: five more than four of a stage, which torchtitan does by itself."""
    for pp, chunks, schedule in ((16, 1, "1f1b"), (8, 2, "interleaved")):
        split = {"pp": pp, "ep": 32, "virtual_stages": chunks, "recompute": "full"}
        launch = launched(V3, **split, schedule=schedule)
        assert launch.options.get("parallelism.pipeline-parallel-layers-per-stage") is None
