"""What a simulation showed: totals, and series over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float

HOUR_S = 3600.0
MONTH_S = 365.25 / 12 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Series:
    """One number an interval of ``interval_s``: requests that arrived, kept the limits, replicas.

    arrived, kept_requests: by the interval of their arrival. ready, starting, desired: replicas,
    means over the interval. waiting, running: requests, means over it. ttft_s: mean of those that
    arrived in it, NaN where none did.
    """

    interval_s: float
    arrived: Float
    kept_requests: Float
    ready: Float
    starting: Float
    desired: Float
    waiting: Float
    running: Float
    ttft_s: Float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Totals of one column over ``span_s``.

    kept_requests: those that kept all limits, of ``requests``. replica_s: seconds of replicas that
    were paid. rented_s: seconds of devices that were paid, of whole machines where these are
    rented. starts: replicas that were ordered after the beginning. delayed: requests that waited
    because a replica was still starting. lost: replicas that failed or were reclaimed.
    """

    span_s: float
    requests: float
    kept_requests: float
    replica_s: float
    rented_s: float
    starts: float
    delayed: float
    lost: float
    most_replicas: float
    series: Series

    @property
    def attainment(self) -> float:
        """Share of requests that kept the limits; 1 where none came."""
        return self.kept_requests / self.requests if self.requests else 1.0

    @property
    def worst_interval(self) -> tuple[float, float]:
        """Second at which the interval with the smallest share begins, and that share.

        Intervals with less than a tenth of the mean number of requests do not count.
        """
        arrived = self.series.arrived
        counts = arrived > 0.1 * arrived.mean()
        if not counts.any():
            return 0.0, 1.0
        share = np.where(counts, self.series.kept_requests / np.maximum(arrived, 1e-9), np.inf)
        worst = int(np.argmin(share))
        return worst * self.series.interval_s, float(share[worst])

    @property
    def device_hours(self) -> float:
        return self.rented_s / HOUR_S

    def usd(self, usd_per_device_hour: float | None) -> float | None:
        """Money for the whole time; None without a price."""
        return None if usd_per_device_hour is None else self.device_hours * usd_per_device_hour

    def usd_per_month(self, usd_per_device_hour: float | None) -> float | None:
        """Money for a month of 365.25 / 12 days at this rate; None without a price."""
        paid = self.usd(usd_per_device_hour)
        return None if paid is None else paid / self.span_s * MONTH_S
