"""The memory formulas against real transformers models, run without data for one rank; those of
training under FSDP2, tensor and pipeline parallel.
"""

import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from oracle.text import training_trace_text
from oracle.training import trace_many, trace_training
from recipe_core.base.documents import to_yaml
from recipe_core.base.units import GIB
from recipe_core.estimates.training.memory import PARTS
from recipe_core.models.catalog import load_model_spec
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import row_estimates
from recipe_core.request.schema import PlanRequest
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.needs import needs
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA_BASE = "meta-llama/Llama-3.1-8B"
LLAMA_8B, LLAMA_70B = f"{LLAMA_BASE}-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
GPT_OSS, DEEPSEEK_V4 = "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V4-Flash"
GEMMA_2, GEMMA_3 = "google/gemma-2-9b-it", "google/gemma-3-1b-it"
QWEN_MOE, DEEPSEEK = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"
pytestmark = [pytest.mark.engine, needs("the memory formulas", "torch", "transformers")]
CASES, SIX = table("trace", "training"), "FSDP 8, 6 layers, selective recomputation"


@cache
def trace_of(request):
    from oracle import trace

    return trace(*plan_candidate(PlanRequest.parse(json.loads(request))))


def traced(model, tp=1, pp=1, dp=1, ep=1, **parts):
    """The trace of a split, made once."""
    workload = {"input_tokens": 1000, "output_tokens": 24, "concurrency": 4}
    candidate = {"engine": "vllm", "tp": tp, "pp": pp, "dp": dp, "ep": ep, "max_num_seqs": 256}
    place = request_values(model, "h200-sxm", 8, 2, workload=workload, candidate=candidate | parts)
    return trace_of(json.dumps(place, sort_keys=True))


@over("model tp pp dp ep", table("trace", "splits"), share=11)
def test_the_formulas_agree_with_the_traced_model(model, tp, pp, dp, ep):
    found = traced(model, tp, pp, dp, ep)
    assert found["differences"]["weights"] == pytest.approx(0, abs=0.01), found
    assert found["differences"]["kv"] == pytest.approx(0, abs=0.01), found


@pytest.mark.nightly
@over("model", [LLAMA_8B, QWEN_MOE, DEEPSEEK, GPT_OSS, GEMMA_2, GEMMA_3])
def test_a_request_holds_what_the_real_cache_holds(model):
    """Engines keep whole blocks of 16 tokens, one more in a sliding window."""
    found = traced(model, tp=1)
    windowed = model in (GPT_OSS, GEMMA_2, GEMMA_3)
    above = found["kv_request_bytes"] * found["differences"]["kv_request"]
    assert -1 <= above <= (2 * 16 * found["kv_bytes_per_token"] if windowed else 1)


@pytest.mark.nightly
def test_traces_repeat_what_was_traced_by_hand_and_count_latent_and_linear_layers_once():
    """Source: torch's MemTracker on DTensor-parallel models, byte-equal to a two-process run."""
    for model, tp, weights_gib, kv_bytes_per_token in (
        (LLAMA_8B, 1, 14.958, 131_072),
        (LLAMA_8B, 4, 3.740, 32_768),
        (LLAMA_70B, 8, 16.429, 40_960),
    ):
        found = traced(model, tp)
        assert found["weights_bytes"] / GIB == pytest.approx(weights_gib, abs=5e-4)
        assert found["kv_bytes_per_token"] == kv_bytes_per_token
    # What the real cache grows by a token is the formula; engines round pages up to 576 bytes.
    assert {traced(DEEPSEEK, tp)["kv_bytes_per_token"] for tp in (1, 8, 16)} == {61 * 576 * 2}
    for split in ({}, {"tp": 2}, {"tp": 8}, {"dp": 8, "ep": 8}, {"tp": 4, "pp": 2, "ep": 4}):
        found = traced(DEEPSEEK_V4, **split)
        assert found["differences"]["weights"] == pytest.approx(0, abs=1e-5), found
        if "pp" not in split:
            grown = 21 * (584 + 132) / 4 + 20 * 584 / 128
            assert found["kv_bytes_per_token"] == pytest.approx(grown)
            assert 0 < found["differences"]["kv"] < 0.02
    # Qwen3-Next, 3 linear layers and 1 full: 32 fp32 or bf16 states of 128 × 128 a linear layer,
    # whatever the length.
    found = traced(table("trace", "configs")["linear"])
    state = found["kv_request_bytes"] - 1024 * found["kv_bytes_per_token"]
    assert found["kv_bytes_per_token"] == 2 * 2 * 64 * 2
    assert 3 * 32 * 128 * 128 * 2 < state < 3 * 32 * 128 * 128 * 4 * 1.2


def test_traces_are_those_of_a_rank_and_say_how_they_were_made(tiny_config):
    splits = ((LLAMA_8B, 8, 8), (LLAMA_8B, 8, 16), (QWEN_MOE, 4, 2), (QWEN_MOE, 4, 8))
    for model, kv_heads, tp in splits:
        found = traced(model, tp)
        assert found["kv_bytes_per_token"] == found["layers"] * max(1, kv_heads // tp) * 2 * 128 * 2
        assert ("replicate them" in found["method"]) == (tp > kv_heads)
    found = traced(LLAMA_8B, pp=2)
    assert (found["layers"], found["stage"]) == (16, 1)
    assert found["weights_bytes"] == 16 * 436_224_000 + 4096 * 2 + 128_256 * 4096 * 2
    assert found["activations_peak_bytes"] > found["layers_peak_bytes"] - 1
    # Embedding, residual and normed input (h each), gate, its activation and up (f / tp each), of
    # 2 bytes a token.
    for tp in (1, 2):  # beyond, the fp32 copies of an unfused norm are more
        found = traced(LLAMA_8B, tp, max_batched_tokens=8192)
        peak = 8192 * 2 * (3 * 4096 + 3 * 14336 / tp)
        assert found["layers_peak_bytes"] == pytest.approx(peak, rel=0.02)
    # OLMo 2 norms Q and K over all heads: transformers' plan caches every head on every rank,
    # engines a rank's own.
    for tp in (4, 8):
        found = traced(tiny_config | {"model_type": "olmo2"}, tp)
        assert found["kv_bytes_per_token"] == 4 * 2 * 32 * 2
        assert abs(found["differences"]["weights"]) < 0.01
    method = traced(tiny_config | {"model_type": "phi3"}, tp=2)["method"]
    for said in ("transformers gathers", "model.layers.*.self_attn.qkv_proj"):
        assert said in method
    found = traced(DEEPSEEK, tp=8)
    assert found["weight_dtype"] == "bf16"
    assert "fp8-block weights are traced, and compared, as bf16." in found["method"]
    for model, tp, said in (
        (tiny_config | {"model_type": "own_make"}, 1, "no model_type 'own_make'"),
        (DEEPSEEK_V4, 16, "8 output groups are not divisible by TP 16"),
    ):
        assert said in str(refusal(traced, model, tp))
    found = traced(table("trace", "configs")["multimodal"], tp=2)
    assert found["method"].startswith("Gemma3ForCausalLM")
    assert found["layers_traced"] == 2
    assert abs(found["differences"]["weights"]) < 0.01


def test_without_torch_the_error_names_the_install_command_and_importing_needs_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    trace_of.cache_clear()
    assert "pip install" in str(refusal(traced, LLAMA_8B))
    code = "import sys, oracle as _; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    assert not {b"torch", b"transformers"} & set(loaded.split())


@pytest.mark.nightly
def test_the_command_line_prints_formula_beside_trace(tmp_path):
    split = {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1}
    request = to_yaml(request_values(LLAMA_8B, candidate=split))
    done = recipe("estimate", "-", "--trace", "--json", stdin=request)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    weights = answer["memory"]["weights_bytes"]
    assert answer["trace"]["weights_bytes"] == pytest.approx(weights, rel=0.01)
    assert "traced in" in recipe("estimate", "-", "--trace", stdin=request, columns=200).stdout
    file = tmp_path / "train.json"
    file.write_text(json.dumps(step_request(layers=2)))
    answer = json.loads(recipe("estimate", str(file), "--trace", "--json").stdout)
    formula = sum(answer["memory"][f"{part}_bytes"] for part in PARTS if part != "reserve")
    trace = answer["trace"]
    assert trace["peak_bytes"] == pytest.approx(formula, rel=0.05)
    difference = formula / trace["peak_bytes"] - 1
    assert trace["differences"]["peak_memory"] == pytest.approx(difference)
    assert "exchanged bytes, formula against trace: shard +0.00 %" in training_trace_text(trace)


def step_request(model=LLAMA_BASE, layers=None, sequence_length=4096, global_batch=None, **split):
    """A request for one split of as many H200 as it takes, a micro-batch a replica unless said
    otherwise.
    """
    more = split.pop("more", {})
    candidate = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 8, "zero_stage": 3}
    candidate |= {"micro_batch": 1, "recompute": "none"} | split
    config = dict(load_model_spec(model).config) | ({"num_hidden_layers": layers} if layers else {})
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
def traces():
    """All cases at once: most of a short trace is importing torch."""
    return traced_steps()


def planned(asked):
    """The columns of physics that hold the row of a request's split, and its place in them."""
    plan, row = plan_candidate(PlanRequest.parse(asked))
    return row_estimates(plan, row)


def traced_steps():
    """The trace of each case."""
    steps = trace_many([planned(step_request(**case)) for case in CASES.values()])
    return dict(zip(CASES, steps, strict=True))


@pytest.mark.nightly
@over("name", CASES)
def test_the_formulas_agree_with_the_traced_step(traces, name):
    """Peak memory of every stage, and the bytes that every group exchanges."""
    differences = traces[name]["differences"]
    assert {"peak_memory"} < set(differences)
    assert all(abs(share) <= 0.05 for share in differences.values()), traces[name]


@pytest.mark.nightly
def test_a_traced_step_holds_and_sends_what_is_published_of_fsdp_and_pipelines(traces):
    """fp32 parameters and AdamW's two moments stay; gradients come and go with a micro-batch."""
    stage = traces["FSDP 8"]["stages"][0]
    hybrid = traces["HSDP 4 × 8, 2 micro-batches"]["stages"][0]
    shard = load_model_spec(LLAMA_BASE).parameters / 8 * 4
    assert stage["parameters_bytes"] == pytest.approx(shard, rel=1e-3)
    assert stage["optimizer_bytes"] == pytest.approx(2 * shard, rel=1e-3)
    assert stage["gradients_bytes"] == 0
    assert hybrid["gradients_bytes"] == pytest.approx(shard, rel=1e-3)
    # 14.96 GiB a step; resharded ones twice, but the head.
    stays, again = (
        traces[name]["stages"][0]["sent_bytes"]["shard"]
        for name in ("FSDP 8, parameters stay gathered (ZeRO-2)", "FSDP 8")
    )
    assert stays["all_gather"] / GIB == pytest.approx(14.958, abs=5e-3)
    assert again["all_gather"] / GIB == pytest.approx(2 * 14.958 - 0.979, abs=5e-3)
    assert stays["reduce_scatter"] == again["reduce_scatter"]
    assert stays["reduce_scatter"] == pytest.approx(2 * stays["all_gather"], rel=1e-6)
    # The two stages between the ends hold three and two: a micro-batch of two layers (Korthikanti
    # et al.) more or less.
    stages = traces["PP 4 × FSDP 4, 1F1B, 8 layers"]["stages"]
    layer = 8 * 4096 + 4 * 32 * 128 + 4 * 8 * 128 + 4 * 32 + 6 * 14336
    more = stages[1]["activations_bytes"] - stages[2]["activations_bytes"]
    assert more == pytest.approx(2 * layer * 4096, rel=0.1)
    # without pipelines, all but one in a hundred is explained
    alone = [found["differences"] for found in traces.values() if len(found["stages"]) == 1]
    assert np.median([abs(difference["peak_memory"]) for difference in alone]) < 0.01
    # Six layers: from three and four, and one by one.
    extended = traces[SIX]
    whole = trace_training(*planned(step_request(**CASES[SIX])), every_layer=True)
    assert (extended["layers_traced"], whole["layers_traced"]) == ([4], [6])
    assert extended["peak_bytes"] == pytest.approx(whole["peak_bytes"], rel=1e-3)
    few, all_ = (found["stages"][0]["sent_bytes"]["shard"] for found in (extended, whole))
    assert few == pytest.approx(all_, rel=1e-6)


@over("split said", table("trace", "untraced"), share=2)
def test_what_cannot_be_traced_is_named(split, said):
    assert said in str(refusal(trace_training, *planned(step_request(**split))))


@pytest.mark.nightly
def test_a_compiled_block_keeps_gate_up_and_their_product():
    """6f bytes a token after torch's own partitioner, 8f one operator at a time; both beside the
    block's input.
    """
    import torch
    from functorch.compile import aot_module, min_cut_rematerialization_partition
    from torch.nn.functional import silu

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = ((16, 48), (16, 48), (48, 16))
            self.gate, self.up, self.down = (
                torch.nn.Linear(*size, bias=False, dtype=torch.bfloat16) for size in sizes
            )

        def forward(self, x):
            return self.down(silu(self.gate(x)) * self.up(x))

    block, x = Block(), torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    eager, compiled = set(), set()

    def forward(graph, _inputs):
        kept = next(node for node in graph.graph.nodes if node.op == "output").args[0][1:]
        made = (node for node in kept if node.op != "placeholder")
        compiled.update(node for node in made if tuple(node.meta["val"].shape) == (32, 48))
        return graph

    def pack(item):
        if tuple(item.shape) == (32, 48):
            eager.add(item.data_ptr())
        return item

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda item: item):
        block(x)
    aot_module(
        block,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )(x)
    assert (len(eager), len(compiled)) == (4, 3)


def listed(found):
    """The cases as the documentation lists them."""
    out = ["| case | devices | formula | trace | difference | exchanged |", "|---" * 6 + "|"]
    for name, trace in found.items():
        off, peak = trace["differences"], trace["peak_bytes"] / GIB
        traffic = max((share for key, share in off.items() if key.endswith("_traffic")), key=abs)
        sizes = f"{peak * (1 + off['peak_memory']):.2f} | {peak:.2f} | {off['peak_memory']:+.1%}"
        out.append(f"| {name} | {trace['devices']} | {sizes} | {traffic:+.1%} |")
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(f"{listed(traced_steps())}\n")
