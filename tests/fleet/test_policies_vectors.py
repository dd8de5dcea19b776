"""Every published example of an autoscaler's rule, through the functions that are simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

from recipe_core.fleet.policies import behavior, dynamo, hpa, keda, kpa, llm_d, ray_serve, skyserve
from recipe_core.fleet.policies.behavior import Limits
from recipe_core.fleet.policies.windows import MovingMax, MovingSum
from tests.fixtures.paths import DATA

FILE = DATA / "autoscaling_vectors.yaml"
VECTORS: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text())["vectors"]
COUNTS = {"hpa": 26, "keda": 9, "kpa": 31, "skyserve": 7, "ray-serve": 10, "dynamo": 6, "llm-d": 12}


def number(value: Any) -> np.ndarray:
    """A column of one number."""
    return np.array([float(value)])


def test_vectors() -> None:
    assert {policy: len(vectors) for policy, vectors in VECTORS.items()} == COUNTS
    assert sum(COUNTS.values()) == 101
    expected, found = {}, {}
    for policy, vectors in VECTORS.items():
        for vector in vectors:
            place = policy, vector["name"]
            expected[place] = vector["expected"]
            found[place] = RUN[policy](vector["given"])
    assert found == expected


TOLERANCE = np.array([0.1])


def run_hpa(given: dict[str, Any]) -> Any:
    if "desired" in given:
        return hpa_steps(given)
    kind = given.get("metric_kind", "value")
    if kind in ("resource_utilization_pct", "pods_average"):
        return int(hpa_pods(given, only_ready=kind != "pods_average")[0])
    current, target = number(given["current"]), number(given["target"])
    if kind.endswith("_average"):
        return int(hpa.by_average_value(current, number(given["value"]), target, TOLERANCE)[0])
    ready = number(given.get("ready_count", given["current"]))
    value = number(given.get("value", given.get("metric")))
    return int(hpa.by_value(current, ready, value, target, TOLERANCE)[0])


def hpa_pods(given: dict[str, Any], *, only_ready: bool) -> np.ndarray:
    values = np.array(given["pods"], dtype=float)
    ready = np.array(given.get("ready", [True] * len(values)))
    fresh = np.array(given.get("fresh", [False] * len(values)))
    measured = (ready & ~fresh) | (not only_ready)
    unready = float((~measured).sum()) + given.get("pending_pods", 0)
    pods = hpa.Pods(number(measured.sum()), number(values[measured].sum()), unready=unready)
    return hpa.by_pods(number(given["current"]), pods, number(given["target"]), TOLERANCE)


def hpa_steps(given: dict[str, Any]) -> list[int]:
    if given.get("policy") == "default":
        usual = behavior.hpa_usual()
        numbers = (usual.up_pods, usual.up_percent, usual.period_s)
        limit, steps, nearer = behavior.most_up, given["steps"], np.minimum
    else:
        assert given["select"] == "Max"
        by_type = {policy["type"]: policy for policy in given["scale_down"]}
        pods, percent = by_type["Pods"], by_type["Percent"]
        numbers = (pods["value"], percent["value"], pods["period"])
        limit, steps, nearer = behavior.most_down, 2, np.maximum
    limits = Limits(*map(number, numbers))
    current, desired = number(given["current"]), number(given["desired"])
    changes, reached = MovingSum(limits.period_s), []
    for step in range(steps):
        at_s = step * float(limits.period_s[0])
        following = nearer(desired, limit(current - changes.total(at_s), limits))
        changes.note(at_s, following - current)
        current = following
        reached.append(int(current[0]))
    return reached


def run_keda(given: dict[str, Any]) -> Any:
    if "behavior" in given:
        replicas = keda.FALLBACKS[given["behavior"]]
        return int(replicas(number(given["current"]), number(given["fallback"]))[0])
    metric = number(given["metric"])
    if "metric_type" in given:
        current, target = number(given["replicas"]), number(given["target"])
        if given["metric_type"] == "Value":
            return int(hpa.by_value(current, current, metric, target, TOLERANCE)[0])
        return int(hpa.by_average_value(current, metric, target, TOLERANCE)[0])
    active = keda.is_active(metric, number(given["activation"]))
    if "threshold" not in given:
        return {"active": bool(active[0])}
    current, target = number(given["replicas"]), number(given["threshold"])
    wanted = hpa.by_average_value(current, metric, target, TOLERANCE)
    assert wanted == 4
    return int(keda.with_activation(active, wanted, number(given["min"]))[0])


def run_kpa(given: dict[str, Any]) -> Any:
    if "steps" in given:
        return kpa_steps(given)
    rates = kpa.Rates(given["max_up"], given["max_down"], given["panic_threshold"])
    panic = kpa.Panic(1, number(60))
    if given.get("in_panic"):
        panic.begin(0.0, number(given["max_panic"]))
    desired = kpa_look(given, rates, panic, 0.0)
    ready, target, now = (number(given[name]) for name in ("ready", "target", "panic"))
    burst = kpa.excess_burst(ready, target, given["utilisation"], given["target_burst"], now)
    return {"desired": desired, "excess_burst": int(burst[0])}


def kpa_look(given: dict[str, Any], rates: kpa.Rates, panic: kpa.Panic, at_s: float) -> int:
    ready, target = number(given["ready"]), number(given["target"])
    more = {"reachable": given.get("reachable", True)}
    more["activation_scale"] = given.get("activation_scale", 1)
    stable, panicked = (
        kpa.desired_pods(number(given[mean]), target, ready, rates, **more)
        for mean in ("stable", "panic")
    )
    over = kpa.over_panic(number(given["panic"]), target, ready, rates)
    return int(panic.apply(at_s, over, stable, panicked)[0])


def kpa_steps(given: dict[str, Any]) -> list[int]:
    rates = kpa.Rates(given["max_up"], given["max_down"], given["panic_threshold"])
    panic = kpa.Panic(1, number(given.get("stable_window", 60)))
    delay = MovingMax(number(given.get("scale_down_delay", 0)))
    numbers = []
    for step in given["steps"]:
        pods = kpa_look(step | {"target": given["target"]}, rates, panic, step["t"])
        numbers.append(int(delay.add(step["t"], number(pods))[0]))
    return numbers


def run_skyserve(given: dict[str, Any]) -> int:
    if "requests" in given:
        bounds = number(given["min"]), number(given["max"])
        requests, target = number(given["requests"]), number(given["target_qps"])
        return int(skyserve.replicas_by_rate(requests, given["window"], target, *bounds)[0])
    none = number(0)
    held = skyserve.Held(number(given["target"]), none, none)
    for _ in range(given["evaluations"]):
        held = skyserve.held_back(held, number(given["wanted"]), 1, number(15), number(60))
    return int(held.target[0])


def run_ray(given: dict[str, Any]) -> Any:
    if given.get("current") == 0:
        factor = given["upscaling_factor"]
        return int(ray_serve.from_zero(number(0), number(given["ongoing"]), factor)[0])
    if isinstance(given.get("steps"), int):
        numbers = ray_idle(given)
        return numbers if given["steps"] == 2 else numbers[-1]
    numbers = ray_looks(given.get("steps") or [given | {"decided": given["current"]}], given)
    return numbers if "steps" in given else numbers[0]


def ray_decision(given: dict[str, Any], decided: float) -> ray_serve.Decision:
    up, down = number(given["upscale_delay"]), number(given["downscale_delay"])
    return ray_serve.Decision(number(decided), ray_serve.Delays(up, down, down))


def ray_idle(given: dict[str, Any]) -> list[int]:
    decision, numbers, down = ray_decision(given, given["current"]), [], given["downscaling_factor"]
    for step in range(given["steps"]):
        idle = (decision.decided, number(0), number(1))
        desired = ray_serve.desired_replicas(*idle, down_factor=down)
        numbers.append(int(decision.apply(0.1 * step, np.maximum(desired, 0))[0]))
    return numbers


def ray_looks(steps: list[dict[str, Any]], given: dict[str, Any]) -> list[int]:
    decision, numbers = ray_decision(given, steps[0]["decided"]), []
    for loop, step in enumerate(steps):
        decision.set(number(step["decided"]))
        seen = (number(step["current"]), number(step["ongoing"]), number(given["target"]))
        desired = np.minimum(ray_serve.desired_replicas(*seen), given.get("max", np.inf))
        numbers.append(int(decision.apply(0.1 * loop, desired)[0]))
    return numbers


def run_dynamo(given: dict[str, Any]) -> int:
    ttft, held = np.array(given["ttft"], dtype=float), number(given["sensitivity"])
    if "itl" in given:
        itl = np.array(given["itl"], dtype=float)
        limits = number(given["sla_ttft"]), number(given["sla_itl"])
        return int(dynamo.change_of_aggregated(ttft, itl, *limits, held))
    return int(dynamo.change_by_time(ttft, number(given["sla"]), held))


WVA = llm_d.Thresholds(number(0.8), number(5), 0.1, 3.0, 2.0)


def run_llm_d(given: dict[str, Any]) -> dict[str, Any]:
    if "variants" in given:
        variants = {name: llm_d.Variant(**one) for name, one in given["variants"].items()}
        safe = given.get("scale_down_safe", False)
        return llm_d.next_variants(variants, scale_up=given["scale_up"], scale_down_safe=safe)
    replicas = np.array(given["replicas"], dtype=float).reshape(-1, 2)
    state = llm_d.saturation(replicas[:, 0], replicas[:, 1], np.ones(len(replicas)), WVA)
    vector = next(one for one in VECTORS["llm-d"] if one["given"] is given)
    return {name: getattr(state, name).item() for name in vector["expected"]}


RUN: dict[str, Callable[[dict[str, Any]], Any]] = {"hpa": run_hpa, "keda": run_keda}
RUN |= {"kpa": run_kpa, "skyserve": run_skyserve, "ray-serve": run_ray, "dynamo": run_dynamo}
RUN |= {"llm-d": run_llm_d}
