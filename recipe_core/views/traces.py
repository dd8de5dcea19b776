"""Traces, rates and published weeks of requests as rows and sentences, for terminal and page.

Descriptions are those of ``traffic.describe``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from recipe_core.base.units import count_text, long_duration, percent_text, significant, trimmed
from recipe_core.request.over_time import DAY_S, HOUR_S, OverTime
from recipe_core.scaling.traces.describe import describe_traffic
from recipe_core.scaling.traces.from_trace import over_time_of, workload_fields
from recipe_core.scaling.traces.loads import Load, find_shape, shape_names, shape_rates
from recipe_core.scaling.traces.read import read_load
from recipe_core.scaling.traces.trace import Rates, Trace
from recipe_core.views.columns import Column, terminal

Json = Mapping[str, Any]
LENGTHS = ("mean", "p50", "p90", "p95", "p99", "max")
SHAPES: tuple[Column[Json], ...] = (
    Column("Name", "name", align="left"),
    Column("Title", "title", align="left"),
    Column("Clock", "clock", align="left"),
    Column("Busiest hour", "busiest_hour", "{:.2f}".format),
    Column("Quietest", "quietest_hour", "{:.2f}".format),
    Column("Weekday : weekend", "weekday_to_weekend", "{:.2f}".format),
)


@dataclass(frozen=True, slots=True)
class TraceLook:
    """An uploaded trace with its description and the fields of a workload that it shows.

    load: rates where the file has no single requests.
    """

    load: Trace | Rates
    facts: Json
    fields: Json

    @property
    def is_short(self) -> bool:
        return float(self.facts["span_s"]) < DAY_S

    def changes(self, current: OverTime | None, week: str | None = None) -> dict[str, Any]:
        """Changes that make the trace the load of a request, in the hours of ``week`` or its own.

        The share that must keep the limits, and growth, stay as they are in the ``current`` load.
        """
        load = over_time_of(self.load, shape=week).to_json()
        if current is not None:
            values = current.to_json()
            fixed = ("attainment", "growth_per_month")
            load |= {name: values[name] for name in fixed if name in values}
        fields = {f"workload.{name}": value for name, value in self.fields.items()}
        if "workload.prefix_reuse" in fields:
            fields["workload.prefix_hit"] = None
        return {**fields, "workload.over_time": load}


def look_at_trace(data: bytes, name: str) -> TraceLook:
    """Read the bytes of an uploaded file.

    Raises:
        InputError: for what ``read_load`` refuses.
    """
    load = read_load(data, name)
    fields = {} if isinstance(load, Rates) else workload_fields(load)
    return TraceLook(load, describe_traffic(load), fields)


def traffic_text(facts: Json) -> str:
    """A description in full."""
    lines = [facts["source"]]
    lines += [f"{title}: {text}" for title, text in trace_rows(facts).items()]
    if hit := facts.get("prefix_hit"):
        columns = [
            Column("Cache, tokens", itemgetter(0), cache_size),
            Column("Hit", itemgetter(1), percent_text),
        ]
        lines.append(terminal(_informative_caches(hit), columns))
    return "\n".join(lines)


def trace_rows(facts: Json) -> dict[str, str]:
    return dict([*_arrival_rows(facts), *_burst_rows(facts), *_content_rows(facts)])


def _arrival_rows(facts: Json) -> Iterator[tuple[str, str]]:
    began = f", from {facts['began']}" if facts["began"] else ""
    yield "Requests", f"{facts['requests']:,.0f} in {long_duration(facts['span_s'])}{began}"
    yield "Rate", request_rate(facts["rate_per_s"])
    if failed := facts.get("failed"):
        share = failed / (failed + facts["requests"])
        yield "Failed, left out", f"{failed:,.0f} ({share:.1%})"
    if "intervals" in facts:
        low, high = (request_rate(facts["rate"][end]) for end in ("min", "max"))
        yield "Intervals", f"{facts['intervals']:,} of {long_duration(facts['interval_s'])}"
        yield "Least and most", f"{low}, {high}"
        if facts["missing"]:
            yield "Intervals not recorded", f"{facts['missing']:,}, filled in"
    if minute := facts.get("minute"):
        span = f"{minute['min']:,} to {minute['max']:,}, median {minute['median']:,.0f}"
        yield "Requests in a minute", f"{span}; {facts['second']['max']:,} in a second at most"


def _burst_rows(facts: Json) -> Iterator[tuple[str, str]]:
    if facts.get("interarrival_cv") is not None:
        yield "Burstiness", f"{trimmed(facts['interarrival_cv'])} (1: Poisson)"
    dispersion = facts.get("dispersion", {})
    dispersions = [
        f"{trimmed(dispersion[key])} at {title}"
        for key, title in (("1_s", "1 s"), ("60_s", "1 min"))
        if dispersion.get(key) is not None
    ]
    if dispersions:
        yield "Index of dispersion", f"{', '.join(dispersions)} (1: Poisson)"
    times = facts.get("times", {})
    if times.get("rounding_s") is not None:
        yield (
            "Times are rounded to",
            f"{long_duration(times['rounding_s'])} ({times['distinct']:,} different ones), "
            "which gaps and seconds show",
        )
    if change := facts.get("change"):
        yield "Change between intervals", f"{change['p50']:.0%} median, {change['p99']:.0%} p99"
    for name, value in facts.get("correlation", {}).items():
        if value is not None:
            yield f"Correlation with one {name} before", f"{value:.2f}"


def _content_rows(facts: Json) -> Iterator[tuple[str, str]]:
    if "input_tokens" not in facts:
        return
    for field, title in (("input_tokens", "Prompts"), ("output_tokens", "Answers")):
        lengths = facts[field]
        yield f"{title} (tokens)", ", ".join(f"{name} {lengths[name]:,.0f}" for name in LENGTHS)
    if facts["length_correlation"] is not None:
        yield "Correlation of the two", f"{facts['length_correlation']:.2f}"
    hit, blocks = facts["prefix_hit"], facts["blocks"]
    if hit is None or blocks is None:
        yield "Prefix reuse", "unknown: the trace has no hashes of prefixes"
    else:
        yield (
            "Prefix reuse",
            f"{percent_text(hit['unlimited'])} of prompt tokens in a cache without limit; "
            f"{blocks['number']:,} blocks of {blocks['tokens']} tokens, "
            f"{blocks['distinct']:,} different",
        )
    if sessions := facts["sessions"]:
        turns, gap = sessions["turns"], sessions["gap_s"]
        text = f"{sessions['number']:,} of {trimmed(turns['mean'])} requests on average"
        text += f", {turns['max']:,} at most"
        if gap is not None:
            text += f"; {long_duration(gap['p50'])} between two, median"
            text += f" ({long_duration(gap['p90'])} at p90)"
        yield "Sessions", text


def _informative_caches(hit: Json) -> list[tuple[float, float]]:
    """Sizes between which hits change: the last that holds no more, the first that holds all."""
    sizes = [(float(size), share) for size, share in hit["by_cache_tokens"].items()]
    shares = [share for _, share in sizes]
    first = next((n for n, share in enumerate(shares) if share > shares[0] * 1.05), 0)
    last = next((n for n, share in enumerate(shares) if share > 0.999 * hit["unlimited"]), None)
    return sizes[max(first - 1, 0) : None if last is None else last + 1]


def cache_size(tokens: float) -> str:
    """Tokens of a cache, which are powers of two, with a binary prefix."""
    for size, letter in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if tokens >= size:
            return f"{significant(tokens / size)} {letter}"
    return significant(tokens)


# --- loads ---------------------------------------------------------------------------------------


def request_rate(per_s: float) -> str:
    """Requests a second, or a minute or an hour where they are few."""
    for factor, unit in ((1.0, "a second"), (60.0, "a minute")):
        if per_s * factor >= 0.5:
            return f"{significant(per_s * factor)} requests {unit}"
    return f"{significant(per_s * HOUR_S)} requests an hour"


def traffic_sentence(load: Json) -> str:
    """A load of a simulation: its source, requests and rates."""
    source = f"{load['source']}: " if load.get("source") else ""
    return (
        f"{source}{count_text(load['requests'])} requests in {long_duration(load['span_s'])}: "
        f"{request_rate(load['mean_rate_per_s'])} on average, "
        f"{request_rate(load['peak_rate_per_s'])} at the peak."
    )


def load_facts(load: Load) -> Json:
    """The facts that ``traffic_sentence`` tells of a load that is not simulated yet."""
    return {
        "requests": load.requests,
        "span_s": load.span_s,
        "mean_rate_per_s": float(load.rates.mean()),
        "peak_rate_per_s": float(load.rates.max()),
    }


# --- published weeks -----------------------------------------------------------------------------


def shapes_text(weeks: Sequence[Json]) -> str:
    return (
        f"{terminal(weeks, SHAPES)}\n"
        "hours are relative to the week's mean; use one as workload.over_time: "
        "{shape: NAME, mean_rate: REQUESTS_PER_S}"
    )


def shape_title(name: str) -> str:
    """A published week as people write it; its name where it is not known."""
    if name not in shape_names():
        return name
    title = find_shape(name).facts.title
    return f"{title[0].upper()}{title[1:]}"


def shape_note(name: str) -> str:
    """Whose hours a published week has, and where it is from."""
    week = find_shape(name)
    error = week.facts.error
    accuracy = f" Hours are within {error.value:.0%}." if error else ""
    return f"{week.facts.note} Clock: {week.facts.clock}.{accuracy} Source: {week.source}."


def hourly_rates(over_time: OverTime) -> list[float]:
    """Requests per second in each hour of the week of a shape, from its beginning on."""
    rates = np.roll(shape_rates(over_time.shape or ""), -over_time.start_hour)
    return [float(f"{rate:.3g}") for rate in rates * (over_time.mean_rate or 1.0)]
