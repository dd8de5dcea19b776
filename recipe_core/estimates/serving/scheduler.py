"""The scheduler of one replica, run request by request.

It follows vLLM's (``v1/core/sched/scheduler.py``). In each step every decoding request gets one
token of the budget; then come prompts already begun, then waiting ones first come first served,
while budget, request limit and cache allow. A request is admitted when its prompt fits into the
cache (its full length where the engine reserves). When decoding outgrows the cache, the newest
request is put back and computed again. Engines without chunked prefill run whole prompts in steps
of their own.

Between two events (an arrival, an end, a full cache) all decoding requests take the same steps, so
these are made at once. With pipeline stages a step here is a round of all micro-batches; the
data-parallel ranks that share experts are one replica and take each their part of a step. Plain
Python on purpose: a replica has one clock, and an event costs a few microseconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

Grid = list[list[list[list[float]]]]
_EPSILON = 1e-9


class StepTimes:
    """Seconds of a step, interpolated linearly on a grid of four axes.

    The axes: prompt tokens, the context they attend to on average, decoding requests, their average
    context. The first nodes of prompt tokens and of decoding requests are zero and one. Equal grids
    are equal.
    """

    def __init__(self, axes: Sequence[list[float]], grid: Grid) -> None:
        self.axes, self._grid = axes, grid
        self._places: dict[float, tuple[int, float]] = {}  # of numbers of decoding requests

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepTimes) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    @cached_property
    def _text(self) -> str:
        return repr((self.axes, self._grid))

    def decode_s(self, sequences: float, context: float) -> float:
        """Seconds of a step in which all requests decode."""
        i, u = self._places.get(sequences) or self._place(sequences)
        return _bilinear(self._grid[0][0], i, u, *_grid_place(self.axes[3], context))

    def mixed_s(
        self, tokens: float, prefill_context: float, sequences: float, context: float
    ) -> float:
        """Seconds of a step with prompt tokens."""
        h, s = _grid_place(self.axes[0], tokens)
        k, t = _grid_place(self.axes[1], prefill_context)
        i, u = self._places.get(sequences) or self._place(sequences)
        j, v = _grid_place(self.axes[3], context)
        fewer, more = self._grid[h], self._grid[h + 1]
        low = (1 - t) * _bilinear(fewer[k], i, u, j, v) + t * _bilinear(fewer[k + 1], i, u, j, v)
        high = (1 - t) * _bilinear(more[k], i, u, j, v) + t * _bilinear(more[k + 1], i, u, j, v)
        return (1 - s) * low + s * high

    def _place(self, sequences: float) -> tuple[int, float]:
        place = self._places[sequences] = _grid_place(self.axes[2], sequences)
        return place


def _grid_place(nodes: list[float], x: float) -> tuple[int, float]:
    """The interval of a point and its place in it; the end intervals extend beyond the grid."""
    i = bisect_right(nodes, x, 1, len(nodes) - 1) - 1
    low = nodes[i]
    return i, (x - low) / (nodes[i + 1] - low)


def _bilinear(values: list[list[float]], i: int, u: float, j: int, v: float) -> float:
    low, high = values[i], values[i + 1]
    return (1 - u) * ((1 - v) * low[j] + v * low[j + 1]) + u * ((1 - v) * high[j] + v * high[j + 1])


@dataclass(frozen=True)
class Rules:
    """The rules that a scheduler obeys.

    step_tokens: the budget of a micro-batch. slots: requests that run at once. reserves: a request
    holds its full length from the start. chunked: prompts may be split. mixes: prompts and decoding
    share steps. recv_interval: decode steps from one look for new requests to the next; after a
    step with prompts, and when nothing runs, it looks at once. ranks: data-parallel ones that share
    a step. tokens_per_step: of a decoding request, more than one where drafts are accepted.
    """

    step_tokens: float
    slots: int
    pool_tokens: float
    block_tokens: float
    stages: int
    reserves: bool
    chunked: bool
    mixes: bool
    recv_interval: int = 1
    ranks: int = 1
    tokens_per_step: float = 1

    @cached_property
    def batches(self) -> int:
        """Batches of a step: one for each stage and rank."""
        return self.stages * self.ranks


class Requests:
    """Requests by number, which replicas share: what each needs, and when it got it.

    inputs, outputs: tokens. cached: tokens of each prompt that are in the cache when it comes.
    entered, first, done: seconds at which each was admitted first, and had its first and its last
    token; infinite until then.
    """

    def __init__(self, inputs: list[int], outputs: list[int], cached: list[int]) -> None:
        count = len(inputs)
        self.inputs, self.outputs, self.cached = inputs, outputs, cached
        self.entered, self.first, self.done = ([inf] * count for _ in range(3))
        # tokens to have in the cache before the next output token
        self.target: list[float] = list(inputs)
        self.computed = [0.0] * count
        self.lag = [0.0] * count  # how far each is behind its round (pipeline stages)

    def reset(self, request: int) -> None:
        """Make a request as if it had not come: its replica was lost."""
        self.target[request] = self.inputs[request]
        for times in (self.entered, self.first, self.done):
            times[request] = inf


class Replica:
    """One scheduler at work, event by event; times are in seconds.

    ``next_at``: when something happens in it, infinite when it is idle. Requests that come until
    then are added first, then ``step`` is called.
    """

    def __init__(self, rules: Rules, times: StepTimes, requests: Requests) -> None:
        self.rules, self.times, self.requests = rules, times, requests
        self.next_at, self.in_flight = inf, 0
        self._inbox: list[tuple[float, int]] = []  # what came since it looked, and when
        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}  # oldest first
        self._prompts: list[int] = []  # running requests whose prompt is not done
        # (the round of its last token, request), a heap
        self._decoding: list[tuple[float, int]] = []
        self._round = 0.0
        self._context = 0.0  # tokens of the decoding requests
        # tokens of free cache, of which each running request wastes half a block, and those that a
        # decode step adds for each request
        self._free, self._half_block = rules.pool_tokens, rules.block_tokens / 2
        self._grow = 0 if rules.reserves else rules.tokens_per_step
        self._unseen = 0  # decode steps since it last looked for requests
        # of what is under way: its beginning, steps that decode, whether an arrival ends them, and
        # prompt tokens by request
        self._busy, self._began, self._steps, self._yields = False, 0.0, 0, False
        self._chunks: list[tuple[int, float]] = []
        self._lag = 0.0  # of those prompts

    @property
    def inside(self) -> int:
        """Requests that are admitted."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        return self.in_flight - len(self._running)

    def list_in_flight(self) -> list[int]:
        return [*self._running, *self._waiting, *(request for _, request in self._inbox)]

    def cache_usage(self, now: float) -> float:
        """Share of the cache that is in use at a moment until ``next_at``."""
        free = self._free
        if self._steps:
            done = (now - self._began) / (self.next_at - self._began)
            free -= done * self._steps * len(self._decoding) * self._grow
        return 1 - free / self.rules.pool_tokens

    def add(self, now: float, request: int) -> None:
        """Take a request; while steps only decode, the next look for requests ends them."""
        self._inbox.append((now, request))
        self.in_flight += 1
        if self.next_at == inf:
            self.next_at = now
        elif self._yields:
            self._yields = False
            self._decode(now - self._began)

    def step(self) -> list[int]:
        """Go on at ``next_at``: end what is under way, or begin the next step.

        Returns the requests that end. What is sent at this very moment can be added in between.
        """
        if not self._busy:
            self._begin()
            return []
        self._busy = self._yields = False
        steps, self._steps, decoding = self._steps, 0, self._decoding
        if steps:
            grown = steps * self.rules.tokens_per_step
            self._round += grown
            self._context += grown * len(decoding)
            self._free -= steps * self._grow * len(decoding)
        if self._chunks:
            self._unseen = 0
            self._end_chunks()
        else:
            self._unseen = (self._unseen + steps) % self.rules.recv_interval
        ended: list[int] = []
        reached = self._round + _EPSILON
        while decoding and decoding[0][0] <= reached:
            ended.append(self._end(*heapq.heappop(decoding)))
        return ended

    def _begin(self) -> None:
        """Look for requests, and begin a step with prompts or steps that decode."""
        if self._inbox and not (self._unseen and self._running):
            for _, request in sorted(self._inbox):
                self._waiting.append(request)
            self._inbox = []
        if not self._running and not self._waiting:
            self.next_at = inf
            return
        self._busy, self._began = True, self.next_at
        admits = self._free >= len(self._decoding) * self._grow or self._make_room()
        if (self._waiting or self._prompts) and self._schedule(admits=admits):
            self._prefill()
        else:
            opens = not self._waiting and len(self._running) < self.rules.slots
            self._yields = opens and not self._inbox
            self._decode(0.0 if opens and self._inbox else None)

    def _schedule(self, *, admits: bool) -> bool:
        """Gives the next step prompt tokens: of prompts already begun, then of waiting ones."""
        rules, requests, chunks, running = self.rules, self.requests, self._chunks, self._running
        decoding = len(self._decoding)
        budget = rules.step_tokens * rules.batches - (decoding if rules.mixes else 0)
        for request in self._prompts:
            if budget >= 1:
                missing = requests.target[request] - requests.computed[request]
                chunks.append((request, min(missing, int(budget))))
                budget -= chunks[-1][1]
        while admits and self._waiting and budget >= 1 and len(running) < rules.slots:
            request = self._waiting[0]
            target = share = requests.target[request]
            if rules.reserves:
                share = requests.inputs[request] + requests.outputs[request]
            begun = min(requests.cached[request], target - 1)
            tokens, share = target - begun, share + self._half_block
            too_long = tokens > budget and chunks and not rules.chunked
            if too_long or (running and self._free - decoding * self._grow < share):
                break
            running[self._waiting.popleft()] = None
            self._prompts.append(request)
            self._free -= share
            requests.computed[request] = begun
            if requests.entered[request] == inf:
                requests.entered[request] = self.next_at
            if tokens > budget and rules.chunked:
                tokens = int(budget)
            chunks.append((request, tokens))
            budget -= tokens
        return bool(chunks)

    def _make_room(self) -> bool:
        """Puts the newest requests back until all that decode can grow; whether none had to go."""
        untouched, requests = True, self.requests
        while self._free < len(self._decoding) * self._grow and len(self._running) > 1:
            untouched = False
            request, _ = self._running.popitem()
            self._waiting.appendleft(request)
            if request in self._prompts:
                self._prompts.remove(request)
            else:
                entry = next(entry for entry in self._decoding if entry[1] == request)
                self._decoding.remove(entry)
                heapq.heapify(self._decoding)
                length = requests.inputs[request] + requests.outputs[request]
                requests.target[request] = length - (entry[0] - self._round)
                self._context -= requests.target[request]
            self._free += requests.target[request] + self._half_block
        return untouched

    def _prefill(self) -> None:
        """Begins a step with prompt tokens; complete prompts have their next token at its end."""
        rules, computed, times = self.rules, self.requests.computed, self.times
        decoding = len(self._decoding) if rules.mixes else 0
        tokens = pairs = 0.0
        for request, count in self._chunks:
            tokens += count
            pairs += count * (computed[request] + count / 2)
        attended, context = pairs / tokens, self._context / decoding if decoding else 0.0
        batches = 1.0
        if rules.batches > 1:
            tokens /= min(rules.ranks, len(self._chunks))  # a prompt is in one rank
            fewest = -(-tokens // rules.step_tokens)
            batches = min(rules.stages, max(decoding + len(self._chunks), fewest))
        beside, self._lag = decoding / batches / rules.ranks, 0.0
        seconds = times.mixed_s(tokens / batches, attended, beside, context)
        if batches > 1:  # a prompt is in one micro-batch, which is fuller than their mean
            fuller = min(tokens, rules.step_tokens)
            self._lag = times.mixed_s(fuller, attended, beside, context) - seconds
        self._steps = 1 if decoding else 0
        self.next_at += seconds

    def _end_chunks(self) -> None:
        """Starts decoding of requests whose prompt is complete."""
        requests = self.requests
        for request, count in self._chunks:
            requests.computed[request] += count
            target = requests.target[request]
            if requests.computed[request] < target:
                continue
            self._prompts.remove(request)
            requests.lag[request] = self._lag
            if requests.first[request] == inf:
                requests.first[request] = self.next_at + self._lag
            self._context += target + 1
            self._free -= 0 if self.rules.reserves else 1
            length = requests.inputs[request] + requests.outputs[request]
            heapq.heappush(self._decoding, (self._round + length - target - 1, request))
        self._chunks = []

    def _decode(self, until_s: float | None = None) -> None:
        """Decodes to the next end, a full cache, or the look for a request that comes by then."""
        rules, count, times = self.rules, len(self._decoding), self.times
        batch, context = max(count / rules.stages / rules.ranks, 1.0), self._context / count
        left = (self._decoding[0][0] - self._round) / rules.tokens_per_step
        steps, growth = ceil(left - _EPSILON), count * self._grow
        if steps * growth > self._free and count > 1:
            steps = max(int(self._free // growth), 1)
        if until_s is not None:
            coming = int(max(until_s, 0.0) / times.decode_s(batch, context)) + 1
            steps = min(steps, coming + -(self._unseen + coming) % rules.recv_interval)
        context += (steps - 1) * rules.tokens_per_step / 2
        self._steps, self.next_at = steps, self._began + steps * times.decode_s(batch, context)

    def _end(self, last: float, request: int) -> int:
        """Ends a request after its last token and frees its cache."""
        requests = self.requests
        length = requests.inputs[request] + requests.outputs[request]
        used_tokens = length + (self._round - last)  # drafts may be accepted beyond its last token
        requests.done[request] = self.next_at + requests.lag[request]
        self._context -= used_tokens
        self._free += (length if self.rules.reserves else used_tokens) + self._half_block
        del self._running[request]
        self.in_flight -= 1
        return request


def run_replica(
    replica: Replica, sent: list[float], delays: Sequence[float], *, closed: bool
) -> list[int]:
    """Run requests to their ends on a replica of their own; return them as they ended.

    sent: seconds at which the first are sent, by number; in a closed loop each end sends the next
    one, whose time is appended. delays: seconds from sending each to reaching the scheduler.
    """
    done, count, order = replica.requests.done, len(delays), list[int]()
    # a heap of (time at the scheduler, request)
    coming = [(at + delays[request], request) for request, at in enumerate(sent)]
    heapq.heapify(coming)
    while len(order) < count:
        while coming and coming[0][0] <= replica.next_at:
            replica.add(*heapq.heappop(coming))
        for request in replica.step():
            order.append(request)
            if closed and len(sent) < count:
                heapq.heappush(coming, (done[request] + delays[len(sent)], len(sent)))
                sent.append(done[request])
    return order
