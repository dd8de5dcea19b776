"""From when on something is wrong: the limits of the recipe where it has them, else the far end of the estimate's band."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context


QUEUED_SHARE = 0.1  # of the requests the recipe is meant for may wait without harm
KV_USAGE = 0.95  # from here on requests are preempted; what the estimate needs may be more
KV_SCALE = 0.8  # where another copy is started, so that it is ready before the cache is full
MEMORY = 0.985  # engines fill a device on purpose; this is what is left for the driver
WEIGHTS_BYTES_PER_S, WARM_UP_S = (
    1e9,
    (120, 1800),
)  # assumed: reading weights on a start, and bounds of what it takes


@dataclass(frozen=True, slots=True)
class Threshold:
    """A figure, which statistic it bounds (None: the mean, else a quantile), and where it is from."""

    value: float
    quantile: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All of a recipe. Times in seconds; ``waiting`` and ``load`` in requests of one copy; ``tokens_per_s`` at full load."""

    ttft: Threshold
    tpot: Threshold
    kv_usage: float
    waiting: int
    load: int | None
    tokens_per_s: float


def thresholds(context: Context) -> Thresholds:
    """The thresholds of a serving recipe."""
    load = context.workload.get("concurrency") or context.workload.get("batch")
    memory = context.estimate["memory"]
    pool = memory.get("kv_cache_bytes") or math.inf
    seats = load or memory.get("max_concurrency") or 1
    return Thresholds(
        ttft=_time(context, "ttft"),
        tpot=_time(context, "tpot"),
        kv_usage=round(min(0.99, max(KV_USAGE, memory.get("kv_needed_bytes", 0) / pool)), 3),
        waiting=max(1, round(QUEUED_SHARE * seats)),
        load=load,
        tokens_per_s=context.estimate["bands"]["output_tokens_per_s"][0],
    )


def warm_up_s(context: Context) -> int:
    """How long a new copy takes before it answers."""
    low, high = WARM_UP_S
    return int(
        min(high, max(low, low + context.weights_bytes / context.nodes / WEIGHTS_BYTES_PER_S))
    )


def _time(context: Context, name: str) -> Threshold:
    limit, percentile = context.limits.get(f"{name}_ms"), context.limits.get("percentile")
    if limit:
        return Threshold(
            limit / 1e3,
            percentile / 100 if percentile else None,
            f"the recipe's limit, {limit:g} ms",
        )
    high = context.estimate["bands"][f"{name}_s"][1]
    return Threshold(round(high, 4), None, f"the upper end of the estimate, {1e3 * high:.4g} ms")
