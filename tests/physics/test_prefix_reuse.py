"""Caches find what the reuse of a workload says for their size."""

from __future__ import annotations

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.fleet.service import service_of
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan as plan_of
from recipe_core.search.plans import plan_candidate
from recipe_core.space.reuse import ReuseCurve

CURVE = ((1e4, 0.1), (1e5, 0.3), (1e6, 0.6), (1e7, 0.8))


def request(device="h100-sxm", per_node=1, tp=1, dp=1, points=CURVE, **workload):
    work = {"mode": "closed", "input_tokens": 8000, "output_tokens": 256, "concurrency": 8}
    work |= {"prefix_reuse": [{"cache_tokens": t, "hit": h} for t, h in points]}
    return {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": device, "per_node": per_node, "nodes": 1},
        "workload": work | workload,
        "candidate": {"engine": "vllm", "tp": tp, "pp": 1, "dp": dp, "ep": 1},
    }


def estimate(value):
    plan, row = plan_candidate(PlanRequest.parse(value))
    return plan.estimate(row).to_json()


def test_a_curve_is_interpolated_by_magnitude_and_never_falls():
    curve = ReuseCurve.of(CURVE)
    sizes = np.geomspace(10, 1e9, 200)
    found = curve.hit_at(sizes)
    assert (np.diff(found) >= 0).all()
    assert curve.hit_at(np.array([0.0, 5e3, 10**5.5, 1e9])) == pytest.approx([0, 0.05, 0.45, 0.8])


def test_the_estimate_is_that_of_the_share_its_cache_finds():
    answer = estimate(request())
    found = answer["prefix_cache"]["hit"]
    assert 0.3 < found < 0.6
    stated = estimate(request(points=(), prefix_hit=found))
    assert answer["serving"] == pytest.approx(stated["serving"])
    assert "prefix_cache" not in stated


def test_running_requests_leave_less_room():
    shares = [estimate(request(concurrency=n))["prefix_cache"] for n in (1, 8, 32, 128)]
    assert (np.diff([share["hit"] for share in shares]) < 0).all()
    pool = estimate(request())["memory"]["kv_cache_tokens"]
    own = 8 * ((1 - shares[1]["hit"]) * 8000 + 128)
    assert shares[1]["free_tokens"] == pytest.approx(pool - own, rel=1e-6)


@pytest.mark.parametrize("load", [{}, {"mode": "open", "request_rate": 0.5, "concurrency": None}])
def test_more_memory_never_finds_less(load):
    fractions = np.linspace(0.3, 0.95, 27)
    shares = []
    for fraction in fractions:
        value = request(concurrency=64) if not load else request(**load)
        value["candidate"]["memory_fraction"] = float(fraction)
        shares.append(estimate(value)["prefix_cache"]["hit"])
    assert (np.diff(shares) >= -1e-6).all()
    assert shares[-1] > shares[0]


def test_a_prefix_of_everybody_stays_while_the_pool_is_full():
    """Running requests hold a system prompt, so that thrash does not lose it."""
    system = ((2000, 0.9), (1e9, 0.9))
    answer = estimate(request("l4", points=system, input_tokens=2200, concurrency=512))
    assert answer["prefix_cache"]["hit"] == pytest.approx(0.9)


def test_replicas_find_what_one_does_and_with_affinity_what_all_do():
    alone = estimate(request(concurrency=8))["prefix_cache"]
    two = estimate(request(per_node=2, dp=2, concurrency=16))["prefix_cache"]
    sticky = estimate(request(per_node=2, dp=2, concurrency=16, prefix_affinity=True))
    assert two["hit"] == pytest.approx(alone["hit"], rel=1e-3)
    shared = sticky["prefix_cache"]
    assert shared["hit"] > two["hit"]
    assert shared["seen_tokens"] == pytest.approx(2 * shared["free_tokens"])


def test_every_split_of_a_plan_has_its_own_share():
    value = request(per_node=4, concurrency=32)
    del value["candidate"]
    plan = plan_of(PlanRequest.parse(value))
    shares = {
        (plan.candidate(row)["tp"], plan.candidate(row)["dp"]): plan.estimate(row).prefix_cache.hit
        for row in map(int, plan.order[:6])
    }
    assert shares[4, 1] > shares[2, 2] > shares[1, 4]


def test_pools_find_what_the_pool_of_prompts_holds():
    value = request(per_node=2, tp=1)
    value["candidate"]["prefill"] = {"tp": 1}
    assert 0.3 < estimate(value)["prefix_cache"]["hit"] < 0.8


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"prefix_hit": 0.5}, "prefix_reuse"),
        ({"points": (), "prefix_affinity": True}, "prefix_affinity"),
        ({"points": ((1e4, 0.5), (1e5, 0.4))}, "falls from 0.5"),
        ({"points": ((1e4, 0.5), (1e4, 0.4))}, "twice"),
    ],
)
def test_contradictions_are_refused(fields, names):
    with pytest.raises(InputError, match=names):
        PlanRequest.parse(request(**fields))


def test_a_replica_over_time_finds_what_its_estimate_finds():
    plan, row = plan_candidate(PlanRequest.parse(request()))
    service = service_of(plan, row)
    assert service.prefix_hit == plan.estimate(row).prefix_cache.hit


def test_a_replica_over_time_waits_for_its_blocks():
    value = request() | {"options": {"kv_offload": {"through": "lmcache", "host_gib": 300}}}
    plan, row = plan_candidate(PlanRequest.parse(value))
    without = service_of(*plan_candidate(PlanRequest.parse(request())))
    with_host = service_of(plan, row)
    assert with_host.request_s > without.request_s
    assert with_host.prefix_hit > without.prefix_hit
    assert with_host.prompt_s[1, -1] > without.prompt_s[1, -1]
