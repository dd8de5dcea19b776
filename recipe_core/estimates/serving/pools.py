"""Prompts in one pool of devices, decoding in another: the steady state of both and the transfer.

A prefill replica takes prompts as they come, up to a step's worth at once: a step of ``b`` prompts
takes ``S(b)``. What arrives while it runs goes into the next, so ``b = λ·S(b)`` between one prompt
and a full step of ``g``. ``r`` ranks of data-parallel attention step together, so that ``b`` is
``1/r`` where one of them has a prompt, whose experts all share. With ``c = S(g)/g``, ``ρ = λ·c``
and ``U = min(r·λ·S(1/r), 1)`` a prompt waits

    W = U·S(b)/2 + ρ²·c / 2(1 - ρ)

which is the M/D/1 queue where a step holds one prompt (Pollaczek and Khinchine) and half a step
where steps are far from full. Decode steps take ``t(D)`` with ``D`` sequences and no prompts in
between, so with ``n`` steps a request

    TPOT = t(D)·steps/token    TTFT = overheads + W + S(b) + transfer + 3/2·t(D)    X = D/(n·t(D))

A closed loop is the D at which both pools and the transfer between them hold all requests; an open
loop the D at which X is the arrival rate. The slower pool limits both. The cache is sent once the
prompt is done: no overlap by layers, which could hide all but the last layer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.network import send_s
from recipe_core.estimates.serving.cache import context_bytes
from recipe_core.estimates.serving.cache_blocks import Counted
from recipe_core.estimates.serving.continuous_batching import (
    Flow,
    decode_step,
    prompt_chunks,
    prompts_a_step,
    request_overhead_s,
)
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.memory import Memory, serving_memory
from recipe_core.estimates.serving.rates import (
    Serving,
    active_replicas,
    flow_serving,
    resident_limit,
    to_client,
)
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step
from recipe_core.estimates.serving.weights import draft_layer

BISECTIONS = 30  # of the logarithm of D, whose relative error is then below 1e-7


@dataclass(frozen=True, slots=True)
class Pools(Columns):
    """The state of each pool, one number per case.

    prefill, memory: the prefill pool as cases of its own, and its memory. prefill_per_s,
    decode_per_s: the most requests per second that a pool serves. requests_per_s: what both serve.
    transfer_bytes: of one request, through the busiest device. transfer_s: its time.
    """

    prefill: Cases
    memory: Memory
    prefill_per_s: Float
    decode_per_s: Float
    requests_per_s: Float
    transfer_bytes: Float
    transfer_s: Float


@dataclass(frozen=True, slots=True)
class PromptSteps:
    """A replica of the prefill pool: the parts of a step of one prompt, and of a full ``group``.

    ``ranks`` of data-parallel attention that share experts step together; ``lone`` is a step in
    which only one of them has a prompt.
    """

    lone: Parts
    single: Parts
    full: Parts
    group: Float
    stages: Float
    ranks: Float

    def together(self, rate: Float) -> Float:
        """Mean prompts in a step of a rank at ``rate`` per second: from one of all ranks to full.

        Step time is linear between a lone prompt, one on each rank, and full steps.
        """
        lone_share = 1 / self.ranks
        few = self._prompts(rate, lone_share, total(self.lone), 1.0, total(self.single))
        many = self._prompts(rate, 1.0, total(self.single), self.group, total(self.full))
        return np.where(few < 1, np.maximum(few, lone_share), np.clip(many, 1.0, self.group))

    def _prompts(
        self, rate: Float, low: Float | float, low_s: Float, high: Float | float, high_s: Float
    ) -> Float:
        """Prompts ``j = rate · t(j)`` of a line through two steps; infinite beyond its rate."""
        more_s = (high_s - low_s) / np.maximum(high - low, 1e-9)
        headroom = 1 - rate / self.stages * more_s
        prompts = rate / self.stages * (low_s - low * more_s) / np.maximum(headroom, 1e-9)
        return np.where(headroom > 0, prompts, np.inf)

    def parts(self, together: Float) -> Parts:
        """Seconds of a step of so many prompts, by part."""
        more = np.maximum(together - 1, 0.0) / np.maximum(self.group - 1, 1e-9)
        less = np.maximum(1 - together, 0.0) / np.maximum(1 - 1 / self.ranks, 1e-9)
        return {
            name: less * self.lone[name] + (1 - less - more) * seconds + more * self.full[name]
            for name, seconds in self.single.items()
        }

    @property
    def prompt_s(self) -> Float:
        """Seconds between finished prompts when every step is full."""
        return total(self.full) / self.group / self.stages

    def wait_s(self, rate: Float) -> Float:
        """Seconds until a prompt's step begins at ``rate`` per second; infinite if overloaded."""
        load = rate * self.prompt_s
        busy = np.minimum(self.ranks * rate / self.stages * total(self.lone), 1.0)
        running = busy * total(self.parts(self.together(rate))) / self.stages / 2
        queue = load * load * self.prompt_s / (2 * np.maximum(1 - load, 1e-12))
        return np.where(load < 1, running + queue, np.inf)

    def bunch_s(self, prompts: Float) -> Float:
        """Mean seconds from start to end of ``prompts`` a rank that start at once."""
        group = np.clip(prompts, 1 / self.ranks, self.group)
        step_s = total(self.parts(group))
        return step_s + np.maximum((prompts - group) / 2, 0.0) * step_s / group / self.stages


def pool_steps(setting: Setting, pool: Cases) -> PromptSteps:
    """Steps of a prefill pool, whose cases make one token."""
    tokens, chunks, context = prompt_chunks(pool, setting.engine.chunked_prefill)
    group, zero = prompts_a_step(pool), np.zeros(len(pool))
    ranks = np.where(pool.shares_experts, pool.dp, 1).astype(float)

    def step_of(prompts: Float) -> Parts:
        step = Step(prompts * tokens / chunks, context, zero, zero, prompts / chunks)
        parts = engine_step(setting, pool, step)
        return {name: chunks * seconds for name, seconds in parts.items()}

    single = step_of(zero + 1)
    lone = single
    if (ranks > 1).any():
        # a rank's own work, and the experts' for a prompt that all ranks share
        spread = step_of(1 / ranks)
        lone = {name: spread[name] if name in _EXPERTS else of for name, of in single.items()}
    return PromptSteps(lone, single, step_of(group), group, pool.pp.astype(float), ranks)


_EXPERTS = ("experts", "all_to_all")


def transfer_bytes(setting: Setting, cases: Cases) -> Float:
    """Cache of one request that the busiest device sends or receives, in bytes (one per case).

    Heads and stages are sent in parallel by as many ranks as the narrower pool has. An MLA latent
    is sent complete to each rank, as each keeps all of it. A prefix cache hit is sent too.
    """
    pool = cases.prefill_pool
    narrow = {name: np.minimum(getattr(cases, name), getattr(pool, name)) for name in ("tp", "pp")}
    return sent_bytes(setting, replace(cases, **narrow))


def sent_bytes(setting: Setting, cases: Cases) -> Float:
    """Cache of one request that the busiest device of a pool sends to one that is as wide."""
    layers: Counted = (*setting.model.kinds, (draft_layer(setting.model), cases.draft_layers))
    return context_bytes(setting, layers, cases, cases.input_tokens) / cases.pp


def transfer_s(setting: Setting, cases: Cases) -> Float:
    """Seconds to send a request's cache: by fabric where it reaches both pools, else by network."""
    cluster, reach = setting.cluster, cases.per_node
    if cluster.rack_scale:
        reach = np.full(len(cases), cluster.fabric.domain or 1)
    return send_s(cluster, cases.devices > reach, transfer_bytes(setting, cases))


def pool_request_s(setting: Setting, cases: Cases) -> Float:
    """Seconds before a request is scheduled in a prefill pool: the engine's own.

    What a generation's servers add to it while they decode (``kernels``, ``request``) is not of a
    pool that does not, and would be counted twice: ``handoff_s`` is all that a pool adds.
    """
    scale = setting.engine.kernel_time(setting.cluster.device.architecture, "request")
    return request_overhead_s(setting, cases) / scale


@dataclass(frozen=True, slots=True)
class _State:
    """Both pools with ``decoding`` sequences in each active decode replica.

    ``inside``: requests in both pools and between them.
    """

    decoding: Float
    requests_per_s: Float
    inside: Float
    step: Parts
    prompt: Parts
    wait_s: Float
    sent_s: Float


@dataclass(frozen=True, slots=True)
class _Line:
    """The part of a request's way through both pools that does not depend on the load.

    request_s, handoff_s: before it is scheduled, and from pool to pool. bunched: the share of
    prompts that start at once.
    """

    setting: Setting
    cases: Cases
    prefill: PromptSteps
    transfer_s: Float
    request_s: Float
    handoff_s: float
    bunched: float

    @property
    def steps(self) -> Float:
        """Decode steps of a request: one for its first token, and those for the others."""
        yields = tokens_per_step(self.cases.draft_tokens, self.cases.acceptance)
        return 1 + (self.cases.output_tokens - 1) / yields

    def decode_per_s(self, decoding: Float, replicas: Float) -> Float:
        """Requests per second of ``replicas`` that decode so many sequences each."""
        step_s = total(engine_step(self.setting, self.cases, decode_step(self.cases, decoding)))
        return replicas * decoding / (self.steps * step_s)

    def at(self, decoding: Float) -> _State:
        """The state with so many sequences in each decode replica that has work.

        ``inside`` is infinite where prompts queue up.
        """
        cases, prefill = self.cases, self.prefill
        senders = _busy_replicas(self.setting, cases.prefill_pool)
        receivers = _busy_replicas(self.setting, cases)
        step = engine_step(self.setting, cases, decode_step(cases, decoding))
        step_s = total(step)
        rate = receivers * decoding / (self.steps * step_s)
        requests = np.full(len(cases), np.inf)  # per sender
        if self.setting.mode != "open":
            requests = cases.load / senders
        rivals = rate / senders * (1 - 1 / np.maximum(requests, 1.0))  # none waits for itself
        prompt, wait_s = prefill.parts(prefill.together(rate / senders)), prefill.wait_s(rivals)
        if self.bunched:
            at_once = cases.load / cases.prefill_pool.replicas
            bunch_s = np.maximum(prefill.bunch_s(at_once) - total(prompt), 0.0)
            wait_s = (1 - self.bunched) * wait_s + self.bunched * bunch_s
        wait_s = np.where(rate / senders * prefill.prompt_s < 1, wait_s, np.inf)
        link = rate / np.minimum(senders, receivers) * self.transfer_s
        # M/D/1 on the link between the pools
        queued_s = self.transfer_s * (1 + link / (2 * np.maximum(1 - link, 1e-12)))
        sent_s = np.where(link < 1, queued_s, np.inf)
        before_s = self.request_s + self.handoff_s + wait_s + total(prompt) + sent_s + step_s / 2
        inside = rate * before_s + receivers * decoding
        return _State(decoding, rate, inside, step, prompt, wait_s, sent_s)

    def solve(self, limit: Float) -> _State:
        """The state with the most sequences, up to ``limit`` a replica, that the load can fill."""
        low, high = np.full(len(self.cases), 1e-6), limit.copy()
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            state = self.at(middle)
            reached = state.requests_per_s if self.setting.mode == "open" else state.inside
            fits = (reached <= self.cases.load) & np.isfinite(state.inside)
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return self.at(low)


def _busy_replicas(setting: Setting, cases: Cases) -> Float:
    """Replicas of a pool with work; arrivals reach all."""
    return cases.replicas.astype(float) if setting.mode == "open" else active_replicas(cases)


def solve_disaggregated(
    setting: Setting, cases: Cases, decode_memory: Memory
) -> tuple[Serving, Pools]:
    """Latency and throughput of cases with a prefill pool, and what each pool does.

    ``decode_memory`` is that of the decode pool. A closed loop starts with all its requests at
    once; the mean of queued requests (offline) waits for half of the queue.
    """
    pool = replace(cases.prefill_pool, output_tokens=np.ones(len(cases)))
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    handoff, limit = setting.engine.handoff_s, resident_limit(setting, cases, decode_memory)
    line = _Line(
        setting,
        cases,
        prefill=pool_steps(setting, pool),
        transfer_s=transfer_s(setting, cases),
        request_s=pool_request_s(setting, cases),
        handoff_s=handoff.value if handoff else 0.0,
        bunched=overhead.bunched if setting.mode == "closed" else 0.0,
    )
    ceiling = limit
    if setting.mode != "open":
        ceiling = np.minimum(limit, cases.load / _busy_replicas(setting, cases))
    state = line.solve(ceiling)
    prefill_per_s = pool.replicas / line.prefill.prompt_s
    decode_per_s = line.decode_per_s(limit, cases.replicas.astype(float))
    per_replica = state.requests_per_s / _busy_replicas(setting, pool)
    cached = per_replica * (total(state.prompt) + state.sent_s)
    pools = Pools(
        prefill=pool,
        memory=serving_memory(setting, pool, np.maximum(cached, 1.0)),
        prefill_per_s=prefill_per_s,
        decode_per_s=decode_per_s,
        requests_per_s=state.requests_per_s,
        transfer_bytes=transfer_bytes(setting, cases),
        transfer_s=line.transfer_s,
    )
    served = _pools_serving(line, state, np.minimum(prefill_per_s, decode_per_s), limit)
    return to_client(setting, cases, served), pools


def _pools_serving(line: _Line, state: _State, highest_per_s: Float, limit: Float) -> Serving:
    """The state as means over requests."""
    cases, mode, zero = line.cases, line.setting.mode, np.zeros(len(line.cases))
    step_s = total(state.step)
    waiting_s = zero
    if mode != "open":
        waiting_s = np.maximum(cases.load - state.inside, 0.0) / state.requests_per_s
    drained = 0.5 if mode == "offline" else 1.0
    # requests wait for the decode pool where it is full, for the prefill pool elsewhere
    full = state.decoding > 0.999 * limit
    prefill = {
        **{name: seconds + state.step[name] for name, seconds in state.prompt.items()},
        "schedule": step_s / 2,
        "prompts_ahead": drained * (state.wait_s + np.where(full, 0.0, waiting_s)),
        "transfer": state.sent_s,
        "request": line.request_s,
        "handoff": zero + line.handoff_s,
        "engine_queue": drained * np.where(full, waiting_s, 0.0),
    }
    decode = {
        name: seconds / tokens_per_step(cases.draft_tokens, cases.acceptance)
        for name, seconds in state.step.items()
    }
    load_factor = cases.load / highest_per_s if mode == "open" else None
    flow = Flow(
        resident=state.decoding,
        decoding=state.decoding,
        requests_per_s=state.requests_per_s,
        decode=decode,
        prefill=prefill,
        step_s=step_s,
        prompt_s=zero,  # prompts ride on no decode step
        full_step_s=step_s,
    )
    return flow_serving(cases, flow, prefill, state.requests_per_s, load_factor)
