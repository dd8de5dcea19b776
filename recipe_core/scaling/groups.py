"""The replicas of many fleets side by side, as a fluid.

Each column has two groups of replicas that are alike: those that have been up, and those that
became ready since. A router sends requests where fewest are in flight, so that new replicas fill
first while the others work off what waits inside them, or in turn, so that these keep their crowds;
once they have as many in flight, the groups are one. Requests in flight leave at the rate of the
curve: over a step of ``dt`` seconds with arrivals ``a`` per second and ``μ`` ends per second and
request, ``x' = a - μ·x`` exactly.

Two variants of the flow share the replicas: the expected one, which shares of requests within
limits are read from (their tables hold what is random), and a random one, which policies see.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.request.over_time import Dispatch
from recipe_core.scaling.attainment import OPEN, Shares
from recipe_core.scaling.fleet import Chance, Fleet, StartTime, start_log_spreads
from recipe_core.scaling.outcome import Outcome, Series
from recipe_core.scaling.service import Curve

EXPECTED, RANDOM = 0, 1
OLD, NEW = 0, 1
CELLS = 1024
_ALIKE = 0.9
# Standard deviations of a start's logarithm beyond which it counts as late as that.
_LATEST = 4.0


class Groups:
    """State of all columns.

    replicas: shape (2 groups, columns). in_flight: of one replica, shape (2 variants, 2 groups,
    columns). gateway: requests that wait for a first replica, shape (2 variants, columns).
    """

    def __init__(self, curve: Curve, begin: Float, dispatch: Dispatch = "least-loaded") -> None:
        columns = len(begin)
        self._in_turn = dispatch == "round-robin"
        self.curve, self.full, self.fastest = curve, curve.full, curve.fastest
        self.replicas = np.stack([begin.astype(float), np.zeros(columns)])
        self.in_flight = np.zeros((2, 2, columns))
        self.gateway = np.zeros((2, columns))
        self._split = False  # whether any column has two groups
        nodes = np.linspace(0.0, curve.full, CELLS + 1)
        middle = (nodes[1:] + nodes[:-1]) / 2
        ends = np.interp(middle, curve.in_flight, curve.rate) / middle
        self._ends, self._scale = np.append(ends, ends[-1]), CELLS / curve.full

    @property
    def ready(self) -> Float:
        return np.asarray(self.replicas[OLD] + self.replicas[NEW])

    def arrive(self, requests: Float) -> Float:
        """Requests per replica that reach each group: shape (variants, groups, columns).

        ``requests``: shape (variants, 1 or columns).
        """
        x, count = self.in_flight, self.replicas
        if not self._split:
            reached = np.zeros_like(x)
            reached[:, OLD] = requests / np.maximum(count[OLD], 1.0)
            return reached
        if self._in_turn:
            per_replica = requests / np.maximum(count.sum(axis=0), 1.0)
            return np.asarray(per_replica[:, np.newaxis] * (count > 0))
        ahead = x[:, OLD] - x[:, NEW]
        lower_new = np.minimum(np.maximum(ahead, 0.0) * count[NEW], requests) * (count[NEW] > 0)
        lower_old = np.minimum(np.maximum(-ahead, 0.0) * count[OLD], requests - lower_new)
        per_replica = (requests - lower_new - lower_old) / np.maximum(count.sum(axis=0), 1.0)
        reached = np.empty_like(x)
        reached[:, OLD] = per_replica + lower_old / np.maximum(count[OLD], 1.0)
        reached[:, NEW] = per_replica + lower_new / np.maximum(count[NEW], 1.0)
        return reached

    def cells(self, inside: Float) -> Int:
        return np.asarray((inside * self._scale).astype(np.int64))

    def serve(self, reached: Float, dt_s: float) -> None:
        """Requests arrive over a step, and leave."""
        x = self.in_flight
        ends = self._ends_of(x)
        ahead = _in_flight_after_step(x, reached, ends, dt_s)
        # the mean over the step, not its beginning: a replica that was empty does not stay as quick
        self.in_flight = _in_flight_after_step(x, reached, self._ends_of((x + ahead) / 2), dt_s)

    def settle(self, reached: Float, dt_s: float) -> None:
        """Begin as if such arrivals had come for long: replicas are neither empty nor crowded."""
        rate = np.minimum(reached / dt_s, self.curve.rate[-1])
        self.in_flight = np.interp(rate, self.curve.rate, self.curve.in_flight)
        self.in_flight *= self.replicas > 0

    def _ends_of(self, x: Float) -> Float:
        """Ends per second of each request, with so many in flight."""
        positive = np.maximum(x, self.full * 1e-9)
        inside = np.minimum(positive, self.full)
        ends = self._ends[(inside * self._scale).astype(np.int64)]
        return np.asarray(ends * (inside / positive))

    def add(self, count: Float) -> None:
        """So many replicas of each column become ready, with nothing inside."""
        joined = count > 0
        x, replicas = self.in_flight, self.replicas
        alike = joined & (
            (x[EXPECTED, NEW] >= _ALIKE * x[EXPECTED, OLD])
            | (replicas[NEW] == 0)
            | (replicas[OLD] == 0)
        )
        total = np.maximum(replicas.sum(axis=0), 1.0)
        merged = (x * replicas).sum(axis=1) / total
        x[:, OLD] = np.where(alike, merged, x[:, OLD])
        x[:, NEW] = np.where(alike, 0.0, x[:, NEW])
        replicas[OLD] = np.where(alike, replicas.sum(axis=0), replicas[OLD])
        replicas[NEW] = np.where(alike, 0.0, replicas[NEW])
        after = replicas[NEW] + count
        x[:, NEW] = x[:, NEW] * replicas[NEW] / np.maximum(after, 1.0)
        replicas[NEW] = after
        self._split = True
        self._open_gateway()

    def join(self) -> None:
        """Makes one group of two where all columns have as many in flight in both."""
        x, replicas = self.in_flight, self.replicas
        if not self._split:
            return
        apart = (np.abs(x[:, NEW] - x[:, OLD]) > 1e-3 * x[:, OLD]).any(axis=0)
        if (apart & (replicas > 0).all(axis=0)).any():
            return
        total = np.maximum(replicas.sum(axis=0), 1.0)
        x[:, OLD] = (x * replicas).sum(axis=1) / total
        replicas[OLD] += replicas[NEW]
        x[:, NEW], replicas[NEW], self._split = 0.0, 0.0, False

    def remove(self, count: Float) -> Float:
        """Ends so many replicas, the newest first; requests in each of them, of each column."""
        replicas = self.replicas
        count = np.minimum(count, replicas.sum(axis=0))
        newest = np.minimum(count, replicas[NEW])
        x = self.in_flight[EXPECTED]
        requests = x[NEW] * newest + x[OLD] * (count - newest)
        replicas[NEW] -= newest
        replicas[OLD] -= count - newest
        self.in_flight *= replicas > 0
        return np.asarray(requests / np.maximum(count, 1.0))

    def _open_gateway(self) -> None:
        """Send what waits at the gateway to the replicas that are ready now."""
        if not self.gateway.any():
            return
        ready = self.ready
        opens = ready > 0
        reached = self.arrive(np.where(opens, self.gateway, 0.0))
        self.in_flight += reached * (self.replicas > 0)
        self.gateway = np.where(opens, 0.0, self.gateway)


def _in_flight_after_step(x: Float, reached: Float, ends: Float, dt_s: float) -> Float:
    """Requests in flight after a step in which so many arrived, and each ended at a rate."""
    exponent = ends * -dt_s
    return np.asarray(x + np.expm1(exponent) * (x + reached / exponent))


class Starting:
    """Orders that are not ready yet, by the step at which they will be, of all columns."""

    def __init__(self, starts: Sequence[StartTime], dt_s: float, chance: Chance) -> None:
        columns = len(starts)
        self._seconds = np.array([start.seconds for start in starts])
        self._spreads = np.array([start_log_spreads(start) for start in starts])
        longest_s = max(
            start.seconds * exp(_LATEST * start_log_spreads(start)[1]) for start in {*starts}
        )
        self._length = int(np.ceil(longest_s / dt_s)) + 2
        self._ring = np.zeros((self._length, columns))
        self._any = [False] * self._length
        self.count = np.zeros(columns)
        self._dt_s, self._chance = dt_s, chance
        self._ordered = np.zeros(columns, dtype=np.int64)

    def begin(self, count: Float) -> None:
        """Replicas that are there at the beginning have taken the first numbers of orders."""
        self._ordered += count.astype(np.int64)

    def order(self, step: int, count: Int) -> None:
        """So many orders of each column at a step."""
        columns = np.repeat(np.arange(len(count)), count)
        within = np.arange(len(columns)) - np.repeat(np.cumsum(count) - count, count)
        numbers = self._ordered[columns] + within
        first = int(numbers.min())
        late = self._chance.normals(first, int(numbers.max()) - first + 1)[numbers - first]
        spread = self._spreads[columns, (late >= 0).astype(np.int64)]
        seconds = self._seconds[columns] * np.exp(spread * late)
        steps = np.ceil(seconds / self._dt_s - 0.5).astype(np.int64)
        places = (step + np.clip(steps, 1, self._length - 1)) % self._length
        np.add.at(self._ring, (places, columns), 1.0)
        for place in np.unique(places).tolist():
            self._any[place] = True
        self._ordered += count
        self.count += count

    def due(self, step: int) -> Float | None:
        """Orders of each column that become ready at a step; None where none does."""
        place = step % self._length
        if not self._any[place]:
            return None
        ready: Float = self._ring[place].copy()
        self._ring[place], self._any[place] = 0.0, False
        self.count -= ready
        return ready

    def cancel(self, step: int, count: Float) -> None:
        """Takes back so many orders of each column, those first that would be ready last."""
        latest = (step - 1 - np.arange(self._length)) % self._length
        for column in np.flatnonzero(count > 0).tolist():
            orders = self._ring[latest, column]
            before = np.cumsum(orders) - orders
            self._ring[latest, column] = orders - np.clip(count[column] - before, 0.0, orders)
        self.count = self.count - count


def split_reduction(desired: Float, ready: Float, starting: Float) -> tuple[Float, Float]:
    """Orders to take back and replicas to end where fewer are wanted."""
    fewer = np.maximum(ready + starting - desired, 0.0)
    cancelled = np.minimum(fewer, starting)
    return cancelled, np.minimum(fewer - cancelled, ready)


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
