"""What caches find of the reuse of a workload, and what tiers below the devices' cache cost."""

import numpy as np
import pytest

from recipe_core.fleet.service import service_of
from recipe_core.hardware.cluster import device
from recipe_core.hardware.host_links import link_rates
from recipe_core.hardware.profile import Transfers
from recipe_core.physics.serving.simulate import simulate
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan as plan_of
from recipe_core.search.plans import plan_candidate
from recipe_core.space.reuse import ReuseCurve
from tests.fixtures.rows import over

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
POINTS = ((1e4, 0.1), (1e5, 0.3), (1e6, 0.6), (1e7, 0.8))


def request(model, work, offload=None, tp=1, dp=1, nodes=1, device="h100-sxm", **own):
    value = {
        "model": model,
        "hardware": {"device": device, "per_node": tp * dp // nodes, "nodes": nodes},
        "workload": work,
        "candidate": {"engine": "vllm", "tp": tp, "pp": 1, "dp": dp, "ep": 1} | own,
    }
    return value | ({"options": {"kv_offload": offload}} if offload else {})


def lengths(prompt, answer, at_once, points=(), **more):
    reuse = [{"cache_tokens": tokens, "hit": hit} for tokens, hit in points]
    load = {"mode": "closed", "input_tokens": prompt, "output_tokens": answer}
    return load | {"concurrency": at_once, "prefix_reuse": reuse} | more


def candidate(asked):
    return plan_candidate(PlanRequest.parse(asked))


def estimate(*args, **more):
    plan, row = candidate(request(*args, **more))
    return plan.estimate(row).to_json()


def test_a_measured_link_goes_before_the_table():
    chip = device("h100-sxm")
    rate = chip.memory_bandwidth_bytes_per_s.model_copy(update={"value": 2.0e10})
    measured = chip.model_copy(update={"transfers": Transfers(to_device_bytes_per_s=rate)})
    assert (link_rates(chip), link_rates(measured)) == ((50e9, 50e9), (2e10, 50e9))


def test_percentiles_and_replicas_over_time_wait_for_blocks_too():
    asked = request(LLAMA_8B, lengths(8000, 64, 8, POINTS), {"host_gib": 300})
    plan, row = candidate(asked)
    estimates, place = plan.detail(row)
    ran = simulate(plan.setting(row), estimates.cases.take([place]), estimates.memory.take([place]))
    mean_s = float(estimates.serving.ttft_s[place])
    assert float(ran.means_s["ttft_s"][0]) == pytest.approx(mean_s, rel=0.35)
    plan, row = candidate(value())
    plain = service_of(plan, row)
    assert plain.prefix_hit == plan.estimate(row).prefix_cache.hit
    tiers = {"options": {"kv_offload": {"through": "lmcache", "host_gib": 300}}}
    with_tiers = service_of(*candidate(value() | tiers))
    assert with_tiers.request_s > plain.request_s
    assert with_tiers.prefix_hit > plain.prefix_hit
    assert with_tiers.prompt_s[1, -1] > plain.prompt_s[1, -1]


def value(dp=1, split=None, **work):
    return request(LLAMA_8B, lengths(8000, 256, 8, POINTS) | work, dp=dp, **(split or {}))


def found(**parts):
    plan, row = candidate(value(**parts))
    return plan.estimate(row).to_json()["prefix_cache"]


def test_the_estimate_is_that_of_the_share_its_cache_finds_beside_running_requests():
    curve = ReuseCurve.of(POINTS)
    assert (np.diff(curve.hit_at(np.geomspace(10, 1e9, 200))) >= 0).all()
    assert curve.hit_at(np.array([0.0, 5e3, 10**5.5, 1e9])) == pytest.approx([0, 0.05, 0.45, 0.8])
    answer = estimate(LLAMA_8B, lengths(8000, 256, 8, POINTS))
    hit = answer["prefix_cache"]["hit"]
    assert 0.3 < hit < 0.6
    stated = estimate(LLAMA_8B, lengths(8000, 256, 8, prefix_hit=hit))
    assert answer["serving"] == pytest.approx(stated["serving"])
    assert "prefix_cache" not in stated
    free = answer["memory"]["kv_cache_tokens"] - 8 * ((1 - hit) * 8000 + 128)
    assert answer["prefix_cache"]["free_tokens"] == pytest.approx(free, rel=1e-6)


@over("load", [{"concurrency": 64}, {"mode": "open", "request_rate": 0.5, "concurrency": None}])
def test_more_memory_never_finds_less(load):
    fractions = np.linspace(0.3, 0.95, 27).tolist()
    shares = [found(split={"memory_fraction": share}, **load)["hit"] for share in fractions]
    assert (np.diff(shares) >= -1e-6).all()
    assert shares[-1] > shares[0]


def test_every_split_of_a_plan_and_a_pool_of_prompts_have_their_own_share():
    shared = found(dp=2, concurrency=16, prefix_affinity=True)
    assert shared["seen_tokens"] == pytest.approx(2 * shared["free_tokens"])
    plan = plan_of(PlanRequest.parse(value(dp=4, concurrency=32) | {"candidate": None}))
    shares = {
        (plan.candidate(row)["tp"], plan.candidate(row)["dp"]): plan.estimate(row).prefix_cache.hit
        for row in map(int, plan.order[:6])
    }
    assert shares[4, 1] > shares[2, 2] > shares[1, 4]
    pooled = value(dp=2)
    pooled["candidate"] |= {"dp": 1, "prefill": {"tp": 1}}
    plan, row = candidate(pooled)
    assert 0.3 < plan.estimate(row).prefix_cache.hit < 0.8
