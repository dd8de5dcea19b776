"""Memory questions that calculators get wrong, and engines' own rules."""

import pytest

from recipe_core.search.plans import plan_candidate
from tests.conftest import make_request
from tests.fixtures.catalogues import table
from tests.fixtures.rows import over

LLAMA_8B, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"


def verdict(model, device="h100-sxm", workload=None, **candidate):
    """What refuses a split, and its memory."""
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1} | candidate
    request = make_request(model, device, 8, workload=workload or {}, candidate=split)
    found, row = plan_candidate(request)
    return found.reasons(row), found.estimate(row).to_json()["memory"]


EXPERTS_20B = 24 * 32 * 3 * 2880 * 2880 * (0.5 + 1 / 32)


@pytest.mark.parametrize(
    ("device", "tp", "hidden", "width"),
    [
        ("h100-sxm", 1, 2880, 2880),
        ("h100-sxm", 4, 2880, 768 * 4),
        ("a100-sxm-80gb", 1, 3072, 2944),
        ("mi300x", 8, 3072, 512 * 8),
    ],
)
def test_kernels_round_up_the_widths_of_4_bit_experts(device, tp, hidden, width):
    """2,880 is no multiple of the tiles of Marlin (A100) or of ROCm's Triton kernels; under tp each
    rank's share is rounded.
    """
    padded = verdict(GPT_OSS, device, tp=tp)[1]["weights_bytes"]
    plain = verdict(GPT_OSS, tp=tp, engine="tensorrt-llm")[1]["weights_bytes"]
    more = EXPERTS_20B / tp * (hidden * width / 2880**2 - 1)
    assert padded - plain == pytest.approx(more, rel=1e-6, abs=1)


@over("quantization tp rows", table("small_models.yaml", "padded_rows"))
def test_vllm_pads_rows_of_fp8_weights_on_rocm(quantization, tp, rows):
    """256 bytes on rows that are multiples of 512 bytes, by the loader that reads the checkpoint;
    never on NVIDIA devices.
    """
    config = table("small_models.yaml", "fp8") | {"quantization_config": quantization}
    rocm, cuda = (
        verdict(config, chip, tp=tp)[1]["weights_bytes"] for chip in ("mi300x", "h100-sxm")
    )
    assert rocm - cuda == 2 * rows * 256


def test_windows_bound_the_cache_and_sglang_starts_where_vllm_refuses():
    """gpt-oss: half of the layers keep 128 tokens (and a block); long contexts cost about half."""
    long = {"input_tokens": 100_000, "output_tokens": 1000, "concurrency": 1}
    needed = verdict(GPT_OSS, workload=long)[1]["kv_needed_bytes"]
    full = 12 * 8 * 128 * 2 * 101_008  # 12 full layers, 8 KV heads of 64 + 64, 16 bit, whole blocks
    assert full < needed < full * 1.01
    model, long = "meta-llama/Llama-3.3-70B-Instruct", {"max_context": 131_072}
    assert verdict(model, workload=long, tp=2)[0]
    assert verdict(model, workload=long, tp=2, engine="sglang")[0] == []


def test_the_fullest_stage_counts_and_the_longest_context_is_where_one_more_fails():
    memory = verdict("meta-llama/Llama-3.1-70B-Instruct", tp=2, pp=4)[1]
    stages = memory["stages"]
    assert len(stages) == 4
    assert max(stage["total_bytes"] for stage in stages) == memory["total_bytes"]
    assert stages[0]["weights_bytes"] > stages[1]["weights_bytes"]  # the embedding
    for stage in stages:
        assert sum(stage.values()) == 2 * stage["total_bytes"]  # the total and its parts
    # the longest context at a load is where one more token does not fit
    load = {"concurrency": 32, "input_tokens": 1000, "output_tokens": 24}
    memory = verdict(LLAMA_8B, workload=load)[1]
    longest = memory["max_context_at_load"]
    assert longest * 32 * 131_072 <= memory["kv_cache_bytes"] < (longest + 16) * 32 * 131_072
    assert memory["max_context"] > longest
    assert memory["largest_part"] == "weights"


def test_hybrid_layers_keep_a_state_and_no_cache():
    """One attention layer in four: pages of its cache only, plus pages of states per request.

    A state has 71,680 values of 16 bit, which pages of 144 tokens hold; three groups of states have
    two of them each.
    """
    config, needs = table("small_models.yaml", "hybrid"), {}
    for length in (1024, 2048):
        work = {"input_tokens": length - 16, "output_tokens": 16, "concurrency": 1}
        needs[length] = verdict(config, workload=work)[1]["kv_needed_bytes"]
    page = 144 * 2 * 256 * 2  # one layer: 2 KV heads of 128 + 128, 16 bit
    assert needs == {1024: (8 + 6) * page, 2048: (15 + 6) * page}
