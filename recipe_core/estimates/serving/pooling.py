"""Throughput and latency of requests that end with their prompt: embeddings and scores.

A step runs ``g`` whole prompts and takes ``t(g)``; whoever arrives meanwhile is in the next one.
With ``o`` seconds of a request in the server outside of steps (its overhead) and at most ``G``
prompts in a step (tokens, sequences, cache), a closed loop of ``R`` requests settles where

    g = min(R·t(g) / (t(g) + max(t(g), o)), G)        X = g / t(g)        latency = R / X

(a request waits for the step under way, or for its own overhead, then runs); one request alone has
``o + t(1)``. Arrivals at rate λ make ``g = λ·t(g)``, wait half a step while the server is busy,
and by ``ρ³/(2λ(1 - ρ))`` in the queue, which is M/D/1 where a step holds one prompt. A static
batch and a queue run in full steps one after the other. ``p`` pipeline stages work on as many
steps at once, each of which takes as long.

A server whose front end works ``front_s`` on each request, one after the other, serves at most
``1/front_s`` of them a second.

Left out: padding of prompts of different lengths (engines here pack them), tokenization on a host
that is slower than the device, spread of lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.columns.serving import Cases, Setting, largest_batch
from recipe_core.estimates.serving.batch_window import (
    Batches,
    Service,
    Window,
    arriving_batches,
    batch_capacity,
    circulating_batches,
    latency_percentiles,
)
from recipe_core.estimates.serving.continuous_batching import prompts_a_step, request_overheads
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.rates import Serving, active_replicas, resident_limit
from recipe_core.estimates.serving.simulate import Simulation

# Rounds of the fixed point; a step's time is nearly affine in its prompts, so that each halves the
# distance at least.
ROUNDS = 24


def prompt_batch(setting: Setting, cases: Cases, prompts: Float) -> tuple[Step, Float]:
    """A step of so many prompts, or of a piece of one, and how many such steps a prompt takes."""
    tokens = np.maximum(cases.input_tokens * (1 - cases.prefix_hit), 1.0)
    pieces = np.ones(len(cases))
    if not setting.whole_prompts:
        pieces = np.ceil(tokens / cases.max_batched_tokens)
    zero = np.zeros(len(cases))
    context = cases.input_tokens - tokens / 2
    return Step(prompts * tokens / pieces, context, zero, zero, zero), pieces


def batch_parts(setting: Setting, cases: Cases, prompts: Float) -> Parts:
    """Seconds that ``prompts`` take together, by part."""
    step, pieces = prompt_batch(setting, cases, prompts)
    return {
        name: pieces * value for name, value in serving_step_parts(setting, cases, step).items()
    }


def most_prompts(setting: Setting, cases: Cases, memory: Memory) -> Float:
    """Prompts that one step takes at most: by its tokens, the engine's limit and the cache."""
    within = np.maximum(np.floor(prompts_a_step(cases)), 1.0)
    return np.minimum(within, resident_limit(setting, cases, memory))


def pooled_serving(setting: Setting, cases: Cases, memory: Memory) -> Serving:
    """Latency and throughput of each case under its load, by the workload's mode."""
    fullest, replicas = most_prompts(setting, cases, memory), active_replicas(cases)
    request, token = request_overheads(setting)
    outside = request + token * cases.input_tokens
    share = cases.load / replicas
    if setting.mode in ("static", "offline"):
        return _drain_pooling(setting, cases, replicas, np.minimum(share, fullest), share, outside)
    if setting.mode == "open":
        return _serve_arrivals(setting, cases, fullest, outside)
    prompts = _settle_prompts(
        setting,
        cases,
        np.minimum(np.maximum(share / (2 * cases.pp), 1.0), fullest),
        fullest,
        lambda step_s: share / cases.pp * step_s / (step_s + np.maximum(step_s, outside)),
    )
    parts = batch_parts(setting, cases, prompts)
    step_s = total(parts)
    rate = np.minimum(cases.pp * prompts / step_s, _front_rate(setting))
    latency = np.maximum(share / rate, outside + step_s)
    return _pooled_result(cases, parts, prompts, outside, latency, replicas * share / latency)


def _front_rate(setting: Setting) -> float:
    """Requests per second that the front end of one server gets through."""
    front = setting.engine.front_s
    return 1 / front.value if front is not None else math.inf


def _settle_prompts(
    setting: Setting,
    cases: Cases,
    prompts: Float,
    fullest: Float,
    follows: Callable[[Float], Float],
) -> Float:
    """Prompts in a step where as many come during a step as it takes."""
    for _ in range(ROUNDS):
        step_s = total(batch_parts(setting, cases, prompts))
        prompts = (prompts + np.clip(follows(step_s), 1.0, fullest)) / 2
    return prompts


def _serve_arrivals(setting: Setting, cases: Cases, fullest: Float, outside: Float) -> Serving:
    """A replica under random arrivals; unstable where full steps are not fast enough."""
    arriving = cases.load / cases.replicas / cases.pp  # of one of the steps that run at once
    full_s = total(batch_parts(setting, cases, fullest))
    capacity = np.minimum(fullest / full_s, _front_rate(setting) / cases.pp)
    served = np.minimum(arriving, capacity)
    prompts = _settle_prompts(
        setting, cases, np.ones(len(cases)), fullest, lambda step_s: served * step_s
    )
    parts = batch_parts(setting, cases, prompts)
    busy = np.minimum(served / capacity, 1 - 1e-6)
    queue = busy * total(parts) / 2 + busy**3 / (2 * served * (1 - busy))
    latency = outside + queue + total(parts)
    rate: Float = np.asarray(served * cases.replicas * cases.pp)
    return _pooled_result(cases, parts, prompts, outside, latency, rate, arriving / capacity)


def _drain_pooling(
    setting: Setting,
    cases: Cases,
    replicas: Float,
    prompts: Float,
    queued: Float,
    outside: Float,
) -> Serving:
    """A batch or a queue that is there at once: full steps one after the other.

    A static batch is done with its last step; in a queue a request waits for half of the others.
    """
    parts = batch_parts(setting, cases, prompts)
    step_s = total(parts)
    steps = np.maximum(np.ceil(queued / prompts), 1.0)
    whole_s = (steps + cases.pp - 1) / cases.pp * step_s
    if setting.mode != "static":  # a batch comes as one request
        whole_s = np.maximum(whole_s, queued / _front_rate(setting))
    latency = whole_s if setting.mode == "static" else outside + (whole_s + step_s) / 2
    shown = np.zeros(len(cases)) if setting.mode == "static" else outside
    return _pooled_result(cases, parts, prompts, shown, latency, replicas * queued / whole_s)


def _pooled_result(
    cases: Cases,
    parts: Parts,
    prompts: Float,
    outside: Float,
    latency: Float,
    requests_per_s: Float,
    load_factor: Float | None = None,
) -> Serving:
    """One result a request: it is the first token, and there is no other."""
    step_s = total(parts)
    waiting = np.maximum(latency - outside - step_s, 0.0)
    zero = np.zeros(len(cases))
    return Serving(
        ttft_s=latency,
        tpot_s=zero,
        request_latency_s=latency,
        output_tokens_per_s=requests_per_s * cases.output_tokens,
        resident=prompts,
        load_factor=zero if load_factor is None else load_factor,
        slowing=zero,
        decode={"engine": zero},
        prefill={**parts, "engine_queue": waiting, "request": outside},
        decoding=zero,
        step_s=step_s,
        prompt_s=step_s / prompts,
    )


# Parts of a step that the host takes; while it does the device may run another batch.
HOST = ("engine", "launch")
# Share of the capacity at which a server that gets more than that is shown.
NEAR_FULL = 0.999
# Cases that are simulated together, so that memory stays flat however many there are.
AT_ONCE = 1024


def windowed_serving(setting: Setting, cases: Cases, memory: Memory) -> Serving:
    """Latency and throughput of each case under its load, by the workload's mode."""
    if setting.mode in ("static", "offline"):
        return _drain_batches(setting, cases, memory)
    window, service = _batch_queue(setting, cases, memory)
    outside, replicas = _outside_batches_s(setting, cases), active_replicas(cases)
    highest_rate = batch_capacity(service, window)
    if setting.mode == "closed":
        batches = _run_in_chunks(
            circulating_batches, cases.load / replicas, outside, service, window
        )
        load_factor = np.zeros(len(cases))
    else:
        replicas = cases.replicas.astype(np.float64)
        load_factor = cases.load / replicas / highest_rate
        rate = np.minimum(cases.load / replicas, NEAR_FULL * highest_rate)
        batches = _run_in_chunks(arriving_batches, rate, None, service, window)
    parts = _padded_parts(setting, cases, batches.shared)
    parts = _scale_parts(parts, batches.service_s)
    queue = np.maximum(batches.wait_s - batches.idle_wait_s, 0.0)
    idle = np.minimum(batches.idle_wait_s, batches.wait_s)
    prefill = {**parts, "engine_queue": queue, "window": idle, "request": outside}
    latency, zero = total(prefill), np.zeros(len(cases))
    return Serving(
        ttft_s=latency,
        tpot_s=zero,
        request_latency_s=latency,
        output_tokens_per_s=batches.rate * replicas * cases.output_tokens,
        resident=batches.mean,
        load_factor=load_factor,
        slowing=zero,
        decode={"engine": zero},
        prefill=prefill,
        decoding=zero,
        step_s=batches.service_s,
        prompt_s=total(_padded_parts(setting, cases, batches.mean)) / batches.mean,
    )


def simulated_windows(
    setting: Setting,
    cases: Cases,
    memory: Memory,
    latency_s: Float,
    percentiles: tuple[float, ...],
) -> Simulation:
    """Percentiles of the latency under random arrivals, whose mean is ``latency_s``.

    A result is its own first token.
    """
    window, service = _batch_queue(setting, cases, memory)
    rate = np.minimum(cases.load / cases.replicas, NEAR_FULL * batch_capacity(service, window))
    times = latency_percentiles(rate, service, window, percentiles)
    # what own runs teach stretches all times of a case alike
    solved = windowed_serving(setting, cases, memory)
    times = (times + _outside_batches_s(setting, cases)) * (latency_s / solved.request_latency_s)
    by = dict(zip(percentiles, times, strict=True))
    figures = ("ttft_s", "request_latency_s")
    return Simulation(
        means_s=dict.fromkeys(figures, latency_s),
        percentiles_s=dict.fromkeys(figures, by),
        output_tokens_per_s=solved.output_tokens_per_s,
        goodput_per_s=np.full(len(cases), np.nan),
    )


def _outside_batches_s(setting: Setting, cases: Cases) -> Float:
    """Seconds of a request in the server outside of batches."""
    request, token = request_overheads(setting)
    out: Float = request + token * cases.input_tokens
    return out


def _batch_queue(setting: Setting, cases: Cases, memory: Memory) -> tuple[Window, Service]:
    """Return how batches form, and what batches of every size take."""
    batch_limit = largest_batch(cases.max_num_seqs, cases.max_batched_tokens, cases.max_context)
    largest = np.minimum(batch_limit, resident_limit(setting, cases, memory)).astype(np.int64)
    window = Window.of(cases.window_s, largest, cases.instances)
    sizes = _batch_sizes(int(largest.max()))
    host, device = [], []
    for size in sizes:
        parts = _padded_parts(setting, cases, np.full(len(cases), float(size)))
        of_host = total({name: parts[name] for name in HOST if name in parts})
        host.append(of_host)
        device.append(total(parts) - of_host)
    return window, Service(_time_table(sizes, host), _time_table(sizes, device))


def _batch_sizes(largest: int) -> Int:
    """Sizes of a batch at which its time is computed: each about 1.4 times the one before."""
    grid = np.round(np.sqrt(2.0) ** np.arange(0, 2 * np.log2(max(largest, 1)) + 1))
    return np.unique(np.append(np.minimum(grid, largest), [1, largest])).astype(np.int64)


def _time_table(sizes: Int, columns: list[Float]) -> Float:
    """Times of batches of 0 to the largest size: (cases, sizes), straight between those known."""
    values = np.stack(columns, axis=1)
    every_size = np.arange(int(sizes[-1]) + 1)
    upper = np.clip(np.searchsorted(sizes, every_size), 1, max(len(sizes) - 1, 1))
    if len(sizes) == 1:
        return np.repeat(values, len(every_size), axis=1)
    lower = upper - 1
    share = np.clip((every_size - sizes[lower]) / (sizes[upper] - sizes[lower]), 0.0, 1.0)
    out: Float = values[:, lower] * (1 - share) + values[:, upper] * share
    return out


def _padded_parts(setting: Setting, cases: Cases, size: Float) -> Parts:
    """Seconds of a batch by part, with the padding of its texts."""
    batcher = setting.engine.batcher
    if batcher is None or not batcher.pads or not cases.length_spread.any():
        return batch_parts(setting, cases, size)
    longer = 1 + cases.length_spread * (size - 1) / (size + 1)
    padded = replace(cases, input_tokens=cases.input_tokens * longer)
    return batch_parts(setting, padded, size)


def _scale_parts(parts: Parts, seconds: Float) -> Parts:
    """Parts that add up to what a batch takes, waiting for the device of another included."""
    factor = seconds / np.maximum(total(parts), 1e-30)
    return {name: factor * value for name, value in parts.items()}


def _run_in_chunks(
    formula: object, load: Float, outside: Float | None, service: Service, window: Window
) -> Batches:
    """The formula for a limited number of cases at once."""
    out = []
    for rows in np.array_split(np.arange(len(load)), -(-len(load) // AT_ONCE)):
        loads = (load[rows],) if outside is None else (load[rows], outside[rows])
        out.append(formula(*loads, service.take(rows), window.take(rows)))  # type: ignore[operator]
    return Batches(*(np.concatenate([getattr(b, f) for b in out]) for f in Batches.__slots__))


def _drain_batches(setting: Setting, cases: Cases, memory: Memory) -> Serving:
    """Return the serving of requests there at once: full batches; the last may wait for more."""
    batch_limit = largest_batch(cases.max_num_seqs, cases.max_batched_tokens, cases.max_context)
    full_cases = replace(cases, max_batched_tokens=batch_limit * cases.input_tokens)
    served = pooled_serving(setting, full_cases, memory)
    share = cases.load / active_replicas(cases)
    last = np.mod(share, np.maximum(served.resident, 1.0))
    waits_s = np.where((last > 0) | (share < batch_limit), cases.window_s, 0.0)
    if setting.mode == "static":
        waited, whole_s = waits_s, served.request_latency_s
    else:
        waited = waits_s * np.where(last > 0, last, share) / share
        whole_s = cases.load / (served.output_tokens_per_s / cases.output_tokens)
    latency = served.ttft_s + waited
    return replace(
        served,
        ttft_s=latency,
        request_latency_s=latency,
        output_tokens_per_s=served.output_tokens_per_s * whole_s / (whole_s + waits_s),
        prefill={**served.prefill, "window": waited},
    )
