"""The arithmetic behind a split: each metric as a formula, and with the numbers of this request.

Lines are built from the parts that the estimate adds up, so a line's numbers give its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from recipe_core.base.units import (
    GIB,
    count_text,
    days,
    per_second,
    seconds_text,
    significant,
    token_rate_text,
    usd,
)
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import require_part
from recipe_core.estimates.serving.cache import (
    cached_tokens,
    kv_token_bytes,
    request_state_bytes,
    shared_blocks,
)
from recipe_core.estimates.serving.cache_blocks import CachePools, Packing
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
from recipe_core.estimates.training.results import RUN_TITLES, STEP_TITLES, TrainingEstimate
from recipe_core.plans.plan import Plan
from recipe_core.request.metrics import Metric, column_metric
from recipe_core.views.explanations.operators import Line, Times
from recipe_core.views.explanations.serving_time import serving_times
from recipe_core.views.explanations.training_time import training_times

CACHES = "Prompts found in caches"
TIERS = {"host": "Host memory", "disk": "Drives", "remote": "Remote store"}


def arithmetic(plan: Plan, row: int) -> Times:
    """Lines on a serving split's memory and, if it runs, time, throughput, cost and energy.

    Times come with the operators that they are made of, and the sources of their numbers.
    """
    estimate = plan.estimate(row)
    if not np.isfinite(estimate.memory.total_bytes):
        return Times()
    lines = {plan.measures["memory"].title: list(_memory_lines(plan, row, estimate))}
    if not estimate.feasible:
        return Times(lines)
    times = serving_times(plan, row)
    lines["Time"] = list(_time_lines(plan, estimate))
    if estimate.prefix_cache is not None:
        lines[CACHES] = [*_device_cache_lines(estimate), *_tier_lines(plan, row, estimate)]
    lines["Throughput, cost and energy"] = list(_rate_lines(plan, row, estimate))
    return Times(lines | times.lines, times.workings, times.constants)


def gib_exact(value_bytes: float) -> str:
    """GiB with three digits, also of small values, so that a line can be checked."""
    return f"{significant(value_bytes / GIB)} GiB"


# Memory


def _memory_lines(plan: Plan, row: int, estimate: ServingEstimate) -> Iterator[Line]:
    block, i = plan.at(row)
    setting, memory, case = block.setting, estimate.memory, block.cases.take([i])
    estimates, k = block.detail(i)
    request_bytes = float(estimates.memory.sequence_bytes[k])
    sequences = float(estimates.memory.kv_needed_bytes[k] / max(request_bytes, 1.0))
    stage = _fullest_stage(setting, case, sequences)
    parts = memory_parts({name: getattr(memory, name) for name in MEMORY})
    column, formula = "weights_bytes", "layers + embedding + head + draft layers"
    numbers, weights = _weights_text(setting, case, *stage), gib_exact(parts["weights_bytes"])
    yield Line(column_metric(column).title, formula, numbers, weights)
    if memory.encoder_bytes:
        formula = "layers / ranks + embedding + projector"
        numbers = " + ".join(
            f"{tower.layers} × {count_text(tower.layer_weights)} "
            f"+ {count_text(tower.embedding_weights + tower.projector_weights)} ({tower.name})"
            for tower in setting.model.towers
        )
        yield Line("Vision and audio encoders", formula, numbers, gib_exact(memory.encoder_bytes))
    formula, numbers = "layers · tokens · bytes per token", _cache_text(setting, case, *stage)
    yield Line("Cache of one request", formula, numbers, gib_exact(request_bytes))
    formula = "requests per replica · cache of one request"
    numbers = f"{significant(sequences)} × {gib_exact(request_bytes)}"
    value = gib_exact(memory.kv_needed_bytes)
    yield Line(column_metric("kv_needed_bytes").title, formula, numbers, value)
    encoders = " + encoders" if memory.encoder_bytes else ""
    formula = f"weights{encoders} + cache + activations + runtime"
    numbers = " + ".join(gib_exact(value) for value in parts.values())
    yield Line("Total", formula, numbers, gib_exact(memory.total_bytes))
    share, capacity = memory.usable_bytes / memory.capacity_bytes, memory.capacity_bytes
    numbers = f"{share:.3g} × {gib_exact(capacity)}"
    yield Line("Usable", "memory fraction · capacity", numbers, gib_exact(memory.usable_bytes))


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
    if isinstance(shared, Packing | CachePools):
        return "blocks shared by the caches of several layers"
    if shared is not None:
        blocks = float((shared.request_bytes(context) / shared.block_bytes)[0])
        megabytes = significant(float(shared.block_bytes[0]) / 1e6)
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


# Times, throughput and cost


def _parts_line(
    metric: Metric, formula: str, parts: Mapping[str, float], titles: Mapping[str, str], s: float
) -> Line:
    """A time as the sum of its parts, largest first, with their names."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    numbers = " + ".join(
        f"{seconds_text(seconds)} {titles.get(part, part).lower()}" for part, seconds in ordered
    )
    return Line.of_metric(metric, formula, numbers, s)


def _time_lines(plan: Plan, estimate: ServingEstimate) -> Iterator[Line]:
    serving, parts = require_part(estimate.serving), require_part(estimate.breakdown_s)
    workload, latency_s = plan.problem.workload, serving.request_latency_s
    tpot, ttft, latency = (plan.measures[name] for name in ("tpot", "ttft", "latency"))
    formula = "sum of the parts"
    if workload.pooled:
        yield _parts_line(latency, formula, parts.prefill, TIME_TITLES, latency_s)
        return
    step = f"{formula} of a decode step"
    yield _parts_line(tpot, step, parts.decode, TIME_TITLES, serving.tpot_s)
    yield _parts_line(ttft, formula, parts.prefill, TIME_TITLES, serving.ttft_s)
    formula = "first token + (output tokens - 1) · time per token"
    numbers = f"{seconds_text(serving.ttft_s)} + {workload.output_tokens - 1:,} × "
    numbers += seconds_text(serving.tpot_s)
    yield Line.of_metric(latency, formula, numbers, latency_s)


def _rate_lines(plan: Plan, row: int, estimate: ServingEstimate) -> Iterator[Line]:
    serving, cost = require_part(estimate.serving), require_part(estimate.cost)
    energy, devices = require_part(estimate.energy), int(plan.raw("gpus")[row])
    workload, measures = plan.problem.workload, plan.measures
    output = token_rate_text(serving.output_tokens_per_s)
    if workload.mode == "closed":
        load = float(plan.columns["load"][row])
        latency = seconds_text(serving.request_latency_s)
        formula = "requests in flight · output tokens ÷ latency (Little's law)"
        numbers = f"{load:,.0f} × {workload.output_tokens:,} ÷ {latency}"
        yield Line.of_metric(measures["output"], formula, numbers, serving.output_tokens_per_s)
    formula, per_gpu = "throughput ÷ devices", serving.output_tokens_per_s_per_gpu
    yield Line.of_metric(measures["per_gpu"], formula, f"{output} ÷ {devices}", per_gpu)
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        formula = "devices · price of a device hour"
        numbers = f"{devices} × {usd(cost.usd_per_hour / devices)}"
        yield Line.of_metric(measures["usd_hour"], formula, numbers, cost.usd_per_hour)
        formula = "cost per hour ÷ tokens per hour · 1e6"
        numbers = f"{usd(cost.usd_per_hour)} ÷ (3,600 s × {output}) × 1,000,000"
        yield Line.of_metric(measures["usd"], formula, numbers, cost.usd_per_million_output_tokens)
    numbers = f"{measures['watts'].show(energy.watts)} ÷ {output}"
    yield Line.of_metric(measures["joules"], "power ÷ throughput", numbers, energy.joules_per_token)


# Prompts found in caches: sizes, shares, and a token loaded or made


def _device_cache_lines(estimate: ServingEstimate) -> Iterator[Line]:
    cache, pool = require_part(estimate.prefix_cache), estimate.memory.prefill or estimate.memory
    used = pool.kv_cache_tokens - cache.free_tokens
    formula = "tokens of a replica's cache - those of running requests alone"
    numbers = f"{pool.kv_cache_tokens:,} - {used:,.0f}"
    yield Line("Cache free for reuse", formula, numbers, f"{cache.free_tokens:,.0f} tokens")
    formula = "workload.prefix_reuse at that size "
    formula += "(of all replicas where requests are routed by prefix)"
    numbers = f"reuse({cache.seen_tokens:,.0f} tokens)"
    yield Line("Found by the devices", formula, numbers, _percent(cache.device_hit))


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"


def _tier_lines(plan: Plan, row: int, estimate: ServingEstimate) -> Iterator[Line]:
    offload, above = plan.setting(row).offload, require_part(estimate.prefix_cache).device_hit
    block, i = plan.at(row)
    for tier in estimate.kv_tiers or []:
        title, store = TIERS[tier.name], offload.store(tier.name) if offload else None
        if offload is not None and store is None:
            room = float(offload.server_bytes(block.cases.take([i]))[0])
        else:
            room = store.capacity_bytes if store else 0.0
        token_bytes = room / max(tier.capacity_tokens, 1e-9)
        formula = "bytes ÷ bytes of a token on all ranks of a server"
        numbers = f"{gib_exact(room)} ÷ {significant(token_bytes / 1024)} KiB"
        yield Line(f"{title}, capacity", formula, numbers, f"{tier.capacity_tokens:,.0f} tokens")
        formula = "reuse at the largest size so far - what is found above"
        numbers = f"{_percent(tier.hit)} - {_percent(above)}"
        yield Line(f"{title}, found", formula, numbers, _percent(tier.hit_added))
        load_s, make_s = tier.load_s_per_token, tier.recompute_s_per_token
        numbers = f"{significant(load_s * 1e6)} µs ÷ {significant(make_s * 1e6)} µs"
        value = significant(load_s / max(make_s, 1e-12))
        yield Line(f"{title}, a token", "time to load against time to compute", numbers, value)
        above = tier.hit


# Training


def training_arithmetic(plan: Plan, row: int) -> Times:
    """Lines on a training split's fullest stage and, if it runs, its step and the run.

    The step comes with its operators, and the sources of their numbers.
    """
    estimate = plan.estimate(row)
    memory = estimate.memory
    if memory is None:
        return Times()
    parts = {name: getattr(memory, f"{name}_bytes") for name in MEMORY_TITLES}
    numbers = " + ".join(
        f"{gib_exact(value)} {MEMORY_TITLES[name].lower()}"
        for name, value in parts.items()
        if value > 0
    )
    peak = Line("Peak", "sum of the parts", numbers, gib_exact(memory.total_bytes))
    lines = {plan.measures["memory"].title: [peak]}
    if not estimate.feasible:
        return Times(lines)
    times = training_times(plan, row)
    lines["Time of a step"] = list(_step_arithmetic(plan, row, estimate))
    lines["The run"] = list(_run_arithmetic(plan, estimate))
    return Times(lines | times.lines, times.workings, times.constants)


def _step_arithmetic(plan: Plan, row: int, estimate: TrainingEstimate) -> Iterator[Line]:
    training, workload = require_part(estimate.training), plan.problem.workload
    step, batch, length = training.step_s, workload.global_batch, workload.sequence_length
    parts, measures = require_part(estimate.breakdown_s).step, plan.measures
    yield _parts_line(measures["step"], "sum of the parts", parts, STEP_TITLES, step)
    tokens, rate = f"{batch * length:,}", training.tokens_per_s_per_gpu
    formula, pace = "sequences · sequence length", token_rate_text(rate)
    yield Line("Tokens of a step", formula, f"{batch:,} × {length:,}", tokens)
    formula = "tokens of a step ÷ step time ÷ devices"
    numbers = f"{tokens} ÷ {seconds_text(step)} ÷ {int(plan.raw('gpus')[row])}"
    yield Line.of_metric(measures["per_gpu"], formula, numbers, rate)
    flops = training.flops_per_s_per_gpu / rate / 1e9
    peak = per_second(training.flops_per_s_per_gpu / training.mfu, "FLOP")
    formula = "model flops per token · tokens per GPU ÷ peak"
    numbers = f"{significant(flops)} GFLOP × {pace} ÷ {peak}"
    yield Line.of_metric(measures["mfu"], formula, numbers, training.mfu)
    if training.hfu is not None:
        again = flops * (training.hfu / training.mfu - 1)
        formula = "(model flops + those of recomputation) per token · tokens per GPU ÷ peak"
        numbers = f"({significant(flops)} GFLOP + {significant(again)} GFLOP) × {pace} ÷ {peak}"
        yield Line.of_metric(measures["hfu"], formula, numbers, training.hfu)


def _run_arithmetic(plan: Plan, estimate: TrainingEstimate) -> Iterator[Line]:
    run, cost = require_part(estimate.run), require_part(estimate.cost)
    workload, measures = plan.problem.workload, plan.measures
    if workload.checkpoint_interval_s is None:
        formula = "√(2 · wait for a checkpoint · time between failures)"
        numbers = f"√(2 × {_long(run.checkpoint_stall_s)} × {_long(run.mtbf_s)})"
        yield Line("Checkpoint interval", formula, numbers, _long(run.checkpoint_interval_s))
    shares: dict[str, float] = require_part(run.time_shares).to_json()
    numbers = " − ".join(
        f"{RUN_TITLES[name].lower()} {share:.2%}"
        for name, share in shares.items()
        if name != "steps" and share > 0
    )
    formula = "100 % − shares of the time that something else takes"
    yield Line(measures["goodput"].title, formula, f"100 % − {numbers}", f"{run.goodput:.2%}")
    if run.wall_s is None or workload.tokens is None:
        return
    phases = [
        (phase.tokens, phase.global_batch * phase.sequence_length, phase.steps, phase.step_s)
        for phase in run.phases or ()
    ]
    if not phases:
        size = workload.global_batch * workload.sequence_length
        step_s = require_part(estimate.training).step_s
        phases = [(workload.tokens, size, run.steps or 0.0, step_s)]
    numbers = " + ".join(f"{tokens:,.0f} ÷ {size:,}" for tokens, size, _, _ in phases)
    formula = "token budget ÷ tokens of a step, rounded up"
    yield Line("Steps", formula, numbers, f"{run.steps:,.0f}")
    numbers = " + ".join(f"{steps:,.0f} × {seconds_text(step_s)}" for *_, steps, step_s in phases)
    numbers = f"{f'({numbers})' if run.phases else numbers} ÷ {run.goodput:.2%}"
    yield Line.of_metric(measures["wall"], "steps · step time ÷ goodput", numbers, run.wall_s)
    if cost.usd is not None and cost.usd_per_hour is not None:
        formula = "cost per hour · hours"
        numbers = f"{usd(cost.usd_per_hour)} × {significant(run.wall_s / 3600)} h"
        if cost.usd_storage:
            formula += " + storage of checkpoints"
            numbers += f" + {usd(cost.usd_storage)}"
        yield Line.of_metric(measures["usd_run"], formula, numbers, cost.usd)


def _long(seconds: float | None) -> str:
    seconds = seconds or 0.0
    return seconds_text(seconds) if seconds < 3600 else days(seconds)
