"""Traces, rates and published weeks of requests as rows and sentences, for terminal and page.

Descriptions are those of ``traffic.describe``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from recipe_core.base.units import count_text, long_duration, percent_text, share_text, significant
from recipe_core.request.over_time import DAY_S, HOUR_S, OverTime
from recipe_core.scaling.traces.describe import describe_traffic
from recipe_core.scaling.traces.from_trace import over_time_of, workload_fields
from recipe_core.scaling.traces.loads import Load, find_shape, shape_names, shape_rates
from recipe_core.scaling.traces.read import read_load
from recipe_core.scaling.traces.trace import Rates, Trace
from recipe_core.views.columns import Column, terminal
from recipe_core.views.texts import Phrases

Json = Mapping[str, Any]
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
    return _PHRASES.facts("facts", facts)


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


_PHRASES = Phrases("traces", rate=request_rate)


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
    accuracy = f" Hours are within {share_text(error.value)}." if error else ""
    return f"{week.facts.note} Clock: {week.facts.clock}.{accuracy} Source: {week.source}."


def hourly_rates(over_time: OverTime) -> list[float]:
    """Requests per second in each hour of the week of a shape, from its beginning on."""
    rates = np.roll(shape_rates(over_time.shape or ""), -over_time.start_hour)
    return [float(f"{rate:.3g}") for rate in rates * (over_time.mean_rate or 1.0)]
