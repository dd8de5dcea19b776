"""The policies ``keda`` and ``schedule`` as the specification of a ScaledObject, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit
from recipe_core.targets.scale import cron
from recipe_core.targets.scale.behavior import FIELDS, PERIOD_S, read_behavior, scaling_behavior
from recipe_core.targets.scale.bounds import (
    fewest_copies,
    grain_target,
    in_copies,
    most_copies,
    refuse_fields,
    refuse_policy,
    whole_seconds,
)
from recipe_core.targets.scale.metrics import (
    RATE_S,
    averaging_window_s,
    engaged_terms,
    gateway_counter,
    metric_query,
    read_metric_query,
    request_rate_query,
    triggers_of,
)

WHERE = "a ScaledObject"
POLICIES = ("keda", "schedule")
# The name of the trigger that only starts the first replica.
WAKE = "wake"
_OF_KEDA = ("triggers", "interval_s", "window_s", "idle_s", *FIELDS)
_OF_SCHEDULE = ("periods", "interval_s")
# Requests per second of one replica: a trigger with this target never asks for a second one.
_NEVER = 1_000_000_000
# Replicas that a schedule may add or end at a time: as many as there can be.
_AT_ONCE = 4096
# Of Kubernetes' autoscaler, where none is stated.
TOLERANCE = default_of("hpa", "tolerance")


def keda_spec(context: Context, unit: Unit, scaling: Scaling) -> dict[str, Any]:
    """All of the ScaledObject's specification but its target.

    Raises:
        NoAnswer: for another policy, for what KEDA cannot be told, and where a metric is missing.
    """
    refuse_policy(scaling, POLICIES, WHERE)
    if scaling.policy == "schedule":
        return _schedule_spec(context, unit, scaling)
    refuse_fields(scaling, _OF_KEDA, WHERE)
    low = fewest_copies(context, unit)
    fallback = {
        "failureThreshold": 4,
        "replicas": max(1, low),
        "behavior": "currentReplicasIfHigher",
    }
    rules = scaling_behavior(scaling)
    return {
        "minReplicaCount": low,
        "maxReplicaCount": most_copies(context, unit),
        **_keda_times(scaling),
        "fallback": fallback,
        **({"advanced": {"horizontalPodAutoscalerConfig": {"behavior": rules}}} if rules else {}),
        "triggers": _keda_triggers(context, scaling),
    }


def _keda_times(scaling: Scaling) -> dict[str, int]:
    polling_s, cooldown_s = whole_seconds(scaling, "interval_s"), whole_seconds(scaling, "idle_s")
    if polling_s == 0:
        raise NoAnswer(
            "KEDA looks once a second at most.", field="options.scaling.interval_s", hint="Set 1."
        )
    return {
        **({"pollingInterval": polling_s} if polling_s is not None else {}),
        **({"cooldownPeriod": cooldown_s} if cooldown_s is not None else {}),
    }


def _keda_triggers(context: Context, scaling: Scaling) -> list[dict[str, Any]]:
    server, window_s = context.parameters.prometheus, averaging_window_s(scaling)
    triggers = [
        prometheus_trigger(
            server,
            metric_query(context, trigger.metric, window_s),
            grain_target(trigger.target, f"options.scaling.triggers.{index}.target"),
            trigger.metric,
        )
        for index, trigger in enumerate(triggers_of(scaling))
    ]
    metrics = [trigger.metric for trigger in scaling.triggers]
    if scaling.min_replicas == 0 and "request-rate" not in metrics:
        triggers.append(wake_trigger(context))
    return triggers


def wake_trigger(context: Context) -> dict[str, Any]:
    """The trigger that starts the first replica, and keeps one while requests come or run.

    It never asks for a second one.

    Raises:
        NoAnswer: where the deployment settings name no counter of them.
    """
    counter = gateway_counter(
        context, "min_replicas is 0, and with no replica running none can queue."
    )
    server = context.parameters.prometheus
    text = " + ".join([request_rate_query(counter, RATE_S), *engaged_terms(context)])
    waking = prometheus_trigger(server, text, str(_NEVER), WAKE)
    waking["metadata"]["activationThreshold"] = "0"
    return waking


def prometheus_trigger(server: str, text: str, threshold: str, name: str = "") -> dict[str, Any]:
    return {
        "type": "prometheus",
        **({"name": name} if name else {}),
        "metricType": "AverageValue",
        "metadata": {"serverAddress": server, "query": text, "threshold": threshold},
    }


def _schedule_spec(context: Context, unit: Unit, scaling: Scaling) -> dict[str, Any]:
    """Replicas by the clock: no window, no limit of steps, no tolerance that hides a change."""
    refuse_fields(scaling, _OF_SCHEDULE, WHERE)
    hours = cron.replicas_by_hour(scaling)
    counts = [in_copies(context, unit, count) for count in hours]
    if len(set(hours)) == 1:
        raise NoAnswer(
            f"the schedule has {hours[0]} replicas at every hour.",
            field="options.scaling.periods",
            hint="Choose the policy fixed.",
        )
    at_once = [{"type": "Pods", "value": _AT_ONCE, "periodSeconds": PERIOD_S}]
    side: dict[str, Any] = {"stabilizationWindowSeconds": 0, "policies": at_once}
    if cron.changes_within_tolerance(counts, TOLERANCE):
        side["tolerance"] = "0"
    rules = {"scaleUp": side, "scaleDown": dict(side)}
    return {
        "minReplicaCount": min(counts),
        "maxReplicaCount": most_copies(context, unit),
        **_keda_times(scaling),
        "cooldownPeriod": 0,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": rules}},
        "triggers": cron.cron_triggers(counts),
    }


def read_keda_spec(spec: Mapping[str, Any]) -> Scaling:
    """The policy that a specification was written from; of a schedule, the same hours."""
    crons = [entry for entry in spec["triggers"] if entry["type"] == "cron"]
    low, high = spec["minReplicaCount"], spec["maxReplicaCount"]
    if crons:
        periods = cron.read_triggers(crons, low)
        polling_s = spec.get("pollingInterval")
        return Scaling(
            policy="schedule",
            min_replicas=low,
            max_replicas=high,
            periods=periods,
            interval_s=polling_s,
        )
    fields: dict[str, Any] = {"policy": "keda", "min_replicas": low, "max_replicas": high}
    for name, key in (("interval_s", "pollingInterval"), ("idle_s", "cooldownPeriod")):
        if key in spec:
            fields[name] = spec[key]
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    fields |= read_behavior(config.get("behavior", {}))
    return Scaling(**fields | read_prometheus(spec["triggers"]))


def read_prometheus(entries: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Triggers, and their window, as fields of the policy."""
    fields: dict[str, Any] = {}
    triggers = []
    for entry in entries:
        if entry.get("name") == WAKE:
            continue
        metric, window_s = read_metric_query(entry["metadata"]["query"])
        triggers.append(Trigger(metric=metric, target=float(entry["metadata"]["threshold"])))
        if window_s is not None:
            fields["window_s"] = window_s
    return fields | {"triggers": tuple(triggers)}
