"""The arithmetic behind a split: each metric as a formula, and with the numbers of this request.

Lines are built from the parts that the estimate adds up, so a line's numbers give its value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recipe_core.base.units import GIB, days, per_second, seconds_text, significant
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import require_part
from recipe_core.estimates.serving.cache import cached_tokens
from recipe_core.estimates.serving.cache_blocks import (
    kv_token_bytes,
    request_state_bytes,
    shared_blocks,
)
from recipe_core.estimates.serving.memory import stage_columns
from recipe_core.estimates.serving.results import MEMORY, TIME_TITLES, ServingEstimate, memory_parts
from recipe_core.estimates.serving.weights import (
    draft_layer,
    draft_weight_bytes,
    layer_weight_bytes,
    stage_layer_bounds,
    vocabulary_bytes,
)
from recipe_core.estimates.training.memory import MEMORY_TITLES
from recipe_core.estimates.training.results import RUN_TITLES, STEP_TITLES
from recipe_core.plans.plan import Plan
from recipe_core.request.metrics import column_metric
from recipe_core.views.explanations.operators import Line, Times
from recipe_core.views.explanations.serving_time import serving_times
from recipe_core.views.explanations.training_time import training_times
from recipe_core.views.texts import Phrases

CACHES = "Prompts found in caches"
TIERS = {"host": "Host memory", "disk": "Drives", "remote": "Remote store"}


def arithmetic(plan: Plan, row: int) -> Times:
    """Lines on a serving split's memory and, if it runs, time, throughput, cost and energy.

    Times come with the operators that they are made of, and the sources of their numbers.
    """
    estimate = plan.estimate(row)
    if not np.isfinite(estimate.memory.total_bytes):
        return Times()
    lines = {plan.measures["memory"].title: _memory_lines(plan, row, estimate)}
    if not estimate.feasible:
        return Times(lines)
    times, m, work = serving_times(plan, row), plan.measures, plan.problem.workload
    serving, parts = require_part(estimate.serving), require_part(estimate.breakdown_s)
    decode, prefill = parts.decode, parts.prefill
    lines["Time"] = _lines("times", m, serving, decode, prefill, TIME_TITLES, work)
    if estimate.prefix_cache is not None:
        lines[CACHES] = _cache_lines(plan, row, estimate)
    load, devices = float(plan.columns["load"][row]), int(plan.raw("gpus")[row])
    cost, energy = require_part(estimate.cost), require_part(estimate.energy)
    rates = _lines("rates", m, serving, cost, energy, work, load, devices)
    lines["Throughput, cost and energy"] = rates
    return Times(lines | times.lines, times.workings, times.constants)


def _lines(macro: str, *values: Any) -> list[Line]:
    """The rows of a macro of ``templates/arithmetic.j2``."""
    return [Line(*row) for row in _PHRASES.rows(macro, *values)]


def gib_exact(value_bytes: float) -> str:
    """GiB with three digits, also of small values, so that a line can be checked."""
    return f"{significant(value_bytes / GIB)} GiB"


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"


def _long(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return seconds_text(seconds) if seconds < 3600 else days(seconds)


_PHRASES = Phrases(
    "arithmetic",
    gib=gib_exact,
    share=_percent,
    long=_long,
    title=lambda column: column_metric(column).title,
    flops=lambda rate: per_second(rate, "FLOP"),
)


# Memory


def _memory_lines(plan: Plan, row: int, estimate: ServingEstimate) -> list[Line]:
    block, i = plan.at(row)
    setting, memory, case = block.setting, estimate.memory, block.cases.take([i])
    estimates, k = block.detail(i)
    request_bytes = float(estimates.memory.sequence_bytes[k])
    sequences = float(estimates.memory.kv_needed_bytes[k] / max(request_bytes, 1.0))
    stage = _fullest_stage(setting, case, sequences)
    parts = memory_parts({name: getattr(memory, name) for name in MEMORY})
    texts = {
        "weights": _weights_text(setting, case, *stage),
        "cache": _cache_text(setting, case, *stage),
    }
    return _lines("memory", memory, setting, parts, texts, request_bytes, sequences)


def _fullest_stage(setting: Setting, case: Cases, sequences: float) -> tuple[int, int]:
    stages = min(int(case.pp[0]), len(setting.model.layers))
    columns = stage_columns(setting, case, stages, np.array([sequences]))
    totals = [float(column["total_bytes"][0]) for column in columns]
    return stage_layer_bounds(len(setting.model.layers), stages)[int(np.argmax(totals))]


def _count_layer_kinds(setting: Setting, start: int, end: int) -> list[tuple[int, int]]:
    order = setting.model.order[start:end]
    return [(kind, order.count(kind)) for kind in dict.fromkeys(order)]


def _weights_text(setting: Setting, case: Cases, start: int, end: int) -> str:
    model = setting.model
    tables = [
        gib_exact(float(vocabulary_bytes(setting, case, "embedding")[0])),
        gib_exact(float(vocabulary_bytes(setting, case, "head")[0])),
    ]
    terms = [
        f"{count} × {gib_exact(float(layer_weight_bytes(setting, model.kinds[kind][0], case)[0]))}"
        for kind, count in _count_layer_kinds(setting, start, end)
    ]
    first, last = start == 0, end == len(model.layers)
    once = first and last and model.tied_embeddings
    terms += tables[:first] + (tables[1:] if last and not once else [])
    drafts = float(draft_weight_bytes(setting, case)[0])
    if last and drafts:
        terms.append(gib_exact(drafts))
    return " + ".join(terms)


def _cache_text(setting: Setting, case: Cases, start: int, end: int) -> str:
    """Layers × tokens × bytes per token, and states; or the blocks of a shared pool."""
    context = np.minimum(case.input_tokens + case.output_tokens, case.max_context)
    terms: list[str] = []
    model = setting.model
    layers = [
        (model.kinds[kind][0], count) for kind, count in _count_layer_kinds(setting, start, end)
    ]
    shared = shared_blocks(setting, tuple(layers), case)
    if shared is not None and not shared.layer_groups:
        return "blocks shared by the caches of several layers"
    if shared is not None:
        blocks = float((shared.request_bytes(context) / shared.block_bytes)[0])
        megabytes = significant(float(np.ravel(shared.block_bytes)[0]) / 1e6)
        terms, layers = [f"{blocks:,.0f} × {megabytes} MB"], []
    if end == len(model.layers) and case.draft_layers[0]:
        layers.append((draft_layer(model), int(case.draft_layers[0])))
    for layer, count in layers:
        token_bytes = float(kv_token_bytes(setting, layer.attention, case.tp)[0] / case.cp[0])
        state = float(request_state_bytes(setting, layer.attention, case.tp)[0])
        if token_bytes:
            tokens = cached_tokens(layer, context, case.block_tokens)[0]
            terms.append(f"{count} × {tokens:,.0f} × {significant(token_bytes)} B")
        if state:
            terms.append(f"{count} × {significant(state / 1e6)} MB of state")
    return " + ".join(terms) or "no layer has a cache"


def _cache_lines(plan: Plan, row: int, estimate: ServingEstimate) -> list[Line]:
    """Prompts found in caches: sizes, shares, and a token loaded or made."""
    cache, pool = require_part(estimate.prefix_cache), estimate.memory.prefill or estimate.memory
    offload, above = plan.setting(row).offload, cache.device_hit
    (block, i), tiers = plan.at(row), []
    for tier in estimate.kv_tiers or []:
        room = 0.0
        if offload is not None:
            store, case = offload.store(tier.name), block.cases.take([i])
            room = store.capacity_bytes if store else float(offload.server_bytes(case)[0])
        tiers.append((tier, room, above))
        above = tier.hit
    return _lines("caches", cache, pool, tiers, TIERS)


# Training


def training_arithmetic(plan: Plan, row: int) -> Times:
    """Lines on a training split's fullest stage and, if it runs, its step and the run.

    The step comes with its operators, and the sources of their numbers.
    """
    estimate, m, work = plan.estimate(row), plan.measures, plan.problem.workload
    memory = estimate.memory
    if memory is None:
        return Times()
    sizes = {name: getattr(memory, f"{name}_bytes") for name in MEMORY_TITLES}
    sizes = {name: size for name, size in sizes.items() if size > 0}
    lines = {m["memory"].title: _lines("peak", sizes, MEMORY_TITLES, memory.total_bytes)}
    if not estimate.feasible:
        return Times(lines)
    times, training = training_times(plan, row), require_part(estimate.training)
    seconds, devices = require_part(estimate.breakdown_s).step, int(plan.raw("gpus")[row])
    lines["Time of a step"] = _lines("step", m, training, work, seconds, STEP_TITLES, devices)
    run, cost = require_part(estimate.run), require_part(estimate.cost)
    shares: dict[str, float] = require_part(run.time_shares).to_json()
    losses = [pair for pair in shares.items() if pair[0] != "steps" and pair[1] > 0]
    phases = [
        (phase.tokens, phase.global_batch * phase.sequence_length, phase.steps, phase.step_s)
        for phase in run.phases or ()
    ]
    if not phases:
        size = work.global_batch * work.sequence_length
        phases = [(work.tokens, size, run.steps or 0.0, training.step_s)]
    lines["The run"] = _lines("run", m, run, cost, work, losses, RUN_TITLES, phases)
    return Times(lines | times.lines, times.workings, times.constants)
