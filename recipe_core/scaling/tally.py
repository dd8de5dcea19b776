"""What a flow adds up: blocks of steps become intervals of series, and totals."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.scaling.fleet import Fleet
from recipe_core.scaling.groups import EXPECTED, RANDOM, Groups
from recipe_core.scaling.outcome import Outcome, Series
from recipe_core.scaling.shares import OPEN, Shares

# Numbers in an array of a block of steps, about.
_BLOCK = 1_000_000
_SUMS = ("kept", "ready", "starting", "desired", "waiting", "running", "ttft_s", "delayed")


class Tally:
    """Adds up the steps of all columns.

    A step's figures are written into a block; when it is full, shares are read for all of it.
    """

    def __init__(
        self,
        fleet: Fleet,
        shares: Shares,
        columns: int,
        intervals: int,
        interval_steps: int,
        dt_s: float,
    ) -> None:
        self.shares, self._each, self._dt_s = shares, interval_steps, dt_s
        self._limit_s = fleet.limits_s.get("ttft_s", np.inf)
        self.sums = {name: np.zeros((intervals, columns)) for name in _SUMS}
        self.arrived = np.zeros(intervals)
        self.replica_s, self.rented_s = np.zeros(columns), np.zeros(columns)
        self.starts, self._rented = np.zeros(columns), fleet.rented
        self.lost, self.most = np.zeros(columns), np.zeros(columns)
        size = min(max(_BLOCK // (columns * interval_steps), 1), intervals) * interval_steps
        self._flight, self._random, self._share, self._line_s, self._count = (
            np.zeros((size, 2, columns)) for _ in range(5)
        )
        self._starting, self._desired, self._gateway = (np.zeros((size, columns)) for _ in range(3))
        self._requests = np.zeros(size)
        self._size, self._filled, self._done = size, 0, 0

    def step(
        self,
        groups: Groups,
        share: Float,
        line_s: Float,
        requests: float,
        starting_and_desired: tuple[Float, Float],
    ) -> None:
        """Takes a step's figures. ``share``: of its arrivals, of each group; 0 at the gateway."""
        k = self._filled
        self._flight[k], self._share[k] = groups.in_flight[EXPECTED], share
        self._random[k] = groups.in_flight[RANDOM]
        self._line_s[k], self._count[k] = line_s, groups.replicas
        self._gateway[k], self._requests[k] = groups.gateway[EXPECTED], requests
        self._starting[k], self._desired[k] = starting_and_desired
        self._filled = k + 1
        if self._filled == self._size:
            self.flush()

    def flush(self) -> None:
        """Adds the block up."""
        n = self._filled
        if not n:
            return
        shares, flight, count = self.shares, self._flight[:n], self._count[:n]
        ready = count.sum(axis=1)
        inside = np.minimum(flight, shares.curve.full)
        beyond = flight - inside
        line_s = np.maximum(beyond / shares.curve.fastest, self._line_s[:n])
        line_s = np.maximum(line_s, self._chance_s(flight))
        replicas = np.broadcast_to(ready[:, None], inside.shape)
        weight = self._share[:n] * self._requests[:n, None, None]
        share_kept = shares.kept_share(self._met(flight, count, line_s), line_s, replicas)
        ttft_s = shares.mean(shares.ttft_s, inside, replicas) + line_s
        late = (line_s > min(self._limit_s, 1.0)) & (self._starting[:n, None] > 0)
        met = shares.mean(shares.met, inside, replicas)
        entering = np.minimum(shares.mean(shares.waiting, inside, replicas), met)
        figures = {
            "kept": (share_kept * weight).sum(axis=1),
            "ready": ready,
            "starting": self._starting[:n],
            "desired": self._desired[:n],
            "waiting": ((beyond + entering) * count).sum(axis=1) + self._gateway[:n],
            "running": ((met - entering) * count).sum(axis=1),
            "ttft_s": (ttft_s * weight).sum(axis=1),
            "delayed": (late * weight).sum(axis=1),
        }
        rows = slice(self._done // self._each, (self._done + n) // self._each)
        for name, values in figures.items():
            self.sums[name][rows] += values.reshape(-1, self._each, values.shape[1]).sum(axis=1)
        self.arrived[rows] += self._requests[:n].reshape(-1, self._each).sum(axis=1)
        paid_replicas = ready + self._starting[:n]
        self.replica_s += paid_replicas.sum(axis=0) * self._dt_s
        self.rented_s += self._rented(paid_replicas).sum(axis=0) * self._dt_s
        self.most = np.maximum(self.most, paid_replicas.max(axis=0))
        self._done, self._filled = self._done + n, 0

    def pay(self, present: Float, ended: Float, seconds: Float | float) -> None:
        """Replicas that are no more among those that are ``present`` are paid for so long.

        Of machines that others use too only what these do not need.
        """
        self.replica_s += ended * seconds
        self.rented_s += (self._rented(present + ended) - self._rented(present)) * seconds

    def _chance_s(self, flight: Float) -> Float:
        """Waits in line of the random variant, where replicas are too busy for a steady state.

        Up to the last steady states the tables hold them.
        """
        shares = self.shares
        before, last = shares.in_flight[len(OPEN) - 1 : len(OPEN) + 1]
        crowded = np.clip((flight - before) / max(last - before, 1e-12), 0.0, 1.0)
        beyond = np.maximum(self._random[: len(flight)] - shares.curve.full, 0.0)
        return np.asarray(crowded * beyond / shares.curve.fastest)

    def _met(self, flight: Float, count: Float, line_s: Float) -> Float:
        """Requests inside that one meets in the middle of its stay, when it has come to the front.

        A group that is no more by then has become part of the other one.
        """
        curve, last = self.shares.curve, len(flight) - 1
        inside = np.minimum(flight, curve.full)
        rate = np.interp(inside, curve.in_flight, curve.rate)
        later_s = line_s + 0.5 * inside / np.maximum(rate, 1e-12)
        steps = np.arange(len(flight))[:, None, None] + np.minimum(
            later_s / self._dt_s, float(last)
        ).astype(np.int64)
        steps = np.minimum(steps, last)
        later_flight = np.where(count > 0, flight, flight[:, ::-1])
        later_flight = np.minimum(np.take_along_axis(later_flight, steps, axis=0), curve.full)
        return np.asarray(np.where(later_flight > 0, later_flight, inside))

    def opened(
        self, column: int, steps: Int, requests: Float, wait_s: Float, flight: float
    ) -> None:
        """Requests of some steps leave the gateway after their waits."""
        full = self.shares.curve.full
        inside = np.full(len(steps), min(flight, full))
        share_kept = self.shares.kept_share(inside, wait_s, np.ones(len(steps)))
        rows = steps // self._each
        np.add.at(self.sums["kept"][:, column], rows, share_kept * requests)
        np.add.at(self.sums["ttft_s"][:, column], rows, wait_s * requests)
        np.add.at(self.sums["delayed"][:, column], rows, requests)

    def outcomes(self, span_s: float, interval_s: float) -> list[Outcome]:
        return [self._outcome(k, span_s, interval_s) for k in range(len(self.starts))]

    def _outcome(self, column: int, span_s: float, interval_s: float) -> Outcome:
        sums = {name: values[:, column] for name, values in self.sums.items()}
        arrived = self.arrived
        kept_requests = np.clip(sums["kept"], 0.0, arrived)
        means = {
            name: sums[name] / self._each
            for name in ("ready", "starting", "desired", "waiting", "running")
        }
        ttft_s = np.where(arrived > 0, sums["ttft_s"] / np.maximum(arrived, 1e-9), np.nan)
        return Outcome(
            span_s=span_s,
            requests=float(arrived.sum()),
            kept_requests=float(kept_requests.sum()),
            replica_s=float(self.replica_s[column]),
            rented_s=float(self.rented_s[column]),
            starts=float(self.starts[column]),
            delayed=float(sums["delayed"].sum()),
            lost=float(self.lost[column]),
            most_replicas=float(self.most[column]),
            series=Series(
                interval_s=interval_s,
                arrived=arrived,
                kept_requests=kept_requests,
                ttft_s=ttft_s,
                **means,
            ),
        )
