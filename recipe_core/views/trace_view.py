"""An uploaded trace for a page: read and described by a worker, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.request.over_time import DAY_S, OverTime
from recipe_core.scaling.traces.describe import describe, describe_rates
from recipe_core.scaling.traces.from_trace import over_time_of, workload_fields
from recipe_core.scaling.traces.rates import Rates
from recipe_core.scaling.traces.read import read_load
from recipe_core.scaling.traces.trace import Trace
from recipe_core.views.over_time_text import share_text
from recipe_core.views.over_time_view import plain, rate_text, time_text

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceLook:
    """A trace with what pages show of it.

    load: requests, or rates where the file has no single requests. facts: as ``describe`` gives
    them. fields: of a workload, as the trace shows them.
    """

    load: Trace | Rates
    facts: Json
    fields: Json

    @property
    def is_short(self) -> bool:
        """Whether it lasts less than a day, so that it says nothing of nights and weekends."""
        return float(self.facts["span_s"]) < DAY_S

    def changes(self, stated: OverTime | None, shape: str | None = None) -> dict[str, Any]:
        """What the trace changes in a request: a week's ``shape`` in place of its own hours.

        The share that must keep the limits, and growth, stay as they are ``stated``.
        """
        load = over_time_of(self.load, shape=shape).to_json()
        if stated is not None:
            kept = stated.to_json()
            load |= {
                name: kept[name] for name in ("attainment", "growth_per_month") if name in kept
            }
        fields = {f"workload.{name}": value for name, value in self.fields.items()}
        found = {"workload.prefix_hit": None} if "workload.prefix_reuse" in fields else {}
        return {**fields, **found, "workload.over_time": load}


def look_at(data: bytes, name: str) -> TraceLook:
    """A trace, from the bytes of an uploaded file.

    Raises:
        InputError: for what ``read_load`` refuses.
    """
    load = read_load(data, name)
    if isinstance(load, Rates):
        return TraceLook(load, describe_rates(load), {})
    return TraceLook(load, describe(load), workload_fields(load))


def rows(facts: Json) -> dict[str, str]:
    """What a trace shows, as names and texts; only what it tells."""
    out = {
        "Requests": f"{facts['requests']:,.0f} in {time_text(facts['span_s'])}",
        "Rate": rate_text(facts["rate_per_s"]),
    }
    if facts.get("failed"):
        out["Failed, left out"] = f"{facts['failed']:,.0f}"
    if facts.get("missing"):
        out["Intervals not recorded"] = f"{facts['missing']:,} of {facts['intervals']:,}"
    if facts.get("interarrival_cv") is not None:
        out["Burstiness"] = f"{plain(facts['interarrival_cv'])} (1: Poisson)"
    if minute := facts.get("minute"):
        out["Requests in a minute"] = (
            f"{minute['min']:,} to {minute['max']:,}, median {minute['median']:,.0f}"
        )
    for field, title in (("input_tokens", "Prompts"), ("output_tokens", "Answers")):
        if lengths := facts.get(field):
            out[f"{title} (tokens)"] = (
                f"mean {lengths['mean']:,.0f}, p50 {lengths['p50']:,.0f}, "
                f"p90 {lengths['p90']:,.0f}, p99 {lengths['p99']:,.0f}"
            )
    if hit := facts.get("prefix_hit"):
        share = share_text(hit["unlimited"])
        out["Prefix reuse"] = f"{share} of prompt tokens in a cache without limit"
    if sessions := facts.get("sessions"):
        turns = plain(sessions["turns"]["mean"])
        out["Sessions"] = f"{sessions['number']:,} of {turns} requests on average"
    return out
