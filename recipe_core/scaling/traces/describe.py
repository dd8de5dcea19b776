"""Description of a trace, as the values of ``recipe trace --json`` (docs/method/scaling.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.scaling.traces.trace import Rates, Reuse, Trace, measure_prefix_reuse

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


SCHEMA_VERSION = 1
PERCENTILES = (50, 90, 95, 99)
MINUTE_S = 60.0


def describe_trace(trace: Trace) -> dict[str, Any]:
    """The description of a trace: rates, bursts, lengths, reuse of prefixes, sessions.

    Seconds, requests per second, tokens and shares; None where the trace does not tell.
    """
    reuse = measure_prefix_reuse(trace)
    second, minute = count_by_window(trace, 1.0), count_by_window(trace, MINUTE_S)
    full_minutes = minute[: int(trace.span_s / MINUTE_S)] if trace.span_s >= MINUTE_S else minute
    return {
        "schema_version": SCHEMA_VERSION,
        "source": trace.source,
        "requests": len(trace),
        "failed": trace.failed,
        "span_s": trace.span_s,
        "began": _utc_date_text(trace.began_s),
        "rate_per_s": trace.rate_per_s,
        "interarrival_cv": interarrival_cv(trace),
        "dispersion": {"1_s": dispersion(trace, 1.0), "60_s": dispersion(trace, MINUTE_S)},
        "minute": {
            "min": int(full_minutes.min()),
            "median": float(np.median(full_minutes)),
            "max": int(full_minutes.max()),
        },
        "second": {"max": int(second.max())},
        "times": {"distinct": len(np.unique(trace.arrival_s)), "rounding_s": rounding_s(trace)},
        "input_tokens": describe_lengths(trace.input_tokens),
        "output_tokens": describe_lengths(trace.output_tokens),
        "length_correlation": correlation(trace.input_tokens, trace.output_tokens),
        "prefix_hit": describe_prefix_hits(reuse),
        "blocks": _describe_blocks(trace, reuse),
        "sessions": describe_sessions(trace),
    }


def describe_traffic(traffic: Trace | Rates) -> dict[str, Any]:
    return describe_trace(traffic) if isinstance(traffic, Trace) else describe_rates(traffic)


def describe_rates(rates: Rates) -> dict[str, Any]:
    """The description of a table of rates."""
    recorded = rates.rates[~rates.missing]
    change = np.abs(np.diff(np.log(np.maximum(rates.rates, 1e-12))))
    day = round(86_400 / rates.interval_s)
    return {
        "schema_version": SCHEMA_VERSION,
        "source": rates.source,
        "requests": float(rates.rates.sum() * rates.interval_s),
        "span_s": rates.span_s,
        "began": _utc_date_text(rates.began_s),
        "interval_s": rates.interval_s,
        "intervals": len(rates),
        "missing": int(rates.missing.sum()),
        "rate_per_s": float(rates.rates.mean()),
        "rate": {"min": float(recorded.min()), "max": float(recorded.max())},
        "interarrival_cv": rates.burstiness,
        "change": {f"p{p}": float(np.percentile(change, p)) for p in (50, 90, 99)},
        "correlation": {
            "day": _autocorrelation(rates, day),
            "week": _autocorrelation(rates, 7 * day),
        },
    }


def describe_lengths(tokens: Int) -> dict[str, float]:
    """Mean, percentiles (linear between values), standard deviation and ends of lengths."""
    points = np.percentile(tokens, PERCENTILES)
    return {
        "mean": float(tokens.mean()),
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, points, strict=True)},
        "min": int(tokens.min()),
        "max": int(tokens.max()),
        "std": float(tokens.std()),
    }


def correlation(first: Int, second: Int) -> float | None:
    """Pearson's correlation; None where one of the two does not vary."""
    if len(first) < 2 or not np.ptp(first) or not np.ptp(second):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def describe_prefix_hits(reuse: Reuse | None) -> dict[str, Any] | None:
    """Shares of prompt tokens that caches of each size would have held."""
    if reuse is None:
        return None
    pairs = zip(reuse.cache_tokens, reuse.hit, strict=True)
    return {
        "unlimited": reuse.unlimited,
        "by_cache_tokens": {str(int(size)): float(hit) for size, hit in pairs},
    }


def describe_sessions(trace: Trace) -> dict[str, Any] | None:
    """Number of sessions, requests of one, and gaps between them in seconds; None without any."""
    if trace.sessions is None:
        return None
    turns = np.bincount(trace.sessions)
    order = np.argsort(trace.sessions, kind="stable")
    gaps = np.diff(trace.arrival_s[order])[np.diff(trace.sessions[order]) == 0]
    return {
        "number": len(turns),
        "turns": {
            "mean": float(turns.mean()),
            "p50": float(np.median(turns)),
            "max": int(turns.max()),
        },
        "gap_s": {f"p{p}": float(np.percentile(gaps, p)) for p in (50, 90, 99)}
        if len(gaps)
        else None,
    }


def _describe_blocks(trace: Trace, reuse: Reuse | None) -> dict[str, Any] | None:
    if reuse is None or trace.blocks is None:
        return None
    uses = np.unique(trace.blocks.ids, return_counts=True)[1]
    return {
        "tokens": trace.blocks.tokens,
        "number": reuse.blocks,
        "distinct": reuse.distinct,
        "used_once": float(np.mean(uses == 1)),
        "hit": reuse.block_unlimited,
        "requests_hit": reuse.requests_hit,
    }


def _utc_date_text(began_s: float | None) -> str | None:
    """A time in UTC; None where there is none, or none that a calendar has."""
    if began_s is None:
        return None
    try:
        return datetime.fromtimestamp(began_s, tz=UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return None


def _autocorrelation(rates: Rates, lag: int) -> float | None:
    if lag < 1 or len(rates) < 2 * lag:
        return None
    later, earlier = rates.rates[lag:], rates.rates[:-lag]
    if not np.ptp(later) or not np.ptp(earlier):
        return None
    return float(np.corrcoef(later, earlier)[0, 1])
