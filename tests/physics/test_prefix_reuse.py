"""Caches find what the reuse of a workload says for their size."""

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.fleet.service import service_of
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan as plan_of
from recipe_core.search.plans import plan_candidate
from recipe_core.space.reuse import ReuseCurve

CURVE = ((1e4, 0.1), (1e5, 0.3), (1e6, 0.6), (1e7, 0.8))


def request(device="h100-sxm", per_node=1, dp=1, points=CURVE, split=None, **workload):
    work = {"mode": "closed", "input_tokens": 8000, "output_tokens": 256, "concurrency": 8}
    work |= {"prefix_reuse": [{"cache_tokens": t, "hit": h} for t, h in points]}
    return {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": device, "per_node": per_node, "nodes": 1},
        "workload": work | workload,
        "candidate": {"engine": "vllm", "tp": 1, "pp": 1, "dp": dp, "ep": 1} | (split or {}),
    }


def candidate(value):
    return plan_candidate(PlanRequest.parse(value))


def estimate(*args, **parts):
    plan, row = candidate(request(*args, **parts))
    return plan.estimate(row).to_json()


def found(*args, **parts):
    return estimate(*args, **parts)["prefix_cache"]


def test_a_curve_is_interpolated_by_magnitude_and_never_falls():
    curve = ReuseCurve.of(CURVE)
    assert (np.diff(curve.hit_at(np.geomspace(10, 1e9, 200))) >= 0).all()
    assert curve.hit_at(np.array([0.0, 5e3, 10**5.5, 1e9])) == pytest.approx([0, 0.05, 0.45, 0.8])


def test_the_estimate_is_that_of_the_share_its_cache_finds():
    answer = estimate()
    hit = answer["prefix_cache"]["hit"]
    assert 0.3 < hit < 0.6
    stated = estimate(points=(), prefix_hit=hit)
    assert answer["serving"] == pytest.approx(stated["serving"])
    assert "prefix_cache" not in stated


def test_running_requests_leave_less_room():
    shares = [found(concurrency=n) for n in (1, 8, 32, 128)]
    assert (np.diff([share["hit"] for share in shares]) < 0).all()
    own = 8 * ((1 - shares[1]["hit"]) * 8000 + 128)
    free = estimate()["memory"]["kv_cache_tokens"] - own
    assert shares[1]["free_tokens"] == pytest.approx(free, rel=1e-6)


@pytest.mark.parametrize(
    "load", [{"concurrency": 64}, {"mode": "open", "request_rate": 0.5, "concurrency": None}]
)
def test_more_memory_never_finds_less(load):
    fractions = np.linspace(0.3, 0.95, 27).tolist()
    shares = [found(split={"memory_fraction": share}, **load)["hit"] for share in fractions]
    assert (np.diff(shares) >= -1e-6).all()
    assert shares[-1] > shares[0]


def test_a_prefix_of_everybody_stays_while_the_pool_is_full():
    """Running requests hold a system prompt, so that thrash does not lose it."""
    system = ((2000, 0.9), (1e9, 0.9))
    shared = found("l4", points=system, input_tokens=2200, concurrency=512)
    assert shared["hit"] == pytest.approx(0.9)


def test_replicas_find_what_one_does_and_with_affinity_what_all_do():
    alone, two, shared = (
        found(per_node=n, dp=n, concurrency=8 * n, **more)
        for n, more in ((1, {}), (2, {}), (2, {"prefix_affinity": True}))
    )
    assert two["hit"] == pytest.approx(alone["hit"], rel=1e-3)
    assert shared["hit"] > two["hit"]
    assert shared["seen_tokens"] == pytest.approx(2 * shared["free_tokens"])


def test_every_split_of_a_plan_and_a_pool_of_prompts_have_their_own_share():
    value = request(per_node=4, concurrency=32)
    del value["candidate"]
    plan = plan_of(PlanRequest.parse(value))
    shares = {
        (plan.candidate(row)["tp"], plan.candidate(row)["dp"]): plan.estimate(row).prefix_cache.hit
        for row in map(int, plan.order[:6])
    }
    assert shares[4, 1] > shares[2, 2] > shares[1, 4]
    assert 0.3 < found(per_node=2, split={"prefill": {"tp": 1}})["hit"] < 0.8


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


def test_a_replica_over_time_finds_what_its_estimate_finds_and_waits_for_its_blocks():
    plan, row = candidate(request())
    plain = service_of(plan, row)
    assert plain.prefix_hit == plan.estimate(row).prefix_cache.hit
    options = {"options": {"kv_offload": {"through": "lmcache", "host_gib": 300}}}
    with_host = service_of(*candidate(request() | options))
    assert with_host.request_s > plain.request_s
    assert with_host.prefix_hit > plain.prefix_hit
    assert with_host.prompt_s[1, -1] > plain.prompt_s[1, -1]
