"""Prompts in one pool of devices, decoding in another: the steady state of both, and the cache that goes from one to the other.

A prefill replica takes prompts as they come and computes up to a step's worth at once: a step of ``b`` prompts takes ``S(b)``. What
arrives while it runs goes into the next, so ``b = λ·S(b)`` between one prompt and a full step of ``g``. With ``c = S(g)/g``, ``ρ = λ·c``
and ``U = min(λ·S(1), 1)`` a prompt waits

    W = U·S(b)/2 + ρ²·c / 2(1 - ρ)

which is the M/D/1 queue where a step holds one prompt (Pollaczek and Khinchine) and half a step where steps are far from full. Decode
steps take ``t(D)`` with ``D`` sequences and no prompts between them, so with ``n`` steps a request

    TPOT = t(D)·steps/token    TTFT = overheads + W + S(b) + transfer + 3/2·t(D)    X = D/(n·t(D))

A closed loop is the D at which the requests in both pools and between them are all there are; an open one that at which X is what arrives.
The slower pool bounds both. The cache is sent once the prompt is done: no overlap by layers, which could hide all but the last layer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.physics.network import send_s
from recipe_core.physics.serving.cache import Counted, context_bytes
from recipe_core.physics.serving.continuous_batching import (
    decode_step,
    prompt_chunks,
    prompts_a_step,
    request_overhead_s,
)
from recipe_core.physics.serving.memory import Memory, memory
from recipe_core.physics.serving.operators import Parts, Step, total
from recipe_core.physics.serving.rates import Serving, active_replicas, resident_limit
from recipe_core.physics.serving.speculative import engine_step, tokens_per_step
from recipe_core.physics.serving.weights import draft_layer
from recipe_core.space.serving import Cases, Setting

BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Pools:
    """What is known of each pool (arrays over cases).

    prefill, memory: the prefill pool as cases of its own, and its memory. prefill_per_s, decode_per_s: requests per second that a pool
    serves at most. requests_per_s: what both serve. transfer_bytes: of one request, through the busiest device. transfer_s: its time.
    """

    prefill: Cases
    memory: Memory
    prefill_per_s: Float
    decode_per_s: Float
    requests_per_s: Float
    transfer_bytes: Float
    transfer_s: Float


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A replica of the prefill pool: a step of one prompt and of as many as fit, by cause, and how many these are."""

    one: Parts
    full: Parts
    group: Float
    stages: Float

    def together(self, rate: Float) -> Float:
        """Prompts of a step when ``rate`` arrive per second; between its ends a step's time is taken as linear."""
        alone_s = total(self.one)
        more_s = (total(self.full) - alone_s) / np.maximum(self.group - 1, 1e-9)
        left = 1 - rate / self.stages * more_s
        wanted = np.where(
            left > 0, rate / self.stages * (alone_s - more_s) / np.maximum(left, 1e-9), self.group
        )
        return np.clip(wanted, 1.0, self.group)

    def parts(self, together: Float) -> Parts:
        """Seconds of a step of so many prompts, by cause."""
        share = (together - 1) / np.maximum(self.group - 1, 1e-9)
        return {name: (1 - share) * self.one[name] + share * self.full[name] for name in self.one}

    @property
    def prompt_s(self) -> Float:
        """Seconds between prompts that leave when every step is full."""
        return total(self.full) / self.group / self.stages

    def wait_s(self, rate: Float) -> Float:
        """Seconds until a prompt's step begins when ``rate`` arrive per second; infinite where they are too many."""
        load, busy = rate * self.prompt_s, np.minimum(rate / self.stages * total(self.one), 1.0)
        running = busy * total(self.parts(self.together(rate))) / self.stages / 2
        return np.where(
            load < 1,
            running + load * load * self.prompt_s / (2 * np.maximum(1 - load, 1e-12)),
            np.inf,
        )

    def bunch_s(self, prompts: Float) -> Float:
        """Mean seconds from start to end of ``prompts`` that come at once."""
        group = np.clip(prompts, 1.0, self.group)
        step_s = total(self.parts(group))
        return step_s + np.maximum((prompts - group) / 2, 0.0) * step_s / group / self.stages


def _prefill(setting: Setting, pool: Cases) -> _Prefill:
    tokens, chunks, context = prompt_chunks(pool, setting.engine.chunked_prefill)
    group, zero = prompts_a_step(pool), np.zeros(len(pool))

    def of(prompts: Float) -> Parts:
        step = Step(prompts * tokens / chunks, context, zero, zero, prompts / chunks)
        return {
            name: chunks * seconds for name, seconds in engine_step(setting, pool, step).items()
        }

    return _Prefill(of(zero + 1), of(group), group, pool.pp.astype(float))


def transfer_bytes(setting: Setting, cases: Cases) -> Float:
    """Cache of one request that the busiest device sends or receives.

    Heads and stages go side by side from as many ranks as the narrower pool has. An MLA latent is sent whole to each rank, since each
    keeps all of it. A prompt's part of a prefix cache is sent too.
    """
    pool, model = cases.prefill_pool, setting.model
    narrow = replace(cases, tp=np.minimum(cases.tp, pool.tp))
    layers: Counted = (*model.kinds, (draft_layer(model), cases.draft_layers))
    return context_bytes(setting, layers, narrow, cases.input_tokens) / np.minimum(
        cases.pp, pool.pp
    )


def transfer_s(setting: Setting, cases: Cases) -> Float:
    """Seconds to send the cache of one request: over the fabric where both pools fit into its reach, else over the network."""
    cluster = setting.cluster
    reach = (
        np.full(len(cases), cluster.fabric.domain or 1) if cluster.rack_scale else cases.per_node
    )
    return send_s(cluster, cases.devices > reach, transfer_bytes(setting, cases))


@dataclass(frozen=True, slots=True)
class _State:
    """Both pools with ``decoding`` sequences in each active decode replica; ``inside``: requests in both pools and between them."""

    decoding: Float
    requests_per_s: Float
    inside: Float
    step: Parts
    prompt: Parts
    wait_s: Float
    sent_s: Float


@dataclass(frozen=True, slots=True)
class _Line:
    """The way of a request through both pools: what does not depend on the load.

    request_s, handoff_s: before it is scheduled, and for going from pool to pool. bunched: the share of prompts that come at once.
    """

    setting: Setting
    cases: Cases
    prefill: _Prefill
    transfer_s: Float
    request_s: Float
    handoff_s: float
    bunched: float

    @property
    def steps(self) -> Float:
        """Decode steps of a request: one for its first token, and those for the others."""
        return 1 + (self.cases.output_tokens - 1) / tokens_per_step(
            self.cases.draft_tokens, self.cases.acceptance
        )

    def decode_per_s(self, decoding: Float, replicas: Float) -> Float:
        """Requests per second of ``replicas`` that decode so many sequences each."""
        return (
            replicas
            * decoding
            / (
                self.steps
                * total(engine_step(self.setting, self.cases, decode_step(self.cases, decoding)))
            )
        )

    def at(self, decoding: Float) -> _State:
        """The state with so many sequences in each decode replica that has work; ``inside`` is infinite where prompts queue up."""
        cases, senders, receivers = (
            self.cases,
            _at_work(self.setting, self.cases.prefill_pool),
            _at_work(self.setting, self.cases),
        )
        step = engine_step(self.setting, cases, decode_step(cases, decoding))
        step_s = total(step)
        rate = receivers * decoding / (self.steps * step_s)
        each = (
            cases.load / senders if self.setting.mode != "open" else np.full(len(cases), np.inf)
        )  # requests there are
        seen = rate / senders * (1 - 1 / np.maximum(each, 1.0))  # none waits for itself
        prompt, wait_s = (
            self.prefill.parts(self.prefill.together(rate / senders)),
            self.prefill.wait_s(seen),
        )
        if self.bunched:
            wait_s = (1 - self.bunched) * wait_s + self.bunched * np.maximum(
                self.prefill.bunch_s(each) - total(prompt), 0.0
            )
        wait_s = np.where(rate / senders * self.prefill.prompt_s < 1, wait_s, np.inf)
        link = rate / np.minimum(senders, receivers) * self.transfer_s
        sent_s = np.where(
            link < 1, self.transfer_s * (1 + link / (2 * np.maximum(1 - link, 1e-12))), np.inf
        )
        before_s = self.request_s + self.handoff_s + wait_s + total(prompt) + sent_s + step_s / 2
        return _State(
            decoding, rate, rate * before_s + receivers * decoding, step, prompt, wait_s, sent_s
        )

    def solve(self, limit: Float) -> _State:
        """The most sequences that decode, up to ``limit`` a replica, with no more requests than there are (open: no more than come)."""
        low, high = np.full(len(self.cases), 1e-6), limit.copy()
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            state = self.at(middle)
            reached = state.requests_per_s if self.setting.mode == "open" else state.inside
            fits = (reached <= self.cases.load) & np.isfinite(state.inside)
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return self.at(low)


def _at_work(setting: Setting, cases: Cases) -> Float:
    """Replicas of a pool that have work; arrivals reach all."""
    return cases.replicas.astype(float) if setting.mode == "open" else active_replicas(cases)


def disaggregated(setting: Setting, cases: Cases, decode_memory: Memory) -> tuple[Serving, Pools]:
    """Latency and throughput of cases with a prefill pool, and what each pool does; ``decode_memory`` is that of the decoding pool.

    A closed loop starts with all its requests at once; of queued requests (offline) the mean one has seen half of the queue.
    """
    pool = replace(cases.prefill_pool, output_tokens=np.ones(len(cases)))
    bunched = (
        setting.engine.overhead(setting.cluster.device.runtime).bunched
        if setting.mode == "closed"
        else 0.0
    )
    request_s, handoff = request_overhead_s(setting, cases), setting.engine.handoff_s
    handoff_s = handoff.value if handoff else 0.0
    line = _Line(
        setting,
        cases,
        _prefill(setting, pool),
        transfer_s(setting, cases),
        request_s,
        handoff_s,
        bunched,
    )
    limit = resident_limit(setting, cases, decode_memory)
    state = line.solve(
        limit
        if setting.mode == "open"
        else np.minimum(limit, cases.load / _at_work(setting, cases))
    )
    prefill_per_s, decode_per_s = (
        pool.replicas / line.prefill.prompt_s,
        line.decode_per_s(limit, cases.replicas.astype(float)),
    )
    held = state.requests_per_s / _at_work(setting, pool) * (total(state.prompt) + state.sent_s)
    pools = Pools(
        prefill=pool,
        memory=memory(setting, pool, np.maximum(held, 1.0)),
        prefill_per_s=prefill_per_s,
        decode_per_s=decode_per_s,
        requests_per_s=state.requests_per_s,
        transfer_bytes=transfer_bytes(setting, cases),
        transfer_s=line.transfer_s,
    )
    return _serving(line, state, np.minimum(prefill_per_s, decode_per_s), limit), pools


def _serving(line: _Line, state: _State, most_per_s: Float, limit: Float) -> Serving:
    """The state as means over requests."""
    cases, mode, zero = line.cases, line.setting.mode, np.zeros(len(line.cases))
    step_s = total(state.step)
    behind = (
        np.maximum(cases.load - state.inside, 0.0) / state.requests_per_s
        if mode != "open"
        else zero
    )
    drained = 0.5 if mode == "offline" else 1.0
    full = (
        state.decoding > 0.999 * limit
    )  # then they wait for the decode pool, else for the prefill pool
    first = {name: seconds + state.step[name] for name, seconds in state.prompt.items()}
    prefill = first | {
        "schedule": step_s / 2,
        "prompts_ahead": drained * (state.wait_s + np.where(full, 0.0, behind)),
        "transfer": state.sent_s,
        "request": line.request_s,
        "handoff": zero + line.handoff_s,
        "engine_queue": drained * np.where(full, behind, 0.0),
    }
    decode = {
        name: seconds / tokens_per_step(cases.draft_tokens, cases.acceptance)
        for name, seconds in state.step.items()
    }
    ttft_s, tpot_s = total(prefill), total(decode)
    return Serving(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_latency_s=ttft_s + (cases.output_tokens - 1) * tpot_s,
        output_tokens_per_s=state.requests_per_s * cases.output_tokens,
        resident=state.decoding,
        unstable=cases.load >= most_per_s if mode == "open" else np.zeros(len(cases), dtype=bool),
        decode=decode,
        prefill=prefill,
        decoding=state.decoding,
        step_s=total(state.step),
        prompt_s=np.zeros(len(cases)),  # prompts ride on no decode step
    )
