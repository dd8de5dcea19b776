"""One replica at work, request by request.

All requests that decode get their tokens in the same steps, so that a request that joins when each
has got ``V`` tokens since the replica began, and needs ``k`` more, ends when ``V + k`` is reached:
a step costs nothing, and a request three events (its prompt's step begins, that step ends, its last
token). Requests enter between steps only. The same rules as ``estimates/serving/scheduler``, with
the step times of a `Service`.

Plain Python on purpose: an event costs a few microseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf

from recipe_core.base.arrays import Float
from recipe_core.scaling.fleet import Service

_EPSILON = 1e-9


class Steps:
    """Step times of a service as lists, and seconds that prompt tokens add."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.decode_s: list[float] = service.step_s.tolist()
        self.nodes: list[float] = service.prompt_tokens.tolist()
        self.added_s: list[list[float]] = service.prompt_s.tolist() if self.nodes else []

    def prompt_s(self, tokens: float, sequences: int) -> float:
        """Seconds that prompt tokens add to a step of so many that decode."""
        if not self.nodes:
            return self.service.token_s * tokens
        row = self.added_s[sequences]
        k = min(bisect_right(self.nodes, tokens), len(self.nodes) - 1)
        low, start = self.nodes[k - 1], row[k - 1]
        return start + (row[k] - start) * (tokens - low) / (self.nodes[k] - low)


@dataclass(slots=True)
class Records:
    """Of each request: what it needs, and when it entered, had its first token, and ended.

    Times in seconds, infinite until then.
    """

    prompt: list[float]
    output: list[int]
    cache: list[float]
    entered: list[float]
    first: list[float]
    done: list[float]

    @classmethod
    def of(cls, service: Service, input_tokens: Float, output_tokens: Float) -> Records:
        """Of requests that are still to come."""
        count, output = len(input_tokens), output_tokens
        return cls(
            service.computed(input_tokens).tolist(),
            [max(int(tokens), 1) for tokens in output.tolist()],
            service.cache_tokens(input_tokens, output).tolist(),
            *([inf] * count for _ in range(3)),
        )


class Replica:
    """A server that is up. ``next_at``: when something happens in it, infinite when idle."""

    __slots__ = (
        "_began",
        "_budget",
        "_decoding",
        "_held",
        "_pool",
        "_prompts",
        "_records",
        "_step_s",
        "_steps",
        "_tokens",
        "_with_prompts",
        "_yield",
        "in_flight",
        "inside",
        "next_at",
        "number",
        "slots",
        "waiting",
    )

    def __init__(self, number: int, steps: Steps, records: Records) -> None:
        service = steps.service
        self.number, self.slots = number, service.slots
        self.next_at, self.in_flight, self.inside = inf, 0, 0
        self.waiting: deque[int] = deque()
        self._steps, self._records = steps, records
        self._budget, self._pool = service.chunk_tokens, service.pool_tokens
        self._yield = service.tokens_per_step
        self._tokens = 0.0  # V of the module
        self._decoding: list[tuple[float, int]] = []  # (V of its last token, request), a heap
        self._prompts: deque[list[float]] = deque()  # [request, tokens that are left]
        self._with_prompts: list[tuple[int, float]] = []  # (request, lag) whose prompt ends
        self._held = 0.0
        self._began, self._step_s = 0.0, 0.0  # of the run of steps under way

    def add(self, now: float, request: int) -> None:
        """Takes a request, which waits for the end of the step under way at least."""
        self.waiting.append(request)
        self.in_flight += 1
        if self.next_at == inf:
            self._start(now)
        elif self._step_s and self._room(request):  # only decoding: looks after this step
            steps = ceil((now - self._began) / self._step_s - _EPSILON) or 1
            at = self._began + steps * self._step_s
            if at < self.next_at:
                self.next_at = at

    def step(self) -> list[int]:
        """Return requests that end at ``next_at``, and go on with the next step."""
        now, records, ended = self.next_at, self._records, []
        if self._step_s:
            self._tokens += self._yield * round((now - self._began) / self._step_s)
        elif self._steps.service.mixes:
            self._tokens += self._yield
        decoding, tokens = self._decoding, self._tokens + _EPSILON
        while decoding and decoding[0][0] <= tokens:
            request = heappop(decoding)[1]
            records.done[request] = now
            ended.append(request)
        for request, lag in self._with_prompts:
            records.first[request] = now + lag
            if records.output[request] == 1:
                records.done[request] = now + lag
                ended.append(request)
            else:
                heappush(decoding, (self._tokens + records.output[request] - 1, request))
        for request in ended:
            self._held -= records.cache[request]
        self.inside -= len(ended)
        self.in_flight -= len(ended)
        self._start(now)
        return ended

    def requests(self) -> list[int]:
        """All that are in flight."""
        prompts = [int(request) for request, _ in self._prompts]
        begun = [request for request, _ in self._with_prompts]
        return [*(request for _, request in self._decoding), *begun, *prompts, *self.waiting]

    @property
    def cache_usage(self) -> float:
        """Share of the cache that is in use."""
        return self._held / self._pool

    def _room(self, request: int) -> bool:
        """Return whether a request may enter; a replica with nothing inside takes any."""
        if self.inside >= self.slots:
            return False
        return not self.inside or self._held + self._records.cache[request] <= self._pool

    def _start(self, now: float) -> None:
        """Begins a step with prompts where there are any, else decodes until something ends."""
        if self.waiting or self._prompts:
            chunks = self._chunks(now)
            if chunks:
                self._run_prompts(now, chunks)
                return
        self._with_prompts = []
        if not self._decoding:
            self.next_at, self._step_s = inf, 0.0
            return
        self._began, self._step_s = now, self._steps.decode_s[len(self._decoding)]
        steps_left = (self._decoding[0][0] - self._tokens) / self._yield
        self.next_at = now + max(ceil(steps_left - _EPSILON), 1) * self._step_s

    def _chunks(self, now: float) -> list[tuple[list[float], float]]:
        """Prompts of the next step with their tokens in it; lets requests enter."""
        service, records = self._steps.service, self._records
        budget = self._budget - (len(self._decoding) if service.mixes else 0)
        chunks: list[tuple[list[float], float]] = []
        for prompt in self._prompts:
            if budget < 1:
                return chunks
            tokens = min(prompt[1], budget)
            chunks.append((prompt, tokens))
            budget -= tokens
        while self.waiting and (budget >= 1 or (not chunks and not self._decoding)):
            request = self.waiting[0]
            tokens = records.prompt[request]
            if not self._room(request) or (not service.chunked and chunks and tokens > budget):
                break
            self.waiting.popleft()
            self.inside += 1
            self._held += records.cache[request]
            records.entered[request] = now
            prompt = [request, tokens]
            self._prompts.append(prompt)
            if service.chunked:
                tokens = min(tokens, max(budget, 1.0))
            chunks.append((prompt, tokens))
            budget -= tokens
        return chunks

    def _run_prompts(self, now: float, chunks: list[tuple[list[float], float]]) -> None:
        """A step with prompt tokens. ``_step_s`` is 0 meanwhile."""
        service = self._steps.service
        decoding = len(self._decoding) if service.mixes else 0
        tokens = 0.0
        for _, part in chunks:
            tokens += part
        lag = 0.0
        if service.stages == 1 and service.ranks == 1:
            added = self._steps.prompt_s(tokens, decoding)
        else:
            added, lag = self._side_by_side(tokens, decoding, len(chunks))
        complete = []
        for prompt, part in chunks:
            prompt[1] -= part
            if prompt[1] <= 0:
                self._prompts.popleft()
                complete.append((int(prompt[0]), lag))
        self._with_prompts = complete
        self._step_s = 0.0
        self.next_at = now + self._steps.decode_s[decoding] + added

    def _side_by_side(self, tokens: float, decoding: int, prompts: int) -> tuple[float, float]:
        """Seconds that prompts add which stages and ranks share, and the lag of their own."""
        service = self._steps.service
        lane_tokens = service.chunk_tokens / (service.stages * service.ranks)
        across = min(service.ranks, prompts)
        batches = min(service.stages, max(decoding + prompts, ceil(tokens / across / lane_tokens)))
        added = self._steps.prompt_s(tokens / across / batches, decoding)
        if batches == 1:
            return added, 0.0
        unsplit_s = self._steps.prompt_s(min(tokens / across, lane_tokens), decoding)
        return added, unsplit_s - added
