"""Policies at work: bounds, tolerance, windows, zero, and columns that do not touch each other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import yaml

from recipe_core.fleet.policies import controller_of, dynamo, hpa
from recipe_core.fleet.policies.forecasts import counts_of
from recipe_core.fleet.policies.table import ROWS, check
from recipe_core.fleet.policies.windows import MovingMax, MovingMean, MovingRate, MovingSum
from recipe_core.fleet.signals import Signals
from recipe_core.request.scaling import Period, Policy, Scaling, Trigger
from recipe_core.traffic.load import Lengths, Load
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

DAY_S = 86_400.0
SLOTS = 16
STEP_S, MINUTE = 5.0, 12
HELD_S = 8.0
"""Seconds that a request is in a replica, in the fleet of these tests."""
LENGTHS = Lengths(np.array([1000.0]), np.array([200.0]), np.array([1.0]))
FILE = yaml.safe_load((DATA / "scalings.yaml").read_text())
WORKDAY = (Period(from_hour=1, to_hour=3, replicas=4),)


def scaling(policy: Policy, **fields: Any) -> Scaling:
    """A scaling of a policy with what it needs."""
    own: dict[str, Any] = {"periods": WORKDAY} if policy == "schedule" else {}
    lowest = {"min_replicas": 1 if policy != "fixed" else 8}
    return Scaling(policy=policy, **{"max_replicas": 8, **lowest, **own, **fields})


def run(
    scalings: list[Scaling],
    rate: Callable[[float], float],
    hours: float = 4,
    start_s: float = 0.0,
    history: Load | None = None,
) -> np.ndarray:
    """Replicas over time, a row each 5 s: a fleet whose requests take ``HELD_S``, in one queue."""
    given = {"capacity_per_s": 2.0, "start_s": start_s, "slots": SLOTS, "history": history}
    controller = controller_of(scalings, **given)
    ready = np.ones(len(scalings))
    orders: list[tuple[float, np.ndarray]] = []
    arrived, rows = 0.0, list[np.ndarray]()
    for at_s in np.arange(0, hours * 3600, STEP_S):
        while orders and orders[0][0] <= at_s:
            ready = orders.pop(0)[1]
        wanted = controller.decide(_signals(float(at_s), ready, rows, rate(at_s), arrived))
        orders.append((at_s + start_s, wanted))
        ready = np.minimum(ready, wanted) if start_s else wanted
        arrived += rate(at_s) * STEP_S
        rows.append(wanted)
    return np.array(rows)


def _signals(
    at_s: float, ready: np.ndarray, rows: list[np.ndarray], rate: float, arrived: float
) -> Signals:
    held = np.full(len(ready), rate * HELD_S)
    running = np.minimum(held, ready * SLOTS)
    usage = running / np.maximum(ready * SLOTS, 1)
    starting = np.maximum(rows[-1] - ready, 0.0) if rows else np.zeros(len(ready))
    ttft = np.where(ready > 0, 0.2 + (held - running), np.inf)
    times = (ttft, np.where(ready > 0, 0.02 + 0.02 * usage, np.inf))
    hour, every = (at_s / 3600) % 168, np.full(len(ready), arrived)
    waiting = held - running
    return Signals(at_s, hour, ready, starting, running, waiting, usage, every, lambda: times)


def steady(rate: float, _at_s: float) -> float:
    """The same rate at any time."""
    return rate


def hill(at_s: float) -> float:
    """Nothing, a hill of two hours, and nothing again."""
    return max(0.0, 10 * float(np.sin(np.pi * (at_s - 1800) / 7200))) if at_s < 9000 else 0.0


@pytest.mark.parametrize("policy", ROWS)
def test_numbers_are_whole_and_within_bounds(policy: Policy) -> None:
    numbers = run([scaling(policy)], hill, start_s=120)
    assert (numbers == np.rint(numbers)).all()
    assert numbers.min() >= 1
    assert numbers.max() <= 8
    assert policy == "fixed" or numbers.max() > numbers.min()


@pytest.mark.parametrize("policy", ROWS)
def test_a_batch_equals_each_alone(policy: Policy) -> None:
    scalings = [scaling(policy, **fields) for fields in FILE["batches"][policy]]
    together = run(scalings, hill, hours=2)
    for column, one in enumerate(scalings):
        alone = run([one], hill, hours=2)
        assert (together[:, column] == alone[:, 0]).all(), one


@pytest.mark.parametrize("policy", ["hpa", "keda", "kpa", "skyserve", "ray-serve", "predictive"])
def test_more_load_never_asks_for_fewer(policy: Policy) -> None:
    rates = (0.5, 2.0, 5.0, 9.0)
    last = [run([scaling(policy)], partial(steady, rate), hours=1)[-1, 0] for rate in rates]
    assert last == sorted(last)
    assert last[0] < last[-1]


ABLE = [row.policy for row in ROWS.values() if row.to_zero and row.policy != "schedule"]


@pytest.mark.parametrize("policy", ABLE)
def test_the_last_replica_ends_and_a_request_wakes_one(policy: Policy) -> None:
    def rate(at_s: float) -> float:
        return 1.0 if at_s < 900 or at_s > 9000 else 0.0

    numbers = run([scaling(policy, min_replicas=0)], rate)
    awake = int(np.ceil(9000 / (4 * 3600) * len(numbers)))
    assert numbers[awake - 1, 0] == 0
    assert numbers[awake + 20, 0] >= 1


def test_an_hpa_hides_ten_percent_keeps_its_highest_and_is_held_back_by_steps() -> None:
    current, target, tolerance = np.array([4.0]), np.array([10.0]), np.array([0.1])
    for ratio, replicas in ((0.91, 4), (1.09, 4), (0.7, 3), (1.12, 5)):
        pods = hpa.Pods(current, current * target * ratio)
        assert hpa.by_pods(current, pods, target, tolerance) == replicas
    # it keeps the highest number of its window and is held back by steps
    waits = (Trigger(metric="in-flight", target=8),)
    scalings = [scaling("hpa", triggers=waits, down_delay_s=seconds) for seconds in (0, 300, 900)]
    numbers = run(scalings, lambda at_s: 6.0 if at_s < 600 else 1.0, hours=1)
    high_s = (numbers == numbers.max(axis=0)).sum(axis=0) * STEP_S
    assert list(np.diff(high_s)) == [285, 600]
    slow = scaling("hpa", triggers=waits, up_step=1, up_period_s=60)
    changes = np.diff(run([slow], partial(steady, 7.0), hours=0.2)[:, 0])
    assert changes.max() == 1
    assert set(np.diff(np.flatnonzero(changes)) * STEP_S) == {60}


def test_a_schedule_follows_the_hours_and_llm_d_behind_its_hpa_stays_at_eleven() -> None:
    by_hour = run([scaling("schedule")], partial(steady, 1.0))[:, 0].reshape(4, -1)
    assert by_hour.mean(axis=1).tolist() == [1, 4, 4, 1]
    # One more is asked for at a time, and one of eleven is within the HPA's tolerance.
    wide = [scaling("llm-d", max_replicas=20, tolerance=share) for share in (None, 0.0)]
    assert run(wide, partial(steady, 100.0), hours=10)[-1].tolist() == [11, 20]


def test_a_forecast_orders_before_the_load_comes() -> None:
    def rate(at_s: float) -> float:
        return 12.0 if 2 * 3600 <= at_s % DAY_S < 3 * 3600 else 1.0

    past = np.array([rate(hour * 3600.0) for hour in range(24 * 2)])
    known = [scaling("predictive", lead_s=900)]
    numbers = run(known, rate, 2.1, history=Load(past, 3600.0, LENGTHS))[:, 0]
    assert numbers[int(119 * MINUTE)] >= 6
    assert numbers[int(60 * MINUTE)] <= 2
    assert run(known, rate, 2.1)[int(119 * MINUTE), 0] == 1
    # history is cut into intervals that end at the start
    load = Load(np.array([1.0, 2.0, 3.0]), 100.0, LENGTHS)
    assert counts_of(load, 50.0).tolist() == [50, 50, 100, 100, 150, 150]
    assert counts_of(load, 200.0).tolist() == [500]


def test_dynamo_holds_while_a_replica_starts() -> None:
    wide = [scaling("dynamo", max_replicas=20)]
    numbers = run(wide, partial(steady, 10.0), start_s=600, hours=1)[:, 0]
    changes = np.flatnonzero(np.diff(numbers)) * STEP_S
    assert numbers[-1] >= 5
    assert (np.diff(changes) >= 600).all()
    written = pytest.importorskip("recipe_core.targets.scale.dynamo")
    assert written.PREDICTOR == dynamo.PREDICTOR


WINDOWS = np.array([0.0, 10.0, 25.0, 60.0, 61.0])


@pytest.mark.parametrize("columns", [WINDOWS, np.full(3, 30.0)])
def test_windows_equal_what_they_stand_for(columns: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.choice([1.0, 2.0, 5.0], 400))
    values = rng.random((400, len(columns)))
    mean, most, total = MovingMean(columns, 8), MovingMax(columns, 8), MovingSum(columns, 8)
    for row, at_s in enumerate(times):
        means, maxima = mean.add(at_s, values[row]), most.add(at_s, values[row])
        total.note(at_s, values[row])
        sums = total.total(at_s)
        for column, window_s in enumerate(columns):
            inside = times[: row + 1] > at_s - window_s
            held = values[: row + 1][inside, column]
            assert sums[column] == pytest.approx(held.sum(), abs=1e-9)
            held = held if len(held) else values[row : row + 1, column]
            assert means[column] == pytest.approx(held.mean())
            assert maxima[column] == held.max()


def test_idle_windows_are_zero_rates_over_theirs_and_a_batch_has_one_policy() -> None:
    mean, rate = MovingMean(np.array([30.0, 60.0])), MovingRate(np.array([60.0, 60.0]))
    for at_s in range(200):
        last = mean.add(float(at_s), np.full(2, 0.1 if at_s < 100 else 0.0))
    assert last.tolist() == [0.0, 0.0]
    for at_s in range(0, 300, 15):
        per_s = rate.add(float(at_s), np.array([2.0, 3.0]) * at_s)[1]
    assert per_s.tolist() == [2.0, 3.0]
    # a batch has one policy and one interval
    given = {"capacity_per_s": 1, "start_s": 0}
    with pytest.raises(ValueError, match="one policy"):
        controller_of([scaling("hpa"), scaling("kpa")], slots=4, **given)
    with pytest.raises(ValueError, match="intervals"):
        controller_of([scaling("keda", interval_s=n) for n in (10, 30)], slots=4, **given)
    assert "trigger" in str(refusal(controller_of, [scaling("hpa")], **given))


@over("fields field", FILE["refused"])
def test_what_a_policy_does_not_know_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    error = refusal(check, Scaling.model_validate(fields))
    assert str(error.field).startswith(f"options.scaling.{field}")
    assert error.hint
