"""The arithmetic behind a split: each metric as a formula, and with the numbers of this request.

Lines are built from the parts that the estimate adds up, so a line's numbers give its value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recipe_core.base.labels import CAUSES, RUN_SHARES, TRAINING_CAUSES, TRAINING_MEMORY
from recipe_core.base.text_rows import MEMORY, memory_parts
from recipe_core.base.units import GIB, duration, per_second, rate, significant, usd
from recipe_core.base.units import count as count_text
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import known
from recipe_core.estimates.serving.cache import (
    cached_tokens,
    kv_token_bytes,
    shared_blocks,
    state_bytes,
)
from recipe_core.estimates.serving.cache_pages import Packing
from recipe_core.estimates.serving.compressed_pools import CachePools
from recipe_core.estimates.serving.memory import stage_columns
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.estimates.serving.weights import (
    draft_layer,
    draft_weight_bytes,
    layer_weight_bytes,
    stage_layers,
    vocabulary_bytes,
)
from recipe_core.estimates.training.results import TrainingEstimate, TrainingRun
from recipe_core.plans.measures import days
from recipe_core.plans.serving_plan import ServingPlan
from recipe_core.plans.training_plan import TrainingPlan
from recipe_core.request.training_workload import TrainingWorkload
from recipe_core.views.explanations.cache_lines import cache_lines
from recipe_core.views.explanations.line import Line
from recipe_core.views.explanations.serving_time import Times, serving_times
from recipe_core.views.explanations.training_time import training_times


def gib(value_bytes: float) -> str:
    """GiB with three digits, also of small values, so that a line can be checked."""
    return f"{significant(value_bytes / GIB)} GiB"


def _long(seconds: float) -> str:
    """Seconds, hours or days."""
    return duration(seconds) if seconds < 3600 else days(seconds)


def arithmetic(board: ServingPlan, row: int) -> Times:
    """Lines on a serving split's memory and, if it runs, time, throughput, cost and energy.

    Times come with the operators that they are made of, and where the numbers of these are from.
    """
    estimate = board.estimate(row)
    if not np.isfinite(estimate.memory.total_bytes):
        return Times()
    out = {"Memory of the fullest device": _memory_lines(board, row, estimate)}
    if not estimate.feasible:
        return Times(out)
    times = serving_times(board, row)
    out["Time"] = _time_lines(board, estimate)
    out |= cache_lines(board, row, estimate)
    out["Throughput, cost and energy"] = _rate_lines(board, row, estimate)
    return Times(out | times.lines, times.workings, times.constants)


def _memory_lines(board: ServingPlan, row: int, estimate: ServingEstimate) -> list[Line]:
    block, i = board.at(row)
    m, case = estimate.memory, block.cases.take([i])
    estimates, k = block.detail(i)
    memory = estimates.memory
    request_bytes = float(memory.sequence_bytes[k])
    sequences = float(memory.kv_needed_bytes[k] / max(request_bytes, 1.0))
    start, end = _fullest_stage(block.setting, case, sequences)
    summed = memory_parts({name: getattr(m, name) for name in MEMORY})
    parts = " + ".join(gib(value) for value in summed.values())
    return [
        Line(
            "Weights",
            "layers + embedding + head + draft layers",
            _weights(block.setting, case, start, end),
            gib(summed["weights_bytes"]),
        ),
        *_encoder_lines(block.setting, m.encoder_bytes),
        Line(
            "Cache of one request",
            "layers · tokens · bytes per token",
            _cache(block.setting, case, start, end),
            gib(request_bytes),
        ),
        Line(
            "KV cache needed",
            "requests per replica · cache of one request",
            f"{significant(sequences)} × {gib(request_bytes)}",
            gib(m.kv_needed_bytes),
        ),
        Line("Total", _SUM[bool(m.encoder_bytes)], parts, gib(m.total_bytes)),
        Line(
            "Usable",
            "memory fraction · capacity",
            f"{m.usable_bytes / m.capacity_bytes:.3g} × {gib(m.capacity_bytes)}",
            gib(m.usable_bytes),
        ),
    ]


_SUM = {
    False: "weights + cache + activations + runtime",
    True: "weights + encoders + cache + activations + runtime",
}


def _encoder_lines(setting: Setting, encoder_bytes: float) -> list[Line]:
    """The towers of a model that reads images or sound."""
    if not encoder_bytes:
        return []
    sizes = " + ".join(
        f"{tower.layers} × {count_text(tower.layer_weights)} "
        f"+ {count_text(tower.embedding_weights + tower.projector_weights)} ({tower.name})"
        for tower in setting.model.towers
    )
    formula = "layers / ranks + embedding + projector"
    return [Line("Vision and audio encoders", formula, sizes, gib(encoder_bytes))]


def _fullest_stage(setting: Setting, case: Cases, sequences: float) -> tuple[int, int]:
    """First and past-the-last layer of the fullest stage."""
    stages = min(int(case.pp[0]), len(setting.model.layers))
    columns = stage_columns(setting, case, stages, np.array([sequences]))
    totals = [float(column["total_bytes"][0]) for column in columns]
    return stage_layers(len(setting.model.layers), stages)[int(np.argmax(totals))]


def _kinds(setting: Setting, start: int, end: int) -> list[tuple[int, int]]:
    """Kinds of layers in a stage, each with its number of layers."""
    order = setting.model.order[start:end]
    return [(kind, order.count(kind)) for kind in dict.fromkeys(order)]


def _weights(setting: Setting, case: Cases, start: int, end: int) -> str:
    model = setting.model
    tables = [
        gib(float(vocabulary_bytes(setting, case, "embedding")[0])),
        gib(float(vocabulary_bytes(setting, case, "head")[0])),
    ]
    terms = [
        f"{count} × {gib(float(layer_weight_bytes(setting, model.kinds[kind][0], case)[0]))}"
        for kind, count in _kinds(setting, start, end)
    ]
    first, last = start == 0, end == len(model.layers)
    once = first and last and model.tied_embeddings
    terms += tables[:first] + (tables[1:] if last and not once else [])
    drafts = float(draft_weight_bytes(setting, case)[0])
    if last and drafts:
        terms.append(gib(drafts))
    return " + ".join(terms)


def _cache(setting: Setting, case: Cases, start: int, end: int) -> str:
    """Layers × tokens × bytes per token, and states; or the blocks of a shared pool."""
    context = np.minimum(case.input_tokens + case.output_tokens, case.max_context)
    terms: list[str] = []
    model = setting.model
    layers = [(model.kinds[kind][0], count) for kind, count in _kinds(setting, start, end)]
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
        state = float(state_bytes(setting, layer.attention, case.tp)[0])
        if token_bytes:
            tokens = cached_tokens(layer, context, case.block_tokens)[0]
            terms.append(f"{count} × {tokens:,.0f} × {significant(token_bytes)} B")
        if state:
            terms.append(f"{count} × {significant(state / 1e6)} MB of state")
    return " + ".join(terms) or "no layer has a cache"


def _sum(parts: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Parts of a time, largest first, with their names."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return " + ".join(
        f"{duration(seconds)} {labels.get(name, name).lower()}" for name, seconds in ordered
    )


def _time_lines(board: ServingPlan, estimate: ServingEstimate) -> list[Line]:
    s, parts, w = known(estimate.serving), known(estimate.breakdown_s), board.problem.workload
    if w.pooled:
        numbers, value = _sum(parts.prefill, CAUSES), duration(s.request_latency_s)
        return [Line("Request latency", "sum of the parts", numbers, value)]
    return [
        Line(
            "Time per output token",
            "sum of the parts of a decode step",
            _sum(parts.decode, CAUSES),
            duration(s.tpot_s),
        ),
        Line(
            "Time to first token",
            "sum of the parts",
            _sum(parts.prefill, CAUSES),
            duration(s.ttft_s),
        ),
        Line(
            "Request latency",
            "first token + (output tokens - 1) · time per token",
            f"{duration(s.ttft_s)} + {w.output_tokens - 1:,} × {duration(s.tpot_s)}",
            duration(s.request_latency_s),
        ),
    ]


def _rate_lines(board: ServingPlan, row: int, estimate: ServingEstimate) -> list[Line]:
    s, cost, energy = known(estimate.serving), known(estimate.cost), known(estimate.energy)
    w, gpus = board.problem.workload, int(board.raw("gpus")[row])
    out = s.output_tokens_per_s
    lines = []
    if w.mode == "closed":
        load = float(board.columns["load"][row])
        numbers = f"{load:,.0f} × {w.output_tokens:,} ÷ {duration(s.request_latency_s)}"
        lines.append(
            Line(
                "Output",
                "requests in flight · output tokens ÷ latency (Little's law)",
                numbers,
                rate(out),
            )
        )
    lines.append(
        Line(
            "Output per device",
            "output ÷ devices",
            f"{rate(out)} ÷ {gpus}",
            rate(s.output_tokens_per_s_per_gpu),
        )
    )
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        price = cost.usd_per_hour / gpus
        lines.append(
            Line(
                "Cost per hour",
                "devices · price of a device hour",
                f"{gpus} × {usd(price)}",
                usd(cost.usd_per_hour),
            )
        )
        numbers = f"{usd(cost.usd_per_hour)} ÷ (3,600 s × {rate(out)}) × 1,000,000"
        lines.append(
            Line(
                "Cost per million output tokens",
                "cost per hour ÷ tokens per hour · 1e6",
                numbers,
                usd(cost.usd_per_million_output_tokens),
            )
        )
    numbers = f"{significant(energy.watts)} W ÷ {rate(out)}"
    lines.append(
        Line(
            "Energy per output token",
            "power ÷ output",
            numbers,
            f"{significant(energy.joules_per_token)} J",
        )
    )
    return lines


def training_arithmetic(board: TrainingPlan, row: int) -> Times:
    """Lines on a training split's fullest stage and, if it runs, its step and the run.

    The step comes with its operators, and where the numbers of these are from.
    """
    estimate = board.estimate(row)
    m = estimate.memory
    if m is None:
        return Times()
    held = {name: getattr(m, f"{name}_bytes") for name in TRAINING_MEMORY}
    parts = {name: value for name, value in held.items() if value > 0}
    total = " + ".join(
        f"{gib(value)} {TRAINING_MEMORY[name].lower()}" for name, value in parts.items()
    )
    out = {
        "Memory of the fullest stage": [Line("Peak", "sum of the parts", total, gib(m.total_bytes))]
    }
    if not estimate.feasible:
        return Times(out)
    times = training_times(board, row)
    out["Time of a step"] = _step_lines(board, row, estimate)
    out["The run"] = _run_lines(board, estimate)
    return Times(out | times.lines, times.workings, times.constants)


def _step_lines(board: TrainingPlan, row: int, estimate: TrainingEstimate) -> list[Line]:
    t, w, gpus = known(estimate.training), board.problem.workload, int(board.raw("gpus")[row])
    tokens = w.global_batch * w.sequence_length
    flops = t.flops_per_s_per_gpu / t.tokens_per_s_per_gpu
    peak = t.flops_per_s_per_gpu / t.mfu
    mfu = (
        f"{significant(flops / 1e9)} GFLOP × {rate(t.tokens_per_s_per_gpu)} ÷ "
        f"{per_second(peak, 'FLOP')}"
    )
    lines = [
        Line(
            "Step",
            "sum of the parts",
            _sum(known(estimate.breakdown_s).step, TRAINING_CAUSES),
            duration(t.step_s),
        ),
        Line(
            "Tokens of a step",
            "sequences · sequence length",
            f"{w.global_batch:,} × {w.sequence_length:,}",
            f"{tokens:,}",
        ),
        Line(
            "Tokens per device",
            "tokens of a step ÷ step time ÷ devices",
            f"{tokens:,} ÷ {duration(t.step_s)} ÷ {gpus}",
            rate(t.tokens_per_s_per_gpu),
        ),
        Line("MFU", "model flops per token · tokens per device ÷ peak", mfu, f"{t.mfu:.1%}"),
    ]
    if t.hfu is not None:
        again = flops * (t.hfu / t.mfu - 1)
        lines.append(
            Line(
                "HFU",
                "(model flops + those of recomputation) per token · tokens per device ÷ peak",
                f"({significant(flops / 1e9)} GFLOP + {significant(again / 1e9)} GFLOP) × "
                f"{rate(t.tokens_per_s_per_gpu)} ÷ {per_second(peak, 'FLOP')}",
                f"{t.hfu:.1%}",
            )
        )
    return lines


def _run_lines(board: TrainingPlan, estimate: TrainingEstimate) -> list[Line]:
    run, cost, t = known(estimate.run), known(estimate.cost), known(estimate.training)
    w = board.problem.workload
    interval, stall, mtbf = (
        _long(seconds or 0.0)
        for seconds in (run.checkpoint_interval_s, run.checkpoint_stall_s, run.mtbf_s)
    )
    lines = []
    if w.checkpoint_interval_s is None:
        lines.append(
            Line(
                "Checkpoint interval",
                "√(2 · wait for a checkpoint · time between failures)",
                f"√(2 × {stall} × {mtbf})",
                interval,
            )
        )
    lines.append(_goodput_line(run))
    if run.wall_s is None or w.tokens is None:
        return lines
    lines.append(_steps_line(run, w))
    if run.phases:
        steps_s = " + ".join(f"{p.steps:,.0f} × {duration(p.step_s)}" for p in run.phases)
        numbers = f"({steps_s}) ÷ {run.goodput:.2%}"
    else:
        numbers = f"{run.steps:,.0f} × {duration(t.step_s)} ÷ {run.goodput:.2%}"
    lines.append(
        Line(
            "Time to finish",
            "steps · step time ÷ goodput",
            numbers,
            board.measures["wall"].show(run.wall_s),
        )
    )
    if cost.usd is not None and cost.usd_per_hour is not None:
        hours = f"{usd(cost.usd_per_hour)} × {significant(run.wall_s / 3600)} h"
        storage = f" + {usd(cost.usd_storage)}" if cost.usd_storage else ""
        formula = "cost per hour · hours" + (" + storage of checkpoints" if storage else "")
        lines.append(Line("Cost of the run", formula, hours + storage, usd(cost.usd)))
    return lines


def _goodput_line(run: TrainingRun) -> Line:
    """What steps leave to everything else."""
    others = {k: v for k, v in known(run.time_shares).to_json().items() if k != "steps" and v > 0}
    numbers = " − ".join(f"{RUN_SHARES[k].lower()} {v:.2%}" for k, v in others.items())
    formula = "100 % − shares of the time that something else takes"
    return Line("Goodput", formula, f"100 % − {numbers}", f"{run.goodput:.2%}")


def _steps_line(run: TrainingRun, w: TrainingWorkload) -> Line:
    """Tokens over those of a step, of every phase."""
    parts = [(p.tokens, p.global_batch, p.sequence_length) for p in run.phases or ()]
    parts = parts or [(w.tokens or 0.0, w.global_batch, w.sequence_length)]
    numbers = " + ".join(f"{tokens:,.0f} ÷ {batch * length:,}" for tokens, batch, length in parts)
    formula = "token budget ÷ tokens of a step, rounded up"
    return Line("Steps", formula, numbers, f"{run.steps:,.0f}")
