"""FSDP's formulas against real transformers models, under FSDP2, tensor and pipeline parallel."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from recipe_core.base.units import GIB
from recipe_core.calibration.trace.text import training_trace_text
from recipe_core.calibration.trace.training import trace_many, trace_training
from recipe_core.model.catalog import load_model
from recipe_core.physics.training.memory import PARTS
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B-Instruct"
MIXTRAL, QWEN_MOE = "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"
PLAIN = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 8, "zero_stage": 3, "micro_batch": 1}
PLAIN |= {"recompute": "none"}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
        reason="NO ORACLE: the training formulas are not proven here; "
        'pip install "recipe-builder[torch]"',
    ),
]

CASES = table("trace", "training")
"""Llama 3.1 8B, 4096 tokens, one micro-batch a replica, torchtitan, unless it says otherwise."""
SIX = "FSDP 8, 6 layers, selective recomputation"


def request(
    model: str = LLAMA_8B,
    layers: int | None = None,
    sequence_length: int = 4096,
    global_batch: int | None = None,
    **split: Any,
) -> Any:
    """A request for one split of as many H200 as it takes, a micro-batch a replica unless said
    otherwise.
    """
    more = split.pop("more", {})
    candidate = PLAIN | split
    config = dict(load_model(model).config) | ({"num_hidden_layers": layers} if layers else {})
    devices = candidate["tp"] * candidate["pp"] * candidate["dp"]
    workload = {"kind": "training", "sequence_length": sequence_length}
    workload |= {"global_batch": global_batch or candidate["dp"]}
    return {
        "model": config if layers else model,
        "hardware": {"device": "h200-sxm", "per_node": 8, "nodes": max(1, devices // 8)},
        "workload": workload | more,
        "candidate": candidate,
    }


@pytest.fixture(scope="module")
def traces() -> dict[str, dict[str, Any]]:
    """All cases at once: most of a short trace is importing torch."""
    return traced()


def planned(asked: dict[str, Any]) -> tuple[Any, int]:
    """The columns of physics that hold the row of a request's split, and its place in them."""
    plan, row = plan_candidate(PlanRequest.parse(asked))
    return plan.detail(row)


def traced(names: Sequence[str] = tuple(CASES)) -> dict[str, dict[str, Any]]:
    """The trace of each case."""
    asked = [planned(request(**CASES[name])) for name in names]
    return dict(zip(names, trace_many(asked), strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_formulas_agree_with_the_traced_step(
    traces: dict[str, dict[str, Any]], name: str
) -> None:
    """Peak memory of every stage, and the bytes that every group exchanges."""
    differences = traces[name]["differences"]
    assert {"peak_memory"} < set(differences)
    assert all(abs(share) <= 0.05 for share in differences.values()), traces[name]


@pytest.mark.nightly
def test_all_but_one_in_a_hundred_is_explained_without_pipelines(
    traces: dict[str, dict[str, Any]],
) -> None:
    alone = [found["differences"] for found in traces.values() if len(found["stages"]) == 1]
    shares = sorted(abs(difference["peak_memory"]) for difference in alone)
    assert shares[len(shares) // 2] < 0.01


@pytest.mark.nightly
def test_the_steady_state_is_four_copies_of_a_shard(traces: dict[str, dict[str, Any]]) -> None:
    """fp32 parameters and AdamW's two moments stay; gradients come and go with a micro-batch."""
    stage = traces["FSDP 8"]["stages"][0]
    shard = load_model(LLAMA_8B).parameters / 8 * 4
    assert stage["parameters_bytes"] == pytest.approx(shard, rel=1e-3)
    assert stage["optimizer_bytes"] == pytest.approx(2 * shard, rel=1e-3)
    assert stage["gradients_bytes"] == 0
    hybrid = traces["HSDP 4 × 8, 2 micro-batches"]["stages"][0]
    assert hybrid["gradients_bytes"] == pytest.approx(shard, rel=1e-3)


@pytest.mark.nightly
def test_parameters_that_stay_are_gathered_once(traces: dict[str, dict[str, Any]]) -> None:
    """14.96 GiB a step; resharded ones twice, but the head."""
    stays, again = (
        traces[name]["stages"][0]["sent_bytes"]["shard"]
        for name in ("FSDP 8, parameters stay gathered (ZeRO-2)", "FSDP 8")
    )
    assert stays["all_gather"] / GIB == pytest.approx(14.958, abs=5e-3)
    assert again["all_gather"] / GIB == pytest.approx(2 * 14.958 - 0.979, abs=5e-3)
    assert stays["reduce_scatter"] == again["reduce_scatter"]
    assert stays["reduce_scatter"] == pytest.approx(2 * stays["all_gather"], rel=1e-6)


@pytest.mark.nightly
def test_early_stages_hold_more_micro_batches(traces: dict[str, dict[str, Any]]) -> None:
    """The two stages between the ends hold three and two: a micro-batch of two layers (Korthikanti
    et al.) more or less.
    """
    stages = traces["PP 4 × FSDP 4, 1F1B, 8 layers"]["stages"]
    first, second = (stage["activations_bytes"] for stage in stages[1:3])
    layer = 8 * 4096 + 4 * 32 * 128 + 4 * 8 * 128 + 4 * 32 + 6 * 14336
    assert first - second == pytest.approx(2 * layer * 4096, rel=0.1)


@pytest.mark.nightly
def test_extending_a_few_layers_is_tracing_them_all(traces: dict[str, dict[str, Any]]) -> None:
    """Six layers: from three and four, and one by one."""
    extended = traces[SIX]
    whole = trace_training(*planned(request(**CASES[SIX])), every_layer=True)
    assert (extended["layers_traced"], whole["layers_traced"]) == ([4], [6])
    assert extended["peak_bytes"] == pytest.approx(whole["peak_bytes"], rel=1e-3)
    few, all_ = (found["stages"][0]["sent_bytes"]["shard"] for found in (extended, whole))
    assert few == pytest.approx(all_, rel=1e-6)


@over("split said", table("trace", "untraced"))
def test_what_cannot_be_traced_is_named(split: dict[str, Any], said: str) -> None:
    assert said in str(refusal(trace_training, *planned(request(**split))))


def test_a_compiled_block_keeps_gate_up_and_their_product() -> None:
    """6f bytes a token after torch's own partitioner, 8f one operator at a time; both beside the
    block's input.
    """
    import torch
    from functorch.compile import aot_module, min_cut_rematerialization_partition
    from torch.nn.functional import silu

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = ((16, 48), (16, 48), (48, 16))
            self.gate, self.up, self.down = (
                torch.nn.Linear(*size, bias=False, dtype=torch.bfloat16) for size in sizes
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(silu(self.gate(x)) * self.up(x))

    block, x = Block(), torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    kept: dict[str, set[int]] = {"eager": set(), "compiled": set()}

    def forward(graph: torch.fx.GraphModule, _inputs: Any) -> torch.fx.GraphModule:
        answer = next(node for node in graph.graph.nodes if node.op == "output").args[0][1:]
        made = {node for node in answer if node.op != "placeholder"}
        kept["compiled"] = {node for node in made if tuple(node.meta["val"].shape) == (32, 48)}
        return graph

    def pack(item: torch.Tensor) -> torch.Tensor:
        kept["eager"] |= {item.data_ptr()} if tuple(item.shape) == (32, 48) else set()
        return item

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda item: item):
        block(x)
    aot_module(
        block,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )(x)
    assert (len(kept["eager"]), len(kept["compiled"])) == (4, 3)


def test_the_command_line_prints_formula_beside_trace(tmp_path: Any) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps(request(layers=2)))
    answer = json.loads(recipe("estimate", str(file), "--trace", "--json").stdout)
    formula = sum(answer["memory"][f"{part}_bytes"] for part in PARTS if part != "reserve")
    trace = answer["trace"]
    assert trace["peak_bytes"] == pytest.approx(formula, rel=0.05)
    difference = formula / trace["peak_bytes"] - 1
    assert trace["differences"]["peak_memory"] == pytest.approx(difference)
    exchanged = "exchanged bytes, formula against trace: shard +0.00%"
    assert exchanged in training_trace_text(trace)


def listed(found: dict[str, dict[str, Any]]) -> str:
    """The cases as the documentation lists them."""
    out = [
        "| case | devices | formula | trace | difference | exchanged |",
        "|---|---|---|---|---|---|",
    ]
    for name, trace in found.items():
        off, peak = trace["differences"], trace["peak_bytes"] / GIB
        traffic = max((share for key, share in off.items() if key.endswith("_traffic")), key=abs)
        sizes = f"{peak * (1 + off['peak_memory']):.2f} | {peak:.2f} | {off['peak_memory']:+.1%}"
        out.append(f"| {name} | {trace['devices']} | {sizes} | {traffic:+.1%} |")
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(f"{listed(traced())}\n")
