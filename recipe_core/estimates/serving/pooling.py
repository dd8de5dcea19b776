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

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.continuous_batching import prompts_a_step, request_overheads
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.operators import Parts, Step, serving_step_parts, total
from recipe_core.estimates.serving.rates import Serving, active_replicas, resident_limit

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
    return _pooled_result(cases, parts, prompts, outside, latency, rate, arriving >= capacity)


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
    unstable: Bool | None = None,
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
        unstable=np.zeros(len(cases), dtype=bool) if unstable is None else unstable,
        decode={"engine": zero},
        prefill={**parts, "engine_queue": waiting, "request": outside},
        decoding=zero,
        step_s=step_s,
        prompt_s=step_s / prompts,
    )
