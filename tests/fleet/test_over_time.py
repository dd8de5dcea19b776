"""A deployment over time: what is simulated, what is chosen, and what the bundle is then told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipe_core.base import progress
from recipe_core.base.documents import read_document
from recipe_core.base.errors import InputError
from recipe_core.fleet.answer import over_time
from recipe_core.fleet.chosen import request_with
from recipe_core.fleet.confirm import window_of
from recipe_core.fleet.curve import share_alone
from recipe_core.fleet.outcome import Outcome, Series
from recipe_core.fleet.result import OverTimeAnswer
from recipe_core.fleet.says import Replays, load_answer, series_answer
from recipe_core.fleet.setup import deployment_of
from recipe_core.fleet.simulated import hardest, part_of
from recipe_core.request.schema import PlanRequest
from recipe_core.traffic.load import Lengths, Load
from recipe_core.traffic.read import read_load
from tests.conftest import request_values
from tests.fixtures.command_line import recipe

DAY = [4.0, 4.0, 10.0, 50.0, 60.0, 50.0, 20.0, 6.0]
"""Requests per second, by three quarters of an hour: one replica is enough for the least."""


def values(**over_time_: Any) -> dict[str, Any]:
    load = {"rates": DAY, "interval_s": 2700.0, "days": 0.25}
    return {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": {"input_tokens": 512, "output_tokens": 64, "over_time": load | over_time_},
        "objective": {"optimize": "cost", "limits": {"ttft_ms": 2000, "tpot_ms": 50}},
        "options": {"start": {"node": "ready"}},
    }


@pytest.fixture(scope="module")
def answer() -> OverTimeAnswer:
    request = PlanRequest.parse(values())
    return over_time(request, policies=["fixed", "keda", "schedule"])


def test_a_replica_is_the_server_that_needs_the_least_devices() -> None:
    """With short prompts one device follows the load; long ones miss the limit on it alone."""
    short = deployment_of(PlanRequest.parse(values()))
    assert short.fleet.devices == 1
    lengths = [
        {"input_tokens": 512, "output_tokens": 64, "weight": 9},
        {"input_tokens": 60_000, "output_tokens": 64, "weight": 1},
    ]
    request = values(lengths=lengths)
    request["workload"]["max_context"] = 100_000
    request["model"] = "meta-llama/Llama-3.1-8B-Instruct"
    request["objective"]["limits"]["ttft_ms"] = 4000
    long = deployment_of(PlanRequest.parse(request))
    assert long.fleet.devices > 1
    alone = share_alone(long.fleet.service, long.load.lengths, long.fleet.limits_s)
    assert alone > 0.99


def test_policies_are_ordered_and_held_against_the_bounds(answer: OverTimeAnswer) -> None:
    meeting = [policy for policy in answer.policies if policy.meets]
    assert answer.best == meeting[0].name
    hours = [policy.replica_hours for policy in meeting]
    assert hours == sorted(hours)
    assert answer.policies[: len(meeting)] == tuple(meeting)
    for policy in meeting:
        assert policy.attainment.low <= policy.attainment.value <= policy.attainment.high
        assert policy.against.clairvoyant is not None
        assert policy.against.clairvoyant > 0.95
    peak = answer.bounds.always_peak
    assert peak.replica_hours >= answer.bounds.clairvoyant.replica_hours


def test_money_is_hours_of_replicas_at_their_price(answer: OverTimeAnswer) -> None:
    price = answer.usd_per_replica_hour
    assert price is not None
    for policy in (*answer.policies, answer.bounds.always_peak):
        assert policy.usd == pytest.approx(policy.replica_hours * price)
        assert policy.gpu_hours == policy.replica_hours * answer.devices_per_replica
    fixed = answer.policy("fixed")
    assert fixed is not None
    assert fixed.scaling is not None
    hours = fixed.scaling.max_replicas * answer.load.span_s / 3600
    assert fixed.replica_hours == pytest.approx(hours, rel=0.02)  # failures end some


def test_the_best_policy_is_checked_request_by_request(answer: OverTimeAnswer) -> None:
    chosen = answer.chosen
    assert chosen is not None
    assert chosen.checked is not None
    assert chosen.checked.requests > 100
    assert chosen.checked.attainment == pytest.approx(chosen.checked.flow, abs=0.25)


def test_exactly_the_stated_policy_is_simulated_and_found_again() -> None:
    scaling = {
        "policy": "keda",
        "min_replicas": 1,
        "max_replicas": 5,
        "triggers": [{"metric": "in-flight", "target": 31.0}],
    }
    request = PlanRequest.parse(values() | {"options": {"scaling": scaling}})
    first, again = over_time(request), over_time(request)
    assert [policy.name for policy in first.policies] == ["keda"]
    assert first.policies[0].scaling == request.options.scaling
    assert first == again


def test_a_higher_share_is_never_cheaper() -> None:
    costs = []
    for attainment in (0.9, 0.999):
        request = PlanRequest.parse(values(attainment=attainment))
        fixed = over_time(request, policies=["fixed"]).policies[0]
        costs.append(fixed.replica_hours)
    assert costs == sorted(costs)


def test_what_is_missing_is_named() -> None:
    plain = PlanRequest.parse(request_values())
    with pytest.raises(InputError) as refused:
        over_time(plain)
    assert refused.value.field == "objective.limits"
    assert "ttft_ms" in (refused.value.hint or "")
    limited = PlanRequest.parse(request_values(objective={"limits": {"tpot_ms": 50}}))
    with pytest.raises(InputError) as refused:
        over_time(limited)
    assert refused.value.field == "workload.over_time"
    with pytest.raises(InputError, match="Did you mean 'keda'"):
        over_time(limited, policies=["kedaa"])


def test_progress_is_told_to_the_last_step() -> None:
    told: list[tuple[int, int]] = []
    with progress.watched(lambda done, steps: told.append((done, steps))):
        over_time(PlanRequest.parse(values()), policies=["fixed"])
    assert told[-1][0] == told[-1][1] > 5


# What the bundle is told


def test_the_written_request_builds_a_bundle_with_the_chosen_numbers(
    answer: OverTimeAnswer, tmp_path: Path
) -> None:
    keda = answer.policy("keda")
    assert keda is not None
    assert keda.scaling is not None
    whole = request_with(PlanRequest.parse(values()), answer, policy="keda")
    assert whole.options.scaling == keda.scaling
    path = tmp_path / "chosen.yaml"
    path.write_text(whole.model_dump_json(exclude_none=True))
    done = recipe("build", str(path), "--output", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "bundle" / "targets" / "kubernetes-keda"
    spec = read_document(folder / "scaledobject.yaml")["spec"]
    assert spec["minReplicaCount"] == keda.scaling.min_replicas
    assert spec["maxReplicaCount"] == keda.scaling.max_replicas
    (trigger,) = spec["triggers"]
    assert float(trigger["metadata"]["threshold"]) == keda.scaling.triggers[0].target


# Traces


def trace_text(requests: int = 400) -> str:
    rows = "\n".join(f"{n * 0.9},{300 + n % 50},{20 + n % 7}" for n in range(requests))
    return "arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows + "\n"


def test_a_trace_is_the_load_in_place_of_the_requests() -> None:
    trace = read_load(trace_text().encode(), "small.csv")
    request = values()
    del request["workload"]["over_time"]
    found = over_time(PlanRequest.parse(request), trace=trace, policies=["fixed"])
    assert found.load.requests == pytest.approx(400, rel=0.05)
    assert found.load.input_tokens == pytest.approx(324.5, rel=0.02)
    assert "small.csv" in found.load.source
    assert found.best == "fixed"


# Parts


LENGTHS = Lengths(np.array([100.0]), np.array([10.0]), np.ones(1))
WEEK = Load(np.tile(np.arange(24.0), 7) + np.repeat(np.arange(7.0), 24), 3600.0, LENGTHS)


def test_the_hardest_day_has_the_busiest_hour_and_keeps_its_hour_of_the_week() -> None:
    begin, end = hardest(WEEK, 1.0)
    assert (begin, end) == (6 * 86_400.0, 7 * 86_400.0)
    part = part_of(WEEK, begin, end)
    assert part.rates.max() == WEEK.rates.max()
    assert (len(part.rates), part.start_hour) == (24, 144)
    assert hardest(WEEK, 7.0) == (0.0, WEEK.span_s)


def test_a_window_lies_in_the_load_around_its_worst_moment() -> None:
    for worst_s in (0.0, 1e5, WEEK.span_s - 60.0):
        warm_s, from_s, to_s = window_of(WEEK, worst_s)
        assert 0 <= warm_s <= from_s <= worst_s < to_s <= WEEK.span_s
        assert warm_s % 3600 == 0


def test_series_with_fewer_points_keep_sums_and_means() -> None:
    n = 10_080
    ones = np.ones(n)
    ttft_s = np.where(np.arange(n) % 2, 0.5, np.nan)
    series = Series(60.0, 3 * ones, 2 * ones, *(k * ones for k in range(1, 6)), ttft_s)
    short = series_answer(series)
    assert short.interval_s == 900.0
    assert len(short.arrived) == 672
    assert sum(short.arrived) == pytest.approx(3 * n)
    assert set(short.ready) == {1.0}
    assert short.ttft_s[0] == 0.5
    assert load_answer(WEEK).interval_s == 3600.0


def outcome(share: float) -> Outcome:
    none = np.zeros(0)
    series = Series(60.0, none, none, none, none, none, none, none, none)
    return Outcome(86_400.0, 1000.0, 1000.0 * share, 1.0, 0, 0, 0, 0, series)


def test_a_range_holds_its_value_and_grows_with_what_a_day_misses() -> None:
    alone = Replays(outcome(0.99)).shares()
    assert (alone.low, alone.value, alone.high) == (0.99, 0.99, 0.99)
    day = outcome(0.98)
    some = Replays(outcome(0.99), day, (outcome(0.96), outcome(0.99))).shares()
    assert some.low == pytest.approx(0.98)  # twice as many misses on the day, and overall
    assert some.high == pytest.approx(0.995)
