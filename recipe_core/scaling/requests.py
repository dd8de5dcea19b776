"""A fleet request by request: a router, replicas that start and end, and a policy.

A request goes to the replica with the fewest in flight among those that are ready, or to each in
turn (``Fleet.dispatch``), and waits inside it; only while none is ready it waits at the gateway
(with ``central_queue`` it waits there until a replica has a free slot). Whoever is to end gets no
more requests and ends with its last one. Orders take a time drawn from the start's distribution;
the k-th order of two simulations with the same seed takes the same, whatever the policies (common
random numbers). Same seed, same bits.

Left out: sticky sessions and routing by prefix, retries of clients, a limit on draining.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.serving.scheduler import Replica
from recipe_core.scaling.fleet import Chance, Controller, Draw, Fleet, Signals
from recipe_core.scaling.outcome import Lives, Outcome, outcome_of
from recipe_core.scaling.service import Curve, curve_of
from recipe_core.scaling.traces.loads import Lengths
from recipe_core.scaling.traces.trace import Trace

# Time after the last arrival for which requests that are still in flight go on.
PATIENCE_S = 6 * 3600.0
# What a calendar holds, as ``Draw.ends`` counts.
READY, FAILED, RECLAIMED, KILLED = range(4)
_NUMBERS = 1 << 24


def simulate_requests(
    fleet: Fleet,
    trace: Trace,
    controller: Controller,
    *,
    begin: int,
    seed: int = 0,
    interval_s: float = 60.0,
    start_hour: float = 0.0,
    span_s: float | None = None,
    central_queue: bool = False,
) -> Outcome:
    """Return what happens to every request of a trace.

    Args:
        fleet: what is scaled.
        trace: requests by arrival, seconds from the beginning on.
        controller: asked with one column; first at its first interval.
        begin: replicas that are ready at second 0.
        seed: of starts and events.
        interval_s: of the series.
        start_hour: hour of the week at second 0.
        span_s: time that is paid for and looked at; default the trace's, in whole intervals. All
            requests are followed to their ends.
        central_queue: requests wait at the gateway until a replica has a free slot.
    """
    last = float(trace.arrival_s[-1]) if len(trace) else 0.0
    span_s = span_s or max(np.ceil((last + 1e-9) / interval_s), 1.0) * interval_s
    run = _Run(fleet, trace, controller, start_hour, Chance(seed), central_queue=central_queue)
    for _ in range(begin):
        run.begin()
    run.until_done(span_s)
    return outcome_of(fleet, trace, run.requests, run.lives, span_s, interval_s)


@dataclass(slots=True)
class _Member:
    """A replica from its order to its end."""

    number: int
    draw: Draw
    replica: Replica | None = None
    ready: bool = False


class _Run:
    """The state of a simulation. ``_calendar``: what comes beside requests, a heap."""

    def __init__(
        self,
        fleet: Fleet,
        trace: Trace,
        controller: Controller,
        start_hour: float,
        chance: Chance,
        *,
        central_queue: bool,
    ) -> None:
        service = fleet.service
        self.fleet, self.controller, self.start_hour = fleet, controller, start_hour
        self.requests = service.requests(trace.input_tokens, trace.output_tokens)
        reach = trace.arrival_s + service.request_s + service.request_token_s * trace.input_tokens
        order = np.argsort(reach, kind="stable")
        self._coming = list(zip(reach[order].tolist(), order.tolist(), strict=True))
        self.lives = Lives(len(trace))
        self._chance, self._central = chance, central_queue
        self._members: dict[int, _Member] = {}  # ordered and not ended, oldest first
        self._starting: dict[int, _Member] = {}
        self._ready: dict[int, _Member] = {}
        self._gateway: deque[int] = deque()
        self._turns: deque[int] | None = deque() if fleet.dispatch == "round-robin" else None
        self._loads: list[int] = []  # in flight and number in one, a heap with stale entries
        self._due: list[tuple[float, int]] = []  # (next_at, number), a heap with stale entries
        self._calendar: list[tuple[float, int, int]] = []
        self._arrived, self._in_flight = 0, 0
        self._lengths = sample_trace_lengths(trace)
        self._curve: Curve | None = None

    def begin(self) -> None:
        """A replica that is ready at second 0."""
        member = self._ordered(0.0)
        self.lives.ready[member.number] = 0.0
        self._become_ready(0.0, member)

    def until_done(self, span_s: float) -> None:
        """Runs until all requests have ended and the time is over."""
        tick_at, end = self.controller.interval_s, inf
        coming, due = self._coming, self._due
        k, count = 0, len(coming)
        while True:
            if k == count and end == inf:
                end = max(span_s, coming[-1][0] if count else 0.0) + PATIENCE_S
            arrives = coming[k][0] if k < count else inf
            event_at = due[0][0] if due else inf
            other_at = min(tick_at, self._calendar[0][0]) if self._calendar else tick_at
            if k == count and not self._in_flight and min(event_at, other_at) >= span_s:
                return
            if arrives <= event_at and arrives <= other_at:
                self._arrive(arrives, coming[k][1])
                k += 1
            elif event_at <= other_at:
                self._work(event_at)
            elif other_at > end:
                return
            elif tick_at <= other_at:
                self._tick(tick_at)
                tick_at += self.controller.interval_s
            else:
                self._happen(*heappop(self._calendar))

    # requests

    def _arrive(self, now: float, request: int) -> None:
        self._arrived += 1
        self._in_flight += 1
        if self._starting:
            self.lives.met_start.append(request)
        if self._gateway or not self._route(now, request):
            self._gateway.append(request)

    def _route(self, now: float, request: int) -> bool:
        """Gives a request to a ready replica, by ``Fleet.dispatch``; False where none takes it."""
        member = self._next_in_turn() if self._turns is not None else self._least_loaded()
        if member is None or member.replica is None:
            return False
        number, replica = member.number, member.replica
        heappush(self._loads, loads_key(replica.in_flight + 1, number))
        before = replica.next_at
        replica.add(now, request)
        if replica.next_at != before:
            heappush(self._due, (replica.next_at, number))
        return True

    def _least_loaded(self) -> _Member | None:
        """The ready replica with the fewest in flight; its place among loads is taken."""
        loads, ready = self._loads, self._ready
        while loads:
            in_flight, number = divmod(loads[0], _NUMBERS)
            member = ready.get(number)
            if member is None or member.replica is None or member.replica.in_flight != in_flight:
                heappop(loads)
                continue
            if self._central and in_flight >= member.replica.rules.slots:
                return None
            heappop(loads)
            return member
        return None

    def _next_in_turn(self) -> _Member | None:
        """The ready replica whose turn it is, the oldest first; those that ended lose theirs."""
        turns = self._turns or deque()
        for _ in range(len(turns)):
            member = self._ready.get(turns.popleft())
            if member is None or member.replica is None:
                continue
            turns.append(member.number)
            if not self._central or member.replica.in_flight < member.replica.rules.slots:
                return member
        return None

    def _work(self, now: float) -> None:
        """The next event of a replica."""
        number = heappop(self._due)[1]
        member = self._members.get(number)
        if member is None or member.replica is None or member.replica.next_at != now:
            return
        replica = member.replica
        while replica.next_at == now:  # what ends is followed by the next step
            ended = replica.step()
            self._in_flight -= len(ended)
            if ended and member.ready:
                heappush(self._loads, loads_key(replica.in_flight, number))
                self._tidy()
                if self._gateway:
                    self._open_gateway(now)
        if replica.next_at != inf:
            heappush(self._due, (replica.next_at, number))
        elif not member.ready:
            self._end(now, member)

    def _open_gateway(self, now: float) -> None:
        while self._gateway and self._route(now, self._gateway[0]):
            self._gateway.popleft()

    def _tidy(self) -> None:
        if len(self._loads) > 64 + 8 * len(self._ready):
            self._loads = [
                loads_key(member.replica.in_flight, number)
                for number, member in self._ready.items()
                if member.replica is not None
            ]
            heapify(self._loads)

    # replicas

    def _ordered(self, now: float) -> _Member:
        number = self.lives.order(now)
        member = _Member(number, self._chance.draw(number, self.fleet))
        self._members[number] = member
        return member

    def _become_ready(self, now: float, member: _Member) -> None:
        service = self.fleet.service
        member.replica, member.ready = Replica(service.rules, service.times, self.requests), True
        self._ready[member.number] = member
        self.lives.ready[member.number] = now
        heappush(self._loads, loads_key(0, member.number))
        if self._turns is not None:
            self._turns.append(member.number)
        for seconds, event in member.draw.ends():
            heappush(self._calendar, (now + seconds, event, member.number))
        self._open_gateway(now)

    def _drain(self, now: float, member: _Member) -> None:
        """No more requests for a replica; it ends with its last."""
        self._ready.pop(member.number)
        member.ready = False
        self.lives.drained[member.number] = now
        if member.replica is not None and not member.replica.in_flight:
            self._end(now, member)

    def _end(self, now: float, member: _Member) -> None:
        self._members.pop(member.number)
        self._starting.pop(member.number, None)
        self._ready.pop(member.number, None)
        number, lives = member.number, self.lives
        lives.drained[number] = min(lives.drained[number], now)
        lives.ended[number] = now

    def _happen(self, now: float, event: int, number: int) -> None:
        """A start is over, a node fails, spot capacity is reclaimed."""
        member = self._members.get(number)
        if member is None:
            return
        if event == READY:
            self._starting.pop(number)
            self._become_ready(now, member)
            return
        self.lives.lost.add(number)
        if event == RECLAIMED:
            heappush(self._calendar, (now + self.fleet.events.notice_s, KILLED, number))
            if member.ready:
                self._drain(now, member)
            return
        self._end(now, member)
        again = sorted(member.replica.list_in_flight()) if member.replica is not None else []
        for request in again:
            self.lives.sent_again.add(request)
            self.requests.reset(request)
            if self._gateway or not self._route(now, request):
                self._gateway.append(request)

    # the policy

    def _tick(self, now: float) -> None:
        desired = int(np.asarray(self.controller.decide(self._signals(now))).reshape(-1)[0])
        self.lives.desired.append((now, desired))
        current = len(self._ready) + len(self._starting)
        for _ in range(desired - current):
            self._order(now)
        for member in self._newest(current - desired):
            if member.number in self._starting:
                self._end(now, member)
            else:
                self._drain(now, member)

    def _order(self, now: float) -> None:
        if not self._chance.available(self.fleet.events.available):
            return
        member = self._ordered(now)
        self._starting[member.number] = member
        heappush(self._calendar, (now + member.draw.start_s, READY, member.number))

    def _newest(self, count: int) -> Iterator[_Member]:
        """Those to end: starting ones first, the newest first."""
        if count <= 0:
            return iter(())
        newest = [*reversed(self._starting.values()), *reversed(self._ready.values())]
        return iter(newest[:count])

    def _signals(self, now: float) -> Signals:
        replicas = [member.replica for member in self._members.values() if member.replica]
        ready = [member.replica for member in self._ready.values() if member.replica]
        inside = sum(replica.inside for replica in replicas)
        waiting = sum(replica.waiting for replica in replicas) + len(self._gateway)
        usage = sum(replica.cache_usage(now) for replica in ready) / max(len(ready), 1)
        return Signals(
            at_s=now,
            hour=(self.start_hour + now / 3600.0) % 168.0,
            ready=_one_column(len(ready)),
            starting=_one_column(len(self._starting)),
            running=_one_column(inside),
            waiting=_one_column(waiting),
            kv_usage=_one_column(usage),
            arrived=_one_column(self._arrived),
            times_s=partial(self._times_s, len(ready), inside, waiting),
        )

    def _times_s(self, ready: int, inside: int, waiting: int) -> tuple[Float, Float]:
        """Times to first token and between tokens that a request now would see, about."""
        if not ready:
            return _one_column(inf), _one_column(inf)
        if self._curve is None:
            self._curve = curve_of(self.fleet.service, self._lengths)
        return self._curve.now(_one_column(inside / ready), _one_column(waiting / ready))


def sample_trace_lengths(trace: Trace, limit: int = 512) -> Lengths:
    """Lengths of so many requests of a trace at most, evenly from all of it."""
    count = min(len(trace), limit)
    if not count:
        return Lengths(np.ones(1), np.ones(1), np.ones(1))
    indices = np.linspace(0, len(trace) - 1, count).astype(np.int64)
    inputs, outputs = trace.input_tokens[indices], trace.output_tokens[indices]
    return Lengths(inputs.astype(float), outputs.astype(float), np.full(count, 1 / count))


def loads_key(in_flight: int, number: int) -> int:
    """Replicas in order of what they have in flight, then of their age."""
    return in_flight * _NUMBERS + number


def _one_column(value: float) -> Float:
    return np.array([float(value)])
