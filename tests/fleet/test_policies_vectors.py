"""Every published example of an autoscaler's rule, through the functions that are simulated."""

from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

from recipe_core.fleet.policies import behavior, dynamo, hpa, keda, kpa, llm_d, ray_serve, skyserve
from recipe_core.fleet.policies.behavior import Limits
from recipe_core.fleet.policies.windows import MovingMax, MovingSum
from tests.fixtures.paths import DATA

VECTORS = yaml.safe_load((DATA / "autoscaling_vectors.yaml").read_text())["vectors"]
COUNTS = {"hpa": 26, "keda": 9, "kpa": 31, "skyserve": 7, "ray-serve": 10, "dynamo": 6, "llm-d": 12}


def number(value: Any) -> np.ndarray:
    """A column of one number."""
    return np.array([float(value)])


class Given(dict[str, Any]):
    """What a vector gives: a value by its name, a column of one number as an attribute."""

    def __getattr__(self, name: str) -> np.ndarray:
        return number(self[name])


def test_vectors() -> None:
    assert {policy: len(vectors) for policy, vectors in VECTORS.items()} == COUNTS
    assert sum(COUNTS.values()) == 101
    expected, found = {}, {}
    for policy, vectors in VECTORS.items():
        for vector in vectors:
            place = policy, vector["name"]
            expected[place] = vector["expected"]
            found[place] = RUN[policy](Given(vector["given"]))
            if policy == "llm-d":  # a vector names some of a state
                found[place] = {name: found[place][name] for name in vector["expected"]}
    assert found == expected


TOLERANCE = np.array([0.1])


def run_hpa(g: Given) -> Any:
    if "desired" in g:
        return hpa_steps(g)
    kind = g.get("metric_kind", "value")
    if kind in ("resource_utilization_pct", "pods_average"):
        values = np.array(g["pods"], dtype=float)
        ready = np.array(g.get("ready", [True] * len(values)))
        fresh = np.array(g.get("fresh", [False] * len(values)))
        measured = (ready & ~fresh) | (kind == "pods_average")
        unready = float((~measured).sum()) + g.get("pending_pods", 0)
        pods = hpa.Pods(number(measured.sum()), number(values[measured].sum()), unready=unready)
        return int(hpa.by_pods(g.current, pods, g.target, TOLERANCE)[0])
    if kind.endswith("_average"):
        return int(hpa.by_average_value(g.current, g.value, g.target, TOLERANCE)[0])
    ready = number(g.get("ready_count", g["current"]))
    value = number(g.get("value", g.get("metric")))
    return int(hpa.by_value(g.current, ready, value, g.target, TOLERANCE)[0])


def hpa_steps(g: Given) -> list[int]:
    if g.get("policy") == "default":
        usual = behavior.hpa_usual()
        numbers = (usual.up_pods, usual.up_percent, usual.period_s)
        limit, steps, nearer = behavior.most_up, g["steps"], np.minimum
    else:
        assert g["select"] == "Max"
        by_type = {policy["type"]: policy for policy in g["scale_down"]}
        pods, percent = by_type["Pods"], by_type["Percent"]
        numbers = (pods["value"], percent["value"], pods["period"])
        limit, steps, nearer = behavior.most_down, 2, np.maximum
    limits, current, reached = Limits(*map(number, numbers)), g.current, []
    changes = MovingSum(limits.period_s)
    for step in range(steps):
        at_s = step * float(limits.period_s[0])
        following = nearer(g.desired, limit(current - changes.total(at_s), limits))
        changes.note(at_s, following - current)
        current = following
        reached.append(int(current[0]))
    return reached


def run_keda(g: Given) -> Any:
    if "behavior" in g:
        return int(keda.FALLBACKS[g["behavior"]](g.current, g.fallback)[0])
    if g.get("metric_type") == "Value":
        return int(hpa.by_value(g.replicas, g.replicas, g.metric, g.target, TOLERANCE)[0])
    if "metric_type" in g:
        return int(hpa.by_average_value(g.replicas, g.metric, g.target, TOLERANCE)[0])
    active = keda.is_active(g.metric, g.activation)
    if "threshold" not in g:
        return {"active": bool(active[0])}
    wanted = hpa.by_average_value(g.replicas, g.metric, g.threshold, TOLERANCE)
    assert wanted == 4
    return int(keda.with_activation(active, wanted, g.min)[0])


def run_kpa(g: Given) -> Any:
    rates = kpa.Rates(g["max_up"], g["max_down"], g["panic_threshold"])
    panic = kpa.Panic(1, number(g.get("stable_window", 60)))
    if "steps" in g:
        delay, numbers = MovingMax(number(g.get("scale_down_delay", 0))), []
        for step in g["steps"]:
            pods = kpa_look(Given(step, target=g["target"]), rates, panic, step["t"])
            numbers.append(int(delay.add(step["t"], number(pods))[0]))
        return numbers
    if g.get("in_panic"):
        panic.begin(0.0, g.max_panic)
    desired = kpa_look(g, rates, panic, 0.0)
    burst = kpa.excess_burst(g.ready, g.target, g["utilisation"], g["target_burst"], g.panic)
    return {"desired": desired, "excess_burst": int(burst[0])}


def kpa_look(g: Given, rates: kpa.Rates, panic: kpa.Panic, at_s: float) -> int:
    usual = {"reachable": True, "activation_scale": 1}
    more = {name: g.get(name, value) for name, value in usual.items()}
    stable, panicked = (
        kpa.desired_pods(mean, g.target, g.ready, rates, **more) for mean in (g.stable, g.panic)
    )
    over = kpa.over_panic(g.panic, g.target, g.ready, rates)
    return int(panic.apply(at_s, over, stable, panicked)[0])


def run_skyserve(g: Given) -> int:
    if "requests" in g:
        bounds = (g.target_qps, g.min, g.max)
        return int(skyserve.replicas_by_rate(g.requests, g["window"], *bounds)[0])
    held = skyserve.Held(g.target, number(0), number(0))
    for _ in range(g["evaluations"]):
        held = skyserve.held_back(held, g.wanted, 1, number(15), number(60))
    return int(held.target[0])


def run_ray(g: Given) -> Any:
    if g.get("current") == 0:
        return int(ray_serve.from_zero(number(0), g.ongoing, g["upscaling_factor"])[0])
    idle = isinstance(g.get("steps"), int)
    looks = [{}] * g["steps"] if idle else g.get("steps") or [g | {"decided": g["current"]}]
    delays = ray_serve.Delays(g.upscale_delay, g.downscale_delay, g.downscale_delay)
    decision = ray_serve.Decision(number(looks[0].get("decided", g.get("current"))), delays)
    numbers = []
    for loop, look in enumerate(map(Given, looks)):
        if idle:
            seen, down = (decision.decided, number(0), number(1)), g["downscaling_factor"]
            desired = np.maximum(ray_serve.desired_replicas(*seen, down_factor=down), 0)
        else:
            decision.set(look.decided)
            desired = ray_serve.desired_replicas(look.current, look.ongoing, g.target)
            desired = np.minimum(desired, g.get("max", np.inf))
        numbers.append(int(decision.apply(0.1 * loop, desired)[0]))
    return numbers if "steps" in g and g["steps"] != 5 else numbers[-1]  # of five the last is known


def run_dynamo(g: Given) -> int:
    ttft = np.array(g["ttft"], dtype=float)
    if "itl" not in g:
        return int(dynamo.change_by_time(ttft, g.sla, g.sensitivity))
    itl = np.array(g["itl"], dtype=float)
    return int(dynamo.change_of_aggregated(ttft, itl, g.sla_ttft, g.sla_itl, g.sensitivity))


WVA = llm_d.Thresholds(number(0.8), number(5), 0.1, 3.0, 2.0)


def run_llm_d(g: Given) -> dict[str, Any]:
    if "variants" in g:
        variants = {name: llm_d.Variant(**one) for name, one in g["variants"].items()}
        safe = g.get("scale_down_safe", False)
        return llm_d.next_variants(variants, scale_up=g["scale_up"], scale_down_safe=safe)
    replicas = np.array(g["replicas"], dtype=float).reshape(-1, 2)
    state = llm_d.saturation(replicas[:, 0], replicas[:, 1], np.ones(len(replicas)), WVA)
    names = ("scale_up", "scale_down_safe", "non_saturated", "spare_kv", "spare_queue")
    return {name: getattr(state, name).item() for name in names}


RUN: dict[str, Callable[[Given], Any]] = {"hpa": run_hpa, "keda": run_keda, "kpa": run_kpa}
RUN |= {"skyserve": run_skyserve, "ray-serve": run_ray, "dynamo": run_dynamo, "llm-d": run_llm_d}
