"""The policy ``hpa`` as a HorizontalPodAutoscaler and the rules of its metrics."""

from __future__ import annotations

from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling
from recipe_core.scaling.policies.rows import default_of, policy_row
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit
from recipe_core.targets.scale.policy import (
    averaging_window_s,
    engine_gauges,
    fewest_copies,
    grain_target,
    metric_query,
    most_copies,
    refuse_fields,
    refuse_policy,
    shortest_number,
    triggers_of,
    whole_seconds,
)

# Of the policies that apply where none is stated.
PERIOD_S = int(default_of("hpa", "up_period_s"))
SIDES = {"scaleUp": "up", "scaleDown": "down"}


def scaling_behavior(scaling: Scaling) -> dict[str, Any]:
    """The stated windows, steps and tolerance; what is left out is Kubernetes' own default.

    Raises:
        NoAnswer: for a window that the API refuses, and a period without a step.
    """
    sides = {}
    for side, direction in SIDES.items():
        rules: dict[str, Any] = {}
        window_s = whole_seconds(
            scaling, f"{direction}_delay_s", most_s=int(policy_row("hpa").highest["down_delay_s"])
        )
        if window_s is not None:
            rules["stabilizationWindowSeconds"] = window_s
        if policies := _step_policies(scaling, direction):
            rules["policies"] = policies
        if scaling.tolerance is not None:
            rules["tolerance"] = shortest_number(scaling.tolerance)
        if rules:
            sides[side] = rules
    return sides


def _step_policies(scaling: Scaling, direction: str) -> list[dict[str, Any]]:
    step = getattr(scaling, f"{direction}_step")
    period_s = getattr(scaling, f"{direction}_period_s")
    if step is None and period_s is not None:
        raise NoAnswer(
            f"{direction}_period_s is the time for {direction}_step, which is not stated.",
            field=f"options.scaling.{direction}_step",
            hint=f"Set {direction}_step.",
        )
    if step is None:
        return []
    return [{"type": "Pods", "value": step, "periodSeconds": period_s or PERIOD_S}]


WHERE = "a HorizontalPodAutoscaler"
# Names under which prometheus-adapter offers metrics; its interface takes no colon.
ADAPTED: dict[Metric, str] = {
    "waiting": "recipe_requests_waiting",
    "running": "recipe_requests_running",
    "in-flight": "recipe_requests_in_flight",
    "kv-usage": "recipe_kv_usage",
    "request-rate": "recipe_requests_per_second",
}
RESOURCES = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}


def hpa_spec(context: Context, unit: Unit, scaling: Scaling) -> dict[str, Any]:
    """All of the autoscaler's specification but its target.

    Raises:
        NoAnswer: for another policy, for what the autoscaler cannot be told, and where a metric is
            missing.
    """
    refuse_policy(scaling, "kubernetes-hpa", WHERE)
    refuse_fields(scaling, WHERE)
    metrics = []
    for index, trigger in enumerate(triggers_of(scaling)):
        metric_query(context, trigger.metric)  # raises what is missing
        value = grain_target(trigger.target, f"options.scaling.triggers.{index}.target")
        metrics.append(_hpa_metric(trigger.metric, value))
    rules = scaling_behavior(scaling)
    return {
        "minReplicas": fewest_copies(context, unit),
        "maxReplicas": most_copies(context, unit),
        "metrics": metrics,
        **({"behavior": rules} if rules else {}),
    }


def _hpa_metric(metric: Metric, value: str) -> dict[str, Any]:
    kind = "external" if metric == "request-rate" else "pods"
    source = {
        "metric": {"name": ADAPTED[metric]},
        "target": {"type": "AverageValue", "averageValue": value},
    }
    return {"type": kind.capitalize(), kind: source}


def adapter_values(context: Context, scaling: Scaling) -> dict[str, Any]:
    """Helm values of prometheus-adapter: each metric of the policy under a name of its own.

    Raises:
        NoAnswer: where the engine, or the gateway, does not report one.
    """
    window_s = averaging_window_s(scaling)
    custom, external = [], []
    for trigger in triggers_of(scaling):
        if trigger.metric == "request-rate":
            external.append(_external_rule(context, window_s))
        else:
            custom.append(_custom_rule(context, trigger.metric, window_s))
    rules = {"custom": custom, "external": external}
    return {"rules": {kind: kind_rules for kind, kind_rules in rules.items() if kind_rules}}


def _custom_rule(context: Context, metric: Metric, window_s: int | None) -> dict[str, Any]:
    names = engine_gauges(context, metric)
    sums = []
    for name in names:
        value = f"{name}{{<<.LabelMatchers>>}}"
        if window_s:
            value = f"avg_over_time({value}[{window_s}s])"
        sums.append(f"sum({value}) by (<<.GroupBy>>)")
    return {
        "seriesQuery": f'{names[0]}{{namespace!="",pod!=""}}',
        "resources": RESOURCES,
        "name": {"as": ADAPTED[metric]},
        "metricsQuery": " + ".join(sums),
    }


def _external_rule(context: Context, window_s: int | None) -> dict[str, Any]:
    counter = context.parameters.gateway_metric or ""
    return {
        "seriesQuery": counter,
        "resources": {"namespaced": False},
        "name": {"as": ADAPTED["request-rate"]},
        "metricsQuery": metric_query(context, "request-rate", window_s),
    }
