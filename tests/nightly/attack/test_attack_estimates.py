"""Random estimates keep their properties, and what looks odd in them has a reason that holds."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from recipe_core.base.units import duration, gib
from recipe_core.hardware.cluster import in_nodes
from recipe_core.search.plans import estimate_batch
from tests.fixtures.sizes import examples
from tests.nightly.attack.estimate_draws import draw
from tests.nightly.attack.estimate_oddities import ODDITIES, Case, Pair, over
from tests.nightly.attack.estimate_reasons import over_reason, reason_for
from tests.nightly.attack.estimates import attack

BY_NAME = {oddity.name: oddity for oddity in ODDITIES}


def request(
    model: str, device: str, candidate: dict[str, Any], workload: dict[str, Any]
) -> dict[str, Any]:
    return {
        "model": model,
        "hardware": in_nodes(device, 8, 16),
        "workload": {"kind": "serving", **workload},
        "candidate": {"tp": 1, "pp": 1, "dp": 1, **candidate},
    }


def pair(before: dict[str, Any], part: str, **change: Any) -> Pair:
    """A request, and the same with a change, both estimated."""
    after = deepcopy(before)
    after[part].update(change)
    requests = (before, after)
    return Pair(*map(Case, requests, estimate_batch(requests)))


LLAMA_1B = request(
    "meta-llama/Llama-3.2-1B-Instruct",
    "mi350x",
    {"engine": "sglang", "pp": 4, "dp": 2},
    {"mode": "closed", "input_tokens": 53, "output_tokens": 9, "concurrency": 170},
)
JAMBA = request(
    "ai21labs/AI21-Jamba-Large-1.6",
    "a100-sxm-80gb",
    {"engine": "vllm", "tp": 4, "pp": 4, "dp": 2},
    {"mode": "closed", "input_tokens": 30_509, "output_tokens": 1, "concurrency": 85},
)
XLAM = request(
    "Salesforce/Llama-xLAM-2-70b-fc-r",
    "gh200-144gb",
    {"engine": "vllm", "tp": 2, "weight_dtype": "bf16", "kv_dtype": "fp8"},
    {
        "mode": "closed",
        "input_tokens": 4200,
        "output_tokens": 2,
        "concurrency": 8,
        "prefix_hit": 0.95,
    },
)
SEED = request(
    "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "mi355x",
    {"engine": "sglang", "tp": 2},
    {"mode": "open", "input_tokens": 350, "output_tokens": 20, "request_rate": 7.608},
)


def note(case: Case, words: str) -> str:
    """The one note with these words."""
    (found,) = (said for said in case.answer["notes"] if words in said)
    return found


def test_random_estimates_keep_their_properties_and_odd_ones_have_a_reason() -> None:
    findings = attack(3, range(examples(600)))
    assert not findings.failed, findings.text()
    assert findings.feasible > findings.requests / 4


def test_a_request_of_an_attack_follows_from_its_seed_and_index() -> None:
    assert draw(3, 17) == draw(3, 17) != draw(4, 17)
    assert len(draw(3, 17)) == 8


def test_replicas_do_not_slow_short_requests_down() -> None:
    assert pair(LLAMA_1B, "candidate", dp=4).change("output_tokens_per_s") > -0.02


def test_a_doubled_rate_does_not_shorten_the_wait() -> None:
    assert pair(SEED, "workload", request_rate=15.216).change("ttft_s") > -0.01


def test_a_rate_of_prompts_alone_waits_as_long_as_with_a_token_more() -> None:
    prompts = request(
        "Qwen/Qwen2.5-32B-Instruct-AWQ",
        "mi355x",
        {"engine": "sglang", "pp": 2},
        {"mode": "open", "input_tokens": 7, "output_tokens": 1, "request_rate": 40.3},
    )
    longer = pair(prompts, "workload", output_tokens=2)
    assert longer.change("ttft_s") == pytest.approx(0, abs=0.05)


def test_kernel_launches_that_more_prompts_share_explain_a_shorter_wait() -> None:
    odd = pair(LLAMA_1B, "workload", concurrency=340)
    assert odd.change("ttft_s") > -0.2
    oddity = BY_NAME["load doubled: time to first token falls by over 1 %"]
    assert str(reason_for(oddity, odd)).startswith("kernel launches")


def test_prompts_that_share_steps_explain_a_shorter_wait() -> None:
    short = request(
        "agentica-org/DeepCoder-14B-Preview",
        "radeon-pro-w7900",
        {"engine": "tgi"},
        {"mode": "open", "input_tokens": 4, "output_tokens": 2, "request_rate": 50.8},
    )
    odd = pair(short, "workload", request_rate=101.6)
    oddity = BY_NAME["load doubled: time to first token falls by over 1 %"]
    assert oddity.seen(odd)
    assert str(reason_for(oddity, odd)).startswith("prompts share steps")
    assert "prompts run in a step on average" in note(odd.after, "share a step")


def test_prompts_alone_are_served_as_fast_under_twice_the_load() -> None:
    doubled = pair(JAMBA, "workload", concurrency=170)
    assert doubled.change("output_tokens_per_s") == pytest.approx(0, abs=0.05)
    assert doubled.change("ttft_s") > 0.9


def test_prompts_that_wait_share_steps_in_every_format() -> None:
    assert pair(XLAM, "candidate", weight_dtype="fp8").change("output_tokens_per_s") > -0.05


def test_kernels_explain_a_small_model_that_8_bits_slow_down() -> None:
    small = request(
        "Qwen/Qwen3.5-0.8B",
        "gb300",
        {"engine": "vllm", "tp": 2, "weight_dtype": "bf16"},
        {"mode": "closed", "input_tokens": 6934, "output_tokens": 1740, "concurrency": 2},
    )
    odd = pair(small, "candidate", weight_dtype="fp8")
    oddity = BY_NAME["fp8 weights: throughput over 5 % below bf16"]
    assert oddity.seen(odd)
    assert str(reason_for(oddity, odd)).startswith("8-bit kernels")
    said = note(odd.after, "fp8 kernels are slower here than those for bf16 weights: a step that")
    bf16_ms, fp8_ms = (1e3 * case.figure("tpot_s") for case in (odd.before, odd.after))
    figures = [float(found) for found in re.findall(r"([\d.]+) ms", said)]
    assert figures[:2] == pytest.approx([fp8_ms, bf16_ms], rel=0.05)
    assert not any("kernels are slower" in words for words in odd.before.answer["notes"])


def test_a_static_batch_may_need_one_step_more_for_one_token() -> None:
    batch = request(
        "meta-llama/Llama-3.2-1B-Instruct",
        "h100-sxm",
        {"engine": "vllm", "max_batched_tokens": 512},
        {"mode": "static", "input_tokens": 12, "output_tokens": 16, "batch": 128},
    )
    odd = pair(batch, "workload", input_tokens=13)
    oddity = BY_NAME["one prompt token more: a time jumps by over 20 %"]
    assert odd.change("ttft_s") == pytest.approx(1 / 3, abs=0.01)
    assert oddity.seen(odd)
    assert "one step more" in str(reason_for(oddity, odd))


@pytest.mark.parametrize(
    ("mode", "load", "queued"),
    [
        ("closed", {"concurrency": 500}, True),
        ("offline", {"requests": 500}, True),
        ("static", {"batch": 60}, False),
    ],
)
def test_what_needs_more_memory_than_there_is_says_how_much_is_held(
    mode: str, load: dict[str, int], queued: bool
) -> None:
    lengths = {"input_tokens": 4000, "output_tokens": 4000}
    crowded = request(
        "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", {"engine": "vllm"}, {"mode": mode} | lengths
    )
    crowded["workload"] |= load
    case = Case(crowded, estimate_batch([crowded])[0])
    assert case.answer["feasible"]
    assert over(case)
    assert over_reason(case) is not None
    holds = [note for note in case.answer["notes"] if "requests at full length" in note]
    assert f"holds {case.memory['max_concurrency']:,} of" in holds[0]
    assert any("run at once" in words for words in case.answer["notes"]) == queued
    assert ("starts and queues" in holds[0]) == queued
    total, usable = (gib(case.memory[name]) for name in ("total_bytes", "usable_bytes"))
    assert f"{total} of {usable} usable" in holds[0]


EXPERTS = request(
    "Qwen/Qwen3-30B-A3B-FP8",
    "h100-sxm",
    {"engine": "sglang", "tp": 8, "pp": 2, "dp": 4, "ep": 32, "kv_dtype": "fp8"},
    {"mode": "offline", "input_tokens": 20, "output_tokens": 25, "requests": 2},
)


def test_ranks_that_share_experts_say_what_links_and_idle_ranks_take() -> None:
    slower = pair(EXPERTS, "candidate", dp=8, ep=64)
    oddity = BY_NAME["dp doubled: throughput falls by over 2 %"]
    assert oddity.seen(slower)
    assert reason_for(oddity, slower) is not None
    for case, ranks in ((slower.before, 4), (slower.after, 8)):
        exchange_s = case.answer["breakdown_s"]["decode"]["all_to_all"]
        said = note(case, "Links between devices take")
        assert f"{duration(exchange_s)} for exchanging tokens among experts of dp {ranks}" in said
        assert f"{ranks - 2} of {ranks} data-parallel ranks have no request" in note(
            case, "have no request"
        )


def test_links_that_halve_throughput_are_named_with_their_time() -> None:
    prompts = request(
        "Qwen/Qwen3-235B-A22B",
        "h200-nvl",
        {"engine": "tensorrt-llm", "tp": 4, "dp": 4},
        {"mode": "offline", "input_tokens": 23_613, "output_tokens": 1, "requests": 3},
    )
    slower = pair(prompts, "candidate", tp=8)
    oddity = BY_NAME["tp doubled: throughput halves or worse"]
    assert oddity.seen(slower)
    assert str(reason_for(oddity, slower)).startswith("links")
    reduce_s = slower.after.answer["breakdown_s"]["prefill"]["all_reduce"]
    assert f"{duration(reduce_s)} for summing over tp" in note(slower.after, "Links between")
    both = (slower.before, slower.after)
    silent = Pair(*(Case(case.request, case.answer | {"notes": []}) for case in both))
    assert reason_for(oddity, silent) is None  # a reason that no answer states is none


def test_buffers_that_outweigh_a_small_model_are_named() -> None:
    small = request(
        "distilbert/distilgpt2",
        "b200-sxm",
        {"engine": "tgi"},
        {"mode": "closed", "input_tokens": 308, "output_tokens": 4, "concurrency": 6},
    )
    larger = pair(small, "candidate", tp=2)
    oddity = BY_NAME["tp doubled: memory rises"]
    assert oddity.seen(larger)
    assert str(reason_for(oddity, larger)).startswith("communication buffers")
    rise = larger.after.memory["runtime_bytes"] - larger.before.memory["runtime_bytes"]
    assert f"buffers take {gib(rise)} of a device" in note(larger.after, "Communication")


def test_long_prompts_are_served_no_faster_than_one_chunk_a_step() -> None:
    """8-bit weights, whose steps with a chunk take less time, serve more of them."""
    crowded = request(
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "rtx-a6000",
        {
            "engine": "llama-cpp",
            "pp": 2,
            "dp": 8,
            "max_batched_tokens": 512,
            "weight_dtype": "bf16",
        },
        {"mode": "closed", "input_tokens": 26_553, "output_tokens": 14, "concurrency": 333},
    )
    faster = pair(crowded, "candidate", weight_dtype="fp8")
    assert faster.change("output_tokens_per_s") > 0
    chunks_per_s = faster.before.figure("output_tokens_per_s") / 14 / 8 * 26_553 / 512
    # two stages; prompts that start together decode together, in longer steps
    assert chunks_per_s * faster.before.figure("tpot_s") == pytest.approx(2, rel=0.2)
