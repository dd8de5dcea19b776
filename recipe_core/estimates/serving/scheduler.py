"""The scheduler of one replica, run request by request.

It follows vLLM's (``v1/core/sched/scheduler.py``). In each step every decoding request gets one
token of the budget; then come prompts already begun, then waiting ones first come first served,
while budget, request limit and cache allow. A request is admitted when its prompt fits into the
cache (its full length where the engine reserves). When decoding outgrows the cache, the newest
request is put back and computed again. Engines without chunked prefill run whole prompts in steps
of their own.

Between two events (an arrival, an end, a full cache) all decoding requests take the same steps, so
these are made at once. With pipeline stages a step here is a round of all micro-batches. Plain
Python on purpose: a replica has one clock, and an event costs a few microseconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Grid = list[list[list[list[float]]]]


class StepTimes:
    """Seconds of a step, interpolated linearly on a grid of four axes.

    The axes: prompt tokens, the context they attend to on average, decoding requests, their average
    context. The first nodes of prompt tokens and of decoding requests are zero and one.
    """

    def __init__(self, axes: Sequence[list[float]], grid: Grid) -> None:
        self._axes, self._grid, self._decode = axes, grid, grid[0][0]

    def decode_s(self, sequences: float, context: float) -> float:
        """Seconds of a step in which all requests decode."""
        return _bilinear(
            self._decode,
            *_grid_place(self._axes[2], sequences),
            *_grid_place(self._axes[3], context),
        )

    def mixed_s(
        self, tokens: float, prefill_context: float, sequences: float, context: float
    ) -> float:
        """Seconds of a step with prompt tokens."""
        i, u = _grid_place(self._axes[0], tokens)
        j, v = _grid_place(self._axes[1], prefill_context)
        place = (*_grid_place(self._axes[2], sequences), *_grid_place(self._axes[3], context))
        fewer, more = self._grid[i], self._grid[i + 1]
        low = (1 - v) * _bilinear(fewer[j], *place) + v * _bilinear(fewer[j + 1], *place)
        high = (1 - v) * _bilinear(more[j], *place) + v * _bilinear(more[j + 1], *place)
        return (1 - u) * low + u * high


def _grid_place(nodes: list[float], x: float) -> tuple[int, float]:
    """The interval of a point and its place in it; the end intervals extend beyond the grid."""
    i = min(max(bisect_right(nodes, x) - 1, 0), len(nodes) - 2)
    return i, (x - nodes[i]) / (nodes[i + 1] - nodes[i])


def _bilinear(values: list[list[float]], i: int, u: float, j: int, v: float) -> float:
    low, high = values[i], values[i + 1]
    return (1 - u) * ((1 - v) * low[j] + v * low[j + 1]) + u * ((1 - v) * high[j] + v * high[j + 1])


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a scheduler obeys.

    step_tokens: the budget of a micro-batch. slots: requests that run at once. cached: share of a
    prompt that hits the prefix cache. reserves: a request holds its full length from the start.
    chunked: prompts may be split. mixes: prompts and decoding share steps. recv_interval: decode
    steps from one look for new requests to the next; after a step with prompts, and when nothing
    runs, it looks at once.
    """

    step_tokens: float
    slots: int
    pool_tokens: float
    block_tokens: float
    stages: int
    cached: float
    reserves: bool
    chunked: bool
    mixes: bool
    recv_interval: int = 1


class Replica:
    """One scheduler at work. Requests are numbered as they are sent; times are in seconds.

    inputs, outputs: tokens of each request. delays: from sending to reaching the scheduler. After
    ``run``, ``sent``, ``first`` and ``done`` hold the time of each request's sending, first and
    last token, and ``order`` the requests as they ended.
    """

    def __init__(
        self,
        rules: Rules,
        times: StepTimes,
        inputs: list[int],
        outputs: list[int],
        delays: list[float],
    ) -> None:
        count = len(inputs)
        self.rules, self.times = rules, times
        self.inputs, self.outputs, self.delays = inputs, outputs, delays
        self.sent, self.first, self.done = [0.0] * count, [-1.0] * count, [0.0] * count
        self.order: list[int] = []
        self._now, self._round, self._next = 0.0, 0, 0
        # a heap of (time at the scheduler, request)
        self._coming: list[tuple[float, int]] = []
        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}  # oldest first
        self._prompts: list[int] = []  # running requests whose prompt is not done
        self._decoding: list[tuple[int, int]] = []  # (the round of its last token, request), a heap
        self._context = 0  # tokens of the decoding requests
        self._allocated = 0  # tokens of cache
        self._target = list(inputs)  # tokens to have in the cache before the next output token
        self._computed = [0] * count
        self._unseen = 0  # decode steps since it last looked for requests
        self._lag = [0.0] * count  # how far a request is behind its round (pipeline stages)

    def send(self, at: float) -> None:
        """Sends the next request, if one is left."""
        if self._next < len(self.inputs):
            request, self._next = self._next, self._next + 1
            self.sent[request] = at
            heapq.heappush(self._coming, (at + self.delays[request], request))

    def run(self, *, closed: bool) -> None:
        """Runs until every request is done; in a closed loop each end sends the next one."""
        while len(self.order) < len(self.inputs):
            looks = not self._unseen or not self._running
            while looks and self._coming and self._coming[0][0] <= self._now:
                self._waiting.append(heapq.heappop(self._coming)[1])
            if not self._running and not self._waiting:
                self._now = self._coming[0][0]
                continue
            chunks = self._schedule()
            if chunks:
                self._prefill(chunks)
            else:
                self._decode()
            while self._decoding and self._decoding[0][0] <= self._round:
                request = heapq.heappop(self._decoding)[1]
                self._finish(request)
                if closed:
                    self.send(self.done[request])

    @property
    def _free(self) -> float:
        """Tokens of free cache; each running request wastes half a block."""
        return (
            self.rules.pool_tokens
            - self._allocated
            - len(self._running) * self.rules.block_tokens / 2
        )

    def _growth(self) -> int:
        return 0 if self.rules.reserves else len(self._decoding)

    def _share(self, request: int) -> int:
        """Tokens of cache that a request needs before it is admitted."""
        if self.rules.reserves:
            return self.inputs[request] + self.outputs[request]
        return self._target[request]

    def _schedule(self) -> list[tuple[int, int]]:
        """Prompt tokens of the next step by request: prompts already begun, then waiting ones."""
        admits = self._make_room()
        budget = self.rules.step_tokens * self.rules.stages - (
            len(self._decoding) if self.rules.mixes else 0
        )
        chunks: list[tuple[int, int]] = []
        for request in self._prompts:
            if budget >= 1:
                missing = self._target[request] - self._computed[request]
                chunks.append((request, min(missing, int(budget))))
                budget -= chunks[-1][1]
        while admits and self._waiting and budget >= 1 and len(self._running) < self.rules.slots:
            request = self._waiting[0]
            begun = min(int(self.inputs[request] * self.rules.cached), self._target[request] - 1)
            tokens = self._target[request] - begun
            fits = self._free - self._growth() >= self._share(request) + self.rules.block_tokens / 2
            too_long = chunks and tokens > budget and not self.rules.chunked
            if too_long or not (fits or not self._running):
                break
            self._waiting.popleft()
            self._running[request] = None
            self._prompts.append(request)
            self._allocated += self._share(request)
            self._computed[request] = begun
            chunks.append((request, min(tokens, int(budget)) if self.rules.chunked else tokens))
            budget -= chunks[-1][1]
        return chunks

    def _make_room(self) -> bool:
        """Puts the newest requests back until all that decode can grow; whether none had to go."""
        untouched = True
        while self._free < self._growth() and len(self._running) > 1:
            untouched = False
            request, _ = self._running.popitem()
            self._waiting.appendleft(request)
            if request in self._prompts:
                self._prompts.remove(request)
            else:
                place = next(
                    n for n, (_, candidate) in enumerate(self._decoding) if candidate == request
                )
                last, _ = self._decoding.pop(place)
                heapq.heapify(self._decoding)
                length = self.inputs[request] + self.outputs[request]
                self._target[request] = length - (last - self._round)
                self._context -= self._target[request]
            self._allocated -= self._target[request]
        return untouched

    def _prefill(self, chunks: list[tuple[int, int]]) -> None:
        """Runs a step with prompt tokens; complete prompts have their next token at its end."""
        stages, step_tokens = self.rules.stages, self.rules.step_tokens
        decoding = len(self._decoding) if self.rules.mixes else 0
        tokens = sum(count for _, count in chunks)
        pairs = sum(count * (self._computed[request] + count / 2) for request, count in chunks)
        attended = pairs / tokens
        batches = min(stages, max(decoding + len(chunks), -(-tokens // step_tokens)))
        context = self._context / decoding if decoding else 0.0
        seconds = batch_s = self.times.mixed_s(
            tokens / batches, attended, decoding / batches, context
        )
        if batches > 1:  # a prompt is in one micro-batch, which is fuller than their mean
            batch_s = self.times.mixed_s(
                min(tokens, step_tokens), attended, decoding / batches, context
            )
        self._advance(1 if decoding else 0, seconds)
        self._unseen = 0
        for request, count in chunks:
            self._computed[request] += count
            if self._computed[request] >= self._target[request]:
                self._prompts.remove(request)
                self._begin(request, batch_s - seconds)

    def _begin(self, request: int, lag: float) -> None:
        """Starts decoding of a request whose prompt is complete."""
        self._lag[request] = lag
        if self.first[request] < 0:
            self.first[request] = self._now + lag
        self._context += self._target[request] + 1
        self._allocated += 0 if self.rules.reserves else 1
        length = self.inputs[request] + self.outputs[request]
        heapq.heappush(self._decoding, (self._round + length - self._target[request] - 1, request))

    def _decode(self) -> None:
        """Decodes to the next end, the next arrival that can be admitted, or a full cache."""
        count = len(self._decoding)
        batch, context = max(count / self.rules.stages, 1.0), self._context / count
        steps = self._decoding[0][0] - self._round
        if self._growth() and count > 1:
            steps = min(steps, max(int(self._free // count), 1))
        if self._coming and not self._waiting and len(self._running) < self.rules.slots:
            gap_s = max(self._coming[0][0] - self._now, 0.0)
            coming = int(gap_s / self.times.decode_s(batch, context)) + 1
            unlooked = -(self._unseen + coming) % self.rules.recv_interval
            steps = min(steps, coming + unlooked)
        self._advance(steps, steps * self.times.decode_s(batch, context + (steps - 1) / 2))
        self._unseen = (self._unseen + steps) % self.rules.recv_interval

    def _advance(self, steps: int, seconds: float) -> None:
        """Advances the clock; every decoding request grows by a token a step."""
        self._now += seconds
        self._round += steps
        self._context += steps * len(self._decoding)
        self._allocated += steps * self._growth()

    def _finish(self, request: int) -> None:
        """Ends a request after its last token and frees its cache."""
        length = self.inputs[request] + self.outputs[request]
        self.done[request] = self._now + self._lag[request]
        self._context -= length
        self._allocated -= length
        del self._running[request]
        self.order.append(request)
