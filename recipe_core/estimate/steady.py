"""Continuous batching at steady state: how many sequences of a replica decode, and what a request waits for.

A decode step takes ``t(D)`` with ``D`` sequences; each request's prompt adds ``Δ(D)`` to the steps of the others, and needs ``o`` steps
after its first token. With ``p`` pipeline stages and the share ``n = (R - 1)/R`` of requests that are others,

    step = t(D) + n·D/o·Δ/p         X = D/(o·step)
    T    = n·step/2 + chunks·t(D) + Δ + ahead·Δ/p
    ahead = n·X·(T - half of a prompt)                  R = X·(overhead + T + o·step)

where T is the time to first token without the server's overhead, ``ahead`` the prompts before a request's own (Schweitzer's approximation
of mean-value analysis). Everything follows from D in closed form, and R grows with it: D is found by halving an interval. While that is
done t and Δ are read off lines between ``NODES``; at the D found they are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.estimate.cases import Cases, Float, Setting
from recipe_core.estimate.operators import Parts, Step, total
from recipe_core.estimate.speculative import engine_steps, tokens_per_step

NODES = (1.0, 0.3, 0.05)
"""Shares of the resident requests at which steps are computed."""
HALVINGS = 16


@dataclass(frozen=True, slots=True)
class Flow:
    """Steady state of one replica with ``resident`` requests, ``decoding`` of which decode."""

    resident: Float
    decoding: Float
    requests_per_s: Float
    decode: Parts
    prefill: Parts
    step_s: Float
    prompt_s: Float

    @property
    def tpot_s(self) -> Float:
        """Mean time between two tokens of a request."""
        return total(self.decode)

    @property
    def ttft_s(self) -> Float:
        """Mean time from arrival to first token."""
        return total(self.prefill)


@dataclass(frozen=True, slots=True)
class _Balance:
    """What follows from a number of decoding sequences."""

    step_mean_s: Float
    rate: Float
    wait_s: Float
    queue_s: Float
    ttft_s: Float
    interference_s: Float


def decode_step(cases: Cases, decoding: Float) -> Step:
    """One decode step of a micro batch (a replica's sequences are spread over its pipeline stages), with the drafts that it verifies."""
    zero = np.zeros(len(cases))
    batch, queries = np.maximum(decoding / cases.pp, 1.0), 1 + cases.draft_tokens
    return Step(zero, zero, batch, cases.input_tokens + cases.output_tokens / 2, batch * queries, queries)


def idle_step(cases: Cases) -> Step:
    """A step in which nothing decodes."""
    zero = np.zeros(len(cases))
    return Step(zero, zero, zero, zero, zero)


def prompt_chunks(cases: Cases, chunked: bool) -> tuple[Float, Float, Float]:
    """Prompt tokens to compute, how many chunks they come in, and the context they see on average."""
    tokens = np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0)
    chunks = np.ceil(tokens / cases.max_batched_tokens) if chunked else np.ones(len(cases))
    return tokens, chunks, cases.input_tokens - tokens / 2


def prompts_a_step(cases: Cases) -> Float:
    """Whole prompts that fit into a step; at least one."""
    return np.maximum(cases.max_batched_tokens / np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0), 1.0)


def request_overhead_s(setting: Setting, cases: Cases) -> Float:
    """What a server adds to a request before it is scheduled; a static batch is measured without one."""
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    return overhead.request_s + overhead.input_token_s * cases.input_tokens


def prompt_step(setting: Setting, cases: Cases, beside: Step, arriving: Float) -> tuple[Step, Float]:
    """A step with prompts ``beside`` what else it has, and how many prompts it does, when so many arrive in a decode step."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    prompts = np.clip(arriving * chunks, 1.0, prompts_a_step(cases)) / chunks
    return replace(beside, prefill_tokens=prompts * tokens, prefill_context=context, sampled=beside.sampled + prompts), prompts


class Loop:
    """A replica of each case at steady state; ``most`` is the largest number of requests it can hold."""

    def __init__(self, setting: Setting, cases: Cases, most: Float, others: Float) -> None:
        self.setting, self.cases, self.most, self.others = setting, cases, most, others
        self.tokens = np.maximum(cases.output_tokens - 1, 1e-6)
        self.yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
        self.steps = self.tokens / self.yields
        self.chunks, self.per_step = prompt_chunks(cases, setting.engine.chunked_prefill)[1], prompts_a_step(cases)
        self.request_s = request_overhead_s(setting, cases)
        self.beside = 1.0 if setting.engine.mixes_prompts else 0.0  # a decode step goes along with each step of a prompt
        self.nodes = np.multiply.outer(NODES, most)
        self.times = [total(parts) for parts in self.parts(self.nodes)]

    def parts(self, decoding: Float) -> tuple[Parts, Parts]:
        """A decode step, and what one prompt adds to those it rides on (an engine that does not mix them takes steps of its own for it)."""
        step, mixes = decode_step(self.cases, decoding), self.setting.engine.mixes_prompts
        beside = step if mixes else idle_step(self.cases)
        with_prompts, prompts = prompt_step(self.setting, self.cases, beside, decoding / self.steps)
        decode, both = engine_steps(self.setting, self.cases, step, with_prompts)
        if not mixes:
            return decode, {name: seconds / prompts for name, seconds in both.items()}
        return decode, {name: np.maximum((both[name] - decode[name]) / prompts, 0.0) for name in both}

    def near(self, decoding: Float) -> tuple[Float, Float]:
        """Seconds of both, read off lines between the nodes."""
        out = []
        for k in range(2):
            value = np.zeros(len(decoding))
            for above in range(len(self.nodes) - 1):
                high, low = self.nodes[above], self.nodes[above + 1]
                slope = (self.times[k][above] - self.times[k][above + 1]) / (high - low)
                line = self.times[k][above + 1] + slope * (decoding - low)
                value = line if above == 0 else np.where(decoding < high, line, value)
            out.append(np.maximum(value, 1e-12))
        return out[0], out[1]

    def balance(self, decoding: Float, step_s: Float, prompt_s: Float) -> _Balance:
        """The formulas of the module."""
        stage_s = prompt_s / self.cases.pp
        interference = self.others * decoding / self.steps * stage_s
        step_mean_s = step_s + interference
        rate = decoding / (self.steps * step_mean_s)
        wait = self.others * step_mean_s / 2 + self.beside * (self.chunks - 1) * step_s
        own = wait + self.beside * step_s + prompt_s
        half = (self.beside * self.chunks * step_s + prompt_s) / 2 / self.per_step
        left = np.maximum(1 - self.others * rate * stage_s, 1e-9)
        ahead = np.minimum(self.others * rate * np.maximum(own - half, 0.0) / left, self.others * self.most)
        queue = ahead * stage_s
        return _Balance(step_mean_s, rate, wait, queue, self.request_s + own + queue, interference)

    def halved(self, enough: Float | None) -> Float:
        """The decoding sequences at which the loop holds ``most`` requests, or serves ``enough`` of them per second."""
        low, high = np.zeros(len(self.cases)), self.most.copy()
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            found = self.balance(middle, *self.near(middle))
            over = found.rate * found.ttft_s + middle > self.most if enough is None else found.rate > enough
            high, low = np.where(over, middle, high), np.where(over, low, middle)
        return np.maximum((low + high) / 2, 1e-9)

    def flow(self, decoding: Float, resident: Float | None = None) -> Flow:
        """The state in which so many sequences decode; ``resident`` follows from it where it is not given."""
        decode, prompt = self.parts(decoding)
        step_s, prompt_s = total(decode), total(prompt)
        found = self.balance(decoding, step_s, prompt_s)
        latency = found.ttft_s + self.steps * found.step_mean_s
        held = found.rate * latency if resident is None else resident
        first = {name: prompt[name] + self.beside * decode.get(name, 0.0) for name in prompt}
        return Flow(
            resident=held,
            decoding=decoding,
            requests_per_s=held / latency,
            decode={name: seconds / self.yields for name, seconds in (decode | {"prefill_interference": found.interference_s}).items()},
            prefill=first | {"schedule": found.wait_s, "prompts_ahead": found.queue_s, "request": self.request_s},
            step_s=step_s,
            prompt_s=prompt_s,
        )


def closed_loop(setting: Setting, cases: Cases, resident: Float) -> Flow:
    """Steady state with ``resident`` requests always in a replica, prompts spread evenly over time."""
    loop = Loop(setting, cases, resident, np.maximum(resident - 1, 0) / np.maximum(resident, 1))
    return loop.flow(loop.halved(None), resident)


def open_loop(setting: Setting, cases: Cases, limit: Float, arriving: Float) -> Flow:
    """Steady state at which a replica serves what arrives (requests per second), with at most ``limit`` requests in it."""
    loop = Loop(setting, cases, limit, np.ones(len(cases)))
    return loop.flow(loop.halved(arriving))
