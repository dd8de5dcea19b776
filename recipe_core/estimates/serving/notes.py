"""Notes beside the figures of an estimate, as sentences with numbers.

Each sentence says of one split what binds it where a reader might expect otherwise: requests that
wait, narrow formats that slow it down, links, kernel launches, ranks without work, buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Bool, Float, add
from recipe_core.base.units import gib, seconds_text, significant
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.rules.kernels import untuned_support
from recipe_core.estimates.serving.cache import assumed_layout
from recipe_core.estimates.serving.continuous_batching import (
    decode_step,
    idle_step,
    prompt_chunks,
    prompt_step,
)
from recipe_core.estimates.serving.kernels import Parts, Step, total
from recipe_core.estimates.serving.logged_cache import cache_notes, held_notes, logged_notes
from recipe_core.estimates.serving.memory import Memory, has_collectives
from recipe_core.estimates.serving.rates import Serving, active_replicas, resident_limit
from recipe_core.estimates.serving.speculative import engine_steps, tokens_per_step
from recipe_core.hardware.cluster import roofline
from recipe_core.models.towers import PARTS
from recipe_core.models.variants import stored_as

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates
    from recipe_core.estimates.serving.pools import Pools

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


def estimate_notes(e: Estimates, running: Estimates, feasible: Bool) -> Iterator[list[str]]:
    """The sentences of each case; ``feasible``: whether it runs, ``running``: those that do."""
    setting, cases, memory, price = e.setting, e.cases, e.memory, e.setting.cluster.price_note
    shared = [*setting.model.notes, *_about_towers(setting)]
    if setting.needs_other_checkpoint:
        checkpoint = stored_as(setting.model.name, setting.weight_dtype)
        ready = f"the catalog has {checkpoint}" if checkpoint else "make one with recipe compress"
        shared.append(
            f"Needs a checkpoint that stores {setting.weight_dtype}; "
            f"this model's stores {setting.model.weight_dtype}: {ready}."
        )
    shared += setting.effects.uncounted
    if (assumed := assumed_layout(setting)) is not None:
        shared.append(assumed)
    if (adapters := setting.effects.adapters) is not None:
        places = f"{adapters.slots:,} adapters" if adapters.slots > 1 else "1 adapter"
        shared.append(
            f"{places} of rank {adapters.rank} are counted by their bytes and two kernels a matrix "
            "outside experts; no measured run is behind their times."
        )
    kernel_support = untuned_support(setting)
    for (_, format_text), does in (
        *((matrices, "unpacks before every product") for matrices in kernel_support.emulated),
        *((matrices, "runs in generic kernels") for matrices in kernel_support.generic),
    ):
        shared.append(f"{setting.engine.title} {does} {format_text}: times are far less certain.")
    if setting.engine.as_of is not None:
        shared.append(
            f"Memory rules and default limits of {setting.engine.title} {setting.engine.as_of}; "
            f"times of {setting.engine.version}."
        )
    if e.pools is not None:
        waiting = _pool_rate_notes(e.pools)
    else:
        waiting = _queue_notes(setting, cases, memory, feasible)
    bound = _running_notes(running, np.flatnonzero(feasible).tolist())
    cache_columns = (held_notes(setting, cases), logged_notes(setting, cases, memory))
    columns = zip(waiting, *cache_columns, _interval_notes(e), cache_notes(e), strict=True)
    doubts = e.doubts(np.arange(len(e)))
    for place, parts in enumerate(columns):
        doubt = [f"{doubts[place]}."] if doubts[place] else []
        of_case = (*doubt, *chain(*parts), *bound.get(place, ()))
        yield [*shared, *of_case, *([price] if price else [])]


def _pool_rate_notes(pools: Pools) -> Iterator[list[str]]:
    for prefill, decode in zip(
        pools.prefill_per_s.tolist(), pools.decode_per_s.tolist(), strict=True
    ):
        rates = f"prefill {significant(prefill)}, decode {significant(decode)} requests/s"
        yield [
            f"The {'prefill' if prefill < decode else 'decode'} pool bounds the rate: "
            f"{rates} at most."
        ]


def _queue_notes(
    setting: Setting, cases: Cases, memory: Memory, feasible: Bool
) -> Iterator[list[str]]:
    """Say how many requests wait, and how many more the cache would have to hold."""
    limits = (resident_limit(setting, cases, memory) * cases.replicas).tolist()
    counted = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0) * cases.replicas
    columns = (limits, cases.load.tolist(), counted.tolist(), memory.max_concurrency.tolist())
    sizes = (memory.total_bytes.tolist(), memory.usable_bytes.tolist())
    short = memory.kv_needed_bytes > memory.kv_cache_bytes
    apart = (memory.total_bytes > memory.usable_bytes) & (setting.engine.memory.pool == "static")
    flags = (short.tolist(), (apart & ~short).tolist(), feasible.tolist())
    for limit, load, needed, held_requests, total_bytes, usable, queues, outside, runs in zip(
        *columns, *sizes, *flags, strict=True
    ):
        out = []
        if setting.mode in ("closed", "offline") and load > limit:
            out.append(
                f"{limit:,.0f} of {load:,.0f} requests run at once; "
                "the others wait in the engine's queue."
            )
        if outside:
            out.append("Activations and runtime lie outside the engine's share of the memory.")
        if queues:
            does = "starts" if setting.mode == "static" else "starts and queues"
            head = f"The split {does}: the" if runs else "The"
            over = f", {gib(total_bytes)} of {gib(usable)} usable" if total_bytes > usable else ""
            out.append(
                f"{head} KV cache holds {held_requests:,.0f} of {needed:,.0f} requests at "
                f"full length; total_bytes counts what all of them need{over}."
            )
        yield out


def _interval_notes(e: Estimates) -> Iterator[list[str]]:
    """Yield notes on waits of requests and tokens for steps the engine skips."""
    s, cases = e.serving, e.cases
    if "stream" not in s.prefill:
        yield from ([] for _ in range(len(e)))
        return
    columns = (s.ttft_s, s.tpot_s, s.prefill["receive"], s.prefill["stream"])
    intervals = (cases.recv_interval, cases.stream_interval, cases.output_tokens)
    values = zip(*(column.tolist() for column in (*columns, *intervals)), strict=True)
    for ttft_s, tpot_s, receive_s, stream_s, looks, sent, output_tokens in values:
        out = []
        checked = f"The scheduler checks for new requests every {looks:,.0f} steps"
        streamed = f"Tokens are streamed {sent:,.0f} at a time"
        for waited_s, interval_text, field in (
            (receive_s, checked, "scheduler_recv_interval"),
            (stream_s, streamed, "stream_interval"),
        ):
            if waited_s > 0:
                times = f"{seconds_text(ttft_s)} instead of {seconds_text(ttft_s - waited_s)}"
                advice = f"set {field} to 1 if people wait for the first token"
                out.append(f"{interval_text}: time to first token is {times}; {advice}.")
        if sent > 1 and not stream_s:
            group = (
                f"{min(sent, output_tokens):,.0f} at a time, every {seconds_text(sent * tpot_s)}"
            )
            advice = "set stream_interval to 1 if people read along"
            out.append(f"After the first, tokens are streamed {group}; {advice}.")
        yield out


# What binds a split that runs


def _running_notes(e: Estimates, places: list[int]) -> dict[int, list[str]]:
    """Sentences by the ``places`` of the cases."""
    if not places:
        return {}
    setting, cases, served = e.setting, e.cases, e.serving
    kinds: list[Iterable[str | None]] = [
        _link_notes(cases, served),
        _idle_rank_notes(setting, cases),
        _buffer_notes(setting, cases, e.memory),
    ]
    if not setting.model.generates:
        kinds.append([_POOLED] * len(places))
    elif e.pools is None:  # the steps of two pools are of two kinds
        kinds.append(_batch_step_notes(setting, cases))
        steps = _mean_steps(setting, cases, served.decoding)
        kinds.append(_shared_step_notes(steps, served))
        waits = "launch" in served.prefill and bool((served.prefill["launch"] > 0).any())
        if waits or setting.weight_dtype not in WIDE:
            parts = steps.parts(setting, cases)
            kinds += [
                _narrow_format_notes(setting, cases, steps, parts),
                _launch_notes(steps, parts),
            ]
    out: dict[int, list[str]] = {}
    for sentences in kinds:
        for place, sentence in zip(places, sentences, strict=True):
            if sentence:
                out.setdefault(place, []).append(sentence)
    return out


def _link_notes(cases: Cases, served: Serving) -> Iterator[str | None]:
    """Time on links, where it is a good part of a step."""
    times = [
        (subject, *_on_links(parts))
        for subject, parts in (
            ("the time per output token", served.decode),
            ("a request's own prompt", served.prefill),
        )
    ]
    experts = (cases.dp * cases.shares_experts).tolist()
    for i, dp in enumerate(experts):
        shares = [sum(part[i] for part in parts.values()) / work_s[i] for _, work_s, parts in times]
        largest = int(np.argmax(shares))
        if shares[largest] < LINKED:
            yield None
            continue
        subject, work_s, parts = times[largest]
        link_times = (
            f"{seconds_text(seconds[i])} for {_LINKS[name]}"
            for name, seconds in parts.items()
            if seconds[i] > 0.05 * work_s[i]
        )
        seconds = shares[largest] * work_s[i]
        over = f" of dp {dp}" if dp > 1 else ""
        yield (
            f"Links between devices take {seconds_text(seconds)} of the {seconds_text(work_s[i])} "
            f"of {subject}: {', '.join(link_times)}{over}."
        )


def _on_links(parts: Mapping[str, Float]) -> tuple[Float, dict[str, Float]]:
    """A request's own work, and its parts on links."""
    work_s = add(seconds for name, seconds in parts.items() if name not in _WAITS)
    linked = {name: parts[name] for name in _LINKS if name in parts}
    return np.maximum(work_s, 1e-300), linked


def _idle_rank_notes(setting: Setting, cases: Cases) -> Iterator[str | None]:
    """Ranks that have no request and step all the same, since they hold experts."""
    active = active_replicas(cases) if setting.mode != "open" else cases.replicas
    idle = np.where(cases.shares_experts, cases.replicas - active, 0).tolist()
    for count, ranks in zip(idle, cases.replicas.tolist(), strict=True):
        yield (
            f"{count:,.0f} of {ranks:,.0f} data-parallel ranks have no request, but take part in "
            "every step, as all ranks share the experts."
            if count > 0
            else None
        )


def _buffer_notes(setting: Setting, cases: Cases, memory: Memory) -> Iterator[str | None]:
    """Communication buffers that outweigh what a device saves of the weights."""
    use = setting.engine.memory
    buffers = use.context_parallel_bytes.value - use.context_single_bytes.value
    heavy = has_collectives(cases) & (memory.weights_bytes < buffers)
    for weights, outweighs in zip(memory.weights_bytes.tolist(), heavy.tolist(), strict=True):
        yield (
            f"Communication buffers take {gib(buffers)} of a device, its weights {gib(weights)}: "
            "more ranks hardly save memory."
            if outweighs
            else None
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


def _narrow_format_notes(
    setting: Setting, cases: Cases, steps: _Steps, parts: tuple[Parts, ...]
) -> Iterator[str | None]:
    """Steps that take longer than with 16-bit weights.

    Kernels of narrow formats start later and scale values, which small matrices do not make up for.
    """
    if setting.weight_dtype in WIDE:
        yield from [None] * len(cases)
        return
    wide = setting.model.dtype if setting.model.dtype in ("bf16", "fp16") else "bf16"
    wide_parts = steps.parts(replace(setting, weight_dtype=wide), cases)
    token_s, prompt_s, wide_token_s, wide_prompt_s = (
        total(of_step).tolist() for of_step in (*parts, *wide_parts)
    )
    starts = [
        roofline(setting.cluster.device, "gemm", dtype).overhead_s * 1e6
        for dtype in (setting.stored_dtype("linear"), wide)
    ]
    cause = (
        f" A product starts in {starts[0]:.1f} µs, in {wide} in {starts[1]:.1f} µs."
        if starts[0] > starts[1]
        else ""
    )
    counts = (steps.sequences.tolist(), steps.prompts.tolist())
    for i, (sequences, prompts) in enumerate(zip(*counts, strict=True)):
        kinds = (
            (f"that decodes {_count_text(sequences, 'sequence')}", token_s[i], wide_token_s[i]),
            (f"with {_count_text(prompts, 'prompt')}", prompt_s[i], wide_prompt_s[i]),
        )
        slower = [
            f"a step {step_text} takes {seconds_text(seconds)} instead of {seconds_text(wide_s)}"
            for step_text, seconds, wide_s in kinds
            if seconds > SLOWER * wide_s
        ]
        yield (
            f"{setting.weight_dtype} kernels are slower here than those for {wide} weights: "
            f"{'; '.join(slower)}.{cause}"
            if slower
            else None
        )


def _shared_step_notes(steps: _Steps, served: Serving) -> Iterator[str | None]:
    """Prompts that are waited for, of which several run in a step."""
    ahead_s = served.prefill.get("prompts_ahead")
    if ahead_s is None:
        yield from [None] * len(steps.prompts)
        return
    columns = (steps.prompts.tolist(), ahead_s.tolist(), served.ttft_s.tolist())
    for prompts, waited_s, ttft_s in zip(*columns, strict=True):
        yield (
            f"{_count_text(prompts, 'prompt')} run in a step on average, and prompts ahead take "
            f"{seconds_text(waited_s)} of the time to first token. As prompts that share a step "
            "end together, more load may shorten that."
            if prompts > SHARED and waited_s > AHEAD * ttft_s
            else None
        )


def _launch_notes(steps: _Steps, parts: tuple[Parts, ...]) -> Iterator[str | None]:
    """Steps with prompts that wait for the host."""
    columns = (steps.prompts.tolist(), parts[1]["launch"].tolist(), total(parts[1]).tolist())
    for prompts, seconds, step_s in zip(*columns, strict=True):
        yield (
            f"Devices wait {seconds_text(seconds)} of the {seconds_text(step_s)} of a step with "
            f"{_count_text(prompts, 'prompt')} for the host to launch kernels. Prompts that share "
            "a step share that wait, so more load on a replica may shorten it."
            if seconds > LAUNCHED * step_s
            else None
        )


def _batch_step_notes(setting: Setting, cases: Cases) -> Iterator[str | None]:
    if setting.mode != "static" or not setting.engine.chunked_prefill:
        yield from [None] * len(cases)
        return
    tokens = prompt_chunks(cases, chunked=True)[0] * cases.load / active_replicas(cases)
    steps = np.ceil(tokens / cases.max_batched_tokens)
    for count, limit in zip(steps.tolist(), cases.max_batched_tokens.tolist(), strict=True):
        yield (
            f"The prompts of a batch take {count:,.0f} steps of at most {limit:,.0f} tokens."
            if 1 < count < MANY_STEPS
            else None
        )
