"""Many fleets side by side as a fluid: weeks in seconds, a column for each set of parameters.

Requests are a flow into groups of replicas (``groups``), whose speed, and whose shares of requests
within limits, are those of the simulation by requests at the same number in flight (``curve``,
``shares``). Arrivals of each step are drawn from a gamma-mixed Poisson distribution, whose
variance is the load's ``burstiness`` squared times its mean; all columns meet the same arrivals,
and the k-th order of each takes the same time. Same seed, same bits.

Left out beyond ``requests``: lengths that change over time, bursts longer than a step, differences
between replicas of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.scaling.attainment import GROUPS, Shares, shares_of
from recipe_core.scaling.fleet import Chance, Controller, Fleet, Signals, StartTime
from recipe_core.scaling.groups import (
    CELLS,
    EXPECTED,
    RANDOM,
    Groups,
    Starting,
    Tally,
    split_reduction,
)
from recipe_core.scaling.outcome import Outcome
from recipe_core.scaling.service import max_requests_inside, prompt_seconds
from recipe_core.scaling.traces.loads import Lengths, Load

# Steps of a simulation, about: ten seconds each over a week.
STEPS = 60_480
SHORTEST_S, LONGEST_S = 1.0, 10.0
# Intervals of series, about: five minutes each over a week.
INTERVALS = 2016


def simulate_flow(
    fleet: Fleet,
    load: Load,
    controller: Controller,
    *,
    columns: int,
    begin: Float,
    seed: int = 0,
    interval_s: float | None = None,
    step_s: float | None = None,
    starts: Sequence[StartTime] = (),
) -> list[Outcome]:
    """Return what happens to fleets under a load, one outcome a column.

    Args:
        fleet: what is scaled, the same in all columns.
        load: rates, lengths and burstiness.
        controller: asked with all columns; first at its first interval.
        columns: fleets side by side.
        begin: replicas that are ready at second 0, one number a column.
        seed: of arrivals, starts and events.
        interval_s: of the series; default a minute, of long times more.
        step_s: of the flow; default 1 to 10 s, by the whole time.
        starts: of the columns, in place of the fleet's.
    """
    interval_s = interval_s or max(60.0, load.span_s / INTERVALS)
    dt_s = step_s or float(np.clip(load.span_s / STEPS, SHORTEST_S, LONGEST_S))
    interval_steps = max(int(np.ceil(interval_s / dt_s - 1e-9)), 1)
    run = _Flow(
        fleet,
        load,
        controller,
        np.broadcast_to(begin, (columns,)),
        seed,
        interval_s,
        interval_steps,
        starts or [fleet.start] * columns,
    )
    return run.outcomes()


class _Flow:
    """The state of a simulation of all columns. ``interval_steps``: steps of an interval."""

    def __init__(
        self,
        fleet: Fleet,
        load: Load,
        controller: Controller,
        begin: Float,
        seed: int,
        interval_s: float,
        interval_steps: int,
        starts: Sequence[StartTime],
    ) -> None:
        columns = len(begin)
        self.fleet, self.load, self.controller = fleet, load, controller
        self.shares: Shares = shares_of(fleet, load)
        self.interval_s, self.dt_s = interval_s, interval_s / interval_steps
        self.intervals = max(int(np.ceil(load.span_s / interval_s - 1e-9)), 1)
        self.steps = self.intervals * interval_steps
        self.groups = Groups(self.shares.curve, begin, fleet.dispatch)
        chance = Chance(seed)
        self.starting = Starting(starts, self.dt_s, chance)
        self.starting.begin(begin)
        self.tally = Tally(fleet, self.shares, columns, self.intervals, interval_steps, self.dt_s)
        self.desired = begin.astype(float)
        self.expected, self.requests = arrivals_of(load, self.steps, self.dt_s, seed)
        self._arriving = np.stack([self.expected, self.requests], axis=1)[:, :, np.newaxis]
        events = fleet.events
        self._has_events = events.failures_per_hour > 0 or events.reclaims_per_hour > 0
        first = np.full((2, 1), self.expected[0])
        self.groups.settle(self.groups.arrive(first), self.dt_s)
        self._noise = np.random.default_rng([seed, 5]).standard_normal(self.steps)
        self._asked = np.random.default_rng([seed, 6])
        self._prompt_s = prompt_seconds(fleet.service, load.lengths)
        self._line_s = np.zeros((2, columns))
        self._closed = np.where(begin > 0, -1, 0)  # the step since which nothing is ready
        self._any_closed = bool((begin <= 0).any())
        self._drain_s = Drains(self.shares, load.lengths)
        self._entering = by_cells(self.shares, self.shares.waiting)
        self._met = by_cells(self.shares, self.shares.met)
        self._used = 1.0 / max_requests_inside(fleet.service, load.lengths)
        self._arrived = 0.0
        self._again = np.zeros(columns)

    def outcomes(self) -> list[Outcome]:
        """Runs to the end."""
        tick_at = self.controller.interval_s
        for step in range(self.steps):
            at_s = step * self.dt_s
            while tick_at <= at_s + 1e-9:
                self._tick(step, tick_at)
                tick_at += self.controller.interval_s
            due = self.starting.due(step)
            if due is not None:
                self._ready(step, due)
            if self._has_events:
                self._events(step)
            self._pass(step)
        self.tally.flush()
        return self.tally.outcomes(self.steps * self.dt_s, self.interval_s)

    def _pass(self, step: int) -> None:
        groups, requests = self.groups, self._arriving[step]
        self._arrived += self.requests[step]
        coming = requests
        if self._has_events:
            coming, self._again = requests + self._again, np.zeros_like(self._again)
        reached = groups.arrive(coming)
        if self._any_closed:
            closed = groups.ready <= 0
            groups.gateway += np.where(closed, coming, 0.0)
            reached = np.where(closed, 0.0, reached)
        groups.serve(reached, self.dt_s)
        self._line_s = np.maximum(
            self._line_s + reached[EXPECTED] * self._prompt_s - self.dt_s, 0.0
        )
        share = reached[EXPECTED] * groups.replicas / max(self.expected[step], 1e-12)
        if self._any_closed:
            share = np.where(self._closed >= 0, 0.0, share)
        self.tally.step(
            groups,
            share,
            self._line_s,
            float(self.requests[step]),
            (self.starting.count, self.desired),
        )

    def _ready(self, step: int, due: Float) -> None:
        """Orders become ready; what waited at the gateway goes to them."""
        opens = np.flatnonzero((self.groups.ready <= 0) & (due > 0))
        before = self.groups.gateway[EXPECTED].copy()
        self._line_s[1] *= self.groups.replicas[1] > 0
        self.groups.add(due)
        for column in opens.tolist():
            self._open(step, column, float(before[column]))
        self._any_closed = bool((self._closed >= 0).any())

    def _open(self, step: int, column: int, waited: float) -> None:
        """The first replica of a column that had none: how long each request waited."""
        first, self._closed[column] = int(self._closed[column]), -1
        if step <= first:
            return
        steps = np.arange(first, step)
        requests = self.requests[first:step]
        ready, curve = float(self.groups.ready[column]), self.shares.curve
        place = np.cumsum(requests) * (waited / max(float(requests.sum()), 1e-12)) / ready
        line_s = np.maximum((place - curve.full) / curve.fastest, place * self._prompt_s)
        wait_s = np.asarray((step - steps - 0.5) * self.dt_s + line_s, dtype=np.float64)
        self.tally.opened(column, steps, requests, wait_s, waited / ready)
        self._line_s[:, column] = max(waited / ready * self._prompt_s, 0.0)

    # the policy

    def _tick(self, step: int, at_s: float) -> None:
        self.groups.join()
        signals = self._signals(step, at_s)
        self.desired = desired = np.zeros_like(signals.ready) + self.controller.decide(signals)
        current = signals.ready + signals.starting
        more = np.maximum(desired - current, 0.0)
        if more.any():
            self._order(step, more)
        if (desired < current).any():
            cancelled, ended = split_reduction(desired, signals.ready, signals.starting)
            if cancelled.any():
                self.starting.cancel(step, cancelled)
            if ended.any():
                self._end(step, ended)

    def _order(self, step: int, more: Float) -> None:
        count = more.astype(np.int64)
        share = self.fleet.events.available
        if share < 1.0:
            count = self._asked.binomial(count, share)
        if count.any():
            self.starting.order(step, count)
            self.tally.starts += count

    def _end(self, step: int, count: Float) -> Float:
        """Ends replicas, which serve what they have; requests in each of them."""
        in_flight = self.groups.remove(count)
        rest_s = (self.steps - step) * self.dt_s
        self._pay(count, np.minimum(self._drain_s.seconds(in_flight), rest_s))
        self._close(step)
        return in_flight

    def _close(self, step: int) -> None:
        """Notes columns in which nothing is ready any more."""
        dark = self.groups.ready <= 0
        if dark.any():
            self._closed = np.where(dark & (self._closed < 0), step, self._closed)
            self._any_closed = True

    def _pay(self, ended: Float, seconds: Float | float) -> None:
        self.tally.pay(self.groups.ready + self.starting.count, ended, seconds)

    def _signals(self, step: int, at_s: float) -> Signals:
        """Figures of the random variant, as they would be counted at this moment."""
        groups, shares = self.groups, self.shares
        x, ready = groups.in_flight[RANDOM], groups.ready
        inside = np.minimum(x, groups.full)
        replicas = groups.replicas
        row, cells = np.minimum(ready, GROUPS[-1]).astype(np.int64), groups.cells(inside)
        beyond = x - inside
        waits = beyond[0] * replicas[0] + beyond[1] * replicas[1] + groups.gateway[RANDOM]
        mean = self._entering[row, cells]
        entering = mean[0] * replicas[0] + mean[1] * replicas[1]
        entering = np.maximum(np.round(entering + np.sqrt(entering) * self._noise[step]), 0.0)
        met = self._met[row, cells]
        running = np.maximum(met[0] * replicas[0] + met[1] * replicas[1] - entering, 0.0)
        ready_or_one = np.maximum(ready, 1.0)
        waiting = np.round(waits) + entering

        def times_s() -> tuple[Float, Float]:
            ttft_s, tpot_s = shares.curve.now(running / ready_or_one, waiting / ready_or_one)
            dark = ready <= 0
            return np.where(dark, np.inf, ttft_s), np.where(dark, np.inf, tpot_s)

        return Signals(
            at_s=at_s,
            hour=(self.load.start_hour + at_s / 3600.0) % 168.0,
            ready=ready,
            starting=self.starting.count.copy(),
            running=np.round(running),
            waiting=waiting,
            kv_usage=np.minimum(running / ready_or_one * self._used, 1.0),
            arrived=np.full(len(ready), self._arrived),
            times_s=times_s,
        )

    # events

    def _events(self, step: int) -> None:
        """At most one failure and one reclaim of a column in a step; all columns draw the same."""
        events = self.fleet.events
        drawn = self._asked.random(2)
        for drawn_one, per_hour, notice_s in (
            (drawn[0], events.failures_per_hour, 0.0),
            (drawn[1], events.reclaims_per_hour, events.notice_s),
        ):
            mean = self.groups.ready * (per_hour / 3600.0 * self.dt_s)
            if drawn_one >= mean.max():  # a chance is below its mean
                continue
            chance = -np.expm1(-mean)
            lost = (drawn_one < chance).astype(float)
            if lost.any():
                self._lose(step, lost, notice_s)

    def _lose(self, step: int, lost: Float, notice_s: float) -> None:
        """Replicas end; requests that do not end within the notice are sent again, too late."""
        in_flight = self.groups.remove(lost)
        self.tally.lost += lost
        curve = self.shares.curve
        end_rate = np.interp(in_flight, curve.in_flight, curve.rate) / np.maximum(in_flight, 1e-9)
        again = lost * in_flight * np.exp(-end_rate * notice_s)
        row = step * self.dt_s // self.interval_s
        self.tally.sums["kept"][int(row)] -= again
        self._again = self._again + again
        rest_s = (self.steps - step) * self.dt_s
        self._pay(lost, min(notice_s, rest_s))
        self._close(step)


def arrivals_of(load: Load, steps: int, dt_s: float, seed: int) -> tuple[Float, Float]:
    """Expected and drawn numbers of requests in each step."""
    middle = (np.arange(steps) + 0.5) * dt_s
    place = np.minimum((middle // load.interval_s).astype(np.int64), len(load.rates) - 1)
    expected = np.where(middle < load.span_s, load.rates[place], 0.0) * dt_s
    rng, over = np.random.default_rng([seed, 4]), load.burstiness**2
    if over > 1.0:
        mixed = rng.gamma(np.maximum(expected, 1e-12) / (over - 1)) * (over - 1)
        return expected, rng.poisson(mixed).astype(float)
    if over == 1.0:
        return expected, rng.poisson(expected).astype(float)
    drawn = expected + np.sqrt(over * expected) * rng.standard_normal(steps)
    return expected, np.maximum(np.round(drawn), 0.0)


def by_cells(shares: Shares, figure: Float) -> Float:
    """A figure of a replica: by replicas from 0 on, and cells of a curve."""
    inside = (np.arange(CELLS + 1) + 0.5) * shares.curve.full / CELLS
    replicas = np.arange(GROUPS[-1] + 1.0)[:, None]
    grid = np.broadcast_arrays(np.minimum(inside, shares.curve.full), replicas)
    return shares.mean(figure, grid[0], grid[1])


class Drains:
    """The drain of a replica that gets no more requests: how long it serves those it has.

    The longest of ``n`` rests of answers, each of them met as often as it is long:
    ``∫ 1 - F(t)^n dt``, with ``F`` the distribution of such rests.
    """

    def __init__(self, shares: Shares, lengths: Lengths) -> None:
        curve = shares.curve
        outputs, weight = lengths.output_tokens, lengths.weight / lengths.weight.sum()
        tokens = np.linspace(0.0, float(outputs.max()), 200)
        shorter = np.minimum(tokens[:, None], outputs) @ weight / float(outputs @ weight)
        self._counts = curve.in_flight
        rests = np.array([np.trapezoid(1 - shorter ** max(n, 1e-9), tokens) for n in self._counts])
        # while they end the others speed up: steps of half as many
        half = np.interp(self._counts / 2, curve.in_flight, curve.tpot_s)
        self._seconds = np.where(self._counts > 0, rests * half + curve.ttft_s, 0.0)
        self._curve = curve

    def seconds(self, in_flight: Float) -> Float:
        """Seconds until such a replica is empty."""
        line_s = np.maximum(in_flight - self._curve.full, 0.0) / self._curve.fastest
        return np.asarray(np.interp(in_flight, self._counts, self._seconds) + line_s)
