"""A trace: when requests came, how long they were, and which blocks of prefixes they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Bool, Float, Int


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second in windows of ``interval_s``, one after the other.

    missing: windows that were not recorded; their rates are filled in from those around them.
    burstiness: coefficient of variation of gaps within a window, None where it is not known.
    source: format and name, for people. began_s: seconds since 1970 (UTC), where the table has
    dates.
    """

    rates: Float
    interval_s: float
    missing: Bool
    burstiness: float | None = None
    source: str = ""
    began_s: float | None = None

    def __len__(self) -> int:
        return len(self.rates)

    @property
    def span_s(self) -> float:
        """Seconds of all windows."""
        return len(self.rates) * self.interval_s


def fill_missing_rates(rates: Float, missing: Bool) -> Float:
    """Rates in which missing windows lie on the line between those beside them.

    Raises:
        ValueError: when all windows are missing.
    """
    if not missing.any():
        return rates
    if missing.all():
        raise ValueError("every window is missing")
    place = np.arange(len(rates))
    return np.asarray(np.interp(place, place[~missing], rates[~missing]), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Hashes of prompt blocks: those of request i are ``ids[starts[i]:starts[i + 1]]``, in order.

    ``tokens``: of a block; a prompt's last block may hold fewer.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival; every array has one number a request.

    arrival_s: seconds since the first. blocks: where the trace has hashes of prefixes. sessions:
    number of the conversation or client, where it has one. failed: requests that it counts as
    failed, which are left out of the arrays. source: format and name, for people. began_s: seconds
    since 1970 (UTC) of the first request, where the trace has dates.
    """

    arrival_s: Float
    input_tokens: Int
    output_tokens: Int
    blocks: Blocks | None = None
    sessions: Int | None = None
    failed: int = 0
    source: str = ""
    began_s: float | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first request to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_per_s(self) -> float:
        """Requests per second over the span; 0 where it has none."""
        return len(self) / self.span_s if self.span_s > 0 else 0.0
