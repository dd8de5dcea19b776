"""From the time of a step to the time of a request and the throughput of a deployment.

Continuous batching at steady state: ``R`` requests are resident in a replica, ``D`` of them decode. A decode step takes
``t(D)``; each request's prompt adds ``Δ`` (its chunks' marginal time) to the steps of the others. With ``o = output - 1``
steps per request,

    TPOT = t(D) + (1 - s/2) · D/o · Δ/pp    TTFT = request overhead + ½ TPOT + chunks · t(D) + Δ · (1 + prompts ahead)
    X = R / (TTFT + o · TPOT)               D = X · o · TPOT

solved by damped iteration. ``s`` is the share of a closed loop that moves in waves: requests of equal length that started
together end together, so that their successors' prompts queue behind each other (on average half of them are ahead) and
disturb only those decoding that came before (half of them). The rest is mixed: prompts ahead by Schweitzer's approximation of
mean-value analysis. Requests beyond what the cache or the engine's limit holds wait in its queue. Left out: variance of lengths,
preemption, percentiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Bool, Cases, Float, Setting
from recipe_core.estimate.memory import Memory
from recipe_core.estimate.operators import Parts, Step, step_parts, total

ITERATIONS = 8
BISECTIONS = 16
WAVES = 0.2  # fitted: the share at which the time to first token of published closed-loop runs is off least (scripts/accuracy.py)


@dataclass(frozen=True, slots=True)
class Serving:
    """Means over requests; throughput of the whole deployment.

    The parts of ``decode`` add up to ``tpot_s``, those of ``prefill`` to ``ttft_s``.
    """

    ttft_s: Float
    tpot_s: Float
    request_latency_s: Float
    output_tokens_per_s: Float
    resident: Float
    unstable: Bool
    decode: Parts
    prefill: Parts


@dataclass(frozen=True, slots=True)
class _Flow:
    """Steady state of one replica with ``resident`` requests."""

    resident: Float
    requests_per_s: Float
    decode: Parts
    prefill: Parts

    @property
    def tpot_s(self) -> Float:
        return total(self.decode)

    @property
    def ttft_s(self) -> Float:
        return total(self.prefill)


def resident_limit(cases: Cases, memory: Memory) -> Float:
    """Requests one replica can hold at their mean context: bounded by the cache and by the engine's sequence limit."""
    mean_context = cases.input_tokens + cases.output_tokens / 2
    return np.maximum(np.minimum(np.floor(memory.pool_tokens / mean_context), cases.max_num_seqs), 1.0)


def active_replicas(cases: Cases) -> Float:
    """Replicas that have work: no more than there are requests (an arrival rate reaches all)."""
    return np.minimum(cases.replicas, np.maximum(cases.load, 1.0))


def serving(setting: Setting, cases: Cases, memory: Memory) -> Serving:
    """Latency and throughput of each case under its load, by the workload's mode."""
    limit = resident_limit(cases, memory)
    if setting.mode == "static":
        return _static(setting, cases)
    if setting.mode == "open":
        return _open(setting, cases, limit)
    replicas = active_replicas(cases)
    waiting_room = cases.load / replicas
    flow = _closed(setting, cases, np.minimum(waiting_room, limit), WAVES)
    behind = np.maximum(waiting_room - flow.resident, 0)
    if setting.mode == "offline":
        behind = behind / 2  # the queue drains: on average a request has seen half of it
    queue_s = behind / flow.requests_per_s
    return _result(cases, flow, flow.prefill | {"engine_queue": queue_s}, replicas * flow.requests_per_s)


def _result(cases: Cases, flow: _Flow, prefill: Parts, requests_per_s: Float, unstable: Bool | None = None) -> Serving:
    ttft_s, tpot_s = total(prefill), flow.tpot_s
    return Serving(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_latency_s=ttft_s + (cases.output_tokens - 1) * tpot_s,
        output_tokens_per_s=requests_per_s * cases.output_tokens,
        resident=flow.resident,
        unstable=np.zeros(len(cases), dtype=bool) if unstable is None else unstable,
        decode=flow.decode,
        prefill=prefill,
    )


def _decode_step(cases: Cases, decoding: Float) -> Step:
    """One decode step of a micro batch (a replica's sequences are spread over its pipeline stages)."""
    zero = np.zeros(len(cases))
    batch = np.maximum(decoding / cases.pp, 1.0)
    return Step(zero, zero, batch, cases.input_tokens + cases.output_tokens / 2, batch)


def _prompt(cases: Cases, chunked: bool) -> tuple[Float, Float, Float]:
    """Prompt tokens to compute, how many chunks they come in, and the context they see on average."""
    tokens = np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0)
    chunks = np.ceil(tokens / cases.max_batched_tokens) if chunked else np.ones(len(cases))
    return tokens, chunks, cases.input_tokens - tokens / 2


def _marginal(setting: Setting, cases: Cases, decoding: Step, decode_parts: Parts) -> tuple[Parts, Float]:
    """What one prompt adds to the steps it rides on, by cause, and how many steps those are."""
    tokens, chunks, context = _prompt(cases, setting.engine.chunked_prefill)
    mixed = Step(tokens / chunks, context, decoding.sequences, decoding.context, decoding.sampled + 1 / chunks)
    parts = step_parts(setting, cases, mixed)
    return {name: np.maximum(chunks * (parts[name] - decode_parts[name]), 0.0) for name in parts}, chunks


def _request_s(setting: Setting, cases: Cases) -> Float:
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    return overhead.request_s + overhead.input_token_s * cases.input_tokens


def _closed(setting: Setting, cases: Cases, resident: Float, waves: float) -> _Flow:
    """Steady state with ``resident`` requests always in a replica, a share ``waves`` of which moves together."""
    steps = np.maximum(cases.output_tokens - 1, 1e-6)
    decoding, ahead = resident.copy(), np.zeros(len(cases))
    for _ in range(ITERATIONS):
        step = _decode_step(cases, decoding)
        decode_parts = step_parts(setting, cases, step)
        prompt, chunks = _marginal(setting, cases, step, decode_parts)
        step_s, prompt_s = total(decode_parts), total(prompt)
        interference = (1 - waves / 2) * decoding / steps * prompt_s / cases.pp
        tpot = step_s + interference
        wait, queue = tpot / 2 + (chunks - 1) * step_s, ahead * prompt_s / cases.pp
        ttft = _request_s(setting, cases) + wait + queue + step_s + prompt_s
        rate = resident / (ttft + steps * tpot)
        others = np.maximum(resident - 1, 0) / np.maximum(resident, 1)
        mixed = np.minimum(others * rate * (ttft - _request_s(setting, cases)), others * resident)
        in_waves = np.maximum(resident - 1, 0) / 2
        ahead = 0.5 * ahead + 0.5 * (waves * in_waves + (1 - waves) * mixed)
        decoding = 0.5 * decoding + 0.5 * np.minimum(rate * steps * tpot, resident)
    first = {name: prompt[name] + decode_parts[name] for name in prompt}
    return _Flow(
        resident=resident,
        requests_per_s=rate,
        decode=decode_parts | {"prefill_interference": interference},
        prefill=first | {"schedule": wait, "prompts_ahead": queue, "request": _request_s(setting, cases)},
    )


def _open(setting: Setting, cases: Cases, limit: Float) -> Serving:
    """The number of resident requests at which a replica serves just what arrives; unstable when even a full one does not."""
    arriving = cases.load / cases.replicas
    full = _closed(setting, cases, limit, 0.0)
    unstable = arriving >= full.requests_per_s
    low, high = np.full(len(cases), 1e-3), limit.copy()
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        enough = _closed(setting, cases, middle, 0.0).requests_per_s >= arriving
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    flow = _closed(setting, cases, high, 0.0)
    return _result(cases, flow, flow.prefill, np.minimum(cases.load, cases.replicas * full.requests_per_s), unstable)


def _static(setting: Setting, cases: Cases) -> Serving:
    """One batch: all prompts first, then all sequences decode together."""
    replicas = active_replicas(cases)
    batch = cases.load / replicas
    step = _decode_step(cases, batch)
    decode = step_parts(setting, cases, step)
    tokens, chunks, context = _prompt(cases, setting.engine.chunked_prefill)
    chunks = np.maximum(chunks, np.ceil(batch * tokens / cases.max_batched_tokens)) if setting.engine.chunked_prefill else chunks
    zero = np.zeros(len(cases))
    prompt = step_parts(setting, cases, Step(batch * tokens / chunks, context, zero, zero, batch / chunks))
    prefill = {name: chunks * seconds for name, seconds in prompt.items()} | {"request": _request_s(setting, cases)}
    ttft_s, tpot_s = total(prefill), total(decode)
    latency = ttft_s + (cases.output_tokens - 1) * tpot_s
    flow = _Flow(batch, batch / latency, decode, prefill)
    return _result(cases, flow, prefill, replicas * flow.requests_per_s)
