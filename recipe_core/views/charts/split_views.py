"""The registered views of one split: its memory, time and money, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import gib, utilisation
from recipe_core.estimates.prediction import require_part
from recipe_core.estimates.serving.results import TIME_TITLES, memory_parts
from recipe_core.estimates.training.results import RUN_TITLES, STEP_TITLES
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.rank import front_with_accuracy
from recipe_core.plans.serving_kind import explain_estimate
from recipe_core.plans.splits import find_row, is_known, row_key
from recipe_core.views import tables
from recipe_core.views.charts import curves, degrees, formats, parts, views
from recipe_core.views.charts.views import Chart, Focus, Item, Note, view
from recipe_core.views.explanations.arithmetic import arithmetic, training_arithmetic
from recipe_core.views.explanations.curves import (
    Crossing,
    crossing,
    evaluate_frontier,
    load_curve,
    scaling,
)
from recipe_core.views.explanations.formats import FIGURES, format_points, tornado
from recipe_core.views.explanations.training_time import best_with_pipeline, step_timeline
from recipe_core.views.plan_words import capacity_bytes, figures_phrase, row_usable_bytes

# Bytes or seconds by the name of a part.
Parts = Mapping[str, float]


@view("memory", "Memory", needs_fit=False)
def memory_charts(focus: Focus[Any]) -> Iterator[Item]:
    """Memory of a device by part, of this split and others; of each stage where it has several."""
    plan, row, key = focus.searched, focus.row, row_key(focus.plan, focus.row)
    if find_row(plan, key) is None:  # a request may state a split that no search lists
        plan = focus.plan
    rows = tables.memory_rows(plan, [*focus.pins, key])
    capacities = sorted({gib(capacity_bytes(plan, row)) for row in rows})
    note = (
        "Pinned, best and nearest refused splits, with the cache that the engine will hold. "
        "Dotted line: what the engine may use. Solid line: what a process can allocate."
    )
    if len(capacities) > 1:
        note = note.replace("Dotted line", "Thin mark").replace("Solid line", "Thick mark")
    figure = parts.memory_bars(plan, rows, dark=focus.dark)
    alt = f"Memory of {len(rows)} splits by part against a capacity of {' or '.join(capacities)}"
    yield Chart("memory", plan.measures["memory"].title, figure, alt, note)
    if stages := _stage_parts(focus.plan, row):
        names = {part.removesuffix("_bytes"): name for part, name in focus.plan.spec.parts.items()}
        ends = (row_usable_bytes(focus.plan, row), capacity_bytes(focus.plan, row))
        title = f"Memory per pipeline stage, {split_label(focus.plan, row)}"
        figure = parts.stage_bars(stages, names, *ends, dark=focus.dark)
        yield Chart("stages", title, figure, f"Memory of {len(stages)} pipeline stages by part")


def _stage_parts(plan: Plan, row: int) -> list[Parts]:
    stages = plan.estimate(row).to_json().get("memory", {}).get("stages") or []
    split = [
        {**stage, **memory_parts(stage)} if "encoder_bytes" in stage else stage for stage in stages
    ]
    return [
        {name.removesuffix("_bytes"): value for name, value in stage.items()} for stage in split
    ]


# Serving


@view("time", "Time", ("serving",))
def token_time_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The parts of the time of a token and of a first token, and their bottlenecks."""
    plan, row = focus.plan, focus.row
    seconds = explain_estimate(plan, row).to_json()["breakdown_s"]
    tpot, ttft = (plan.measures[name].title for name in ("tpot", "ttft"))
    for part, title in (("decode", tpot), ("prefill", ttft)):
        figure = parts.waterfall(seconds[part], TIME_TITLES, dark=focus.dark)
        key, head = f"waterfall-{part}", f"{title}, {split_label(plan, row)}"
        yield Chart(key, head, figure, f"{title} by part", half=True)
    causes = [
        (name, explain_estimate(plan, split).to_json().get("causes_s", {}).get("decode", {}))
        for name, split in focus.compared.items()
    ]
    title = f"{tpot} by bottleneck"
    note = (
        "Each part is attributed to its bottleneck: compute, memory traffic, links, "
        "engine overhead or waiting for other requests."
    )
    yield Chart("causes", title, parts.causes_bars(causes, dark=focus.dark), title, note)


@view("load", "Load", ("serving",))
def load_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Latency and throughput as the load grows."""
    plan = focus.plan
    if plan.problem.workload.pooled:
        yield Note("A vector or a score has no time per output token to draw over the load.")
        return
    unit = plan.measures["load"].per
    current = float(plan.columns["load"][focus.row])
    limit = plan.request.objective.limits.tpot_ms
    by_split = {name: load_curve(plan, row) for name, row in focus.compared.items()}
    crossings: dict[str, Crossing] = {}
    allowed = f"Set a limit on the {plan.measures['tpot'].label} to see what it allows."
    if limit:
        at_limit = {name: crossing(plan, row, limit / 1e3) for name, row in focus.compared.items()}
        crossings = {name: at for name, at in at_limit.items() if at is not None}
        texts = [_allowance(name, at, unit) for name, at in at_limit.items()]
        allowed = f"At {limit:g} ms: {'; '.join(texts)}."
    tpot, per_gpu = plan.measures["tpot"], plan.measures["per_gpu"]
    yield Chart(
        "load",
        f"{tpot.title} as the load grows",
        curves.load_curves(by_split, current, unit, limit, crossings, dark=focus.dark),
        f"{tpot.title} against {per_gpu.label} as the load grows",
        f"{allowed} Each marker is one load, the large one what the split is planned "
        f"for ({curves.plain_load_text(current)} {unit}). "
        f"Labels: {plan.measures['load'].label}; loads on one spot share a label, as a split "
        "holds no more of them.",
    )


def _allowance(name: str, at: Crossing | None, unit: str) -> str:
    if at is None:
        return f"{name} exceeds it at every load"
    return f"{name} holds {'at least ' if at.within else ''}{curves.crossing_text(at, unit)}"


@view("frontier", "Frontier", ("serving",), needs_fit=False)
def frontier_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Output per device against interactivity over all splits and loads, by device."""
    plan = focus.searched
    try:
        wide = evaluate_frontier(plan)
    except RecipeError as error:
        yield Note(str(error))
        return
    if not wide.envelopes:
        yield Note("No split holds a single request on these devices.")
        return
    unit = plan.measures["load"].per
    per_gpu, interactivity = plan.measures["per_gpu"], plan.measures["interactivity"]
    yield Chart(
        "interactivity",
        f"{per_gpu.title} against {interactivity.label}",
        curves.frontier_lines(wide, focus.plan, focus.row, dark=focus.dark),
        f"{per_gpu.title} against {interactivity.label} for {len(wide.envelopes)} devices",
        f"Each marker is the best split at a load, of {wide.loads[0]:,.4g} to "
        f"{wide.loads[-1]:,.4g} {unit}. Splits that queue are left out; limits on time are not "
        "applied.",
    )
    yield views.frontier_table(wide)


@view("cache", "Cache", ("serving",))
def prefix_cache_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The hits of the split's cache, and the gains and costs of tiers below it."""
    plan, row = focus.plan, focus.row
    estimate, curve = plan.estimate(row), plan.setting(row).reuse
    yield views.device_table(estimate, plan.problem.workload.prefix_hit)
    if curve is None or estimate.prefix_cache is None:
        yield Note(
            "State workload.prefix_reuse to see what caches of several sizes find; "
            "`recipe trace` reads it out of a trace."
        )
        return
    tiers = estimate.kv_tiers or []
    names = f"and {', '.join(tier.name for tier in tiers)} marked" if tiers else "marked"
    yield Chart(
        "reuse",
        f"Prompt tokens found by the size of the cache, {split_label(plan, row)}",
        curves.reuse_figure(curve, estimate.prefix_cache, tiers, dark=focus.dark),
        f"Share of prompt tokens found over the size of the cache, with the devices' cache {names}",
        "Marks stand at what running requests leave of the devices' cache, and at the tiers below "
        "it; a tier also holds what is above it.",
    )
    if tiers:
        yield views.tier_table(tiers)
        for tier in tiers:
            yield Note(f"{tier.name.capitalize()}: {tier.verdict}. {tier.because}")


@view("cost", "Cost", ("serving",))
def cost_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Cost per token when devices are not always busy."""
    plan = focus.plan
    if not is_known(plan, "usd_hour"):
        yield Note("No price is known for these devices. Set one under Hardware.")
        return
    rates = {
        name: (float(plan.raw("usd_hour")[row]), float(plan.raw("output")[row]))
        for name, row in focus.compared.items()
    }
    title = plan.measures["usd"].title
    yield Chart(
        "use",
        f"{title} by utilisation",
        curves.use_curves(rates, dark=focus.dark),
        f"{title} over the share of paid hours in use",
        "Idle hours are billed too: at half utilisation a token costs twice as much.",
    )


@view("accuracy", "Accuracy", ("serving",))
def accuracy_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Costs, savings and losses of a split's number formats."""
    plan, label = focus.plan, split_label(focus.plan, focus.row)
    points = {name: format_points(plan, row) for name, row in focus.compared.items()}
    yield Chart(
        "accuracy-cost",
        f"Cost against accuracy lost, {label}",
        formats.cost_against_loss(points, dark=focus.dark),
        f"Cost of a token against the accuracy lost in {len(points[label])} pairs of number "
        "formats",
        "One split in every format that its device and engine take; lines join the weight formats "
        "of one cache. Bars: where eight of ten published figures are expected. Diamonds: no other "
        "format is better in cost, time per token or accuracy without being worse in another.",
    )
    yield views.formats_table(points[label], f"Number formats of {label}")
    if front_with_accuracy(focus.searched) is not None:
        yield Chart(
            "accuracy-axes",
            "Cost, time per token and accuracy of every split",
            formats.three_axes(focus.searched, dark=focus.dark),
            "Cost against time per output token, coloured by the accuracy that is kept",
            "Rings: no other split is better in one of the three without being worse in another.",
        )
    expected = require_part(explain_estimate(plan, focus.row).accuracy)
    yield Note(f"Expected accuracy, {expected.benchmark} of benchmarks: {expected.basis}")
    if expected.nearest:
        yield views.published_table(expected.nearest)


def _tornado_measures(plan: Plan) -> list[str]:
    return [name for name in FIGURES if is_known(plan, name)]


@view("sensitivity", "Sensitivity", ("serving",), measures=_tornado_measures)
def sensitivity_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """A figure's change when each assumption is changed alone."""
    plan, measure = focus.plan, focus.plan.measures[focus.measure]
    base, moves = tornado(plan, focus.row, focus.measure)
    yield Chart(
        "tornado",
        f"Sensitivity of the {measure.label}",
        curves.swings(base, moves, measure, dark=focus.dark),
        "How far the figure moves when each assumption is changed",
        f"{split_label(plan, focus.row)}, estimated again with one assumption changed at a time, "
        "between the two values beside its bar. Assumptions without effect are left out.",
    )


# Training


@view("step", "Time", ("training",))
def step_time_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The parts of the time of a step."""
    seconds = focus.plan.estimate(focus.row).to_json()["breakdown_s"]["step"]
    figure = parts.waterfall(seconds, STEP_TITLES, dark=focus.dark)
    title = f"Time of a step, {split_label(focus.plan, focus.row)}"
    yield Chart("waterfall-step", title, figure, "Time of a step by part")


@view("run", "Whole run", ("training",))
def training_run_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The run's time beside its steps, and its phases."""
    run = require_part(focus.plan.estimate(focus.row).run)
    shares: dict[str, float] = require_part(run.time_shares).to_json()
    losses = {name: share for name, share in shares.items() if name != "steps" and share > 0}
    failures, reached = views.failures_text(run), utilisation(run.mfu or 0.0)
    yield Note(
        f"Steps take {shares['steps']:.1%} of the time (goodput), and the devices reach {reached} "
        f"of their peak over the whole run. {failures}"
    )
    figure = parts.loss_bars(losses, RUN_TITLES, dark=focus.dark)
    alt = "Shares of the run's time that steps do not have, by what takes them"
    yield Chart(
        "losses", f"What else takes time, {split_label(focus.plan, focus.row)}", figure, alt
    )
    if run.phases:
        yield views.phase_table(run.phases)


@view("pipeline", "Pipeline", ("training",))
def pipeline_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The pipeline's schedule; of the best split that has one, where this one has none."""
    plan, row = focus.plan, focus.row
    if plan.columns["pp"][row] == 1:
        piped = best_with_pipeline(plan)
        if piped is None:
            yield Note("No split that fits has a pipeline: each device holds all layers.")
            return
        row = piped
        best = f"{split_label(plan, row)}, {figures_phrase(plan, row)}"
        yield Note(f"This split has no pipeline. The best split with one: {best}.")
    try:
        tasks, note = step_timeline(plan, row)
    except RecipeError as error:
        yield Note(str(error))
        return
    figure = parts.pipeline(tasks, dark=focus.dark)
    alt = "Which micro-batch each stage works on over time"
    yield Chart("pipeline", "Pipeline schedule", figure, alt, note)


@view("scaling", "Scaling", ("training",))
def scaling_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The best split on each number of devices."""
    plan, title = focus.searched, "Best split at each device count"
    best = scaling(plan)
    if len(best.rows) < 2:
        yield Note("Splits fit on one device count only. Add nodes to see how the run scales.")
        return
    yield Chart(
        "scaling",
        title,
        curves.scaling_curve(best, [split_label(plan, row) for row in best.rows], dark=focus.dark),
        f"{plan.measures['output'].title} by the best split at each device count",
        "Percent of linear scaling from the smallest device count. "
        "Over 100 %: more memory lets a better split fit.",
    )
    yield views.scaling_table(plan, best, title)


# Both kinds


def _listed_measures(plan: Plan) -> list[str]:
    return [name for name in plan.shown.listed if is_known(plan, name)]


@view("degrees", "Degrees", in_report=False, measures=_listed_measures, preferred=2)
def degree_charts(focus: Focus[Any]) -> Iterator[Item]:
    """Splits by their degrees."""
    plan, names = focus.plan, _listed_measures(focus.plan)[1:6]
    title = f"{plan.measures[focus.measure].title} at each tp × pp"
    note = "The best over all other degrees. ✕: none fits; hover for the reason."
    figure = degrees.heatmap(plan, focus.measure, dark=focus.dark)
    yield Chart("heatmap", title, figure, "The best split at each tp and pp", note)
    yield Chart(
        "parallel",
        "Splits along degrees and measures",
        degrees.parallel(plan, names, dark=focus.dark),
        "Every split along its degrees and measures",
        f"Each line is one split, stronger the better its {plan.measures[names[0]].label}. "
        "Drag a box over part of an axis to list the splits that pass through it; "
        "Shift adds a box, a double click clears them.",
        passing=lambda boxes: degrees.passing(plan, names, boxes),
    )


@view("arithmetic", "Arithmetic", ("serving",), needs_fit=False)
def serving_lines(focus: Focus[Plan]) -> Iterator[Item]:
    return views.arithmetic_items(arithmetic(focus.plan, focus.row), TIME_TITLES)


@view("training-arithmetic", "Arithmetic", ("training",), needs_fit=False)
def training_lines(focus: Focus[Plan]) -> Iterator[Item]:
    return views.arithmetic_items(training_arithmetic(focus.plan, focus.row), STEP_TITLES)
