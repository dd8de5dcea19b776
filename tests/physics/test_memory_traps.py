"""Memory questions that calculators get wrong, and engines' own rules."""

import pytest

from recipe_core.base.units import GIB
from recipe_core.search.plans import plan_candidate
from tests.conftest import make_request

LLAMA_8B, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"


def verdict(model, device="h100-sxm", workload=None, **candidate):
    """What refuses a split, and its memory."""
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1} | candidate
    request = make_request(model, device, 8, workload=workload or {}, candidate=split)
    table, row = plan_candidate(request)
    return table.reasons(row), table.estimate(row).to_json()["memory"]


SORTS = {"engine_version": "0.16.0"}


@pytest.mark.parametrize(("release", "starts"), [(SORTS, False), ({}, True)])
def test_llama_70b_in_fp8_on_one_h100(release, starts):
    """67.7 GiB of weights leave 80 GB too little for the 4.7 GiB of a sampler that sorts."""
    split = {"weight_dtype": "fp8", "memory_fraction": 0.92} | release
    model, work = "meta-llama/Llama-3.3-70B-Instruct", {"max_context": 8192}
    reasons, memory = verdict(model, workload=work, **split)
    assert (not reasons) is starts
    assert memory["weights_bytes"] / GIB == pytest.approx(67.7, rel=0.01)


def test_qwen_32b_names_the_longest_context_that_fits():
    """vLLM logged 4.45 GiB of cache on one H100 at 0.9, with a sampler that sorts: 18 k tokens."""
    work = {"max_context": 40_960}
    reasons, memory = verdict("Qwen/Qwen3-32B", workload=work, memory_fraction=0.9, **SORTS)
    assert "the longest request that fits has" in reasons[0]
    assert memory["max_context"] == pytest.approx(18_200, rel=0.05)


def test_gpt_oss_120b_runs_on_one_80_gb_card():
    """vLLM logged 3.33 GiB of cache on an H100 at 0.95 while its sampler sorted and it kept the
    experts' scales (3.34 GiB) twice, as it no longer does.
    """
    assert verdict("openai/gpt-oss-120b")[0] == []
    reasons, memory = verdict("openai/gpt-oss-120b", memory_fraction=0.95, **SORTS)
    assert reasons == []
    assert memory["kv_cache_bytes"] / GIB == pytest.approx(3.33 + 3.34, rel=0.05)


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


def test_4_bit_experts_on_an_a100_weigh_what_vllm_logged():
    """13.72 GiB of weights and 36.56 GiB of cache (vLLM 0.19, utilisation 0.65)."""
    memory = verdict(GPT_OSS, "a100-sxm-80gb", memory_fraction=0.65)[1]
    assert memory["weights_bytes"] / GIB == pytest.approx(13.72, rel=0.01)
    assert memory["kv_cache_bytes"] / GIB == pytest.approx(36.56, rel=0.03)


FP8_CONFIG = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2}
FP8_CONFIG |= {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 2560}
FP8_CONFIG |= {"vocab_size": 4096, "max_position_embeddings": 8192, "tie_word_embeddings": True}
QUARK = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}
CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": CHANNEL}},
}


@pytest.mark.parametrize(
    ("quantization", "tp", "rows"),
    [
        ({"quant_method": "fp8"}, 1, 2048 + 1024 + 5120 + 1024),  # q and kv, o, gate and up, down
        # rows of down have 1,280 bytes: no multiple of 512
        ({"quant_method": "fp8"}, 2, 1024 + 1024 + 2560),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1, 2048 + 1024 + 5120 + 1024),
        ({"quant_method": "fbgemm_fp8"}, 1, 0),
        (COMPRESSED, 1, 0),
        ({"quant_method": "quark", "global_quant_config": QUARK}, 1, 0),
    ],
)
def test_vllm_pads_rows_of_fp8_weights_on_rocm(quantization, tp, rows):
    """256 bytes on rows that are multiples of 512 bytes, by the loader that reads the checkpoint;
    never on NVIDIA devices.
    """
    config = FP8_CONFIG | {"quantization_config": quantization}
    rocm, cuda = (
        verdict(config, chip, tp=tp)[1]["weights_bytes"] for chip in ("mi300x", "h100-sxm")
    )
    assert rocm - cuda == 2 * rows * 256


def test_windows_bound_the_cache():
    """gpt-oss: half of the layers keep 128 tokens (and a block); long contexts cost about half."""
    long = {"input_tokens": 100_000, "output_tokens": 1000, "concurrency": 1}
    needed = verdict(GPT_OSS, workload=long)[1]["kv_needed_bytes"]
    full = 12 * 8 * 128 * 2 * 101_008  # 12 full layers, 8 KV heads of 64 + 64, 16 bit, whole blocks
    assert full < needed < full * 1.01


def test_pipeline_stages_are_reported_and_the_fullest_counts():
    memory = verdict("meta-llama/Llama-3.1-70B-Instruct", tp=2, pp=4)[1]
    stages = memory["stages"]
    assert len(stages) == 4
    assert max(stage["total_bytes"] for stage in stages) == memory["total_bytes"]
    assert stages[0]["weights_bytes"] > stages[1]["weights_bytes"]  # the embedding
    for stage in stages:
        assert sum(stage.values()) == 2 * stage["total_bytes"]  # the total and its parts


@pytest.mark.parametrize(
    ("model", "tp", "sequences", "length", "measured"),
    [
        (LLAMA_8B, 1, 4096, 5096, 78),
        (LLAMA_8B, 4, 4096, 5096, 363),
        ("Qwen/Qwen3-32B-FP8", 2, 4096, 7144, 53),
        ("Qwen/Qwen3-32B-FP8", 4, 8192, 7144, 120),
    ],
)
def test_tensorrt_llm_holds_as_many_sequences_as_measured(model, tp, sequences, length, measured):
    """Its free fraction counts what weights and workspace leave.

    Measured: aiconfigurator's capacity test (Apache-2.0), H100.
    """
    split = {"engine": "tensorrt-llm", "tp": tp, "memory_fraction": 0.8}
    work = {"input_tokens": 2048, "output_tokens": 2048, "concurrency": 1, "max_context": length}
    memory = verdict(model, workload=work, max_batched_tokens=sequences, **split)[1]
    assert memory["kv_cache_tokens"] / length == pytest.approx(measured, rel=0.05)


def test_sglang_starts_where_vllm_refuses_the_longest_request():
    model, long = "meta-llama/Llama-3.3-70B-Instruct", {"max_context": 131_072}
    assert verdict(model, workload=long, tp=2)[0]
    assert verdict(model, workload=long, tp=2, engine="sglang")[0] == []


NEXT_CONFIG = {"model_type": "qwen3_next", "hidden_size": 1024, "num_hidden_layers": 4}
NEXT_CONFIG |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
NEXT_CONFIG |= {"intermediate_size": 2048, "vocab_size": 4096, "max_position_embeddings": 65536}
NEXT_CONFIG |= {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_experts": 0}
NEXT_CONFIG |= {"linear_num_value_heads": 16, "linear_num_key_heads": 8, "linear_key_head_dim": 64}
NEXT_CONFIG |= {"linear_value_head_dim": 64, "linear_conv_kernel_dim": 4}
NEXT_CONFIG |= {"tie_word_embeddings": True}


def test_hybrid_layers_keep_a_state_and_no_cache():
    """One attention layer in four: pages of its cache only, plus pages of states per request.

    A state has 71,680 values of 16 bit, which pages of 144 tokens hold; three groups of states have
    two of them each.
    """
    needs = {}
    for length in (1024, 2048):
        work = {"input_tokens": length - 16, "output_tokens": 16, "concurrency": 1}
        needs[length] = verdict(NEXT_CONFIG, workload=work)[1]["kv_needed_bytes"]
    page = 144 * 2 * 256 * 2  # one layer: 2 KV heads of 128 + 128, 16 bit
    assert needs == {1024: (8 + 6) * page, 2048: (15 + 6) * page}


def test_the_longest_context_at_a_load_is_where_one_more_token_does_not_fit():
    load = {"concurrency": 32, "input_tokens": 1000, "output_tokens": 24}
    memory = verdict(LLAMA_8B, workload=load)[1]
    longest = memory["max_context_at_load"]
    assert longest * 32 * 131_072 <= memory["kv_cache_bytes"] < (longest + 16) * 32 * 131_072
    assert memory["max_context"] > longest
    assert memory["largest_part"] == "weights"
