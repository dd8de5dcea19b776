"""The memory formulas against real transformers models, run without data for one rank."""

from __future__ import annotations

import builtins
import importlib.util
import json
import subprocess
import sys
from functools import cache

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.base.units import GIB
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
QWEN_MOE, MIXTRAL = "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-Instruct-v0.1"
GPT_OSS, DEEPSEEK_V4 = "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V4-Flash"
GEMMA_2, GEMMA_3 = "google/gemma-2-9b-it", "google/gemma-3-1b-it"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"

BLOCK_TOKENS = 16

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
        reason="NO ORACLE: the memory formulas are not proven here; "
        'pip install "recipe-builder[torch]"',
    ),
]


@cache
def trace_of(request):
    from recipe_core.calibration.trace import trace

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
@pytest.mark.parametrize("model", [LLAMA_8B, QWEN_MOE, DEEPSEEK, GPT_OSS, GEMMA_2, GEMMA_3])
def test_a_request_holds_what_the_real_cache_holds(model):
    """Engines keep whole blocks, one more in a sliding window; without windows nothing differs."""
    found = traced(model, tp=1)
    windowed = model in (GPT_OSS, GEMMA_2, GEMMA_3)
    block = BLOCK_TOKENS * found["kv_bytes_per_token"]
    above = found["kv_request_bytes"] * found["differences"]["kv_request"]
    assert -1 <= above <= (2 * block if windowed else 1)


@pytest.mark.nightly
def test_the_trace_repeats_what_was_traced_by_hand():
    """Source: torch's MemTracker on DTensor-parallel models, byte-equal to a two-process run."""
    for model, tp, weights_gib, kv_bytes_per_token in (
        (LLAMA_8B, 1, 14.958, 131_072),
        (LLAMA_8B, 4, 3.740, 32_768),
        (LLAMA_70B, 8, 16.429, 40_960),
    ):
        found = traced(model, tp)
        assert found["weights_bytes"] / GIB == pytest.approx(weights_gib, abs=5e-4)
        assert found["kv_bytes_per_token"] == kv_bytes_per_token


def test_kv_heads_are_repeated_once_ranks_outnumber_them():
    for model, kv_heads, tp, heads in (
        (LLAMA_8B, 8, 8, 1),
        (LLAMA_8B, 8, 16, 1),
        (QWEN_MOE, 4, 2, 2),
        (QWEN_MOE, 4, 8, 1),
    ):
        found = traced(model, tp)
        assert found["kv_bytes_per_token"] == found["layers"] * heads * 2 * 128 * 2
        assert ("replicate them" in found["method"]) == (tp > kv_heads)


@pytest.mark.nightly
def test_a_latent_cache_and_a_compressed_past_are_whole_on_every_rank():
    """What the real cache grows by a token is the formula; engines round pages up to 576 bytes."""
    assert {traced(DEEPSEEK, tp)["kv_bytes_per_token"] for tp in (1, 8, 16)} == {61 * 576 * 2}
    for split in ({}, {"tp": 2}, {"tp": 8}, {"dp": 8, "ep": 8}, {"tp": 4, "pp": 2, "ep": 4}):
        found = traced(DEEPSEEK_V4, **split)
        assert found["differences"]["weights"] == pytest.approx(0, abs=1e-5), found
        if "pp" not in split:
            grown = 21 * (584 + 132) / 4 + 20 * 584 / 128
            assert found["kv_bytes_per_token"] == pytest.approx(grown)
            assert 0 < found["differences"]["kv"] < 0.02


def test_the_method_says_what_is_traced_and_what_cannot_be(tiny_config):
    method = traced(tiny_config | {"model_type": "phi3"}, tp=2)["method"]
    assert "transformers gathers" in method
    assert "model.layers.*.self_attn.qkv_proj" in method
    found = traced(DEEPSEEK, tp=8)
    assert found["weight_dtype"] == "bf16"
    assert "fp8-block weights are traced, and compared, as bf16." in found["method"]
    unknown = refusal(traced, tiny_config | {"model_type": "own_make"})
    assert "no model_type 'own_make'" in str(unknown)
    said = str(refusal(traced, DEEPSEEK_V4, tp=16))
    assert "8 output groups are not divisible by tp 16" in said
    found = traced(table("trace", "configs")["multimodal"], tp=2)
    assert found["method"].startswith("Gemma3ForCausalLM")
    assert found["layers_traced"] == 2
    assert abs(found["differences"]["weights"]) < 0.01


@pytest.mark.nightly
def test_the_state_of_linear_layers_is_counted_once_a_sequence():
    """Qwen3-Next, 3 linear layers and 1 full: 32 fp32 or bf16 states of 128 × 128 a linear layer,
    whatever the length.
    """
    found = traced(table("trace", "configs")["linear"])
    state = found["kv_request_bytes"] - 1024 * found["kv_bytes_per_token"]
    assert found["kv_bytes_per_token"] == 2 * 2 * 64 * 2
    assert 3 * 32 * 128 * 128 * 2 < state < 3 * 32 * 128 * 128 * 4 * 1.2


def test_a_stage_has_its_share_of_layers_and_the_head():
    found = traced(LLAMA_8B, pp=2)
    assert (found["layers"], found["stage"]) == (16, 1)
    assert found["weights_bytes"] == 16 * 436_224_000 + 4096 * 2 + 128_256 * 4096 * 2
    assert found["activations_peak_bytes"] > found["layers_peak_bytes"] - 1


@pytest.mark.parametrize("tp", [1, 2])  # beyond, the fp32 copies of an unfused norm are more
def test_the_peak_of_dense_layers_is_what_the_formula_takes(tp):
    """Embedding, residual and normed input (h each), gate, its activation and up (f / tp each), of
    2 bytes a token.
    """
    found = traced(LLAMA_8B, tp, max_batched_tokens=8192)
    assert found["layers_peak_bytes"] == pytest.approx(
        8192 * 2 * (3 * 4096 + 3 * 14336 / tp), rel=0.02
    )


@pytest.mark.parametrize("tp", [4, 8])
def test_heads_are_cut_where_transformers_would_gather_them(tiny_config, tp):
    """OLMo 2 norms Q and K over all heads: transformers' plan caches every head on every rank,
    engines a rank's own.
    """
    found = traced(tiny_config | {"model_type": "olmo2"}, tp)
    assert found["kv_bytes_per_token"] == 4 * 2 * 32 * 2
    assert abs(found["differences"]["weights"]) < 0.01


def test_without_torch_the_error_names_the_install_command_and_importing_needs_none(monkeypatch):
    real = builtins.__import__

    def without_torch(name, *args, **kwargs):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    trace_of.cache_clear()
    assert "pip install" in str(refusal(traced, LLAMA_8B))
    code = (
        "import sys, recipe_core.calibration.trace; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_adds_the_trace():
    split = {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1}
    request = to_yaml(request_values(LLAMA_8B, candidate=split))
    done = recipe("estimate", "-", "--trace", "--json", stdin=request)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    weights = answer["memory"]["weights_bytes"]
    assert answer["trace"]["weights_bytes"] == pytest.approx(weights, rel=0.01)
    assert "traced in" in recipe("estimate", "-", "--trace", stdin=request, columns=200).stdout
