"""A quantity that splits are compared by, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import GIB, duration, gib, rate, significant, usd

Columns = Mapping[str, Any]
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of every row of a plan.

    ``get`` reads it from the plan's columns, SI. A chart or a table shows it times ``factor`` in ``unit``, a sentence as ``show`` says it.
    ``limit``: the field of the objective's limits that bounds it, and ``limit_factor`` that field's unit in SI ones. ``band``: the figure
    of an estimate whose band is this measure's.
    """

    title: str
    head: str
    unit: str
    get: Callable[[Columns], Float]
    show: Callable[[float], str]
    factor: float = 1.0
    more_is_better: bool = False
    limit: str | None = None
    limit_factor: float = 1.0
    help: str = ""
    band: str | None = None

    @property
    def axis(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


def column(name: str) -> Callable[[Columns], Float]:
    """A quantity that is a column as it is."""
    return lambda columns: np.asarray(columns[name], dtype=float)


def whole(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def watts(value: float) -> str:
    """Power."""
    return f"{significant(value)} W"


def joules(value: float) -> str:
    """Energy."""
    return f"{significant(value)} J"


def percent(value: float) -> str:
    """A share."""
    return f"{value:.0%}"


def days(seconds: float) -> str:
    """A long time: days, or hours below two of them."""
    return (
        f"{significant(seconds / DAY_S)} days"
        if seconds >= 2 * DAY_S
        else f"{significant(seconds / 3600)} h"
    )


SERVING: dict[str, Measure] = {
    "tpot": Measure(
        "Time per output token",
        "Per token",
        "ms",
        column("tpot_s"),
        duration,
        1e3,
        limit="tpot_ms",
        limit_factor=1e-3,
        help="Mean time between two tokens of one answer",
        band="tpot_s",
    ),
    "interactivity": Measure(
        "Tokens/s that one user sees",
        "Per user",
        "tok/s",
        lambda c: 1 / np.asarray(c["tpot_s"]),
        rate,
        more_is_better=True,
        help="The inverse of the time per output token",
    ),
    "ttft": Measure(
        "Time to first token",
        "First token",
        "ms",
        column("ttft_s"),
        duration,
        1e3,
        limit="ttft_ms",
        limit_factor=1e-3,
        help="From a request's arrival to its first token, waiting included",
        band="ttft_s",
    ),
    "latency": Measure(
        "Request latency",
        "Request",
        "s",
        column("request_latency_s"),
        duration,
        limit="request_latency_ms",
        limit_factor=1e-3,
        help="From a request's arrival to its last token",
        band="request_latency_s",
    ),
    "per_gpu": Measure(
        "Output per GPU",
        "Per GPU",
        "tok/s",
        column("output_tokens_per_s_per_gpu"),
        rate,
        more_is_better=True,
        help="Output tokens per second of the deployment, divided by its devices",
        band="output_tokens_per_s_per_gpu",
    ),
    "output": Measure(
        "Output",
        "Output",
        "tok/s",
        column("output_tokens_per_s"),
        rate,
        more_is_better=True,
        limit="output_tokens_per_s_at_least",
        help="Output tokens per second of the whole deployment",
        band="output_tokens_per_s",
    ),
    "usd": Measure(
        "Cost per million output tokens",
        "Per M tokens",
        "$",
        column("usd_per_million_output_tokens"),
        usd,
        limit="usd_per_million_output_tokens",
        help="Price of the devices by the hour, laid on the output",
    ),
    "usd_hour": Measure(
        "Cost per hour", "Per hour", "$", column("usd_per_hour"), usd, limit="usd_per_hour"
    ),
    "gpus": Measure("Devices", "Devices", "", column("gpus"), whole, limit="gpus"),
    "memory": Measure(
        "Memory per device",
        "Memory",
        "GiB",
        column("total_bytes"),
        gib,
        1 / GIB,
        help="Of the fullest device, for this workload",
    ),
    "used": Measure(
        "Of usable memory",
        "Of usable",
        "%",
        lambda c: np.asarray(c["total_bytes"] / c["usable_bytes"]),
        percent,
        100,
        help="Over 100 %: not all requests are held at once; the others wait in the engine's queue",
    ),
    "concurrency": Measure(
        "Requests that the cache holds",
        "Held at once",
        "",
        column("max_concurrency"),
        whole,
        more_is_better=True,
        help="At their full length, over all replicas",
    ),
    "watts": Measure("Power of the devices", "Power", "W", column("watts"), watts, limit="watts"),
    "joules": Measure(
        "Energy per output token",
        "Energy",
        "J/tok",
        column("joules_per_token"),
        joules,
        limit="joules_per_token",
    ),
}
"""What serving splits are compared by."""

TRAINING: dict[str, Measure] = {
    "step": Measure(
        "Time of a step",
        "Step",
        "s",
        column("step_s"),
        duration,
        help="One optimizer step over the whole batch",
        band="step_s",
    ),
    "per_gpu": Measure(
        "Tokens per GPU",
        "Per GPU",
        "tok/s",
        column("tokens_per_s_per_gpu"),
        rate,
        more_is_better=True,
        help="Tokens per second of the run, divided by its devices",
        band="tokens_per_s_per_gpu",
    ),
    "output": Measure(
        "Tokens trained",
        "Trained",
        "tok/s",
        column("tokens_per_s"),
        rate,
        more_is_better=True,
        help="Less what failures and checkpoints cost",
    ),
    "wall": Measure(
        "Time to finish",
        "To finish",
        "days",
        column("wall_s"),
        days,
        1 / DAY_S,
        help="The whole token budget, failures included",
    ),
    "usd": Measure(
        "Cost per million tokens", "Per M tokens", "$", column("usd_per_million_tokens"), usd
    ),
    "usd_run": Measure(
        "Cost of the run",
        "Run",
        "$",
        column("usd"),
        usd,
        help="The whole token budget, failures included",
    ),
    "usd_hour": Measure(
        "Cost per hour", "Per hour", "$", column("usd_per_hour"), usd, limit="usd_per_hour"
    ),
    "gpus": Measure("Devices", "Devices", "", column("gpus"), whole, limit="gpus"),
    "memory": Measure(
        "Peak memory per device",
        "Memory",
        "GiB",
        column("peak_memory_bytes"),
        gib,
        1 / GIB,
        help="Of the fullest stage",
        band="peak_memory_bytes",
    ),
    "bubble": Measure(
        "Idle in the pipeline",
        "Bubble",
        "%",
        column("bubble_share"),
        percent,
        100,
        help="Share of a step that stages wait for each other",
    ),
    "watts": Measure("Power of the devices", "Power", "W", column("watts"), watts, limit="watts"),
    "joules": Measure(
        "Energy per token",
        "Energy",
        "J/tok",
        column("joules_per_token"),
        joules,
        limit="joules_per_token",
    ),
}
"""What training splits are compared by."""
