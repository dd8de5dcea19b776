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
from tests.fixtures.rows import over, table

PLAIN = {"engine": "torchtitan", "tp": 1, "pp": 1, "zero_stage": 3, "micro_batch": 1}
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
V3 = "deepseek-ai/DeepSeek-V3"
PLACES = (("b200-sxm", 128), ("h100-sxm", 256))


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
    splits, row = plan_candidate(asked)
    return splits.detail(row)


def launched(model: str, device: str = "h100-sxm", **split: Any) -> Launch:
    return training_launch(*detail(model, split, device))


def test_a_model_that_is_equal_is_found() -> None:
    titles = table("titan_models", "shipped")
    found = {name: shipped_configuration(catalog_model(name)) for name in titles}
    assert {name: shipped and shipped.title for name, shipped in found.items()} == titles
    # of the release that is launched
    assert titan_facts().version == training_engine("torchtitan").version


@over("model difference", table("titan_models", "unlike").items())
def test_a_model_that_is_not_is_refused_by_what_differs(model: str, difference: str) -> None:
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


@over("model reads", table("titan_models", "read").items())
def test_a_stored_format_is_read_or_refused(model: str, reads: bool) -> None:
    assert reads_checkpoint(catalog_model(model)) is reads
    split = detail(model, {"recompute": "full"}, method="finetune")
    assert ("which is stored in" in " ".join(launch_reasons(*split))) is not reads
    if reads and catalog_model(model).quantization:
        words = training_launch(*split).processes[0].argv
        assert "--checkpoint.initial-load-in-hf-quantized" in words


LARGE = [(model, *place) for place in PLACES for model in (V3, "openai/gpt-oss-120b")]


@over("model device nodes", LARGE, share=4)
def test_large_models_with_experts_have_a_bundle(model: str, device: str, nodes: int) -> None:
    splits = plan(request(model, device, nodes))
    best = splits.order[0]
    assert splits.candidate(best)["engine"] == "torchtitan"
    assert len(training_launch(*splits.detail(best)).processes) == nodes


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


def test_ranks_of_a_sequence_share_blocks_and_layers_are_dealt_out_over_stages() -> None:
    for cp, kernel in ((1, "'varlen'"), (2, "'flex'")):
        launch = launched("openai/gpt-oss-20b", cp=cp, recompute="full")
        assert keywords(launch)["attn_backend"] == kernel
        assert ast.unparse(call(launch).args[0]) == "'20b'"
    # 61 layers over 16: five more than four of a stage, which torchtitan does by itself.
    for pp, chunks, schedule in ((16, 1, "1f1b"), (8, 2, "interleaved")):
        split = {"pp": pp, "ep": 32, "virtual_stages": chunks, "recompute": "full"}
        launch = launched(V3, **split, schedule=schedule)
        assert launch.options.get("parallelism.pipeline-parallel-layers-per-stage") is None


@over("model split length said", table("titan_models", "split"))
def test_what_it_cannot_be_told_of_a_split_is_said(
    model: str, split: dict[str, Any], length: int, said: str
) -> None:
    parts = detail(model, split, global_batch=8192, sequence_length=length)
    assert said in " ".join(launch_reasons(*parts))
