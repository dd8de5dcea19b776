"""A schedule of the week as KEDA's cron triggers, and back. All times are UTC.

A trigger asks for its number between two moments, and for 1 otherwise; of several the one that asks
for most counts. So the number that runs at other times is ``minReplicaCount``, and a part of the
week with more is a trigger. Spans of one day with the same hours share a trigger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from recipe_core.request.scaling import Period, Scaling
from recipe_core.scaling.policies.schedule import HOURS as WEEK
from recipe_core.scaling.policies.schedule import week_replicas

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


def read_triggers(triggers: Sequence[Mapping[str, Any]], base: int) -> tuple[Period, ...]:
    """Periods that cron triggers were written from, where ``base`` replicas run at other times."""
    hours = [base] * WEEK
    for trigger in triggers:
        metadata = trigger["metadata"]
        ends = _hours_of_expression(metadata["end"])
        for begin, end in zip(_hours_of_expression(metadata["start"]), ends, strict=True):
            length = (end - begin) % WEEK
            for hour in range(begin, begin + length):
                replicas = int(metadata["desiredReplicas"])
                hours[hour % WEEK] = max(hours[hour % WEEK], replicas)
    return tuple(
        Period(from_hour=span.begin, to_hour=span.end, replicas=span.replicas)
        for span in busy_spans(hours)
    )


def _hours_of_expression(expression: str) -> list[int]:
    """Hours of the week that an expression of ours names, in its order."""
    _, hour, _, _, days = expression.split()
    return [(int(day) - 1) % 7 * DAY + int(hour) for day in days.split(",")]


def changes_within_tolerance(hours: Sequence[int], tolerance: float) -> bool:
    """Whether a change of the schedule is within the tolerance of autoscalers, which ignore it."""
    changes = zip(hours, (*hours[1:], hours[0]), strict=True)
    return any(before and 0 < abs(after / before - 1) <= tolerance for before, after in changes)
