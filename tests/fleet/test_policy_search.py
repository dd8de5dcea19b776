"""The search over policies' parameters: its grids, its choice, and what it leaves to chance (no
more than the simulation does)."""

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

SERIES = Series(60.0, *[np.zeros(0)] * 8)
DAY = np.array([1, 1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 8, 8, 9, 10, 9, 8, 6, 5, 4, 3, 2, 1])
WEEK = np.tile(DAY, 7)
GAUGES = frozenset({"in-flight", "waiting", "running", "kv-usage"})


def need(replicas: Any = DAY) -> Need:
    load = {"interval_s": 3600.0, "capacity_per_s": 2.0, "in_flight": 24.0, "kv_usage": 0.6}
    start = {"start_s": 300.0, "start_hour": 0}
    return Need(replicas=np.asarray(replicas), gauges=GAUGES, **load, **start)


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
    # where none reaches it the nearest is best
    best = search([space_of("fixed", need())], fixed_outcomes, 0.999999)["fixed"]
    assert best[0].scaling.max_replicas == max(space_of("fixed", need()).axes[0].values)


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


def test_all_policies_are_columns_of_one_simulation_a_round_and_the_best_always_the_same() -> None:
    batches: list[int] = []

    def alike(scalings: Sequence[Scaling]) -> list[Outcome]:
        batches.append(len(scalings))
        return [outcome(1.0, 5.0) for _ in scalings]

    spaces = [space_of(policy, need()) for policy in POLICIES]
    first, again = (search(spaces, alike, 0.99, rounds=2) for _ in range(2))
    assert first == again
    assert len(batches) == 4
    assert batches[0] > 300


def test_a_large_grid_is_thinned_a_search_ended_and_controllers_decide_for_their_own() -> None:
    values = tuple(map(float, range(7)))
    points = first_points([Axis(name, values) for name in "abcd"], most=60)
    assert len(points) == len(set(points)) == 60
    assert [set(column) for column in zip(*points, strict=True)] == [set(values)] * 4
    steps: list[tuple[int, int]] = []
    space = [space_of("fixed", need())]
    with progress.watched(lambda done, all_: steps.append((done, all_))), progress.task(2):
        search(space, fixed_outcomes, 0.99)
    assert steps[-1] == (2, 2)
    with budget.limited(budget.Budget(), lambda: True), pytest.raises(Cancelled):
        search(space, fixed_outcomes, 0.99)
    # controllers together decide each for its own columns
    together = Together([(_Says(15.0, 1.0), 2), (_Says(2.0, 5.0), 1)])
    assert together.interval_s == 2.0
    ready, zeros = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    seen = Signals(0.0, 0.0, ready, *[zeros] * 5, lambda: (zeros, zeros))
    assert together.decide(seen).tolist() == [2.0, 3.0, 8.0]


def by_hour(scaling: Any) -> np.ndarray:
    """The replicas of a schedule in each hour of the week, which no two of its periods share."""
    counts = np.full(168, scaling.min_replicas)
    for period in scaling.periods:
        hours = counts[period.from_hour : period.to_hour]
        assert (hours == scaling.min_replicas).all()
        hours[:] = period.replicas
    return counts


def test_a_schedule_has_each_hours_replicas_and_merges_equal_ones() -> None:
    plain, ahead, merged = (schedule_of(WEEK, **how) for how in ({}, {"lead": 1}, {"merge": 0.4}))
    assert (by_hour(plain) == WEEK).all()
    pairs = list(zip(plain.periods, plain.periods[1:], strict=False))
    assert all(a.to_hour < b.from_hour or a.replicas != b.replicas for a, b in pairs)
    # replicas are there before they are needed, and merged hours never have fewer
    assert (by_hour(ahead) >= np.maximum(WEEK, np.roll(WEEK, -1))).all()
    assert len(merged.periods) < len(plain.periods)
    assert (by_hour(merged) >= WEEK).all()
    assert schedule_of(np.full(168, 4)) is None  # a flat load has none
    flat = [space_of("schedule", need(np.full(24, 4)))]
    assert search(flat, fixed_outcomes, 0.5) == {"schedule": []}


class _Says:
    """Wants so many more than there are."""

    def __init__(self, interval_s: float, more: float) -> None:
        self.interval_s, self.more = interval_s, more

    def decide(self, seen: Signals) -> np.ndarray[Any, Any]:
        return seen.ready + self.more
