"""Rates that were counted in windows of time, without single requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float


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
