"""The search over policies' parameters: its grids, its choice, and what it leaves to chance (no
more than the simulation does)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recipe_core.base import budget, progress
from recipe_core.base.budget import Cancelled
from recipe_core.fleet.outcome import Outcome, Series
from recipe_core.fleet.search import Together, first_points, search
from recipe_core.fleet.signals import Signals
from recipe_core.fleet.spaces import Axis, Need, schedule_of, space_of
from recipe_core.request.scaling import POLICIES, Scaling

NONE = np.zeros(0)
SERIES = Series(60.0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE)
DAY = np.array([1, 1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 8, 8, 9, 10, 9, 8, 6, 5, 4, 3, 2, 1])


def need(replicas: Any = DAY, **changes: Any) -> Need:
    values: dict[str, Any] = {
        "replicas": np.asarray(replicas),
        "interval_s": 3600.0,
        "capacity_per_s": 2.0,
        "in_flight": 24.0,
        "kv_usage": 0.6,
        "start_s": 300.0,
        "start_hour": 0,
        "gauges": frozenset({"in-flight", "waiting", "running", "kv-usage"}),
    }
    return Need(**values | changes)


def outcome(attainment: float, replica_s: float) -> Outcome:
    return Outcome(3600.0, 1e6, attainment * 1e6, replica_s, 0, 0, 0, 0, SERIES)


def fixed_outcomes(scalings: Sequence[Scaling]) -> list[Outcome]:
    """More replicas keep more, 137 of them 99 %."""
    counts = [scaling.max_replicas for scaling in scalings]
    return [outcome(1 - 0.01 * (137 / n) ** 4, 1000.0 * n) for n in counts]


def test_the_fewest_replicas_that_reach_the_share_are_found_between_the_grids_points() -> None:
    busy = need(DAY * 20)
    assert 137 not in space_of("fixed", busy).axes[0].values
    best = search([space_of("fixed", busy)], fixed_outcomes, 0.99, rounds=6)["fixed"]
    assert best[0].scaling.max_replicas == 137


def test_where_none_reaches_it_the_nearest_is_best() -> None:
    best = search([space_of("fixed", need())], fixed_outcomes, 0.999999)["fixed"]
    assert best[0].scaling.max_replicas == max(space_of("fixed", need()).axes[0].values)


def test_the_best_of_equal_ones_is_the_same_every_time() -> None:
    def alike(scalings: Sequence[Scaling]) -> list[Outcome]:
        return [outcome(1.0, 5.0) for _ in scalings]

    spaces = [space_of(policy, need()) for policy in POLICIES]
    assert search(spaces, alike, 0.99) == search(spaces, alike, 0.99)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_point_is_a_valid_policy_of_whole_seconds(policy: Any) -> None:
    space = space_of(policy, need())
    names = [axis.name for axis in space.axes]
    for point in first_points(space.axes):
        scaling = space.at(dict(zip(names, point, strict=True)))
        if scaling is None:
            continue
        assert scaling.policy == policy
        assert Scaling.model_validate(scaling.to_json()) == scaling
        times = [v for k, v in scaling.to_json().items() if k.endswith("_s")]
        assert all(float(seconds).is_integer() and seconds <= 3600 for seconds in times)
        assert all(round(t.target, 3) == t.target for t in scaling.triggers)


def test_all_policies_are_columns_of_one_simulation_a_round() -> None:
    batches: list[int] = []

    def counted(scalings: Sequence[Scaling]) -> list[Outcome]:
        batches.append(len(scalings))
        return [outcome(0.995, scaling.max_replicas) for scaling in scalings]

    search([space_of(policy, need()) for policy in POLICIES], counted, 0.99, rounds=2)
    assert len(batches) == 2
    assert batches[0] > 300


def test_a_large_grid_is_thinned_and_meets_every_value() -> None:
    axes = [Axis(name, tuple(map(float, range(7)))) for name in "abcd"]
    points = first_points(axes, most=60)
    assert len(points) == len(set(points)) == 60
    for number in range(4):
        assert {point[number] for point in points} == set(map(float, range(7)))


def test_a_search_is_told_and_ends_when_nobody_waits() -> None:
    steps: list[tuple[int, int]] = []
    space = [space_of("fixed", need())]
    with progress.watched(lambda done, all_: steps.append((done, all_))), progress.task(2):
        search(space, fixed_outcomes, 0.99)
    assert steps[-1] == (2, 2)
    with budget.limited(budget.Budget(), lambda: True), pytest.raises(Cancelled):
        search(space, fixed_outcomes, 0.99)


# Schedules


def test_a_schedule_has_each_hours_replicas_and_merges_equal_ones() -> None:
    hours = np.tile(DAY, 7)
    scaling = schedule_of(hours)
    assert scaling is not None
    for hour in range(168):
        here = [p.replicas for p in scaling.periods if p.from_hour <= hour < p.to_hour]
        assert (here or [scaling.min_replicas]) == [hours[hour]]
    pairs = list(zip(scaling.periods, scaling.periods[1:], strict=False))
    assert all(a.to_hour < b.from_hour or a.replicas != b.replicas for a, b in pairs)


def test_replicas_of_a_schedule_are_there_before_they_are_needed() -> None:
    hours = np.tile(DAY, 7)
    ahead = schedule_of(hours, lead=1)
    assert ahead is not None
    count = {h: p.replicas for p in ahead.periods for h in range(p.from_hour, p.to_hour)}
    for hour in range(168):
        assert count.get(hour, ahead.min_replicas) >= max(hours[hour], hours[(hour + 1) % 168])


def test_merged_hours_never_have_fewer() -> None:
    hours = np.tile(DAY, 7)
    merged = schedule_of(hours, merge=0.4)
    plain = schedule_of(hours)
    assert merged is not None
    assert plain is not None
    assert len(merged.periods) < len(plain.periods)
    count = {h: p.replicas for p in merged.periods for h in range(p.from_hour, p.to_hour)}
    assert all(count.get(h, merged.min_replicas) >= hours[h] for h in range(168))


def test_a_flat_load_has_no_schedule() -> None:
    assert schedule_of(np.full(168, 4)) is None
    flat = need(np.full(24, 4))
    assert search([space_of("schedule", flat)], fixed_outcomes, 0.5) == {"schedule": []}


# Controllers side by side


class _Says:
    """Wants one more than there are; notes how many columns it is asked for."""

    def __init__(self, interval_s: float, more: float) -> None:
        self.interval_s, self.more = interval_s, more

    def decide(self, seen: Signals) -> np.ndarray[Any, Any]:
        return seen.ready + self.more


def test_controllers_together_decide_each_for_its_own_columns() -> None:
    together = Together([(_Says(15.0, 1.0), 2), (_Says(2.0, 5.0), 1)])
    assert together.interval_s == 2.0
    ready = np.array([1.0, 2.0, 3.0])
    zeros = np.zeros(3)
    seen = Signals(0.0, 0.0, ready, zeros, zeros, zeros, zeros, zeros, lambda: (zeros, zeros))
    assert together.decide(seen).tolist() == [2.0, 3.0, 8.0]
