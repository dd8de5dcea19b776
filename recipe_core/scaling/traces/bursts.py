"""How uneven arrivals are: gaps, counts in windows, and the coarseness of time stamps."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.scaling.traces.trace import Trace

# Share of gaps of 0 from which time stamps are taken as rounded.
COARSE = 0.5
# Roundings that a window lasts in which requests are counted.
STEPS = 4
# Requests expected in an interval whose gaps count.
FEWEST = 5


def interarrival_cv(trace: Trace) -> float | None:
    """Standard deviation of the gaps between requests over their mean; None under three requests.

    1 is a Poisson process. The standard deviation is that of the population.
    """
    gaps = np.diff(trace.arrival_s)
    mean = float(gaps.mean()) if len(gaps) > 1 else 0.0
    return float(gaps.std()) / mean if mean > 0 else None


def count_by_window(trace: Trace, window_s: float) -> Float:
    """Requests in windows from the first request on; the last one may reach beyond the end."""
    place = np.floor(trace.arrival_s / window_s).astype(np.int64)
    return np.bincount(place).astype(np.float64)


def dispersion(trace: Trace, window_s: float) -> float | None:
    """Index of dispersion: variance over mean of the counts in windows that lie within the span.

    1 is a Poisson process of one rate. None with fewer than two windows.
    """
    full_windows = count_by_window(trace, window_s)[: int(trace.span_s / window_s)]
    if len(full_windows) < 2 or not full_windows.any():
        return None
    return float(full_windows.var() / full_windows.mean())


def rounding_s(trace: Trace) -> float | None:
    """The step that time stamps were rounded to, in seconds; None where they are fine enough.

    They are coarse where half of the requests or more share the time of the one before. The step is
    the median distance between different times.
    """
    gaps = np.diff(trace.arrival_s)
    if not len(gaps) or float(np.mean(gaps == 0)) < COARSE:
        return None
    different = gaps[gaps > 0]
    return float(np.median(different)) if len(different) else None


def burstiness(trace: Trace, interval_s: float) -> float:
    """Coefficient of variation of the gaps within intervals of ``interval_s``; 1 if it is unclear.

    Gaps are taken in a time that runs as fast as the interval's rate is high, so that what changes
    from interval to interval does not count. Where stamps are rounded gaps tell nothing: it is the
    square root of the index of dispersion of counts in windows of four roundings, about the mean
    of their interval; a renewal process has the same in the long run.
    """
    step = rounding_s(trace)
    if step is not None:
        return _burstiness_of_counts(trace, step * STEPS, interval_s)
    per_interval = count_by_window(trace, interval_s)
    place = np.floor(trace.arrival_s / interval_s).astype(np.int64)
    expected = np.concatenate(([0.0], np.cumsum(per_interval)))
    within = trace.arrival_s / interval_s - place
    ticks = expected[place] + within * per_interval[place]
    gaps = np.diff(ticks)[per_interval[place[1:]] >= FEWEST]
    if len(gaps) < FEWEST or gaps.mean() <= 0:
        return 1.0
    return float(gaps.std() / gaps.mean())


def _burstiness_of_counts(trace: Trace, window_s: float, interval_s: float) -> float:
    windows = max(int(interval_s / window_s), STEPS)
    full_windows = count_by_window(trace, window_s)[: int(trace.span_s / window_s)]
    rows = full_windows[: len(full_windows) // windows * windows].reshape(-1, windows)
    means = rows.mean(axis=1)
    if not len(rows) or means.sum() <= 0:
        return 1.0
    # Within a row the mean is estimated from the same counts, which takes one degree of freedom.
    return float(np.sqrt(rows.var(axis=1, ddof=1).sum() / means.sum()))
