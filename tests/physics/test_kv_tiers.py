"""Tiers below the devices' cache: what they find and cost, against published runs."""

import pytest

from recipe_core.base.errors import HardwareError, InputError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.host_links import link_rates
from recipe_core.hardware.profile import Device, Transfers
from recipe_core.physics.serving.simulate import simulate
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate

LLAMA_8B, LLAMA_7B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-2-7b-hf"
NEVER = ((1e9, 0.0), (1e10, 0.5))
"""Prompts that share nothing which any cache could hold."""
HOST = ((3.0e6, 0.0), (3.2e6, 0.99))
"""Prompts that only a cache of millions of tokens holds."""
POINTS = ((1e4, 0.1), (1e5, 0.3), (1e6, 0.6), (1e7, 0.8))
NVME = {"tier": "nvme", "gib": 9}


def request(model, work, offload=None, tp=1, dp=1, nodes=1, engine="vllm", **own):
    points, chip = work.get("points", ()), own.pop("device", "h100-sxm")
    reuse = [{"cache_tokens": tokens, "hit": hit} for tokens, hit in points]
    load = {"mode": "closed", "prefix_reuse": reuse} | work
    load.pop("points", None)
    value = {
        "model": model,
        "hardware": {"device": chip, "per_node": tp * dp // nodes, "nodes": nodes},
        "workload": load,
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


def compared(model, work, offload, before=None, **more):
    """Answers with other tiers, or none, and with these; and the shares by which time to first
    token and throughput change.
    """
    answers = [estimate(model, work, tiers, **more) for tiers in (before, offload)]
    first, then = (answer["serving"] for answer in answers)
    return *answers, *(then[n] / first[n] - 1 for n in ("ttft_s", "output_tokens_per_s"))


@pytest.mark.parametrize(
    ("prompt", "low", "high"), [(2048, 1.4, 3), (32768, 5, 15), (120000, 9, 25)]
)
def test_blocks_from_the_host_beat_computing_as_vllm_measured(prompt, low, high):
    """Llama 3.1 8B on an H100: 2 to 22 times, by length (blog.vllm.ai, 2026-01-08, figure 1)."""
    _, _, first, _ = compared(LLAMA_8B, lengths(prompt, 1, 1, HOST), {"host_gib": 400})
    assert low < 1 / (1 + first) < high


def test_the_main_gain_is_throughput_as_vllm_measured():
    """Prompts of 512 tokens, all found on the host: up to 9 times (the same, figure 2)."""
    *_, rate = compared(LLAMA_8B, lengths(512, 1, 256, HOST), {"host_gib": 400})
    assert 5 < 1 + rate < 11


def test_saving_what_is_never_found_hurts_as_lmcache_s_users_measured():
    """On an H100: 14.68 to 13.13 requests/s, 10.6 % less (LMCache issue 970); Qwen3-32B-FP8 at
    tp 8: 83.59 s became 92.42 s, 9.6 % less (pull request 912).
    """
    tiers = {"through": "lmcache", "host_gib": 465}
    work = lengths(3060, 9, 256, NEVER)
    _, with_host, _, rate = compared(LLAMA_7B, work, tiers, memory_fraction=0.5)
    assert rate == pytest.approx(-0.106, abs=0.04)
    [host] = with_host["kv_tiers"]
    assert (host["hit_added"], host["verdict"]) == (0, "hurts")
    tiers = {"through": "lmcache", "host_gib_per_device": 20, "disk": NVME | {"gib": 4000}}
    *_, rate = compared("Qwen/Qwen3-32B-FP8", lengths(2048, 256, 256, NEVER), tiers, tp=8)
    assert rate == pytest.approx(-0.096, abs=0.04)


def test_a_cache_beyond_the_devices_gains_as_llm_d_measured_and_one_that_fits_changes_little():
    """Qwen3-32B, 8 servers of 2 H100 behind a router by prefix; 45 groups share a system prompt.
    Of 30,000 tokens: first token -25 %, throughput +21.1 %; of 8,000: -1.5 % (llm-d, 2025-11).
    """

    def llm_d(prefix, found):
        work = lengths(prefix + 256, 1024, 45, ((prefix * 45, found),), prefix_affinity=True)
        more = {"tp": 2, "dp": 8, "nodes": 4, "memory_fraction": 0.65}
        return compared("Qwen/Qwen3-32B", work, {"host_gib": 100}, **more)

    _, _, first, rate = llm_d(30_000, 0.89)
    assert (first, rate) == (pytest.approx(-0.25, abs=0.12), pytest.approx(0.211, abs=0.12))
    _, with_host, _, rate = llm_d(8_000, 0.87)
    assert rate == pytest.approx(-0.015, abs=0.01)
    [host] = with_host["kv_tiers"]
    assert (host["hit_added"], host["verdict"]) == (0, "neutral")


@pytest.mark.parametrize(
    ("prefix", "before_s", "first", "rate"),
    [(50_000, 25.38, -0.21, 0.23), (70_000, 58.02, -0.22, 0.287)],
)
def test_a_file_system_behind_the_host_gains_as_llm_d_measured(prefix, before_s, first, rate):
    """Llama 3.3 70B on 16 H100, LMCache with 20 GB a device, then Lustre (llm-d, 2026-03)."""
    host = {"through": "lmcache", "host_gib_per_device": 20}
    lustre = host | {"remote": {"tier": "fsx-lustre", "gib": 17920}}
    more = {"tp": 4, "dp": 4, "nodes": 4, "memory_fraction": 0.65}
    work = lengths(prefix + 256, 1024, 20, ((50 * prefix, 0.97),), prefix_affinity=True)
    model = "meta-llama/Llama-3.3-70B-Instruct"
    without, with_lustre, ttft, throughput = compared(model, work, lustre, host, **more)
    assert without["serving"]["ttft_s"] == pytest.approx(before_s, rel=0.15)
    assert (ttft, throughput) == (pytest.approx(first, abs=0.08), pytest.approx(rate, abs=0.08))
    assert [tier["verdict"] for tier in with_lustre["kv_tiers"]] == ["helps", "helps"]


def test_a_distributed_store_gains_as_novita_measured():
    """Qwen3-Coder-480B: hits from 40 to 80 %, first token -56 % (lmsys.org, 2025-09-10)."""
    work = lengths(25_000, 300, 16, ((1e5, 0.4), (3e6, 0.4), (2e7, 0.8)))
    store = {"host_gib": 400, "remote": {"tier": "superpod-best", "gib": 20_000}}
    model = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
    split = {"tp": 8, "ep": 8, "engine": "sglang", "device": "h200-sxm"}
    _, _, first, rate = compared(model, work, store, **split)
    assert first == pytest.approx(-0.56, abs=0.1)
    assert 0.4 < rate < 1.2


def test_a_store_slower_than_computing_hurts_as_sglang_users_measured():
    """MiniMax M2.7, 90 % of 8,192 tokens in a slow store: 2.45 s, 1.73 computed (issue 26305)."""
    work = lengths(8192, 512, 16, ((1e8, 0.0), (1.01e8, 0.9)))
    split = {"tp": 4, "engine": "sglang", "device": "h200-sxm"}

    def told(tier):
        store = {"host_gib": 500, "remote": {"tier": tier, "gib": 40_000}}
        return estimate("MiniMaxAI/MiniMax-M2.7", work, store, **split)["kv_tiers"][-1]

    slow, fast = told("efs"), told("fsx-lustre-efa")
    assert slow["load_s_per_token"] > slow["recompute_s_per_token"]
    assert slow["ttft_change_s"] > 0 > slow["throughput_change"]
    assert fast["load_s_per_token"] < fast["recompute_s_per_token"]
    assert (fast["verdict"], slow["verdict"] != "helps") == ("helps", True)


def with_host(gib, model=LLAMA_8B, **more):
    return estimate(model, lengths(8000, 256, 16, POINTS), {"host_gib": gib}, **more)


def test_more_host_memory_than_the_devices_finds_more_until_the_curve_ends():
    """Blocks are written through, so that a smaller host holds only what the devices hold too."""
    answers = [with_host(gib) for gib in (10, 100, 400, 1200)]
    hits = [answer["prefix_cache"]["hit"] for answer in answers]
    assert hits == sorted(hits)
    assert hits[-1] < 0.8 < hits[-1] + 0.05
    [host] = answers[0]["kv_tiers"]
    assert host["capacity_tokens"] < answers[0]["prefix_cache"]["free_tokens"]
    assert host["hit_added"] == 0
    assert "nothing" in host["because"]


def test_a_token_of_the_host_is_its_bytes_over_the_link_by_every_rank_that_copies_a_head():
    """Llama 3.1 8B: 32 layers of 8 heads, 128 wide, keys and values in 16 bits: 128 KiB."""
    whole, qwen = 100 * 2**30 / 2**17, {"model": "Qwen/Qwen3-4B", "tp": 8}
    alone, split, copied, more = (
        with_host(100, **split)["kv_tiers"][0]
        for split in ({}, {"tp": 8}, qwen, qwen | {"tp": 16, "nodes": 2})
    )
    assert alone["load_s_per_token"] == pytest.approx(2**17 / 50e9)
    assert [each["capacity_tokens"] for each in (alone, split)] == pytest.approx([whole] * 2)
    assert more["capacity_tokens"] == pytest.approx(copied["capacity_tokens"] / 2)


def test_without_reuse_only_the_cost_counts():
    answer = estimate(LLAMA_8B, lengths(1024, 128, 8))
    assert not {"prefix_cache", "kv_tiers"} & set(answer)
    work = lengths(2048, 128, 64, prefix_hit=0.3)
    _, answer, _, rate = compared(LLAMA_8B, work, {"host_gib": 100})
    assert rate < 0
    assert answer["kv_tiers"][0]["hit_added"] == 0
    assert any("workload.prefix_reuse" in note for note in answer["notes"])


def test_drives_that_write_too_slowly_keep_a_part():
    tiers = {"host_gib_per_device": 50, "through": "lmcache", "disk": NVME | {"gib": 9000}}
    work = lengths(16_000, 8, 64, ((1e6, 0.0), (3e7, 0.5)))
    disk = estimate(LLAMA_8B, work, tiers, tp=1, dp=8)["kv_tiers"][1]
    assert disk["write_bytes_per_s"] == pytest.approx(3.5e9, rel=0.05)
    assert "only write" in disk["because"]


def test_percentiles_wait_for_blocks_too():
    asked = request(LLAMA_8B, lengths(8000, 64, 8, POINTS), {"host_gib": 300})
    plan, row = plan_candidate(PlanRequest.parse(asked))
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


NEXT, GPT_OSS = "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-120b"
LMCACHE = {"host_gib": 9, "through": "lmcache"}
LUSTRE = {"through": "hicache", "host_gib": 300, "remote": {"tier": "fsx-lustre", "gib": 20_000}}
BOTH = {"host_gib": 90, "disk": NVME, "remote": NVME | {"tier": "efs"}}


def test_what_cannot_be_offloaded_is_refused_with_the_fix():
    work = lengths(1024, 128, 8)
    for model, tiers, more, says in (
        (LLAMA_8B, {"host_gib": 4000}, {}, "4,000.0 GiB of a node's host memory"),
        (LLAMA_8B, {"host_gib": 9}, {"engine": "tgi"}, "no option to offload"),
        (LLAMA_8B, {"host_gib": 9, "through": "hicache"}, {}, "set options.kv_offload.through"),
        (LLAMA_8B, {"host_gib": 9, "disk": NVME}, {}, "no disk tier"),
        (NEXT, {"host_gib": 9}, {"tp": 4}, "linear attention"),
        (GPT_OSS, LMCACHE, {"tp": 2}, "sliding window"),
        (LLAMA_8B, LMCACHE, {"device": "mi300x"}, "no build for rocm"),
        (LLAMA_8B, BOTH, {"engine": "sglang"}, "one store"),
    ):
        assert says in reasons(model, work, tiers, **more)
    pooled = request(LLAMA_8B, work, {"host_gib": 90}, prefill={"tp": 1})
    pooled["hardware"]["per_node"] = 2
    plan, row = plan_candidate(PlanRequest.parse(pooled))
    assert "two connectors" in "; ".join(plan.reasons(row))
    # arrivals that blocks cannot keep up with
    load = {"points": ((1e6, 0.0), (1e8, 0.95)), "mode": "open", "request_rate": 12}
    said = reasons(LLAMA_8B, lengths(16_000, 16, None, **load), LUSTRE, engine="sglang")
    assert "the link or the store" in said


@pytest.mark.parametrize(
    ("tiers", "error", "says"),
    [
        ({}, InputError, "host_gib"),
        ({"host_gib": 1, "host_gib_per_device": 1}, InputError, "host_gib"),
        ({"host_gib": 1, "disk": NVME | {"url": "redis://a"}}, InputError, "path"),
        ({"host_gib": 1, "disk": NVME | {"tier": "nvmf"}}, HardwareError, "storage tier"),
    ],
)
def test_errors_name_the_field(tiers, error, says):
    asked = request(LLAMA_8B, lengths(64, 8, 1)) | {"options": {"kv_offload": tiers}}
    with pytest.raises(error, match=says):
        plan_candidate(PlanRequest.parse(asked))
