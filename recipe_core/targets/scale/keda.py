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
from recipe_core.targets.scale.behavior import FIELDS, PERIOD_S, behavior, read_behavior
from recipe_core.targets.scale.bounds import (
    grained,
    in_copies,
    least,
    most,
    refuse_fields,
    refuse_policy,
    whole_s,
)
from recipe_core.targets.scale.metrics import (
    RATE_S,
    engaged,
    gateway,
    query,
    rate,
    read_query,
    triggers_of,
    window_of,
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


def spec(context: Context, unit: Unit, scaling: Scaling) -> dict[str, Any]:
    """All of the ScaledObject's specification but its target.

    Raises:
        NoAnswer: for another policy, for what KEDA cannot be told, and where a metric is missing.
    """
    refuse_policy(scaling, POLICIES, WHERE)
    if scaling.policy == "schedule":
        return _schedule(context, unit, scaling)
    refuse_fields(scaling, _OF_KEDA, WHERE)
    low = least(context, unit)
    fallback = {
        "failureThreshold": 4,
        "replicas": max(1, low),
        "behavior": "currentReplicasIfHigher",
    }
    rules = behavior(scaling)
    return {
        "minReplicaCount": low,
        "maxReplicaCount": most(context, unit),
        **_times(scaling),
        "fallback": fallback,
        **({"advanced": {"horizontalPodAutoscalerConfig": {"behavior": rules}}} if rules else {}),
        "triggers": _triggers(context, scaling),
    }


def _times(scaling: Scaling) -> dict[str, int]:
    polling_s, cooldown_s = whole_s(scaling, "interval_s"), whole_s(scaling, "idle_s")
    if polling_s == 0:
        raise NoAnswer(
            "KEDA looks once a second at most.", field="options.scaling.interval_s", hint="Set 1."
        )
    return {
        **({"pollingInterval": polling_s} if polling_s is not None else {}),
        **({"cooldownPeriod": cooldown_s} if cooldown_s is not None else {}),
    }


def _triggers(context: Context, scaling: Scaling) -> list[dict[str, Any]]:
    server, window_s = context.parameters.prometheus, window_of(scaling)
    written = [
        trigger(
            server,
            query(context, wanted.metric, window_s),
            grained(wanted.target, f"options.scaling.triggers.{index}.target"),
            wanted.metric,
        )
        for index, wanted in enumerate(triggers_of(scaling))
    ]
    metrics = [wanted.metric for wanted in scaling.triggers]
    if scaling.min_replicas == 0 and "request-rate" not in metrics:
        written.append(wake(context))
    return written


def wake(context: Context) -> dict[str, Any]:
    """The trigger that starts the first replica, and keeps one while requests come or run.

    It never asks for a second one.

    Raises:
        NoAnswer: where the deployment settings name no counter of them.
    """
    counter = gateway(context, "min_replicas is 0, and with no replica running none can queue.")
    server = context.parameters.prometheus
    text = " + ".join([rate(counter, RATE_S), *engaged(context)])
    waking = trigger(server, text, str(_NEVER), WAKE)
    waking["metadata"]["activationThreshold"] = "0"
    return waking


def trigger(server: str, text: str, threshold: str, name: str = "") -> dict[str, Any]:
    return {
        "type": "prometheus",
        **({"name": name} if name else {}),
        "metricType": "AverageValue",
        "metadata": {"serverAddress": server, "query": text, "threshold": threshold},
    }


def _schedule(context: Context, unit: Unit, scaling: Scaling) -> dict[str, Any]:
    """Replicas by the clock: no window, no limit of steps, no tolerance that hides a change."""
    refuse_fields(scaling, _OF_SCHEDULE, WHERE)
    hours = cron.week(scaling)
    counts = [in_copies(context, unit, count) for count in hours]
    if len(set(hours)) == 1:
        raise NoAnswer(
            f"the schedule has {hours[0]} replicas at every hour.",
            field="options.scaling.periods",
            hint="Choose the policy fixed.",
        )
    at_once = [{"type": "Pods", "value": _AT_ONCE, "periodSeconds": PERIOD_S}]
    side: dict[str, Any] = {"stabilizationWindowSeconds": 0, "policies": at_once}
    if cron.close(counts, TOLERANCE):
        side["tolerance"] = "0"
    rules = {"scaleUp": side, "scaleDown": dict(side)}
    return {
        "minReplicaCount": min(counts),
        "maxReplicaCount": most(context, unit),
        **_times(scaling),
        "cooldownPeriod": 0,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": rules}},
        "triggers": cron.triggers(counts),
    }


def read_spec(written: Mapping[str, Any]) -> Scaling:
    """The policy that a specification was written from; of a schedule, the same hours."""
    crons = [entry for entry in written["triggers"] if entry["type"] == "cron"]
    low, high = written["minReplicaCount"], written["maxReplicaCount"]
    if crons:
        periods = cron.read_triggers(crons, low)
        polling_s = written.get("pollingInterval")
        return Scaling(
            policy="schedule",
            min_replicas=low,
            max_replicas=high,
            periods=periods,
            interval_s=polling_s,
        )
    fields: dict[str, Any] = {"policy": "keda", "min_replicas": low, "max_replicas": high}
    for name, key in (("interval_s", "pollingInterval"), ("idle_s", "cooldownPeriod")):
        if key in written:
            fields[name] = written[key]
    config = written.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    fields |= read_behavior(config.get("behavior", {}))
    return Scaling(**fields | read_prometheus(written["triggers"]))


def read_prometheus(written: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Triggers, and their window, as fields of the policy."""
    fields: dict[str, Any] = {}
    wanted = []
    for entry in written:
        if entry.get("name") == WAKE:
            continue
        metric, window_s = read_query(entry["metadata"]["query"])
        wanted.append(Trigger(metric=metric, target=float(entry["metadata"]["threshold"])))
        if window_s is not None:
            fields["window_s"] = window_s
    return fields | {"triggers": tuple(wanted)}
