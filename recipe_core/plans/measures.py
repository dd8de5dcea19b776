"""A quantity that splits are compared by, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import GIB, duration, gib, rate, significant, usd
from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.request.objective import Goal

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

SERVING_GOALS: Mapping[Goal, tuple[str, int]] = {
    "throughput": ("output_tokens_per_s", -1),
    "latency": ("request_latency_s", 1),
    "ttft": ("ttft_s", 1),
    "tpot": ("tpot_s", 1),
    "cost": ("usd_per_million_output_tokens", 1),
    "gpus": ("gpus", 1),
    "energy": ("joules_per_token", 1),
    "accuracy": ("accuracy_lost", 1),
}
"""The column that each goal of serving is about, and whether less (1) or more (-1) is better."""

MORE_IS_BETTER = frozenset(
    {
        "output_tokens_per_s",
        "output_tokens_per_s_per_gpu",
        "tokens_per_s_per_user",
        "kv_cache_tokens",
        "max_concurrency",
        "load",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "hfu",
        "goodput",
        "run_mfu",
    }
)
"""Columns of a plan of which larger values are better."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of every row of a plan.

    ``column`` of the plan holds it, SI. A chart or a table shows it times ``factor`` in ``unit``, a
    sentence as ``show`` says it. ``limit``: the field of the objective's limits that bounds it, and
    ``limit_factor`` that field's unit in SI ones. ``band``: the figure of an estimate, a column of
    the plan too, whose band is this measure's, upside down where ``band_inverse``.
    """

    title: str
    head: str
    unit: str
    column: str
    show: Callable[[float], str]
    factor: float = 1.0
    limit: str | None = None
    limit_factor: float = 1.0
    help: str = ""
    band: str | None = None
    band_inverse: bool = False

    @property
    def more_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.column in MORE_IS_BETTER

    @property
    def axis(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


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


def utilisation(value: float) -> str:
    """A share of a peak, whose first decimal is compared."""
    return f"{value:.1%}"


def kept(value: float) -> str:
    """A share of accuracy, of which a tenth of a percent counts."""
    return f"{value * 100:.1f}".removesuffix(".0") + "%"


def in_hours(seconds: float) -> str:
    """A long time in hours."""
    return f"{significant(seconds / HOUR_S)} h"


def in_days(seconds: float) -> str:
    """A long time in days."""
    return f"{significant(seconds / DAY_S)} days"


def days(seconds: float) -> str:
    """A long time by itself: days, or hours below two of them."""
    return in_days(seconds) if seconds >= 2 * DAY_S else in_hours(seconds)


def to_finish(seconds: Float) -> Measure:
    """The measure of the time to finish in one unit for all rows of a plan.

    Hours where the fastest takes less than two days, else days.
    """
    finite = seconds[np.isfinite(seconds)]
    if len(finite) and finite.min() >= 2 * DAY_S:
        return TRAINING["wall"]
    return replace(TRAINING["wall"], unit="h", show=in_hours, factor=1 / HOUR_S)


def monthly(usd_per_hour: float) -> str:
    """The price of a month of 730 hours, from that of an hour."""
    return usd(usd_per_hour * HOURS_PER_MONTH)


USD_MONTH = Measure(
    "Cost per month",
    "Per month",
    "$",
    "usd_per_hour",
    monthly,
    HOURS_PER_MONTH,
    help="730 hours of the devices that are paid for, used or idle",
)

SERVING: dict[str, Measure] = {
    "tpot": Measure(
        "Time per output token",
        "Per token",
        "ms",
        "tpot_s",
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
        "tokens_per_s_per_user",
        rate,
        help="The inverse of the time per output token",
        band="tpot_s",
        band_inverse=True,
    ),
    "ttft": Measure(
        "Time to first token",
        "First token",
        "ms",
        "ttft_s",
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
        "request_latency_s",
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
        "output_tokens_per_s_per_gpu",
        rate,
        help="Output tokens per second of the deployment, divided by its devices",
        band="output_tokens_per_s_per_gpu",
    ),
    "output": Measure(
        "Output",
        "Output",
        "tok/s",
        "output_tokens_per_s",
        rate,
        limit="output_tokens_per_s_at_least",
        help="Output tokens per second of the whole deployment",
        band="output_tokens_per_s",
    ),
    "usd": Measure(
        "Cost per million output tokens",
        "Per M tokens",
        "$",
        "usd_per_million_output_tokens",
        usd,
        limit="usd_per_million_output_tokens",
        help="Price of the devices by the hour, laid on the output",
        band="usd_per_million_output_tokens",
    ),
    "usd_hour": Measure(
        "Cost per hour", "Per hour", "$", "usd_per_hour", usd, limit="usd_per_hour"
    ),
    "usd_month": USD_MONTH,
    "gpus": Measure("Devices", "Devices", "", "gpus", whole, limit="gpus"),
    "memory": Measure(
        "Memory per device",
        "Memory",
        "GiB",
        "total_bytes",
        gib,
        1 / GIB,
        help="Of the fullest device, for this workload",
    ),
    "used": Measure(
        "Of usable memory",
        "Of usable",
        "%",
        "memory_share",
        percent,
        100,
        help="Over 100 %: not all requests are held at once; the others wait in the engine's queue",
    ),
    "concurrency": Measure(
        "Requests that the cache holds",
        "Held at once",
        "",
        "max_concurrency",
        whole,
        help="At their full length, over all replicas",
    ),
    "load": Measure(
        "Requests in flight",
        "In flight",
        "",
        "load",
        whole,
        help="That the deployment holds at once; the best within the limits where it is searched",
    ),
    "accuracy": Measure(
        "Accuracy kept",
        "Accuracy",
        "%",
        "accuracy",
        kept,
        100,
        limit="accuracy_recovery",
        help="Expected share of the unquantised checkpoint's accuracy, by published figures of "
        "models in the same number formats",
        band="accuracy",
    ),
    "watts": Measure("Power of the devices", "Power", "W", "watts", watts, limit="watts"),
    "joules": Measure(
        "Energy per output token",
        "Energy",
        "J/tok",
        "joules_per_token",
        joules,
        limit="joules_per_token",
        band="joules_per_token",
    ),
}
"""What serving splits are compared by."""

_LOADS = {
    "closed": SERVING["load"],
    "open": Measure("Requests that arrive", "Arrive", "1/s", "load", significant),
    "static": Measure("Requests in the batch", "Batch", "", "load", whole),
    "offline": Measure("Requests in the queue", "Queue", "", "load", whole),
}


@cache
def measures_of(mode: str) -> dict[str, Measure]:
    """What serving splits are compared by, the load in the terms of a mode."""
    job = _JOB if mode == "offline" else {}
    return {**SERVING, "load": _LOADS[mode], **job}


_JOB = {
    "wall": Measure(
        "Time to finish",
        "To finish",
        "h",
        "wall_s",
        in_hours,
        1 / HOUR_S,
        limit="wall_hours",
        limit_factor=HOUR_S,
        help="Until all requests are worked off",
        band="usd_per_million_output_tokens",
    ),
    "usd_run": Measure(
        "Cost of the job",
        "Job",
        "$",
        "usd",
        usd,
        limit="usd",
        help="Of all requests",
        band="usd_per_million_output_tokens",
    ),
}
"""What a queue that is worked off is compared by besides."""

TRAINING: dict[str, Measure] = {
    "step": Measure(
        "Time of a step",
        "Step",
        "s",
        "step_s",
        duration,
        help="One optimizer step over the whole batch",
        band="step_s",
    ),
    "rollout": Measure(
        "Time of the rollout",
        "Rollout",
        "s",
        "rollout_s",
        duration,
        help="Time in which a step samples its answers",
    ),
    "per_gpu": Measure(
        "Tokens per GPU",
        "Per GPU",
        "tok/s",
        "tokens_per_s_per_gpu",
        rate,
        help="Tokens per second of the run, divided by its devices",
        band="tokens_per_s_per_gpu",
    ),
    "mfu": Measure(
        "Model FLOPs utilisation (MFU)",
        "MFU",
        "%",
        "mfu",
        utilisation,
        100,
        help="Model operations a second, over the device's peak in the precision of the "
        "computation. Recomputation does not count",
        band="mfu",
    ),
    "hfu": Measure(
        "Hardware FLOPs utilisation (HFU)",
        "HFU",
        "%",
        "hfu",
        utilisation,
        100,
        help="As MFU, with the operations that recomputation repeats",
    ),
    "output": Measure(
        "Tokens trained",
        "Trained",
        "tok/s",
        "tokens_per_s",
        rate,
        help="Over the whole run: less what evaluations, checkpoints and failures cost",
        band="tokens_per_s_per_gpu",
    ),
    "goodput": Measure(
        "Goodput",
        "Goodput",
        "%",
        "goodput",
        utilisation,
        100,
        help="Share of the run's time that steps take; evaluations, checkpoints and failures take "
        "the rest",
    ),
    "run_mfu": Measure(
        "MFU of the whole run",
        "Run MFU",
        "%",
        "run_mfu",
        utilisation,
        100,
        help="Model operations of the whole run over its time and the devices' peak",
        band="mfu",
    ),
    "wall": Measure(
        "Time to finish",
        "To finish",
        "days",
        "wall_s",
        in_days,
        1 / DAY_S,
        limit="wall_hours",
        limit_factor=HOUR_S,
        help="The whole token budget, failures included",
        band="step_s",
    ),
    "usd": Measure(
        "Cost per million tokens",
        "Per M tokens",
        "$",
        "usd_per_million_tokens",
        usd,
        band="usd_per_million_tokens",
    ),
    "usd_run": Measure(
        "Cost of the run",
        "Run",
        "$",
        "usd",
        usd,
        limit="usd",
        help="The whole token budget, failures and spare nodes included",
        band="step_s",
    ),
    "usd_hour": Measure(
        "Cost per hour", "Per hour", "$", "usd_per_hour", usd, limit="usd_per_hour"
    ),
    "usd_month": USD_MONTH,
    "gpus": Measure("Devices", "Devices", "", "gpus", whole, limit="gpus"),
    "memory": Measure(
        "Peak memory per device",
        "Memory",
        "GiB",
        "peak_memory_bytes",
        gib,
        1 / GIB,
        help="Of the fullest stage",
        band="peak_memory_bytes",
    ),
    "bubble": Measure(
        "Idle in the pipeline",
        "Bubble",
        "%",
        "bubble_share",
        percent,
        100,
        help="Share of a step that stages wait for each other",
    ),
    "watts": Measure("Power of the devices", "Power", "W", "watts", watts, limit="watts"),
    "joules": Measure(
        "Energy per token",
        "Energy",
        "J/tok",
        "joules_per_token",
        joules,
        limit="joules_per_token",
        band="joules_per_token",
    ),
}
"""What training splits are compared by."""
