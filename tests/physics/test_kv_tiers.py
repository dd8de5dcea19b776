"""Tiers below the devices' cache: what they find and cost, against published runs."""

from __future__ import annotations

import re

import pytest

from recipe_core.base.errors import HardwareError, InputError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.host_links import link_rates
from recipe_core.hardware.profile import Device, Transfers
from recipe_core.physics.serving.simulate import simulate
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate

LLAMA_8B, LLAMA_7B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-2-7b-hf"
LLAMA_70B, QWEN_32B = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B"
NEVER = ((1e9, 0.0), (1e10, 0.5))
"""Prompts that share nothing which any cache could hold."""
HOST = ((3.0e6, 0.0), (3.2e6, 0.99))
"""Prompts that only a cache of millions of tokens holds."""


def request(model, work, offload=None, tp=1, dp=1, nodes=1, engine="vllm", **own):
    points, chip = work.pop("points", ()), own.pop("device", "h100-sxm")
    reuse = [{"cache_tokens": tokens, "hit": hit} for tokens, hit in points]
    value = {
        "model": model,
        "hardware": {"device": chip, "per_node": tp * dp // nodes, "nodes": nodes},
        "workload": {"mode": "closed", "prefix_reuse": reuse} | work,
        "candidate": {"engine": engine, "tp": tp, "pp": 1, "dp": dp, "ep": 1} | own,
    }
    return value | ({"options": {"kv_offload": offload}} if offload else {})


def estimate(*args, **more):
    plan, row = plan_candidate(PlanRequest.parse(request(*args, **more)))
    return plan.estimate(row).to_json()


def reasons(*args, **more):
    return "; ".join(estimate(*args, **more)["reasons"])


def lengths(prompt, answer, at_once, points=(), **more):
    lengths = {"input_tokens": prompt, "output_tokens": answer, "concurrency": at_once}
    return lengths | {"points": points} | more


def changes(before, after):
    """Shares by which time to first token and throughput change."""
    first, then = before["serving"], after["serving"]
    names = ("ttft_s", "output_tokens_per_s")
    return [then[name] / first[name] - 1 for name in names]


# Published runs


@pytest.mark.parametrize(
    ("prompt", "low", "high"), [(2048, 1.4, 3), (32768, 5, 15), (120000, 9, 25)]
)
def test_blocks_from_the_host_beat_computing_as_vllm_measured(prompt, low, high):
    """Llama 3.1 8B on an H100: 2 to 22 times, by length (blog.vllm.ai, 2026-01-08, figure 1)."""
    without = estimate(LLAMA_8B, lengths(prompt, 1, 1, HOST))
    with_host = estimate(LLAMA_8B, lengths(prompt, 1, 1, HOST), {"host_gib": 400})
    assert low < without["serving"]["ttft_s"] / with_host["serving"]["ttft_s"] < high


def test_the_main_gain_is_throughput_as_vllm_measured():
    """Prompts of 512 tokens, all found on the host: up to 9 times (the same, figure 2)."""
    without = estimate(LLAMA_8B, lengths(512, 1, 256, HOST))
    with_host = estimate(LLAMA_8B, lengths(512, 1, 256, HOST), {"host_gib": 400})
    assert 5 < 1 + changes(without, with_host)[1] < 11


def test_saving_what_is_never_found_hurts_as_in_issue_970():
    """LMCache on an H100: 14.68 to 13.13 requests/s, 10.6 % less (github LMCache issue 970)."""
    work = lengths(3060, 9, 256, NEVER)
    without = estimate(LLAMA_7B, dict(work), memory_fraction=0.5)
    tiers = {"through": "lmcache", "host_gib": 465}
    with_host = estimate(LLAMA_7B, dict(work), tiers, memory_fraction=0.5)
    assert changes(without, with_host)[1] == pytest.approx(-0.106, abs=0.04)
    [host] = with_host["kv_tiers"]
    assert (host["hit_added"], host["verdict"]) == (0, "hurts")


def test_saving_on_disk_without_reuse_hurts_as_in_pull_request_912():
    """Qwen3-32B-FP8 at tp 8: 83.59 s became 92.42 s, 9.6 % less (LMCache pull request 912)."""
    work = lengths(2048, 256, 256, NEVER)
    tiers = {"through": "lmcache", "host_gib_per_device": 20, "disk": {"tier": "nvme", "gib": 4000}}
    without = estimate("Qwen/Qwen3-32B-FP8", dict(work), tp=8)
    with_both = estimate("Qwen/Qwen3-32B-FP8", dict(work), tiers, tp=8)
    assert changes(without, with_both)[1] == pytest.approx(-0.096, abs=0.04)


def llm_d(prefix, found, groups, offload):
    """Qwen3-32B, 8 servers of 2 H100 behind a router by prefix; groups share a system prompt."""
    points = ((prefix * groups, found),)
    work = lengths(prefix + 256, 1024, 45, points, prefix_affinity=True)
    more = {"tp": 2, "dp": 8, "nodes": 4, "memory_fraction": 0.65}
    return estimate(QWEN_32B, work, offload, **more)


def test_a_cache_beyond_the_devices_gains_as_llm_d_measured():
    """Prefixes of 30,000 tokens: first token -25 %, throughput +21.1 % (llm-d, 2025-11)."""
    without = llm_d(30_000, 0.89, 45, None)
    first, rate = changes(without, llm_d(30_000, 0.89, 45, {"host_gib": 100}))
    assert (first, rate) == (pytest.approx(-0.25, abs=0.12), pytest.approx(0.211, abs=0.12))


def test_a_cache_that_fits_the_devices_changes_little_as_llm_d_measured():
    """Prefixes of 8,000 tokens: throughput -1.5 % (the same)."""
    without, with_host = (llm_d(8_000, 0.87, 45, tiers) for tiers in (None, {"host_gib": 100}))
    assert changes(without, with_host)[1] == pytest.approx(-0.015, abs=0.01)
    [host] = with_host["kv_tiers"]
    assert (host["hit_added"], host["verdict"]) == (0, "neutral")


@pytest.mark.parametrize(
    ("prefix", "before_s", "first", "rate"),
    [(50_000, 25.38, -0.21, 0.23), (70_000, 58.02, -0.22, 0.287)],
)
def test_a_file_system_behind_the_host_gains_as_llm_d_measured(prefix, before_s, first, rate):
    """Llama 3.3 70B on 16 H100, LMCache with 20 GB a device, then Lustre (llm-d, 2026-03)."""
    points = ((50 * prefix, 0.97),)
    host = {"through": "lmcache", "host_gib_per_device": 20}
    lustre = host | {"remote": {"tier": "fsx-lustre", "gib": 17920}}
    more = {"tp": 4, "dp": 4, "nodes": 4, "memory_fraction": 0.65}
    without, with_lustre = (
        estimate(
            LLAMA_70B, lengths(prefix + 256, 1024, 20, points, prefix_affinity=True), t, **more
        )
        for t in (host, lustre)
    )
    assert without["serving"]["ttft_s"] == pytest.approx(before_s, rel=0.15)
    ttft, throughput = changes(without, with_lustre)
    assert (ttft, throughput) == (pytest.approx(first, abs=0.08), pytest.approx(rate, abs=0.08))
    assert [tier["verdict"] for tier in with_lustre["kv_tiers"]] == ["helps", "helps"]


def test_a_distributed_store_gains_as_novita_measured():
    """Qwen3-Coder-480B: hits from 40 to 80 %, first token -56 % (lmsys.org, 2025-09-10)."""
    points = ((1e5, 0.4), (3e6, 0.4), (2e7, 0.8))
    work, more = (
        lengths(25_000, 300, 16, points),
        {"tp": 8, "ep": 8, "engine": "sglang", "device": "h200-sxm"},
    )
    store = {"host_gib": 400, "remote": {"tier": "superpod-best", "gib": 20_000}}
    model = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
    without, with_store = (estimate(model, dict(work), t, **more) for t in (None, store))
    first, rate = changes(without, with_store)
    assert first == pytest.approx(-0.56, abs=0.1)
    assert 0.4 < rate < 1.2


def test_a_store_slower_than_computing_hurts_as_sglang_users_measured():
    """MiniMax M2.7, 90 % of 8,192 tokens in a slow store: 2.45 s, 1.73 computed (issue 26305)."""
    points = ((1e8, 0.0), (1.01e8, 0.9))
    more = {"tp": 4, "engine": "sglang", "device": "h200-sxm"}

    def verdict(tier):
        store = {"host_gib": 500, "remote": {"tier": tier, "gib": 40_000}}
        answer = estimate("MiniMaxAI/MiniMax-M2.7", lengths(8192, 512, 16, points), store, **more)
        return answer["kv_tiers"][-1]

    slow, fast = verdict("efs"), verdict("fsx-lustre-efa")
    assert slow["load_s_per_token"] > slow["recompute_s_per_token"]
    assert slow["ttft_change_s"] > 0 > slow["throughput_change"]
    assert fast["load_s_per_token"] < fast["recompute_s_per_token"]
    assert (fast["verdict"], slow["verdict"] != "helps") == ("helps", True)


# Properties

POINTS = ((1e4, 0.1), (1e5, 0.3), (1e6, 0.6), (1e7, 0.8))


def with_host(gib, **more):
    return estimate(LLAMA_8B, lengths(8000, 256, 16, POINTS), {"host_gib": gib, **more})


def test_more_host_memory_finds_more_until_the_curve_ends():
    hits = [with_host(gib)["prefix_cache"]["hit"] for gib in (10, 100, 400, 1200)]
    assert hits == sorted(hits)
    assert hits[-1] < 0.8 < hits[-1] + 0.05


def test_a_host_smaller_than_the_devices_adds_nothing():
    """Blocks are written through, so that it holds only what the devices hold too."""
    answer = with_host(10)
    [host] = answer["kv_tiers"]
    assert host["capacity_tokens"] < answer["prefix_cache"]["free_tokens"]
    assert host["hit_added"] == 0
    assert "nothing" in host["because"]


def test_a_token_of_the_host_is_its_bytes_over_the_link():
    """Llama 3.1 8B: 32 layers of 8 heads, 128 wide, keys and values in 16 bits: 128 KiB."""
    [host] = with_host(100)["kv_tiers"]
    assert host["capacity_tokens"] == pytest.approx(100 * 2**30 / 2**17)
    assert host["load_s_per_token"] == pytest.approx(2**17 / 50e9)


def test_ranks_that_copy_a_head_save_it_each():
    twice = estimate(LLAMA_8B, lengths(8000, 256, 16, POINTS), {"host_gib": 100}, tp=8)
    copied = estimate("Qwen/Qwen3-4B", lengths(8000, 256, 16, POINTS), {"host_gib": 100}, tp=8)
    more = estimate(
        "Qwen/Qwen3-4B", lengths(8000, 256, 16, POINTS), {"host_gib": 100}, tp=16, nodes=2
    )
    tokens = [answer["kv_tiers"][0]["capacity_tokens"] for answer in (twice, copied, more)]
    assert tokens[0] == pytest.approx(100 * 2**30 / 2**17)
    assert tokens[2] == pytest.approx(tokens[1] / 2)


def test_without_tiers_and_reuse_nothing_is_said():
    answer = estimate(LLAMA_8B, lengths(1024, 128, 8))
    assert not {"prefix_cache", "kv_tiers"} & set(answer)


def test_without_reuse_only_the_cost_counts():
    plain = estimate(LLAMA_8B, lengths(2048, 128, 64, prefix_hit=0.3))
    answer = estimate(LLAMA_8B, lengths(2048, 128, 64, prefix_hit=0.3), {"host_gib": 100})
    assert changes(plain, answer)[1] < 0
    assert answer["kv_tiers"][0]["hit_added"] == 0
    assert any("workload.prefix_reuse" in note for note in answer["notes"])


def test_drives_that_write_too_slowly_keep_a_part():
    tiers = {"through": "lmcache", "disk": {"tier": "nvme", "gib": 9000}}
    work = lengths(16_000, 8, 64, ((1e6, 0.0), (3e7, 0.5)))
    answer = estimate(LLAMA_8B, work, {"host_gib_per_device": 50, **tiers}, tp=1, dp=8)
    disk = answer["kv_tiers"][1]
    assert disk["write_bytes_per_s"] == pytest.approx(3.5e9, rel=0.05)
    assert "only write" in disk["because"]


def test_arrivals_that_blocks_cannot_keep_up_with_are_refused():
    points = ((1e6, 0.0), (1e8, 0.95))
    work = lengths(16_000, 16, None, points, mode="open", request_rate=12)
    tiers = {"through": "hicache", "host_gib": 300, "remote": {"tier": "fsx-lustre", "gib": 20_000}}
    assert "of the time of the link or the store" in reasons(LLAMA_8B, work, tiers, engine="sglang")


def test_percentiles_wait_for_blocks_too():
    plan, row = plan_candidate(
        PlanRequest.parse(request(LLAMA_8B, lengths(8000, 64, 8, POINTS), {"host_gib": 300}))
    )
    estimates, place = plan.detail(row)
    ran = simulate(plan.setting(row), estimates.cases.take([place]), estimates.memory.take([place]))
    mean_s = float(estimates.serving.ttft_s[place])
    assert float(ran.means_s["ttft_s"][0]) == pytest.approx(mean_s, rel=0.35)


def test_a_measured_profile_goes_before_the_table():
    chip = device("h100-sxm")
    rate = chip.memory_bandwidth_bytes_per_s.model_copy(update={"value": 2.0e10})
    measured = chip.model_copy(update={"transfers": Transfers(to_device_bytes_per_s=rate)})
    assert isinstance(measured, Device)
    assert (link_rates(chip), link_rates(measured)) == ((50e9, 50e9), (2e10, 50e9))


# Refusals


@pytest.mark.parametrize(
    ("model", "tiers", "more", "says"),
    [
        (LLAMA_8B, {"host_gib": 4000}, {}, "4,000.0 GiB of a node's host memory"),
        (LLAMA_8B, {"host_gib": 9}, {"engine": "tgi"}, "no option to offload"),
        (LLAMA_8B, {"host_gib": 9, "through": "hicache"}, {}, "set options.kv_offload.through"),
        (LLAMA_8B, {"host_gib": 9, "disk": {"tier": "nvme", "gib": 9}}, {}, "no disk tier"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"host_gib": 9}, {"tp": 4}, "linear attention"),
        ("openai/gpt-oss-120b", {"host_gib": 9, "through": "lmcache"}, {"tp": 2}, "sliding window"),
        (
            LLAMA_8B,
            {"host_gib": 9, "through": "lmcache"},
            {"device": "mi300x"},
            "no build for rocm",
        ),
    ],
)
def test_what_cannot_be_offloaded_is_refused_with_the_fix(model, tiers, more, says):
    assert re.search(says, reasons(model, lengths(1024, 128, 8), tiers, **more))


def test_two_stores_of_hicache_and_pools_are_refused():
    store = {"tier": "nvme", "gib": 9}
    both = {"host_gib": 90, "disk": store, "remote": store | {"tier": "efs"}}
    assert "one store" in reasons(LLAMA_8B, lengths(1024, 128, 8), both, engine="sglang")
    pooled = request(LLAMA_8B, lengths(1024, 128, 8), {"host_gib": 90}, prefill={"tp": 1})
    pooled["hardware"]["per_node"] = 2
    plan, row = plan_candidate(PlanRequest.parse(pooled))
    assert "two connectors" in "; ".join(plan.reasons(row))


@pytest.mark.parametrize(
    ("tiers", "error", "says"),
    [
        ({}, InputError, "host_gib"),
        ({"host_gib": 1, "host_gib_per_device": 1}, InputError, "host_gib"),
        (
            {"host_gib": 1, "disk": {"tier": "nvme", "gib": 1, "url": "redis://a"}},
            InputError,
            "path",
        ),
        ({"host_gib": 1, "disk": {"tier": "nvmf", "gib": 1}}, HardwareError, "storage tier"),
    ],
)
def test_errors_name_the_field(tiers, error, says):
    with pytest.raises(error, match=says):
        plan_candidate(
            PlanRequest.parse(
                request(LLAMA_8B, lengths(64, 8, 1)) | {"options": {"kv_offload": tiers}}
            )
        )
