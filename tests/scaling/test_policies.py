"""Policies at work: bounds, tolerance, windows, zero, columns that do not touch each other; and
every published example of an autoscaler's rule, through the functions that are simulated.
"""

import numpy as np
import pytest
import yaml

from recipe_core.request.scaling import TO_ZERO, Period, Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies import controller_of, predictive, rules
from recipe_core.scaling.policies.predictive import counts_of
from recipe_core.scaling.policies.rows import check_scaling, default_of, policy_rows
from recipe_core.scaling.policies.rules import StepLimits, track_target
from recipe_core.scaling.policies.windows import MovingMax, MovingMean, MovingRate, MovingSum
from recipe_core.scaling.traces.loads import Lengths, Load
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


def scaling(policy, **fields):
    """A scaling of a policy with what it needs."""
    own = {"periods": WORKDAY} if policy == "schedule" else {}
    lowest = {"min_replicas": 1 if policy != "fixed" else 8}
    return Scaling(policy=policy, **{"max_replicas": 8, **lowest, **own, **fields})


def run(scalings, rate, hours=4, start_s=0.0, history=None):
    """Replicas over time, a row each 5 s: a fleet whose requests take ``HELD_S``, in one queue."""
    given = {"capacity_per_s": 2.0, "start_s": start_s, "slots": SLOTS, "history": history}
    controller = controller_of(scalings, **given)
    ready = np.ones(len(scalings))
    orders, arrived, rows = [], 0.0, []
    for at_s in np.arange(0, hours * 3600, STEP_S):
        while orders and orders[0][0] <= at_s:
            ready = orders.pop(0)[1]
        wanted = controller.decide(_signals(float(at_s), ready, rows, rate(at_s), arrived))
        orders.append((at_s + start_s, wanted))
        ready = np.minimum(ready, wanted) if start_s else wanted
        arrived += rate(at_s) * STEP_S
        rows.append(wanted)
    return np.array(rows)


def _signals(at_s, ready, rows, rate, arrived):
    held = np.full(len(ready), rate * HELD_S)
    running = np.minimum(held, ready * SLOTS)
    usage = running / np.maximum(ready * SLOTS, 1)
    starting = np.maximum(rows[-1] - ready, 0.0) if rows else np.zeros(len(ready))
    ttft = np.where(ready > 0, 0.2 + (held - running), np.inf)
    times = (ttft, np.where(ready > 0, 0.02 + 0.02 * usage, np.inf))
    hour, every = (at_s / 3600) % 168, np.full(len(ready), arrived)
    waiting = held - running
    return Signals(at_s, hour, ready, starting, running, waiting, usage, every, lambda: times)


def steady(rate):
    """The same rate at any time."""
    return lambda at_s: rate


def hill(at_s):
    """Nothing, a hill of two hours, and nothing again."""
    return max(0.0, 10 * float(np.sin(np.pi * (at_s - 1800) / 7200))) if at_s < 9000 else 0.0


@over("policy", list(policy_rows()), share=3)
def test_numbers_are_whole_within_bounds_and_those_of_each_alone(policy):
    numbers = run([scaling(policy)], hill, start_s=120)
    assert (numbers == np.rint(numbers)).all()
    assert 1 <= numbers.min() <= numbers.max() <= 8
    assert policy == "fixed" or numbers.max() > numbers.min()
    scalings = [scaling(policy, **fields) for fields in FILE["batches"][policy]]
    alone = [run([each], hill, hours=2)[:, 0] for each in scalings]
    assert (run(scalings, hill, hours=2) == np.transpose(alone)).all()


@over("policy", ["hpa", "keda", "kpa", "skyserve", "ray-serve", "predictive"])
def test_more_load_never_asks_for_fewer(policy):
    rates = (0.5, 2.0, 5.0, 9.0)
    last = [run([scaling(policy)], steady(rate), hours=1)[-1, 0] for rate in rates]
    assert last == sorted(last)
    assert last[0] < last[-1]


@over("policy", [policy for policy in TO_ZERO if policy != "schedule"])
def test_the_last_replica_ends_and_a_request_wakes_one(policy):
    waking = [scaling(policy, min_replicas=0)]
    numbers = run(waking, lambda at_s: 0.0 if 900 <= at_s <= 9000 else 1.0)[:, 0]
    awake = int(9000 / STEP_S)
    assert numbers[awake - 1] == 0
    assert numbers[awake + 20] >= 1


def test_an_hpa_hides_ten_percent_keeps_its_highest_and_is_held_back_by_steps():
    current, target = np.array([4.0]), np.array([10.0])
    for ratio, replicas in ((0.91, 4), (1.09, 4), (0.7, 3), (1.12, 5)):
        total = current * target * ratio
        assert track_target(current, total, target, TOLERANCE, current) == replicas
    waits = (Trigger(metric="in-flight", target=8),)
    scalings = [scaling("hpa", triggers=waits, down_delay_s=seconds) for seconds in (0, 300, 900)]
    numbers = run(scalings, lambda at_s: 6.0 if at_s < 600 else 1.0, hours=1)
    high_s = (numbers == numbers.max(axis=0)).sum(axis=0) * STEP_S
    assert list(np.diff(high_s)) == [285, 600]
    slow = scaling("hpa", triggers=waits, up_step=1, up_period_s=60)
    changes = np.diff(run([slow], steady(7.0), hours=0.2)[:, 0])
    assert changes.max() == 1
    assert set(np.diff(np.flatnonzero(changes)) * STEP_S) == {60}


def test_a_schedule_follows_the_hours_and_llm_d_behind_its_hpa_stays_at_eleven():
    by_hour = run([scaling("schedule")], steady(1.0))[:, 0].reshape(4, -1)
    assert by_hour.mean(axis=1).tolist() == [1, 4, 4, 1]
    # One more is asked for at a time, and one of eleven is within the HPA's tolerance.
    wide = [scaling("llm-d", max_replicas=20, tolerance=share) for share in (None, 0.0)]
    assert run(wide, steady(100.0), hours=10)[-1].tolist() == [11, 20]


def test_a_forecast_orders_before_the_load_comes():
    def rate(at_s):
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


def test_dynamo_holds_while_a_replica_starts():
    wide = [scaling("dynamo", max_replicas=20)]
    numbers = run(wide, steady(10.0), start_s=600, hours=1)[:, 0]
    changes = np.flatnonzero(np.diff(numbers)) * STEP_S
    assert numbers[-1] >= 5
    assert (np.diff(changes) >= 600).all()
    written = pytest.importorskip("recipe_core.targets.dynamo_planner")
    assert written.PREDICTOR == predictive.PREDICTOR


@over("columns", [np.array([0.0, 10.0, 25.0, 60.0, 61.0]), np.full(3, 30.0)])
def test_windows_equal_what_they_stand_for(columns):
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


def test_idle_windows_are_zero_rates_over_theirs_and_a_batch_has_one_policy():
    mean, rate = MovingMean(np.array([30.0, 60.0])), MovingRate(np.array([60.0, 60.0]))
    for at_s in range(200):
        last = mean.add(float(at_s), np.full(2, 0.1 if at_s < 100 else 0.0))
    assert last.tolist() == [0.0, 0.0]
    for at_s in range(0, 300, 15):
        per_s = rate.add(float(at_s), np.array([2.0, 3.0]) * at_s)[1]
    assert per_s.tolist() == [2.0, 3.0]
    given = {"capacity_per_s": 1, "start_s": 0}
    with pytest.raises(ValueError, match="one policy"):
        controller_of([scaling("hpa"), scaling("kpa")], slots=4, **given)
    with pytest.raises(ValueError, match="one policy"):
        controller_of([], slots=4, **given)
    with pytest.raises(ValueError, match="intervals"):
        controller_of([scaling("keda", interval_s=n) for n in (10, 30)], slots=4, **given)
    assert "trigger" in str(refusal(controller_of, [scaling("hpa")], **given))


@over("fields field", FILE["refused"])
def test_what_a_policy_does_not_know_is_refused_by_name(fields, field):
    error = refusal(check_scaling, Scaling.model_validate(fields))
    assert str(error.field).startswith(f"options.scaling.{field}")
    assert error.hint


VECTORS = yaml.safe_load((DATA / "autoscaling_vectors.yaml").read_text())["vectors"]
COUNTS = {"hpa": 26, "keda": 9, "kpa": 31, "skyserve": 7, "ray-serve": 10, "dynamo": 6, "llm-d": 12}


def number(value):
    """A column of one number."""
    return np.array([float(value)])


class Given(dict):
    """What a vector gives: a value by its name, a column of one number as an attribute."""

    def __getattr__(self, name):
        return number(self[name])


def test_vectors():
    assert {policy: len(vectors) for policy, vectors in VECTORS.items()} == COUNTS  # 101
    expected, found = {}, {}
    for policy, vectors in VECTORS.items():
        for vector in vectors:
            place = policy, vector["name"]
            expected[place] = vector["expected"]
            found[place] = RUN[policy](Given(vector["given"]))
            if policy == "llm-d":  # a vector names some of a state
                found[place] = {name: found[place][name] for name in vector["expected"]}
            if isinstance(vector["expected"], dict):  # the activator's place has no part in it
                expected[place].pop("excess_burst", None)
    assert found == expected


TOLERANCE = np.array([0.1])


def by_value(current, ready, value, target):
    """Replicas by a ``Value`` of an object or an external metric: ceil(ready × value / target)."""
    return int(track_target(current, ready * value, target, TOLERANCE, ready)[0])


def by_average_value(current, total, target):
    """Replicas by an ``AverageValue``: their number only decides whether the mean is near it."""
    return int(track_target(current, total, target, TOLERANCE, np.maximum(current, 1))[0])


def run_hpa(g):
    if "desired" in g:
        return hpa_steps(g)
    kind = g.get("metric_kind", "value")
    if kind in ("resource_utilization_pct", "pods_average"):
        values = np.array(g["pods"], dtype=float)
        ready = np.array(g.get("ready", [True] * len(values)))
        fresh = np.array(g.get("fresh", [False] * len(values)))
        measured = (ready & ~fresh) | (kind == "pods_average")
        pods = {"unready": float((~measured).sum()) + g.get("pending_pods", 0)}
        pods |= {"measured": number(measured.sum()), "total": number(values[measured].sum())}
        return int(track_target(g.current, target=g.target, tolerance=TOLERANCE, **pods)[0])
    if kind.endswith("_average"):
        return by_average_value(g.current, g.value, g.target)
    ready = number(g.get("ready_count", g["current"]))
    return by_value(g.current, ready, number(g.get("value", g.get("metric"))), g.target)


def hpa_steps(g):
    if g.get("policy") == "default":
        numbers = (default_of("hpa", name) for name in ("up_step", "up_percent", "up_period_s"))
        limits, steps, nearer = StepLimits(*map(number, numbers)), g["steps"], np.minimum
        limit = limits.highest
    else:
        assert g["select"] == "Max"
        by_type = {policy["type"]: policy for policy in g["scale_down"]}
        pods, percent = by_type["Pods"], by_type["Percent"]
        numbers = (pods["value"], percent["value"], pods["period"])
        limits, steps, nearer = StepLimits(*map(number, numbers)), 2, np.maximum
        limit = limits.lowest
    current, reached = g.current, []
    changes = MovingSum(limits.period_s)
    for step in range(steps):
        at_s = step * float(limits.period_s[0])
        following = nearer(g.desired, limit(current - changes.total(at_s)))
        changes.note(at_s, following - current)
        current = following
        reached.append(int(current[0]))
    return reached


def run_keda(g):
    if "behavior" in g:
        return int(rules.FALLBACKS[g["behavior"]](g.current, g.fallback)[0])
    if g.get("metric_type") == "Value":
        return by_value(g.replicas, g.replicas, g.metric, g.target)
    if "metric_type" in g:
        return by_average_value(g.replicas, g.metric, g.target)
    active = g.metric > g.activation
    if "threshold" not in g:
        return {"active": bool(active[0])}
    wanted = by_average_value(g.replicas, g.metric, g.threshold)
    assert wanted == 4
    return int(rules.replicas_with_activation(active, number(wanted), g.min)[0])


def run_kpa(g):
    rates = rules.ScaleRates(g["max_up"], g["max_down"], g["panic_threshold"])
    panic = rules.Panic(number(g.get("stable_window", 60)))
    if "steps" in g:
        delay, numbers = MovingMax(number(g.get("scale_down_delay", 0))), []
        for step in g["steps"]:
            pods = kpa_look(Given(step, target=g["target"]), rates, panic, step["t"])
            numbers.append(int(delay.add(step["t"], number(pods))[0]))
        return numbers
    if g.get("in_panic"):
        panic.begin(0.0, g.max_panic)
    return {"desired": kpa_look(g, rates, panic, 0.0)}


def kpa_look(g, rates, panic, at_s):
    usual = {"reachable": True, "activation_scale": 1}
    more = {name: g.get(name, value) for name, value in usual.items()}
    stable, panicked = (
        rules.desired_pods(mean, g.target, g.ready, rates, **more) for mean in (g.stable, g.panic)
    )
    over = rules.is_over_panic(g.panic, g.target, g.ready, rates)
    return int(panic.apply(at_s, over, stable, panicked)[0])


def run_skyserve(g):
    if "requests" in g:
        desired = rules.whole_up(g.requests / g["window"] / g.target_qps)
        return int(np.clip(desired, g["min"], g["max"])[0])
    hold = rules.Hold(g.target, number(15), number(60), number(60), to_one=False)
    for look in range(1, g["evaluations"] + 1):
        hold.apply(look, g.wanted, counted_s=1, at_once=hold.number == 0)
    return int(hold.number[0])


def run_ray(g):
    if g.get("current") == 0:
        return int(rules.replicas_from_zero(number(0), g.ongoing, g["upscaling_factor"])[0])
    idle = isinstance(g.get("steps"), int)
    looks = [{}] * g["steps"] if idle else g.get("steps") or [g | {"decided": g["current"]}]
    delays = g.upscale_delay, g.downscale_delay, g.downscale_delay
    hold = rules.Hold(number(looks[0].get("decided", g.get("current"))), *delays)
    numbers = []
    for loop, look in enumerate(map(Given, looks)):
        if idle:
            seen, down = (hold.number, number(0), number(1)), g["downscaling_factor"]
            desired = np.maximum(rules.smoothed_replicas(*seen, down_factor=down), 0)
        else:
            hold.number = look.decided
            desired = rules.smoothed_replicas(look.current, look.ongoing, g.target)
            desired = np.minimum(desired, g.get("max", np.inf))
        numbers.append(int(hold.apply(0.1 * loop, desired)[0]))
    return numbers if "steps" in g and g["steps"] != 5 else numbers[-1]  # of five the last is known


def run_dynamo(g):
    ttft = np.array(g["ttft"], dtype=float)
    if "itl" not in g:
        return int(rules.change_by_time(ttft, g.sla, g.sensitivity))
    itl = np.array(g["itl"], dtype=float)
    return int(rules.change_of_aggregated(ttft, itl, g.sla_ttft, g.sla_itl, g.sensitivity))


WVA = rules.Thresholds(number(0.8), number(5), 0.1, 3.0, 2.0)


def run_llm_d(g):
    if "variants" in g:
        variants = dict(sorted(g["variants"].items()))
        ready, cost = (
            np.array([float(variant[name]) for variant in variants.values()])
            for name in ("ready", "cost")
        )
        desired = np.array([float(v.get("desired", v["ready"])) for v in variants.values()])
        up, safe = (np.array(g.get(name, False)) for name in ("scale_up", "scale_down_safe"))
        return dict(zip(variants, rules.next_variants(ready, desired, cost, up, safe), strict=True))
    replicas = np.array(g["replicas"], dtype=float).reshape(-1, 2)
    state = rules.analyse_saturation(replicas[:, 0], replicas[:, 1], np.ones(len(replicas)), WVA)
    names = ("scale_up", "scale_down_safe", "non_saturated", "spare_kv", "spare_queue")
    return {name: getattr(state, name).item() for name in names}


RUN = {"hpa": run_hpa, "keda": run_keda, "kpa": run_kpa}
RUN |= {"skyserve": run_skyserve, "ray-serve": run_ray, "dynamo": run_dynamo, "llm-d": run_llm_d}
