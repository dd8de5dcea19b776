"""From the time of a step to the time of a request and the throughput of a deployment.

A closed loop and random arrivals are steady states of continuous batching (`continuous_batching`);
a static batch runs together; a full queue is a closed loop of all that a replica holds. A closed
loop starts with all its requests at once: the share ``bunched`` of the prompts (a benchmark sends
about ten times as many requests as run at once) waits for a batch of them instead; where all
lengths are exact so do later ones (`wave_share`). What an engine does every so many steps only
comes on top (`to_client`). Both agree with the event simulation of ``simulate`` within a few
percent. Requests beyond what the cache or the engine's limit holds wait in its queue. Of varying
lengths only a stated shape counts. Left out here: preemption, percentiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache import reserved_tokens
from recipe_core.estimates.serving.continuous_batching import (
    INTERFERENCE,
    Flow,
    Loop,
    awaited_blocks,
    closed_loop_flow,
    decode_step,
    moved_blocks,
    open_loop,
    prompt_chunks,
    prompts_a_step,
    request_overhead_s,
)
from recipe_core.estimates.serving.drain import drain_of
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step

# Of so many lengths of a shape one is looked at where requests are counted one by one.
SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Serving(Columns):
    """Means over requests, one number per case; throughput of the whole deployment.

    The parts of ``decode`` add up to ``tpot_s``, those of ``prefill`` to ``ttft_s``. ``decoding``:
    sequences of a replica that decode at once; ``step_s``: a step of theirs; ``prompt_s``: what a
    prompt adds to the steps it shares. Of an open loop ``load_factor`` is what arrives as a share
    of what a full replica serves, ``slowing`` the share of a step's time that grows as sequences
    do; both are 0 elsewhere.
    """

    ttft_s: Float
    tpot_s: Float
    request_latency_s: Float
    output_tokens_per_s: Float
    resident: Float
    load_factor: Float
    slowing: Float
    decode: Parts
    prefill: Parts
    decoding: Float
    step_s: Float
    prompt_s: Float

    @property
    def unstable(self) -> Bool:
        """Cases whose replicas serve less than arrives."""
        return np.asarray(self.load_factor >= 1)


def resident_limit(setting: Setting, cases: Cases, memory: Memory) -> Float:
    """Requests that one replica can hold (one per case): bounded by its cache and by the engine.

    The cache holds requests at their mean length, or at what the engine reserves for each.
    Where nothing is cached only the engine's own limit counts.
    """
    if not setting.caches:
        return np.maximum(cases.max_num_seqs, 1.0)
    fitting = np.floor(memory.kv_cache_tokens / reserved_tokens(setting, cases))
    return np.maximum(np.minimum(fitting, cases.max_num_seqs), 1.0)


def is_burst(setting: Setting) -> bool:
    """Return whether a queue is worked off to its last answer, however long that is."""
    return setting.mode == "offline" and bool(setting.answers)


def active_replicas(cases: Cases) -> Float:
    """Replicas with work: at most one per request (an arrival rate reaches all)."""
    return np.minimum(cases.replicas, np.maximum(cases.load, 1.0))


def solve_serving(setting: Setting, cases: Cases, memory: Memory) -> Serving:
    """Latency and throughput of each case under its load, by the workload's mode."""
    limit = resident_limit(setting, cases, memory)
    if setting.mode == "static":
        return _serve_static_batch(setting, cases)
    if setting.mode == "open":
        return to_client(setting, cases, _serve_open_loop(setting, cases, limit))
    replicas = active_replicas(cases)
    waiting_room = cases.load / replicas
    if is_burst(setting):
        return _serve_burst(setting, cases, solved_flow(setting, cases, limit))
    flow = _bunch_prompts(setting, cases, solved_flow(setting, cases, limit))
    waiting = np.maximum(waiting_room - flow.resident, 0)
    if setting.mode == "offline":
        waiting = waiting / 2  # the queue drains: on average a request has seen half of it
    prefill = {**flow.prefill, "engine_queue": waiting / flow.requests_per_s}
    served = flow_serving(cases, flow, prefill, replicas * flow.requests_per_s)
    return to_client(setting, cases, served)


def to_client(setting: Setting, cases: Cases, served: Serving) -> Serving:
    """Return what clients see where requests enter, and tokens leave, every so many steps only.

    Of ``R`` decode steps from one look for requests to the next, a request waits ``(R - 1)/2`` on
    average; a prompt's step and an idle scheduler look at once, and who would wait in the engine's
    queue anyway loses nothing. A closed loop has so much less throughput. With ``I`` tokens sent
    together the first waits for ``I - 1`` more where the engine does not send it alone; the last is
    sent when it is made, so that the others come so much faster.

    A prompt also waits until every rank of data-parallel attention has one (`rank_wait_s`).

    Only servers have intervals: none in a static batch, and nobody reads along a queue that is
    worked off. Prompts of a pool of their own meet no decode steps.
    """
    intervals = setting.engine.intervals
    slow = (cases.recv_interval > 1) | (cases.stream_interval > 1) | (cases.dp > 1)
    if intervals is None or setting.mode not in ("closed", "open") or not slow.any():
        return served
    step_s = served.tpot_s * tokens_per_step(cases.draft_tokens, cases.acceptance)
    decoding_share = np.clip(served.resident - 1, 0.0, 1.0)
    if setting.mode == "open":  # arrivals find nobody decoding as often as a Poisson count is zero
        decoding_share = 1 - np.exp(-served.resident)
    receive_s = np.where(
        cases.disaggregated, 0.0, decoding_share * (cases.recv_interval - 1) / 2 * step_s
    )
    receive_s = np.maximum(receive_s - served.prefill.get("engine_queue", 0.0), 0.0)
    ranks_s = rank_wait_s(cases, served, intervals.rank_wait_steps, step_s)
    ranks_s = np.where(cases.disaggregated, 0.0, decoding_share**cases.dp * ranks_s)
    held_tokens = np.zeros(len(cases))
    if intervals.first_token_waits:
        held_tokens = np.minimum(cases.stream_interval, cases.output_tokens) - 1
    stream_s = held_tokens * served.tpot_s
    latency_s = served.request_latency_s + receive_s + ranks_s
    rest = 1 - held_tokens / np.maximum(cases.output_tokens - 1, 1.0)
    slower = served.request_latency_s / latency_s if setting.mode == "closed" else 1.0
    return replace(
        served,
        ttft_s=served.ttft_s + receive_s + ranks_s + stream_s,
        tpot_s=served.tpot_s * rest,
        request_latency_s=latency_s,
        output_tokens_per_s=served.output_tokens_per_s * slower,
        decode={name: seconds * rest for name, seconds in served.decode.items()},
        prefill={
            **served.prefill,
            "receive": receive_s,
            **({"ranks": ranks_s} if ranks_s.any() else {}),
            "stream": stream_s,
        },
    )


def rank_wait_s(cases: Cases, served: Serving, most_steps: float, step_s: Float) -> Float:
    """Return the mean wait of prompts until each of the ranks that share experts has one.

    Ranks get requests in turn, so that n have one after n arrivals: at x in a step the mean wait is
    ``(n - 1)/(2x)`` steps. After ``most_steps`` = T, counted from the first, prompts begin anyway;
    ``1 + x·T`` came, and have waited for ``T·(1 + x·T/2)/(1 + x·T)``.
    """
    servers = np.where(cases.shares_experts, cases.copies, cases.replicas)
    arriving = served.output_tokens_per_s / cases.output_tokens / servers * step_s
    came = most_steps * arriving
    all_have_one = (cases.replicas / servers - 1) / 2 / np.maximum(arriving, 1e-12)
    steps = np.minimum(all_have_one, most_steps * (1 + came / 2) / (1 + came))
    return np.asarray(np.where(most_steps > 0, steps, 0.0) * step_s)


def rank_looks(setting: Setting, cases: Cases, memory: Memory) -> Float:
    """Return after how many steps a rank alone looks for requests to wait as for other ranks."""
    intervals, looks = setting.engine.intervals, np.ones(len(cases))
    if intervals is None or not intervals.rank_wait_steps or not (cases.dp > 1).any():
        return looks
    served = solve_serving(setting, cases, memory)
    return np.round(looks + 2 * served.prefill.get("ranks", 0 * looks) / served.step_s)


def flow_serving(
    cases: Cases,
    flow: Flow,
    prefill: Parts,
    requests_per_s: Float,
    load_factor: Float | None = None,
) -> Serving:
    """Return how a flow through each replica serves, with ``prefill`` as clients see it."""
    ttft_s, tpot_s, zero = total(prefill), flow.tpot_s, np.zeros(len(cases))
    is_open = load_factor is not None and flow.slowing is not None
    return Serving(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_latency_s=ttft_s + (cases.output_tokens - 1) * tpot_s,
        output_tokens_per_s=requests_per_s * cases.output_tokens,
        resident=flow.resident,
        load_factor=zero if load_factor is None else load_factor,
        slowing=np.asarray(flow.slowing) if is_open else zero,
        decode=flow.decode,
        prefill=prefill,
        decoding=flow.decoding,
        step_s=flow.step_s,
        prompt_s=flow.prompt_s,
    )


def bunch_step(setting: Setting, cases: Cases, resident: Float) -> tuple[Step, Float, Float]:
    """A step of prompts that start at once, how many of it they take, and how many share it."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    group, zero = np.minimum(prompts_a_step(cases), resident), np.zeros(len(cases))
    return Step(group * tokens / chunks, context, zero, zero, group / chunks), chunks, group


def batch_steps(setting: Setting, cases: Cases, batch: Float) -> tuple[Step, Step, Float]:
    """A decode step of a static batch, a step of its prompts, and how many of the latter."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    if setting.engine.chunked_prefill:
        chunks = np.maximum(chunks, np.ceil(batch * tokens / cases.max_batched_tokens))
    zero = np.zeros(len(cases))
    chunk = Step(batch * tokens / chunks, context, zero, zero, batch / chunks)
    return decode_step(cases, batch), chunk, chunks


def wave_share(setting: Setting, cases: Cases, flow: Flow) -> Float:
    """Share of a loop's later prompts that wait as its first do, where lengths are exact.

    The first R prompts run in N steps, so that requests end, and send again, one step after the
    other. Where prompts do not ride on decode steps, nothing decodes in these N and all end
    together: 1. Where they do, a step ends the requests of one step and takes their next prompts,
    which waited for those of M steps: its own, the one under way, and those that decode until what
    ends first comes back (none where requests wait in the engine's queue). Prompt j of N waits
    ``min(j, M)`` steps instead of one, and meets ``N - j + max(j - M, 0)`` steps of others while
    it decodes instead of N - 1; at the start these are j and N - j. So both means lie between a
    steady state and the start at ``(M - 1)·(2N - M)/(N·(N - 1))``. Drafts that are accepted by
    chance end requests at different times: 0.
    """
    if not setting.engine.mixes_prompts:
        return np.where(cases.draft_tokens > 0, 0.0, 1.0)
    steps = flow.resident / prompts_a_step(cases) / cases.pp
    away_s = request_overhead_s(setting, cases) + cases.kv_wait_s
    away = np.where(cases.load / active_replicas(cases) > flow.resident, 0.0, away_s)
    waited = np.minimum(1 + np.ceil(away / flow.full_step_s), steps)
    share = (waited - 1) * (2 * steps - waited) / np.maximum(steps * (steps - 1), 1e-9)
    return np.where(cases.draft_tokens > 0, 0.0, np.where(steps > 1, share, 1.0))


def bunched_share(setting: Setting, cases: Cases, flow: Flow) -> Float | float:
    """Share of the prompts of a loop that wait for a batch of them: fitted, and by waves."""
    share = setting.engine.overhead(setting.cluster.device.runtime).bunched
    if is_burst(setting):
        return flow.resident * active_replicas(cases) / cases.load
    if not (setting.exact and setting.mode == "closed"):
        return share
    return share + (1 - share) * wave_share(setting, cases, flow)


def _bunch_prompts(setting: Setting, cases: Cases, flow: Flow) -> Flow:
    """The flow when a share of the prompts starts at once, as the first of a closed loop do.

    Of R prompts that start together ``g`` run in a step; a prompt ends with its step, after all
    steps before: ``g·p + ((R + g)/2 - g)·p`` on average, with p the step's time per prompt. Then
    all decode together, each delayed by the prompts after its own only: ``(R - g)/2·p`` over its
    tokens, where prompts that are spread over time delay each by all others.
    """
    share = bunched_share(setting, cases, flow)
    zero = np.zeros(len(cases))
    chunk, chunks, group = bunch_step(setting, cases, flow.resident)
    step = engine_step(setting, cases, chunk)
    first = {name: chunks * seconds for name, seconds in step.items()}
    first |= {name: group * seconds for name, seconds in moved_blocks(cases).items()}
    ahead = np.maximum((flow.resident - group) / 2, 0.0) * total(first) / group / cases.pp
    bunch = {**first, "prompts_ahead": ahead, "request": flow.prefill["request"]}
    bunch |= awaited_blocks(cases)
    prefill = {
        name: (1 - share) * seconds + share * bunch.get(name, zero)
        for name, seconds in flow.prefill.items()
    }
    answered = np.maximum(cases.output_tokens - 1, 1e-6)
    together = 1 - share + share * flow.full_step_s / flow.step_s
    spread_s = flow.decode["prefill_interference"]
    # an answer shorter than the prompts before it has no step to be delayed in
    behind_s = np.minimum(ahead / answered, spread_s)
    decode = {name: together * seconds for name, seconds in flow.decode.items()}
    decode["prefill_interference"] = (1 - share) * spread_s + share * behind_s
    latency = total(prefill) + answered * total(decode)
    rate = flow.resident / latency
    return replace(flow, prefill=prefill, decode=decode, requests_per_s=rate)


def _serve_burst(setting: Setting, cases: Cases, flow: Flow) -> Serving:
    """All requests at once and their answers of many lengths, until the longest is done.

    The first that run share their prompts' steps; prompts of the others come on top of steps
    that decode, and their requests wait for half of the time until the queue is empty.
    """
    replicas = active_replicas(cases)
    count, resident = cases.load / replicas, flow.resident
    started = _bunch_prompts(setting, cases, flow)
    chunk, chunks, group = bunch_step(setting, cases, resident)
    prompt_s = chunks * total(engine_step(setting, cases, chunk)) / group / cases.pp
    first_s = resident * (prompt_s + cases.kv_step_s / cases.pp)
    later_s = np.maximum(count - resident, 0.0) * flow.prompt_s / cases.pp
    drain = drain_of(setting.answers, count, resident)
    loop = Loop(setting, cases, np.maximum(resident, 1.0), np.ones(len(cases)))
    steps = drain.spans * loop.steps
    step_s = np.stack([loop.interpolated(decoding)[0] for decoding in drain.decoding])
    full_s, drained_s = (steps * step_s)[0], (steps * step_s)[1:].sum(axis=0)
    seconds = flow.prefill["request"] + first_s + later_s + full_s + drained_s
    # of all tokens, which come in steps of many sequences and of few
    tokens = steps * drain.decoding
    pace = (tokens * step_s).sum(axis=0) / tokens.sum(axis=0) / flow.full_step_s
    together = {name: part for name, part in started.decode.items() if name != INTERFERENCE}
    faster = pace * flow.full_step_s / np.maximum(total(together) * loop.yields, 1e-12)
    decode = {name: part * faster for name, part in together.items()}
    first, later = resident / count, np.maximum(1 - resident / count, 0.0)
    token_s, mixed = total(decode), resident / group
    behind_s = _behind_s(setting, first_s, mixed, token_s * loop.yields, loop.steps) / loop.yields
    decode[INTERFERENCE] = first * behind_s + later * flow.decode[INTERFERENCE]
    queue_s = later * (first_s + (later_s + full_s) / 2)
    prefill = {**started.prefill, "engine_queue": queue_s}
    burst = replace(started, decode=decode)
    return flow_serving(cases, burst, prefill, cases.load / seconds)


def _behind_s(
    setting: Setting, prompts_s: Float, mixed: Float, step_s: Float, steps: Float
) -> Float:
    """Return what prompts behind a request's own add to each token, in the mean over requests.

    A short answer has few tokens to share a delay. Of ``mixed`` steps with prompts those after its
    own delay it, as far as it lasts; where prompts do not ride on decode steps, all of their time.
    """
    lengths = np.maximum(np.asarray(setting.answers)[SAMPLES // 2 :: SAMPLES, None] * steps, 1.0)
    if not setting.engine.mixes_prompts:
        return np.asarray(prompts_s / 2 * (1 / lengths).mean(axis=0))
    met = np.where(lengths < mixed, lengths - lengths**2 / (2 * mixed), mixed / 2)
    longer_s = np.maximum(prompts_s / np.maximum(mixed, 1.0) - step_s, 0.0)
    return np.asarray(longer_s * (met / lengths).mean(axis=0))


def solved_flow(setting: Setting, cases: Cases, limit: Float) -> Flow:
    """The steady state of a closed loop in a replica that holds at most ``limit``."""
    return closed_loop_flow(setting, cases, np.minimum(cases.load / active_replicas(cases), limit))


def arriving_flow(setting: Setting, cases: Cases, limit: Float) -> tuple[Float, Flow]:
    """Requests per second of a full replica, and its steady state under the arrivals."""
    return open_loop(setting, cases, limit, cases.load / cases.replicas)


def _serve_open_loop(setting: Setting, cases: Cases, limit: Float) -> Serving:
    """A replica that serves what arrives; unstable when even a full one cannot."""
    arriving = cases.load / cases.replicas
    capacity, flow = arriving_flow(setting, cases, limit)
    requests_per_s = np.minimum(cases.load, cases.replicas * capacity)
    return flow_serving(cases, flow, flow.prefill, requests_per_s, arriving / capacity)


def _serve_static_batch(setting: Setting, cases: Cases) -> Serving:
    """One batch: all prompts first, then all sequences decode together."""
    replicas = active_replicas(cases)
    batch = cases.load / replicas
    step, chunk, chunks = batch_steps(setting, cases, batch)
    yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
    decode = {name: seconds / yields for name, seconds in engine_step(setting, cases, step).items()}
    prompt = engine_step(setting, cases, chunk)
    prefill = {name: chunks * seconds for name, seconds in prompt.items()}
    ttft_s, tpot_s = total(prefill), total(decode)
    latency = ttft_s + (cases.output_tokens - 1) * tpot_s
    step_s, rate = tpot_s * yields, batch / latency
    flow = Flow(batch, batch, rate, decode, prefill, step_s, ttft_s / batch, step_s)
    return flow_serving(cases, flow, prefill, replicas * flow.requests_per_s)
