"""The policies ``keda`` and ``schedule`` as the specification of a ScaledObject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.controller import HOURS as WEEK
from recipe_core.scaling.policies.controller import week_replicas
from recipe_core.scaling.policies.rows import default_of
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit
from recipe_core.targets.scale.hpa import PERIOD_S, scaling_behavior
from recipe_core.targets.scale.policy import (
    RATE_S,
    averaging_window_s,
    engaged_terms,
    fewest_copies,
    gateway_counter,
    grain_target,
    in_copies,
    metric_query,
    most_copies,
    refuse_fields,
    refuse_policy,
    request_rate_query,
    triggers_of,
    whole_seconds,
)

DAY = 24


@dataclass(frozen=True, slots=True)
class Span:
    """Hours of the week, from 0 (Monday at midnight), with a number of replicas."""

    begin: int
    end: int
    replicas: int


def replicas_by_hour(scaling: Scaling) -> tuple[int, ...]:
    """Replicas of every hour of the week: of periods that overlap the largest, else the fewest."""
    return tuple(int(replicas) for replicas in week_replicas(scaling))


def busy_spans(hours: Sequence[int]) -> list[Span]:
    """Parts of the week with more replicas than its quietest hour; the quietest is left out."""
    base, parts, begin = min(hours), [], 0
    for replicas, equal_hours in groupby(hours):
        end = begin + len(list(equal_hours))
        if replicas > base:
            parts.append(Span(begin, end, replicas))
        begin = end
    return parts


def cron_triggers(hours: Sequence[int]) -> list[dict[str, Any]]:
    """Cron triggers of the spans, those of one day with the same hours together."""
    spans_by_hours: dict[tuple[int, int, int], list[Span]] = {}
    for span in busy_spans(hours):
        key = (span.begin % DAY, span.end - span.begin, span.replicas)
        spans_by_hours.setdefault(key, []).append(span)
    triggers = []
    for equal_spans in spans_by_hours.values():
        starts = {span.begin for span in equal_spans}
        # A start and an end at one moment would leave KEDA without the one that comes next.
        meet = any(span.end % WEEK in starts for span in equal_spans)
        groups = (
            [[span] for span in equal_spans]
            if meet or equal_spans[0].end - equal_spans[0].begin > DAY
            else [equal_spans]
        )
        triggers += [_cron_trigger(group) for group in groups]
    return triggers


def _cron_trigger(group: Sequence[Span]) -> dict[str, Any]:
    starts = ",".join(str(_cron_weekday(span.begin)) for span in group)
    ends = ",".join(str(_cron_weekday(span.end)) for span in group)
    metadata = {
        "timezone": "UTC",
        "start": f"0 {group[0].begin % DAY} * * {starts}",
        "end": f"0 {group[0].end % DAY} * * {ends}",
        "desiredReplicas": str(group[0].replicas),
    }
    return {"type": "cron", "metadata": metadata}


def _cron_weekday(hour: int) -> int:
    """The day of cron, 0 is Sunday, of an hour of the week, 0 is Monday at midnight."""
    return (hour // DAY + 1) % 7


def changes_within_tolerance(hours: Sequence[int], tolerance: float) -> bool:
    """Return whether a change of the schedule is within autoscalers' tolerance, so ignored."""
    changes = zip(hours, (*hours[1:], hours[0]), strict=True)
    return any(before and 0 < abs(after / before - 1) <= tolerance for before, after in changes)


WHERE = "a ScaledObject"
# The name of the trigger that only starts the first replica.
WAKE = "wake"
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
    refuse_policy(scaling, "kubernetes-keda", WHERE)
    if scaling.policy == "schedule":
        return _schedule_spec(context, unit, scaling)
    refuse_fields(scaling, WHERE)
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
    refuse_fields(scaling, WHERE)
    hours = replicas_by_hour(scaling)
    counts = [in_copies(context, unit, count) for count in hours]
    if len(set(hours)) == 1:
        raise NoAnswer(
            f"the schedule has {hours[0]} replicas at every hour.",
            field="options.scaling.periods",
            hint="Choose the policy fixed.",
        )
    at_once = [{"type": "Pods", "value": _AT_ONCE, "periodSeconds": PERIOD_S}]
    side: dict[str, Any] = {"stabilizationWindowSeconds": 0, "policies": at_once}
    if changes_within_tolerance(counts, TOLERANCE):
        side["tolerance"] = "0"
    rules = {"scaleUp": side, "scaleDown": dict(side)}
    return {
        "minReplicaCount": min(counts),
        "maxReplicaCount": most_copies(context, unit),
        **_keda_times(scaling),
        "cooldownPeriod": 0,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": rules}},
        "triggers": cron_triggers(counts),
    }
