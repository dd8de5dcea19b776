"""Notes beside the figures of an estimate, as sentences with numbers.

Each sentence says of one split what binds it where a reader might expect otherwise: requests that
wait, narrow formats that slow it down, links, kernel launches, ranks without work, buffers. The
sentences are in ``notes.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.units import gib, seconds_text, share_text, significant
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
from recipe_core.estimates.serving.rates import (
    Serving,
    active_replicas,
    is_burst,
    resident_limit,
)
from recipe_core.estimates.serving.speculative import engine_steps, tokens_per_step
from recipe_core.hardware.cluster import roofline
from recipe_core.models.towers import PARTS
from recipe_core.models.variants import stored_as

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates

FILE = Path(__file__).with_name("notes.yaml")
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
# Probability of serving what arrives below which an estimate says it.
SURE_TO_KEEP_UP = 0.95
# What the cache holds over what is logged, from which an estimate says both.
WORTH_SAYING = 1.05

# Parts of a step on links, and what they do.
_LINKS = {
    "all_to_all": "exchanging tokens among experts",
    "all_reduce": "summing over TP",
    "context": "sharing a cache",
    "pipeline": "handing over between stages",
}
# Parts of a time that are no work of a request's own.
_WAITS = ("schedule", "prompts_ahead", "engine_queue", "prefill_interference", "request")


class _File(DataRow):
    schema_version: int
    sentences: Mapping[str, str]


_TABLE = DataTable[str](DataFile(FILE, "notes"), _File, "sentences", "sentence")


def _count_text(count: float, noun: str) -> str:
    """So many on average; less than one is a chunk."""
    if count < 1:
        return f"a chunk of a {noun}"
    return f"1 {noun}" if round(count, 2) == 1 else f"{significant(count)} {noun}s"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "gib": gib,
    "seconds": seconds_text,
    "short": significant,
    "share": share_text,
    "tenths": lambda share: share_text(share, 1),
    "prompts": lambda count: _count_text(count, "prompt"),
}


class _Number(float):
    """A number that a sentence may write in a format of its own."""

    def __format__(self, spec: str) -> str:
        show = _FORMATS.get(spec)
        return show(self) if show else super().__format__(spec)


def say_note(name: str, **values: Any) -> str:
    """Write a sentence of ``notes.yaml``."""
    return _TABLE.rows[name].format(**values)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of the cases ``where`` it holds, everywhere or by case.

    ``values``: for all cases, as an array of them, or as what gives the value of a case.
    """

    name: str
    where: Bool | bool
    values: Mapping[str, Any]

    def say(self, i: int) -> str:
        """Write the sentence of a case by its place."""
        return say_note(self.name, **{name: _value_at(v, i) for name, v in self.values.items()})


def _value_at(value: Any, i: int) -> Any:
    if isinstance(value, np.ndarray):
        value = value.item(i)
    elif callable(value):
        value = value(i)
    return _Number(value) if isinstance(value, float) else value


def note_where(name: str, where: Bool | bool = True, **values: Any) -> Note:
    """A note of the cases ``where`` it holds; see ``Note``."""
    return Note(name, where, values)


def estimate_notes(e: Estimates, running: Estimates, feasible: Bool) -> list[list[str]]:
    """The sentences of each case; ``feasible``: whether it runs, ``running``: those that do."""
    shared, price = [*list_setting_notes(e.setting)], e.setting.cluster.price_note
    out = [[*shared, *([f"{doubt}."] if doubt else [])] for doubt in e.doubts(np.arange(len(e)))]
    place_notes(out, np.arange(len(e)), _case_notes(e, feasible))
    if len(running):
        place_notes(out, np.flatnonzero(feasible), _running_notes(running))
    return [[*sentences, *([price] if price else [])] for sentences in out]


def place_notes(out: list[list[str]], places: Int, notes: Iterable[Note]) -> None:
    """Add notes to the sentences of the cases that they are of; their first is at ``places[0]``."""
    for note in notes:
        for i in np.flatnonzero(np.broadcast_to(note.where, len(places))).tolist():
            out[places[i]].append(note.say(i))


def list_setting_notes(setting: Setting) -> Iterator[str]:
    """Yield what holds of all cases of a setting: what is assumed, and what is not counted."""
    effects, engine = setting.effects, setting.engine
    yield from setting.model.notes
    yield from _about_towers(setting)
    if setting.needs_other_checkpoint:
        checkpoint = stored_as(setting.model.name, setting.weight_dtype)
        ready = f"the catalog has {checkpoint}" if checkpoint else "make one with recipe compress"
        formats = {"wanted": setting.weight_dtype, "stored": setting.model.weight_dtype}
        yield say_note("checkpoint", ready=ready, **formats)
    yield from effects.uncounted
    if (assumed := assumed_layout(setting)) is not None:
        yield assumed
    if (adapters := effects.adapters) is not None:
        slots = f"{adapters.slots:,} adapters" if adapters.slots > 1 else "1 adapter"
        yield say_note("adapters", adapters=slots, rank=adapters.rank)
    support = untuned_support(setting)
    for name, phrases in (("emulated", support.emulated), ("generic", support.generic)):
        for _, format_text in phrases:
            yield say_note(name, engine=engine.title, formats=format_text)
    if engine.as_of is not None:
        yield say_note("release", engine=engine.title, as_of=engine.as_of, version=engine.version)
    if not setting.model.generates:
        yield say_note("pooled")


def _about_towers(setting: Setting) -> Iterator[str]:
    """Yield what is counted of a model that reads images or sound."""
    model, rule = setting.model, setting.engine.memory.encoder
    names = " and ".join(tower.name for tower in model.towers)
    if names:
        profiled = rule is not None and rule.profiled
        yield say_note("towers-profiled" if profiled else "towers", towers=names)
    for tower in model.towers if rule is not None and rule.sharded else ():
        if tower.sharded:
            yield say_note("tower-cut", tower=tower.name, heads=tower.heads)
    if names and not setting.media:
        yield say_note("text-alone")
    if model.left_out:
        unloaded = " and ".join(PARTS[modality] for modality in model.left_out)
        yield say_note("left-out", towers=unloaded)


# What waits, and what caches hold and find


def _case_notes(e: Estimates, feasible: Bool) -> Iterator[Note]:
    """Yield what is said of cases that run and of others."""
    if e.pools is None:
        yield from _queue_notes(e, feasible)
    else:
        prefill, decode = e.pools.prefill_per_s, e.pools.decode_per_s
        pool = np.where(prefill < decode, "prefill", "decode")
        yield note_where("pools", pool=pool, prefill=prefill, decode=decode)
    mixers = [layer.attention for layer, _ in e.setting.model.kinds]
    heads = max((a.kv_heads for a in mixers if a is not None and a.kv_values_per_head), default=0)
    if heads:
        times, heads_text = e.cases.tp // heads, "1 KV head" if heads == 1 else f"{heads} KV heads"
        yield note_where("copies", times > 1, times=times, heads=heads_text, tp=e.cases.tp)
    if logs_less(e.setting, e.cases):
        yield _logged_note(e)
    if "stream" in e.serving.prefill:
        yield from _interval_notes(e)
    if e.cached is not None:
        yield from _cache_notes(e)


def _queue_notes(e: Estimates, feasible: Bool) -> Iterator[Note]:
    """Say how many requests wait, and how many more the cache would have to hold."""
    setting, cases, memory = e.setting, e.cases, e.memory
    limit = resident_limit(setting, cases, memory) * cases.replicas
    queues = memory.kv_needed_bytes > memory.kv_cache_bytes
    over = memory.total_bytes > memory.usable_bytes
    does = "starts" if setting.mode == "static" else "starts and queues"
    waits = (cases.load > limit) & (setting.mode in ("closed", "offline"))
    yield note_where("queue", waits, limit=limit, load=cases.load)
    if setting.mode == "open":
        factor, chance = e.serving.load_factor, e.keeps_up
        values = {"load": cases.load, "factor": factor, "chance": chance}
        doubtful = feasible & (chance < SURE_TO_KEEP_UP)
        yield note_where("busy", doubtful & (factor < 1), **values)
        yield note_where("overloaded", doubtful & (factor >= 1), **values)
    yield note_where("outside", over & ~queues & (setting.engine.memory.pool == "static"))
    needed = memory.kv_needed_bytes / np.maximum(memory.sequence_bytes, 1.0) * cases.replicas
    values = {
        "head": np.where(feasible, f"The layout {does}: the", "The"),
        "fits": memory.max_concurrency,
        "needed": needed,
        "total": memory.total_bytes,
        "usable": memory.usable_bytes,
    }
    yield note_where("full-length", queues & ~over, **values)
    yield note_where("full-length-over", queues & over, **values)


def _logged_note(e: Estimates) -> Note:
    """The lines of each case's log, where its cache holds clearly more."""
    pool_bytes, context = e.memory.kv_cache_bytes, e.cases.accepted_tokens
    requests = logged_requests(e.setting, e.cases, pool_bytes)
    tokens, by_requests = logged_tokens(e.setting, e.cases, pool_bytes), requests * context
    logged = by_requests if tokens is None else np.fmin(tokens, by_requests)
    holds_more = ~(e.memory.kv_cache_tokens <= logged * WORTH_SAYING)
    values = {"engine": e.setting.engine.title, "held": e.memory.kv_cache_tokens}
    values |= {"context": context, "requests": requests}
    if tokens is None:
        return note_where("logged-requests", holds_more, **values)
    why = np.where(
        tokens < by_requests,
        "the first shares blocks out evenly, to layers with windows too",
        "it charges every request for the tokens under way",
    )
    return note_where("logged-tokens", holds_more, tokens=tokens, why=why, **values)


def _interval_notes(e: Estimates) -> Iterator[Note]:
    """Yield notes on waits of requests and tokens for steps the engine skips."""
    ttft_s, cases, prefill = e.serving.ttft_s, e.cases, e.serving.prefill
    receive_s, stream_s, sent = prefill["receive"], prefill["stream"], cases.stream_interval
    times = {"ttft": ttft_s, "looks": cases.recv_interval, "sent": sent}
    yield note_where("receive", receive_s > 0, before=ttft_s - receive_s, **times)
    yield note_where("stream", stream_s > 0, before=ttft_s - stream_s, **times)
    group, every_s = np.minimum(sent, cases.output_tokens), sent * e.serving.tpot_s
    yield note_where("stream-groups", (sent > 1) & (stream_s == 0), sent=group, every=every_s)


def _cache_notes(e: Estimates) -> Iterator[Note]:
    """Yield the share that each case finds, and where."""
    cached, reuse = e.cached, e.setting.reuse
    if cached is None:
        return
    if reuse is not None:
        device, whose = cached.device, "all replicas" if reuse.affinity else "a replica"
        yield note_where("reuse", whose=whose, free=device.seen_tokens, hit=device.hit)
        if cached.tiers:
            yield note_where("tiers", tiers=" and ".join(cached.tiers), hit=cached.hit)
    if e.setting.offload is not None and e.setting.cluster.device.node.host_memory_bytes is None:
        yield note_where("host-unknown")
    if reuse is None:
        yield note_where("no-reuse")


# What binds a split that runs


def _running_notes(e: Estimates) -> Iterator[Note]:
    setting, cases, served, weights = e.setting, e.cases, e.serving, e.memory.weights_bytes
    yield _link_note(cases, served)
    # ranks without a request step all the same where they hold experts
    active = active_replicas(cases) if setting.mode != "open" else cases.replicas
    idle = cases.replicas - active
    yield note_where(
        "idle-ranks", cases.shares_experts & (idle > 0), idle=idle, ranks=cases.replicas
    )
    use = setting.engine.memory
    buffers = use.context_parallel_bytes.value - use.context_single_bytes.value
    outweigh = has_collectives(cases) & (weights < buffers)
    yield note_where("buffers", outweigh, buffers=buffers, weights=weights)
    if setting.model.generates and e.pools is None:  # the steps of two pools are of two kinds
        yield from _step_notes(setting, cases, served)
        if setting.exact:
            yield note_where("waves", (served.resident > 1) & (cases.draft_tokens == 0))
        varies = cases.output_variance > 0
        yield note_where("shaped", varies, held=cases.held_tokens, mean=cases.output_tokens)
        yield note_where("burst", is_burst(setting), load=cases.load)


def _link_note(cases: Cases, served: Serving) -> Note:
    """Time on links, where it is a good part of a step."""
    times = [_on_links(parts) for parts in (served.decode, served.prefill)]
    shares = np.array([np.sum([*parts.values()], axis=0) / work_s for work_s, parts in times])
    largest, experts = np.argmax(shares, axis=0), cases.dp * cases.shares_experts
    share = shares.max(axis=0)
    work_s = np.choose(largest, [work_s for work_s, _ in times])

    def parts_text(i: int) -> str:
        parts = times[largest[i]][1].items()
        texts = [(name, part[i]) for name, part in parts if part[i] > 0.05 * work_s[i]]
        return ", ".join(f"{seconds_text(part_s)} for {_LINKS[name]}" for name, part_s in texts)

    return note_where(
        "links",
        share >= LINKED,
        seconds=share * work_s,
        work=work_s,
        subject=np.where(largest, "a request's own prompt", "the time per output token"),
        parts=parts_text,
        ranks=lambda i: f" of DP {experts[i]}" if experts[i] > 1 else "",
    )


def _on_links(parts: Mapping[str, Float]) -> tuple[Float, dict[str, Float]]:
    """A request's own work, and its parts on links."""
    work_s = add(seconds for name, seconds in parts.items() if name not in _WAITS)
    linked = {name: parts[name] for name in _LINKS if name in parts}
    return np.maximum(work_s, 1e-300), linked


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


def _step_notes(setting: Setting, cases: Cases, served: Serving) -> Iterator[Note]:
    """Yield what is said of steps: batches, prompts that share them, formats, launches."""
    if setting.mode == "static" and setting.engine.chunked_prefill:
        limit = cases.max_batched_tokens
        tokens = prompt_chunks(cases, chunked=True)[0] * cases.load / active_replicas(cases)
        count = np.ceil(tokens / limit)
        yield note_where(
            "batch-steps", (count > 1) & (count < MANY_STEPS), steps=count, limit=limit
        )
    steps = _mean_steps(setting, cases, served.decoding)
    prompts, ahead_s = steps.prompts, served.prefill.get("prompts_ahead")
    if ahead_s is not None:
        long = (prompts > SHARED) & (ahead_s > AHEAD * served.ttft_s)
        yield note_where("shared-steps", long, prompts=prompts, ahead=ahead_s)
    waits = "launch" in served.prefill and bool((served.prefill["launch"] > 0).any())
    if waits or setting.weight_dtype not in WIDE:
        parts = steps.parts(setting, cases)
        if setting.weight_dtype not in WIDE:
            yield _narrow_format_note(setting, cases, steps, parts)
        launch_s, step_s = parts[1]["launch"], total(parts[1])
        long = launch_s > LAUNCHED * step_s
        yield note_where("launch", long, launch=launch_s, step=step_s, prompts=prompts)


def _narrow_format_note(
    setting: Setting, cases: Cases, steps: _Steps, parts: tuple[Parts, ...]
) -> Note:
    """Steps that take longer than with 16-bit weights.

    Kernels of narrow formats start later and scale values, which small matrices do not make up for.
    """
    wide = setting.model.dtype if setting.model.dtype in ("bf16", "fp16") else "bf16"
    wide_parts = steps.parts(replace(setting, weight_dtype=wide), cases)
    pairs = [(total(narrow), total(plain)) for narrow, plain in zip(parts, wide_parts, strict=True)]
    narrow_us, wide_us = (
        roofline(setting.cluster.device, "gemm", dtype).overhead_s * 1e6
        for dtype in (setting.stored_dtype("linear"), wide)
    )
    cause = f" A product starts in {narrow_us:.1f} µs, in {wide} in {wide_us:.1f} µs."

    def slower_text(i: int) -> str:
        texts = (
            f"that decodes {_count_text(steps.sequences[i], 'sequence')}",
            f"with {_count_text(steps.prompts[i], 'prompt')}",
        )
        return "; ".join(
            f"a step {text} takes {seconds_text(step_s[i])} instead of {seconds_text(wide_s[i])}"
            for text, (step_s, wide_s) in zip(texts, pairs, strict=True)
            if step_s[i] > SLOWER * wide_s[i]
        )

    return note_where(
        "narrow",
        np.any([step_s > SLOWER * wide_s for step_s, wide_s in pairs], axis=0),
        narrow=setting.weight_dtype,
        wide=wide,
        slower=slower_text,
        cause=cause if narrow_us > wide_us else "",
    )
