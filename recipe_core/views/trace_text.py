"""What a trace shows, and the published shapes of a week, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.columns import aligned
from recipe_core.base.units import count, duration, significant

WIDTH = 100
HOUR_S, DAY_S = 3600.0, 86_400.0


def span_text(seconds: float) -> str:
    """A span as people say it: seconds, minutes, hours or days."""
    for least, unit in ((2 * DAY_S, "days"), (2 * HOUR_S, "hours"), (120.0, "minutes")):
        if seconds >= least:
            factor = {"days": DAY_S, "hours": HOUR_S, "minutes": 60.0}[unit]
            return f"{significant(seconds / factor)} {unit}"
    return duration(seconds)


def size_text(tokens: float) -> str:
    """Tokens of a cache, which are powers of two, with a binary prefix."""
    for size, letter in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if tokens >= size:
            return f"{significant(tokens / size)} {letter}"
    return significant(tokens)


def trace_text(description: Mapping[str, Any]) -> str:
    """A description of a trace or of a table of rates, in full."""
    if "input_tokens" not in description:
        return "\n".join(_rates(description))
    parts = [
        description["source"],
        *_arrivals(description),
        _lengths(description),
        *_reuse(description),
        *_sessions(description),
    ]
    return "\n".join(parts)


def _began(description: Mapping[str, Any]) -> str:
    return f", from {description['began']}" if description["began"] else ""


def _arrivals(one: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{one['requests']:,} requests in {span_text(one['span_s'])}{_began(one)}: "
        f"{significant(one['rate_per_s'])} per second"
    ]
    if one["failed"]:
        share = one["failed"] / (one["failed"] + one["requests"])
        lines.append(f"{one['failed']:,} failed ({share:.1%}), not counted below")
    minute = one["minute"]
    median = significant(minute["median"])
    lines.append(
        f"in a minute: {minute['min']:,} to {minute['max']:,}, median {median}; "
        f"at most {one['second']['max']:,} in a second"
    )
    if one["interarrival_cv"] is not None:
        lines.append(
            f"gaps: coefficient of variation {significant(one['interarrival_cv'])} (1 is Poisson)"
        )
    shown = {"1 s": one["dispersion"]["1_s"], "60 s": one["dispersion"]["60_s"]}
    known = [
        f"{significant(value)} at {name}" for name, value in shown.items() if value is not None
    ]
    if known:
        lines.append(f"index of dispersion: {', '.join(known)} (1 is Poisson)")
    rounding = one["times"]["rounding_s"]
    if rounding is not None:
        lines.append(
            f"times are rounded to about {duration(rounding)} "
            f"({one['times']['distinct']:,} different ones): gaps and seconds show the rounding"
        )
    return lines


def _lengths(one: Mapping[str, Any]) -> str:
    head = ("tokens", "mean", "p50", "p90", "p95", "p99", "longest")
    keys = ("mean", "p50", "p90", "p95", "p99", "max")
    rows = [
        (title, *(f"{round(one[name][key]):,}" for key in keys))
        for title, name in (("prompt", "input_tokens"), ("answer", "output_tokens"))
    ]
    table = aligned(head, rows, left=("tokens",), width=WIDTH).strip("\n")
    linked = one["length_correlation"]
    return table if linked is None else f"{table}\ncorrelation of the two: {linked:.2f}"


def _reuse(one: Mapping[str, Any]) -> list[str]:
    hit, blocks = one["prefix_hit"], one["blocks"]
    if hit is None or blocks is None:
        return ["no hashes of prefixes: what a prefix cache would hold is not known"]
    sizes = [(int(size), share) for size, share in hit["by_cache_tokens"].items()]
    least = next((n for n, (_, share) in enumerate(sizes) if share > sizes[0][1] * 1.05), 0)
    most = next((n for n, (_, share) in enumerate(sizes) if share > 0.999 * hit["unlimited"]), -1)
    shown = sizes[max(least - 1, 0) :] if most < 0 else sizes[max(least - 1, 0) : most + 1]
    rows = [(size_text(size), f"{share:.1%}") for size, share in shown]
    return [
        f"prefixes: {hit['unlimited']:.1%} of prompt tokens were there before; "
        f"{blocks['number']:,} blocks of {blocks['tokens']} tokens, "
        f"{blocks['distinct']:,} different",
        aligned(("cache, tokens", "hit"), rows, left=(), width=WIDTH).strip("\n"),
    ]


def _sessions(one: Mapping[str, Any]) -> list[str]:
    sessions = one["sessions"]
    if sessions is None:
        return []
    turns = sessions["turns"]
    line = (
        f"{sessions['number']:,} sessions of {significant(turns['mean'])} requests "
        f"(at most {turns['max']:,})"
    )
    gap = sessions["gap_s"]
    if gap is None:
        return [line]
    return [f"{line}; {span_text(gap['p50'])} between two, median ({span_text(gap['p90'])} at p90)"]


def _rates(one: Mapping[str, Any]) -> list[str]:
    low, high = significant(one["rate"]["min"]), significant(one["rate"]["max"])
    lines = [
        one["source"],
        f"rates in {one['intervals']:,} intervals of {span_text(one['interval_s'])}, "
        f"{span_text(one['span_s'])} in all{_began(one)}; no single requests",
        f"{significant(one['rate_per_s'])} requests per second, {low} to {high}; "
        f"{count(one['requests'])} requests",
    ]
    if one["missing"]:
        lines.append(f"{one['missing']:,} intervals were not recorded and are filled in")
    if one["interarrival_cv"] is not None:
        lines.append(
            f"gaps of a client: coefficient of variation {significant(one['interarrival_cv'])}"
        )
    change = one["change"]
    lines.append(
        f"change from one interval to the next: {change['p50']:.0%} median, {change['p99']:.0%} p99"
    )
    for name, value in one["correlation"].items():
        if value is not None:
            lines.append(f"correlation with one {name} before: {value:.2f}")
    return lines


def shapes_text(shapes: Sequence[Mapping[str, Any]]) -> str:
    """The published shapes, and how to use one."""
    head = ("name", "what", "clock", "busiest hour", "quietest", "weekday : weekend")
    rows = [
        (
            one["name"],
            one["title"],
            one["clock"],
            f"{one['busiest_hour']:.2f}",
            f"{one['quietest_hour']:.2f}",
            "–" if one["weekday_to_weekend"] is None else f"{one['weekday_to_weekend']:.2f}",
        )
        for one in shapes
    ]
    table = aligned(head, rows, left=("name", "what", "clock"), width=WIDTH).strip("\n")
    use = "hours are relative to the week's mean; use one as workload.over_time: "
    return f"{table}\n{use}{{shape: NAME, mean_rate: REQUESTS_PER_S}}"
