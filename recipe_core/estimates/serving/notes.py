"""Notes beside the figures of an estimate, as sentences with numbers.

Each sentence says of one split what binds it where a reader might expect otherwise: requests that
wait, narrow formats that slow it down, links, kernel launches, ranks without work, buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import gib, seconds_text, significant
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.rules.kernels import untuned_support
from recipe_core.estimates.serving.cache import logged_requests, logged_tokens, logs_less
from recipe_core.estimates.serving.cache_blocks import assumed_layout
from recipe_core.estimates.serving.continuous_batching import (
    decode_step,
    idle_step,
    prompt_chunks,
    prompt_step,
)
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.memory import has_collectives
from recipe_core.estimates.serving.rates import Serving, active_replicas, resident_limit
from recipe_core.estimates.serving.speculative import engine_steps, tokens_per_step
from recipe_core.hardware.cluster import roofline
from recipe_core.models.towers import PARTS
from recipe_core.models.variants import stored_as

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates

# Where a sentence holds, and the sentence of a case by its place.
Sentence = tuple[Bool, Callable[[int], str]]

# Time of a step over that with 16-bit weights from which a narrow format slows it down.
SLOWER = 1.01
# Share of a step on links from which they are worth a sentence.
LINKED = 0.1
# The same of a step with prompts in which devices wait for the host to launch kernels.
LAUNCHED = 0.1
# Prompts in a step on average from which they share it, so that load changes what they wait.
SHARED = 1.5
# Share of the time to first token for prompts ahead from which that is worth a sentence.
AHEAD = 0.1
# Steps of a static batch's prompts of which one more is no longer worth a sentence.
MANY_STEPS = 16
# What the cache holds over what is logged, from which an estimate says both.
WORTH_SAYING = 1.05

# Parts of a step on links, and what they do.
_LINKS = {
    "all_to_all": "exchanging tokens among experts",
    "all_reduce": "summing over tp",
    "context": "sharing a cache",
    "pipeline": "handing over between stages",
}
_POOLED = (
    "Embeddings and scores are estimated from the formulas of prompts alone: few published runs "
    "are held against them (docs/method/encoders.md), so that their intervals are wide."
)
# Parts of a time that are no work of a request's own.
_WAITS = ("schedule", "prompts_ahead", "engine_queue", "prefill_interference", "request")


def estimate_notes(e: Estimates, running: Estimates, feasible: Bool) -> list[list[str]]:
    """The sentences of each case; ``feasible``: whether it runs, ``running``: those that do."""
    shared, price = [*_shared_notes(e)], e.setting.cluster.price_note
    out = [[*shared, *([f"{doubt}."] if doubt else [])] for doubt in e.doubts(np.arange(len(e)))]
    _place_sentences(out, np.arange(len(e)), _case_notes(e, feasible))
    if len(running):
        _place_sentences(out, np.flatnonzero(feasible), _running_notes(running))
    return [[*sentences, *([price] if price else [])] for sentences in out]


def _place_sentences(out: list[list[str]], places: Int, sentences: Iterator[Sentence]) -> None:
    for where, say in sentences:
        for i in np.flatnonzero(where).tolist():
            out[places[i]].append(say(i))


def _shared_notes(e: Estimates) -> Iterator[str]:
    """Yield what holds of all cases."""
    setting, effects = e.setting, e.setting.effects
    yield from setting.model.notes
    yield from _about_towers(setting)
    if setting.needs_other_checkpoint:
        checkpoint = stored_as(setting.model.name, setting.weight_dtype)
        ready = f"the catalog has {checkpoint}" if checkpoint else "make one with recipe compress"
        yield (
            f"Needs a checkpoint that stores {setting.weight_dtype}; "
            f"this model's stores {setting.model.weight_dtype}: {ready}."
        )
    yield from effects.uncounted
    if (assumed := assumed_layout(setting)) is not None:
        yield assumed
    if (adapters := effects.adapters) is not None:
        places = f"{adapters.slots:,} adapters" if adapters.slots > 1 else "1 adapter"
        yield (
            f"{places} of rank {adapters.rank} are counted by their bytes and two kernels a matrix "
            "outside experts; no measured run is behind their times."
        )
    support = untuned_support(setting)
    for formats, does in (
        (support.emulated, "unpacks before every product"),
        (support.generic, "runs in generic kernels"),
    ):
        for _, format_text in formats:
            yield f"{setting.engine.title} {does} {format_text}: times are far less certain."
    if setting.engine.as_of is not None:
        yield (
            f"Memory rules and default limits of {setting.engine.title} {setting.engine.as_of}; "
            f"times of {setting.engine.version}."
        )


def _about_towers(setting: Setting) -> Iterator[str]:
    """Yield what is counted of a model that reads images or sound."""
    model, rule = setting.model, setting.engine.memory.encoder
    names = " and ".join(tower.name for tower in model.towers)
    if names and rule is not None and rule.profiled:
        yield f"Memory counts the {names}, and the engine's profile run of the largest input."
    elif names:
        yield f"Memory counts the weights of the {names}."
    for tower in model.towers if rule is not None and rule.sharded else ():
        if tower.sharded:
            cut = f"cut over tp where tp divides its {tower.heads} heads, and whole elsewhere"
            yield f"The {tower.name} is {cut}."
    if names and not setting.media:
        yield "Prompts are text: nothing is encoded. State workload.images or workload.audio."
    if model.left_out:
        unloaded = " and ".join(PARTS[modality] for modality in model.left_out)
        yield f"The {unloaded} is not loaded."


# What waits, and what caches hold and find


def _case_notes(e: Estimates, feasible: Bool) -> Iterator[Sentence]:
    """Yield what is said of cases that run and of others."""
    if e.pools is None:
        yield from _queue_notes(e, feasible)
    else:
        prefill, decode = e.pools.prefill_per_s, e.pools.decode_per_s
        yield (
            np.ones(len(e), dtype=np.bool_),
            lambda i: (
                f"The {'prefill' if prefill[i] < decode[i] else 'decode'} pool bounds the rate: "
                f"prefill {significant(prefill[i])}, decode {significant(decode[i])} requests/s at "
                "most."
            ),
        )
    yield from _held_notes(e.setting, e.cases)
    if logs_less(e.setting, e.cases):
        yield _logged_note(e)
    if "stream" in e.serving.prefill:
        yield from _interval_notes(e)
    if e.cached is not None:
        yield from _cache_notes(e)


def _queue_notes(e: Estimates, feasible: Bool) -> Iterator[Sentence]:
    """Say how many requests wait, and how many more the cache would have to hold."""
    setting, cases, memory = e.setting, e.cases, e.memory
    limit = resident_limit(setting, cases, memory) * cases.replicas
    needed = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0) * cases.replicas
    queues, over = memory.kv_needed_bytes > memory.kv_cache_bytes, memory.total_bytes
    outside = (over > memory.usable_bytes) & (setting.engine.memory.pool == "static")
    does = "starts" if setting.mode == "static" else "starts and queues"

    def held_text(i: int) -> str:
        head = f"The split {does}: the" if feasible[i] else "The"
        usable = memory.usable_bytes[i]
        sizes = f", {gib(over[i])} of {gib(usable)} usable" if over[i] > usable else ""
        return (
            f"{head} KV cache holds {memory.max_concurrency[i]:,.0f} of {needed[i]:,.0f} requests "
            f"at full length; total_bytes counts what all of them need{sizes}."
        )

    yield (
        (cases.load > limit) & (setting.mode in ("closed", "offline")),
        lambda i: (
            f"{limit[i]:,.0f} of {cases.load[i]:,.0f} requests run at once; "
            "the others wait in the engine's queue."
        ),
    )
    yield (
        outside & ~queues,
        lambda _: "Activations and runtime lie outside the engine's share of the memory.",
    )
    yield queues, held_text


def _held_notes(setting: Setting, cases: Cases) -> Iterator[Sentence]:
    """Yield how often each token's cache is held, where tp is more than there are KV heads."""
    mixers = [layer.attention for layer, _ in setting.model.kinds]
    heads = max((a.kv_heads for a in mixers if a is not None and a.kv_values_per_head), default=0)
    if not heads:
        return
    heads_text = "1 KV head" if heads == 1 else f"{heads} KV heads"
    times = cases.tp // heads
    yield (
        times > 1,
        lambda i: (
            f"Each cached token is held {times[i]} times: {heads_text} over tp {cases.tp[i]}."
        ),
    )


def _logged_note(e: Estimates) -> Sentence:
    """The lines of each case's log, where its cache holds clearly more."""
    setting, cases, pool_bytes = e.setting, e.cases, e.memory.kv_cache_bytes
    requests = logged_requests(setting, cases, pool_bytes)
    tokens = logged_tokens(setting, cases, pool_bytes)
    by_requests = requests * cases.max_context
    logged = by_requests if tokens is None else np.fmin(tokens, by_requests)
    pool_tokens = e.memory.kv_cache_tokens

    def sentence(i: int) -> str:
        concurrency = f"Maximum concurrency for {cases.max_context[i]:,.0f} tokens per request"
        log_text = f'"{concurrency}: {requests[i]:.2f}x"'
        why = "it charges every request for the tokens in flight"
        if tokens is not None:
            log_text = f'"GPU KV cache size: {tokens[i]:,.0f} tokens" and {log_text}'
            if tokens[i] < by_requests[i]:
                why = "the first shares blocks out evenly, to layers with windows too"
        title = setting.engine.title
        return f"{title} will log {log_text}: {why}. The cache holds {pool_tokens[i]:,.0f} tokens."

    return ~(pool_tokens <= logged * WORTH_SAYING), sentence


def _interval_notes(e: Estimates) -> Iterator[Sentence]:
    """Yield notes on waits of requests and tokens for steps the engine skips."""
    ttft_s, cases = e.serving.ttft_s, e.cases
    looks, sent, stream_s = cases.recv_interval, cases.stream_interval, e.serving.prefill["stream"]

    def waits(waited_s: Float, field: str, interval_text: Callable[[int], str]) -> Sentence:
        return (
            waited_s > 0,
            lambda i: (
                f"{interval_text(i)}: time to first token is {seconds_text(ttft_s[i])} instead of "
                f"{seconds_text(ttft_s[i] - waited_s[i])}; "
                f"set {field} to 1 if people wait for the first token."
            ),
        )

    def group_text(i: int) -> str:
        tokens = f"{min(sent[i], cases.output_tokens[i]):,.0f} at a time"
        interval = f"every {seconds_text(sent[i] * e.serving.tpot_s[i])}"
        advice = "set stream_interval to 1 if people read along"
        return f"After the first, tokens are streamed {tokens}, {interval}; {advice}."

    yield waits(
        e.serving.prefill["receive"],
        "scheduler_recv_interval",
        lambda i: f"The scheduler checks for new requests every {looks[i]:,.0f} steps",
    )
    yield waits(
        stream_s, "stream_interval", lambda i: f"Tokens are streamed {sent[i]:,.0f} at a time"
    )
    yield (sent > 1) & (stream_s == 0), group_text


def _cache_notes(e: Estimates) -> Iterator[Sentence]:
    """Yield the share that each case finds, and where."""
    everywhere, cached, reuse = np.ones(len(e), dtype=np.bool_), e.cached, e.setting.reuse
    if cached is None:
        return
    device = cached.device
    if reuse is not None:
        whose = "all replicas" if reuse.affinity else "a replica"
        yield (
            everywhere,
            lambda i: (
                f"The cache of {whose} has {device.seen_tokens[i]:,.0f} tokens free for reuse: "
                f"{device.hit[i]:.0%} found."
            ),
        )
        if cached.tiers:
            names = " and ".join(cached.tiers)
            yield (
                everywhere,
                lambda i: f"With {names}, {cached.hit[i]:.0%} of the prompts' tokens are found.",
            )
    if e.setting.offload is not None and e.setting.cluster.device.node.host_memory_bytes is None:
        unstated = "The profile does not state the host's memory: check that it holds the blocks."
        yield everywhere, lambda _: unstated
    if reuse is None:
        costs = (
            "Without workload.prefix_reuse, tiers below the devices find nothing: only what they "
            "cost is counted."
        )
        yield everywhere, lambda _: costs


# What binds a split that runs


def _running_notes(e: Estimates) -> Iterator[Sentence]:
    setting, cases, served = e.setting, e.cases, e.serving
    yield _link_note(cases, served)
    yield _idle_rank_note(setting, cases)
    yield _buffer_note(e)
    if not setting.model.generates:
        yield np.ones(len(e), dtype=np.bool_), lambda _: _POOLED
    elif e.pools is None:  # the steps of two pools are of two kinds
        if setting.mode == "static" and setting.engine.chunked_prefill:
            yield _batch_step_note(cases)
        steps = _mean_steps(setting, cases, served.decoding)
        if (ahead_s := served.prefill.get("prompts_ahead")) is not None:
            yield _shared_step_note(steps.prompts, ahead_s, served.ttft_s)
        waits = "launch" in served.prefill and bool((served.prefill["launch"] > 0).any())
        if waits or setting.weight_dtype not in WIDE:
            parts = steps.parts(setting, cases)
            if setting.weight_dtype not in WIDE:
                yield _narrow_format_note(setting, cases, steps, parts)
            yield _launch_note(steps.prompts, parts[1])


def _link_note(cases: Cases, served: Serving) -> Sentence:
    """Time on links, where it is a good part of a step."""
    times = [
        (subject, *_on_links(parts))
        for subject, parts in (
            ("the time per output token", served.decode),
            ("a request's own prompt", served.prefill),
        )
    ]
    shares = np.array([np.sum([*parts.values()], axis=0) / work_s for _, work_s, parts in times])
    largest, experts = np.argmax(shares, axis=0), cases.dp * cases.shares_experts

    def sentence(i: int) -> str:
        subject, work_s, parts = times[largest[i]]
        link_times = (
            f"{seconds_text(seconds[i])} for {_LINKS[name]}"
            for name, seconds in parts.items()
            if seconds[i] > 0.05 * work_s[i]
        )
        seconds = shares[largest[i], i] * work_s[i]
        over = f" of dp {experts[i]}" if experts[i] > 1 else ""
        return (
            f"Links between devices take {seconds_text(seconds)} of the {seconds_text(work_s[i])} "
            f"of {subject}: {', '.join(link_times)}{over}."
        )

    return shares.max(axis=0) >= LINKED, sentence


def _on_links(parts: Mapping[str, Float]) -> tuple[Float, dict[str, Float]]:
    """A request's own work, and its parts on links."""
    work_s = add(seconds for name, seconds in parts.items() if name not in _WAITS)
    linked = {name: parts[name] for name in _LINKS if name in parts}
    return np.maximum(work_s, 1e-300), linked


def _idle_rank_note(setting: Setting, cases: Cases) -> Sentence:
    """Ranks that have no request and step all the same, since they hold experts."""
    active = active_replicas(cases) if setting.mode != "open" else cases.replicas
    idle = cases.replicas - active
    return (
        cases.shares_experts & (idle > 0),
        lambda i: (
            f"{idle[i]:,.0f} of {cases.replicas[i]:,.0f} data-parallel ranks have no request, but "
            "take part in every step, as all ranks share the experts."
        ),
    )


def _buffer_note(e: Estimates) -> Sentence:
    """Communication buffers that outweigh what a device saves of the weights."""
    use, weights = e.setting.engine.memory, e.memory.weights_bytes
    buffers = use.context_parallel_bytes.value - use.context_single_bytes.value
    return (
        has_collectives(e.cases) & (weights < buffers),
        lambda i: (
            f"Communication buffers take {gib(buffers)} of a device, its weights "
            f"{gib(weights[i])}: more ranks hardly save memory."
        ),
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """Two steps of each case: one that decodes, one that takes prompts along (or takes them)."""

    sequences: Float
    prompts: Float
    both: tuple[Step, Step]

    def parts(self, setting: Setting, cases: Cases) -> tuple[Parts, ...]:
        """Seconds of each by part, in a setting."""
        return engine_steps(setting, cases, *self.both)


def _mean_steps(setting: Setting, cases: Cases, decoding: Float) -> _Steps:
    arriving = decoding
    if setting.mode != "static":
        tokens = np.maximum(cases.output_tokens - 1, 1e-6)
        arriving = decoding * tokens_per_step(cases.draft_tokens, cases.acceptance) / tokens
    decode = decode_step(cases, decoding)
    beside = decode if setting.engine.mixes_prompts else idle_step(cases)
    with_prompts, prompts = prompt_step(setting, cases, beside, arriving)
    return _Steps(decode.sequences, prompts, (decode, with_prompts))


def _count_text(count: float, noun: str) -> str:
    """So many on average; less than one is a chunk."""
    if count < 1:
        return f"a chunk of a {noun}"
    return f"1 {noun}" if round(count, 2) == 1 else f"{significant(count)} {noun}s"


def _narrow_format_note(
    setting: Setting, cases: Cases, steps: _Steps, parts: tuple[Parts, ...]
) -> Sentence:
    """Steps that take longer than with 16-bit weights.

    Kernels of narrow formats start later and scale values, which small matrices do not make up for.
    """
    wide = setting.model.dtype if setting.model.dtype in ("bf16", "fp16") else "bf16"
    wide_parts = steps.parts(replace(setting, weight_dtype=wide), cases)
    token_s, prompt_s, wide_token_s, wide_prompt_s = map(total, (*parts, *wide_parts))
    narrow_us, wide_us = (
        roofline(setting.cluster.device, "gemm", dtype).overhead_s * 1e6
        for dtype in (setting.stored_dtype("linear"), wide)
    )
    cause = f" A product starts in {narrow_us:.1f} µs, in {wide} in {wide_us:.1f} µs."

    def sentence(i: int) -> str:
        kinds = (
            (f"that decodes {_count_text(steps.sequences[i], 'sequence')}", token_s, wide_token_s),
            (f"with {_count_text(steps.prompts[i], 'prompt')}", prompt_s, wide_prompt_s),
        )
        slower = [
            f"a step {text} takes {seconds_text(step_s[i])} instead of {seconds_text(wide_s[i])}"
            for text, step_s, wide_s in kinds
            if step_s[i] > SLOWER * wide_s[i]
        ]
        return (
            f"{setting.weight_dtype} kernels are slower here than those for {wide} weights: "
            f"{'; '.join(slower)}.{cause if narrow_us > wide_us else ''}"
        )

    return (token_s > SLOWER * wide_token_s) | (prompt_s > SLOWER * wide_prompt_s), sentence


def _shared_step_note(prompts: Float, ahead_s: Float, ttft_s: Float) -> Sentence:
    """Prompts that are waited for, of which several run in a step."""
    return (
        (prompts > SHARED) & (ahead_s > AHEAD * ttft_s),
        lambda i: (
            f"{_count_text(prompts[i], 'prompt')} run in a step on average, and prompts ahead take "
            f"{seconds_text(ahead_s[i])} of the time to first token. As prompts that share a step "
            "end together, more load may shorten that."
        ),
    )


def _launch_note(prompts: Float, parts: Parts) -> Sentence:
    """Steps with prompts that wait for the host."""
    launch_s, step_s = parts["launch"], total(parts)
    return (
        launch_s > LAUNCHED * step_s,
        lambda i: (
            f"Devices wait {seconds_text(launch_s[i])} of the {seconds_text(step_s[i])} of a step "
            f"with {_count_text(prompts[i], 'prompt')} for the host to launch kernels. Prompts "
            "that share a step share that wait, so more load on a replica may shorten it."
        ),
    )


def _batch_step_note(cases: Cases) -> Sentence:
    tokens = prompt_chunks(cases, chunked=True)[0] * cases.load / active_replicas(cases)
    steps, limit = np.ceil(tokens / cases.max_batched_tokens), cases.max_batched_tokens
    return (
        (steps > 1) & (steps < MANY_STEPS),
        lambda i: (
            f"The prompts of a batch take {steps[i]:,.0f} steps of at most {limit[i]:,.0f} tokens."
        ),
    )
