"""The tables and texts of the views of one split: formats, frontier, caches, runs, formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from recipe_core.base.units import (
    accuracy_text,
    chance_text,
    count_text,
    days,
    seconds_text,
    significant,
    token_rate_text,
)
from recipe_core.estimates.serving.accuracy import NearFigure
from recipe_core.estimates.serving.feature_results import KvTier
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.estimates.training.results import TrainingPhase, TrainingRun
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.splits import is_known
from recipe_core.request.metrics import column_metric
from recipe_core.views.charts.accuracy import FIGURES, MADE, accuracy_band_text, has_token_prices
from recipe_core.views.charts.views import Item, Note, Table
from recipe_core.views.explanations.arithmetic import TIERS
from recipe_core.views.explanations.curves import INTERACTIVITIES, Frontier, Scaling
from recipe_core.views.explanations.formats import FormatPoint
from recipe_core.views.explanations.operators import Times, Working, time_text


def formats_table(points: Sequence[FormatPoint], title: str) -> Table:
    """The formats of a split: accuracy kept, figures and checkpoints."""
    accuracy, rows = column_metric("accuracy"), []
    measures = [
        metric
        for metric in map(column_metric, FIGURES)
        if metric.name != "usd" or has_token_prices(points)
    ]
    for point in points:
        retained = point.retained
        cells = {
            "Weights": f"{point.weight_dtype}{' (this)' if point.planned else ''}",
            "Cache": point.kv_dtype,
            accuracy.title: accuracy.show(retained.value) if retained.known else "unknown",
            "Likely": accuracy_band_text(point),
        }
        for metric in measures:
            cells[metric.head] = metric.show(getattr(point, metric.column)) if point.runs else "–"
        cells["Best tradeoff"] = "◆" if point.front else ""
        cells["Checkpoint"] = point.checkpoint or MADE
        if not point.runs:
            cells["Checkpoint"] = f"does not run: {point.reasons[0]}"
        rows.append(cells)
    return Table.of(rows, title)


def published_table(figures: Sequence[NearFigure]) -> Table:
    """Published figures of accuracy, the nearest first."""
    rows = [
        {
            "Model": figure.model,
            "Technique": figure.technique,
            "Method": figure.method or "–",
            "Benchmark": figure.benchmark,
            "Base": significant(figure.base_value),
            "Compressed": significant(figure.value),
            "Kept": accuracy_text(figure.retained),
            "Source": figure.source,
        }
        for figure in figures
    ]
    return Table.of(rows, "Nearest published figures")


def frontier_table(frontier: Frontier) -> Table:
    """The highest output per device at round interactivities, and the gains over the first device.

    Of one device also the split and its load.
    """
    envelopes = frontier.envelopes
    rows = []
    for interactivity in INTERACTIVITIES:
        best = [
            None if (k := envelope.at(interactivity)) is None else float(envelope.per_gpu[k])
            for envelope in envelopes
        ]
        if all(value is None for value in best):
            continue
        cells = {"At least": f"{interactivity:,.0f} tok/s a user"}
        for envelope, value in zip(envelopes, best, strict=True):
            text, place = "–", envelope.at(interactivity)
            if value is not None and place is not None:
                split = split_label(frontier.plan, int(envelope.rows[place]), device=False)
                text = f"{token_rate_text(value)} ({split})"
            cells[f"{envelope.title}, per GPU"] = text
        for envelope, value in zip(envelopes[1:], best[1:], strict=True):
            cells[f"{envelope.title} over {envelopes[0].title}"] = _gain_text(value, best[0])
        rows.append(cells)
    return Table.of(rows, "Most output per GPU at an interactivity")


def _gain_text(value: float | None, first: float | None) -> str:
    if value is None or first is None:
        return "–"
    text = f"{value / first - 1:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def device_table(estimate: ServingEstimate, stated_hit: float) -> Table:
    """The devices' cache of a replica, and its hits; ``stated_hit``: by the workload."""
    memory, cache = estimate.memory.prefill or estimate.memory, estimate.prefix_cache
    row = {"Cache": "Devices, a replica", "Holds": f"{count_text(memory.kv_cache_tokens)} tokens"}
    if cache is None:
        return Table.of([{**row, "Prompt tokens found": f"{stated_hit:.1%}, as stated"}])
    row["Free for reuse"] = f"{count_text(cache.free_tokens)} tokens"
    return Table.of([{**row, "Prompt tokens found": f"{cache.device_hit:.1%}"}])


def tier_table(tiers: Sequence[KvTier]) -> Table:
    """The gains and costs of each tier, and the verdict on it."""
    rows = [
        {
            "Tier": TIERS[tier.name],
            "Holds": f"{count_text(tier.capacity_tokens)} tokens",
            "Adds": f"{100 * tier.hit_added:.1f} % of prompt tokens",
            "A token": f"{significant(tier.load_s_per_token * 1e6)} µs to load, "
            f"{significant(tier.recompute_s_per_token * 1e6)} µs to compute",
            column_metric("ttft_s").head: f"{1e3 * tier.ttft_change_s:+,.0f} ms",
            column_metric("output_tokens_per_s").title: f"{tier.throughput_change:+.1%}",
            "Reads": f"{tier.read_bytes_per_s / 1e9:.2f} GB/s",
            "Writes": f"{tier.write_bytes_per_s / 1e9:.2f} GB/s",
            "Verdict": tier.verdict,
        }
        for tier in tiers
    ]
    return Table.of(rows, "Tiers below the devices' cache")


def phase_table(phases: Sequence[TrainingPhase]) -> Table:
    """The phases of a training run."""
    rows = [
        {
            "Tokens": count_text(phase.tokens),
            "Batch": f"{phase.global_batch:,}",
            "Sequence length": f"{phase.sequence_length:,}",
            "cp × dp": f"{phase.cp} × {phase.dp}",
            "Steps": f"{phase.steps:,.0f}",
            **{
                metric.head: metric.show(getattr(phase, metric.column))
                for metric in map(column_metric, ("step_s", "peak_memory_bytes"))
            },
            "Time": days(phase.wall_s),
        }
        for phase in phases
    ]
    return Table.of(rows, "Phases of the run")


def scaling_table(plan: Plan, best: Scaling, title: str) -> Table:
    """The best split on each number of devices, with its measures."""
    names = [name for name in ("output", "wall", "usd_run", "usd") if is_known(plan, name)]
    rows = [
        {
            plan.measures["gpus"].head: measure_text(plan, "gpus", row),
            "Split": split_label(plan, row),
            **{plan.measures[name].title: measure_text(plan, name, row) for name in names},
        }
        for row in best.rows
    ]
    return Table.of(rows, title)


def failures_text(run: TrainingRun) -> str:
    """The rate of failures, and the help of a spare."""
    often = f"One failure is expected every {days(run.mtbf_s or 0.0)}"
    if run.failures is not None:
        often += f" ({significant(run.failures)} in the run)"
    spare = ""
    if run.spares_suffice is not None:
        spare = f" A spare node is there with a probability of {chance_text(run.spares_suffice)}."
    return f"{often}; a restart takes {seconds_text(run.restart_s or 0.0)}.{spare}"


def arithmetic_items(times: Times, causes: Mapping[str, str]) -> Iterator[Item]:
    """Formulas with the numbers in them, down to operators, and the sources of these."""
    if not times.lines:
        yield Note("The split breaks a rule, so nothing was estimated.")
    for title, lines in times.lines.items():
        head = ("Figure", "Formula", "With your numbers", "Value")
        figures = [(line.name, line.formula, line.numbers, line.value) for line in lines]
        yield Table(title, head, tuple(figures), "Value")
    for work in times.workings:
        yield _operator_table(work, causes)
    if times.constants:
        head = ("Number", "Value", "Status", "Source")
        sources = [
            (number.name, number.value, number.status, number.source) for number in times.constants
        ]
        yield Table("Where these numbers are from", head, tuple(sources), "Value")


def _operator_table(work: Working, causes: Mapping[str, str]) -> Table:
    """The operators of a step, each as equations, and their sum."""
    head = ("Part", "Operator", "Compute", "Memory or link", "Once", "Count", "Time")
    rows = [
        (
            causes.get(row.part, row.part),
            row.operator,
            row.compute,
            row.moved,
            row.once,
            row.count,
            row.time,
        )
        for row in work.rows
    ]
    together = time_text(sum(row.time_s for row in work.rows))
    rows.append(("All parts", "", "", "", "", "", together))
    return Table(work.title, head, tuple(rows), "Time")
