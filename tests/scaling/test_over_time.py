"""A deployment over time: what is simulated, what the search over policies' parameters chooses, and
what the bundle is then told.
"""

import json
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base import budget
from recipe_core.base.budget import Cancelled
from recipe_core.base.documents import read_document
from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import MOST_REPLICAS, POLICIES, Scaling
from recipe_core.request.schema import PlanRequest
from recipe_core.scaling.answer import simulate_over_time
from recipe_core.scaling.bounds import find_fewest_replicas
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.outcome import Outcome, Series
from recipe_core.scaling.parameter_spaces import Need, schedule_of, space_of
from recipe_core.scaling.policies.controller import Together
from recipe_core.scaling.scenario import prepare_deployment
from recipe_core.scaling.search import ROUNDS, search_policies, spread_places
from recipe_core.scaling.service import share_alone
from recipe_core.scaling.simulated import choose_worst_window, hardest_days, load_part
from recipe_core.scaling.summary import Replays, load_answer, request_with_policy, series_answer
from recipe_core.scaling.traces.loads import Lengths, Load
from recipe_core.scaling.traces.read import read_load
from tests.conftest import make_request
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

DAY = [4.0, 4.0, 10.0, 50.0, 60.0, 50.0, 20.0, 6.0]
"""Requests per second, by three quarters of an hour: one replica is enough for the least."""


def values(**over_time_):
    load = {"rates": DAY, "interval_s": 2700.0, "days": 0.25}
    return {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": {"input_tokens": 512, "output_tokens": 64, "over_time": load | over_time_},
        "objective": {"optimize": "cost", "limits": {"ttft_ms": 2000, "tpot_ms": 50}},
        "options": {"start": {"node": "ready"}},
    }


def request(**over_time_):
    return PlanRequest.parse(values(**over_time_))


@pytest.fixture(scope="module")
def answer():
    return simulate_over_time(request(), policies=["fixed", "keda", "schedule"])


@pytest.mark.nightly
def test_a_replica_is_the_server_that_needs_the_least_devices():
    """Short prompts need one device; long ones miss the limit on it alone."""
    short = {"input_tokens": 512, "output_tokens": 64, "weight": 9}
    wide = values(lengths=[short, short | {"input_tokens": 60_000, "weight": 1}])
    wide["workload"]["max_context"] = 100_000
    wide["model"] = "meta-llama/Llama-3.1-8B-Instruct"
    wide["objective"]["limits"]["ttft_ms"] = 4000
    long = prepare_deployment(PlanRequest.parse(wide))
    assert long.fleet.devices > 1
    assert share_alone(long.fleet.service, long.load.lengths, long.fleet.limits_s) > 0.99


def test_policies_are_ordered_held_against_the_bounds_and_paid(answer):
    assert answer.devices_per_replica == 1
    meeting = [policy for policy in answer.policies if policy.meets]
    assert answer.best == meeting[0].name
    hours = [policy.replica_hours for policy in meeting]
    assert hours == sorted(hours)
    assert answer.policies[: len(meeting)] == tuple(meeting)
    for policy in meeting:
        assert policy.attainment.low <= policy.attainment.value <= policy.attainment.high
        assert policy.against.clairvoyant > 0.95
    peak = answer.bounds.always_peak
    assert peak.replica_hours >= answer.bounds.clairvoyant.replica_hours
    for policy in (*answer.policies, peak):
        assert policy.usd == pytest.approx(policy.replica_hours * answer.usd_per_replica_hour)
        assert policy.gpu_hours == policy.replica_hours * answer.devices_per_replica
    fixed = answer.policy("fixed")
    paid = fixed.scaling.max_replicas * answer.load.span_s / 3600
    assert fixed.replica_hours == pytest.approx(paid, rel=0.02)  # failures end some
    checked = answer.chosen.checked  # request by request
    assert checked.requests > 100
    assert checked.attainment == pytest.approx(checked.flow, abs=0.25)


def test_a_higher_share_is_never_cheaper_progress_told_and_what_is_missing_named():
    costs, progressed = [], []
    for attainment in (0.9, 0.999):
        with budget.watched(lambda done, steps, _: progressed.append((done, steps))):
            found = simulate_over_time(request(attainment=attainment), policies=["fixed"])
        costs.append(found.policies[0].replica_hours)
        assert progressed[-1][0] == progressed[-1][1] > 5
    assert costs == sorted(costs)
    error = refusal(simulate_over_time, make_request())
    assert error.field == "objective.limits"
    assert "ttft_ms" in error.hint
    limited = make_request(objective={"limits": {"tpot_ms": 50}})
    assert refusal(simulate_over_time, limited).field == "workload.over_time"
    assert "'keda'" in str(refusal(simulate_over_time, limited, policies=["kedaa"]))
    flat = request(rates=[4.0, 4.0])
    assert (
        refusal(simulate_over_time, flat, kind=NoAnswer, policies=["schedule"]).field == "policies"
    )


def test_the_written_request_builds_a_bundle_with_the_chosen_numbers(answer, tmp_path):
    scaling = answer.policy("keda").scaling
    whole = request_with_policy(request(), answer, policy="keda")
    assert whole.options.scaling == scaling
    assert whole.candidate.dp == 1
    path, bundle = tmp_path / "chosen.yaml", tmp_path / "bundle"
    path.write_text(whole.model_dump_json(exclude_none=True))
    done = recipe("build", str(path), "--output", str(bundle))
    assert done.returncode == 0, done.stderr
    spec = read_document(bundle / "targets" / "kubernetes-keda" / "scaledobject.yaml")["spec"]
    bounds = spec["minReplicaCount"], spec["maxReplicaCount"]
    assert bounds == (scaling.min_replicas, scaling.max_replicas)
    (trigger,) = spec["triggers"]
    assert float(trigger["metadata"]["threshold"]) == scaling.triggers[0].target


def test_a_trace_is_the_load_in_place_of_the_requests():
    rows = "\n".join(f"{n * 0.9},{300 + n % 50},{20 + n % 7}" for n in range(400))
    text = f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}\n"
    asked = values()
    del asked["workload"]["over_time"]
    trace = read_load(text.encode(), "small.csv")
    found = simulate_over_time(PlanRequest.parse(asked), trace=trace, policies=["fixed"])
    assert found.load.requests == pytest.approx(400, rel=0.05)
    assert found.load.input_tokens == pytest.approx(324.5, rel=0.02)
    assert "small.csv" in found.load.source
    assert found.best == "fixed"


LENGTHS = Lengths(np.array([100.0]), np.array([10.0]), np.ones(1))
WEEK = Load(np.tile(np.arange(24.0), 7) + np.repeat(np.arange(7.0), 24), 3600.0, LENGTHS)


def test_the_hardest_day_has_the_busiest_hour_and_keeps_its_hour_of_the_week():
    begin, end = hardest_days(WEEK, 1.0)
    assert (begin, end) == (6 * 86_400.0, 7 * 86_400.0)
    part = load_part(WEEK, begin, end)
    assert part.rates.max() == WEEK.rates.max()
    assert (len(part.rates), part.start_hour) == (24, 144)
    assert hardest_days(WEEK, 7.0) == (0.0, WEEK.span_s)
    # a window lies in the load around its worst moment
    for worst_s in (0.0, 1e5, WEEK.span_s - 60.0):
        warm_s, from_s, to_s = choose_worst_window(WEEK, worst_s)
        assert 0 <= warm_s <= from_s <= worst_s < to_s <= WEEK.span_s
        assert warm_s % 3600 == 0


def test_series_keep_sums_and_ranges_grow_with_what_a_day_misses():
    n = 10_080
    ttft_s = np.where(np.arange(n) % 2, 0.5, np.nan)
    counts = (k * np.ones(n) for k in (3, 2, 1, 2, 3, 4, 5))
    short = series_answer(Series(60.0, *counts, ttft_s))
    assert short.interval_s == 900.0
    assert len(short.arrived) == 672
    assert sum(short.arrived) == pytest.approx(3 * n)
    assert set(short.ready) == {1.0}
    assert short.ttft_s[0] == 0.5
    assert load_answer(WEEK).interval_s == 3600.0
    whole, day, low, high = (
        Outcome(
            86_400.0, 1000.0, 1000.0 * share, 1.0, 1.0, *[0] * 4, Series(60.0, *[np.zeros(0)] * 8)
        )
        for share in (0.99, 0.98, 0.96, 0.99)
    )
    alone, some = Replays(whole).shares(), Replays(whole, day, (low, high)).shares()
    assert (alone.low, alone.value, alone.high) == (0.99, 0.99, 0.99)
    assert some.low == pytest.approx(0.98)  # twice as many misses on the day, and overall
    assert some.high == pytest.approx(0.995)
    assert Replays(whole).chance(0.99) == 1.0
    narrow = Replays(whole, day, (low, high))
    assert narrow.chance(0.99) == pytest.approx(2 / 3)
    # cheap and unsure comes after dear and sure, and before what misses the share
    dear = Replays(replace(whole, rented_s=2.0))
    missing = Replays(replace(whole, kept_requests=980.0))
    ranked = sorted([missing, narrow, dear], key=lambda replays: replays.order(0.99, 0.8))
    assert ranked == [dear, narrow, missing]
    by_estimate = sorted([missing, dear, narrow], key=lambda replays: replays.order(0.99))
    assert by_estimate == [narrow, dear, missing]


SERIES = Series(60.0, *[np.zeros(0)] * 8)
DEMAND = np.array([1, 1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 8, 8, 9, 10, 9, 8, 6, 5, 4, 3, 2, 1])
BUSY = np.tile(DEMAND, 7)
GAUGES = frozenset({"in-flight", "waiting", "running", "kv-usage"})


def need(replicas=DEMAND):
    load = {"interval_s": 3600.0, "capacity_per_s": 2.0, "in_flight": 24.0, "kv_usage": 0.6}
    return Need(replicas=replicas, gauges=GAUGES, start_s=300.0, start_hour=0, **load)


def outcome(attainment, replica_s):
    return Outcome(3600.0, 1e6, attainment * 1e6, replica_s, replica_s, 0, 0, 0, 0, SERIES)


def fixed_outcomes(scalings):
    """More replicas keep more, 137 of them 99 %."""
    counts = [scaling.max_replicas for scaling in scalings]
    return [outcome(1 - 0.01 * (137 / n) ** 4, 1000.0 * n) for n in counts]


@pytest.mark.parametrize("most", [1, 20, 137, 138, 5000])
def test_the_fewest_replicas_that_reach_the_share_are_found_whatever_number_comes_first(most):
    scaling, found = find_fewest_replicas(fixed_outcomes, most, 0.99)
    assert (scaling.min_replicas, scaling.max_replicas) == (137, 137)
    assert found.attainment >= 0.99
    # where none can reach it the most are simulated
    scaling, found = find_fewest_replicas(fixed_outcomes, most, 1.0, reachable=False)
    assert scaling.max_replicas == min(most, MOST_REPLICAS)
    assert found.attainment < 1.0


SEARCHED = [policy for policy in POLICIES if policy != "fixed"]


@over("policy", SEARCHED)
def test_every_point_is_a_valid_policy_of_whole_seconds(policy):
    space = space_of(policy, need())
    sizes = [len(values) for values in space.values.values()]
    points = (dict(zip(space.values, places, strict=True)) for places in np.ndindex(*sizes))
    for scaling in filter(None, map(space.scaling, points)):
        assert scaling.policy == policy
        assert Scaling.model_validate(scaling.to_json()) == scaling
        times = [v for k, v in scaling.to_json().items() if k.endswith("_s")]
        assert all(float(seconds).is_integer() and seconds <= 3600 for seconds in times)
        assert all(round(t.target, 3) == t.target for t in scaling.triggers)


def keda_outcomes(scalings):
    """Cheap with a high target and a short delay; enough up to a target of 22."""
    targets = [scaling.triggers[0].target for scaling in scalings]
    delays_s = [scaling.down_delay_s for scaling in scalings]
    return [
        outcome(1.0 if target <= 22 else 0.97, 1e4 / target + delay_s)
        for target, delay_s in zip(targets, delays_s, strict=True)
    ]


def test_the_cheapest_parameters_are_found_and_where_none_is_enough_the_nearest():
    space = space_of("keda", need())
    best, *others = search_policies([space], keda_outcomes, 0.99)["keda"]
    assert 0.85 * 24 < best.scaling.triggers[0].target <= 22
    assert best.scaling.down_delay_s == 60
    assert any(other.attainment < 0.99 for other in others)  # for whoever has it easier
    nearest = search_policies([space], keda_outcomes, 1.5)["keda"][0]
    assert nearest.attainment == 1.0


def test_all_policies_are_columns_of_one_simulation_a_round_and_the_best_always_the_same():
    batches = []

    def alike(scalings):
        batches.append(scalings)
        return [outcome(1.0, 5.0) for _ in scalings]

    spaces = [space_of(policy, need()) for policy in SEARCHED]
    first, again = (search_policies(spaces, alike, 0.99) for _ in range(2))
    assert first == again
    assert len(batches) == 2 * len(ROUNDS)
    once = [scaling for batch in batches[: len(ROUNDS)] for scaling in batch]
    assert len(once) == len(set(once)) > 250  # none is simulated twice
    assert {scaling.policy for scaling in batches[0]} == set(SEARCHED)


SAY_CHOSEN = """
from tests.scaling.test_over_time import *
found = search_policies([space_of(policy, need()) for policy in SEARCHED], any_outcomes, 0.99)
print(json.dumps([tried.scaling.to_json() for some in found.values() for tried in some]))
"""


def any_outcomes(scalings):
    """Something of each scaling, the same everywhere."""
    words = (json.dumps(scaling.to_json(), sort_keys=True).encode() for scaling in scalings)
    shares = (zlib.crc32(word) / 2**32 for word in words)
    return [outcome(0.98 + 0.02 * share, 1e3 * (1 - share)) for share in shares]


def test_another_process_chooses_the_same():
    words = [sys.executable, "-c", SAY_CHOSEN]
    one, other = (
        subprocess.run(words, check=True, capture_output=True, cwd=ROOT).stdout for _ in range(2)
    )
    assert one == other


class Says:
    """Wants so many more than there are."""

    def __init__(self, interval_s, more):
        self.interval_s, self.more = interval_s, more

    def decide(self, seen):
        return seen.ready + self.more


def test_points_are_spread_a_search_ended_and_controllers_decide_for_their_own():
    points = list(spread_places([7] * 4, 60))
    assert len(set(points)) > 55
    assert [set(column) for column in zip(*points, strict=True)] == [set(range(7))] * 4
    steps = []
    space = [space_of("keda", need())]
    with budget.watched(lambda done, all_, _: steps.append((done, all_))), budget.track_task(2):
        search_policies(space, keda_outcomes, 0.99)
    assert steps[-1] == (2, 2)
    with budget.apply_budget(budget.Budget(), lambda: True), pytest.raises(Cancelled):
        search_policies(space, keda_outcomes, 0.99)
    together = Together([(Says(15.0, 1.0), np.array([0, 2])), (Says(2.0, 5.0), np.array([1]))])
    assert together.interval_s == 2.0
    ready, zeros = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    seen = Signals(0.0, 0.0, ready, *[zeros] * 5, lambda: (zeros, zeros))
    assert together.decide(seen).tolist() == [2.0, 7.0, 4.0]


def by_hour(scaling):
    """The replicas of a schedule in each hour of the week, which no two of its periods share."""
    counts = np.full(168, scaling.min_replicas)
    for period in scaling.periods:
        hours = counts[period.from_hour : period.to_hour]
        assert (hours == scaling.min_replicas).all()
        hours[:] = period.replicas
    return counts


def test_a_schedule_has_each_hours_replicas_and_merges_equal_ones():
    plain, ahead, merged = (schedule_of(BUSY, **how) for how in ({}, {"lead": 1}, {"merge": 0.4}))
    assert (by_hour(plain) == BUSY).all()
    pairs = list(zip(plain.periods, plain.periods[1:], strict=False))
    assert all(a.to_hour < b.from_hour or a.replicas != b.replicas for a, b in pairs)
    # replicas are there before they are needed, and merged hours never have fewer
    assert (by_hour(ahead) >= np.maximum(BUSY, np.roll(BUSY, -1))).all()
    assert len(merged.periods) < len(plain.periods)
    assert (by_hour(merged) >= BUSY).all()
    assert schedule_of(np.full(168, 4)) is None  # a flat load has none
    flat = [space_of("schedule", need(np.full(24, 4)))]
    assert search_policies(flat, fixed_outcomes, 0.5) == {"schedule": []}
