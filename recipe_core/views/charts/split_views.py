"""The registered views of one split: its memory, time and money, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import gib
from recipe_core.estimates.prediction import require_part
from recipe_core.estimates.serving.results import TIME_TITLES, memory_parts
from recipe_core.estimates.training.results import RUN_TITLES, STEP_TITLES
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.rank import front_with_accuracy
from recipe_core.plans.serving_kind import explain_estimate
from recipe_core.plans.splits import find_row, is_known, row_key
from recipe_core.views import tables
from recipe_core.views.charts import curves, formats, frontier, parts, views
from recipe_core.views.charts.views import Focus, Item, Note, chart_of, view
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
    figure = parts.memory_bars(plan, rows, dark=focus.dark)
    yield chart_of("memory", figure, plan.measures["memory"].title, capacities, len(rows))
    if stages := _stage_parts(focus.plan, row):
        names = {part.removesuffix("_bytes"): name for part, name in focus.plan.spec.parts.items()}
        ends = (row_usable_bytes(focus.plan, row), capacity_bytes(focus.plan, row))
        figure = parts.stage_bars(stages, names, *ends, dark=focus.dark)
        yield chart_of("stages", figure, focus.label, len(stages))


def _stage_parts(plan: Plan, row: int) -> list[Parts]:
    stages = plan.estimate(row).to_json().get("memory", {}).get("stages") or []
    split = [
        {**stage, **memory_parts(stage)} if "encoder_bytes" in stage else stage for stage in stages
    ]
    return [
        {name.removesuffix("_bytes"): value for name, value in stage.items()} for stage in split
    ]


# Plans for which a view has something to draw


def _has_tokens(plan: Plan) -> bool:
    return not plan.problem.workload.pooled


def _has_load(plan: Plan) -> bool:
    return str(plan.problem.workload.mode) != "offline"


def _has_reuse(plan: Plan) -> bool:
    return bool(plan.problem.workload.prefix_reuse)


def _has_price(plan: Plan) -> bool:
    return is_known(plan, "usd_hour")


def _has_pipeline(plan: Plan) -> bool:
    return bool((plan.columns["pp"][plan.order] > 1).any())


def _has_counts(plan: Plan) -> bool:
    return len(set(plan.raw("gpus")[plan.order].tolist())) > 1


# Serving


@view("time", "Time", ("serving",))
def token_time_charts(focus: Focus[Plan]) -> Iterator[Item]:
    plan, row = focus.plan, focus.row
    seconds = explain_estimate(plan, row).to_json()["breakdown_s"]
    tpot, ttft = (plan.measures[name].title for name in ("tpot", "ttft"))
    for part, title in (("decode", tpot), ("prefill", ttft)):
        figure = parts.waterfall(seconds[part], TIME_TITLES, dark=focus.dark)
        drawn = chart_of("waterfall", figure, title, focus.label, half=True)
        yield replace(drawn, key=f"waterfall-{part}")
    causes = [
        (name, explain_estimate(plan, split).to_json().get("causes_s", {}).get("decode", {}))
        for name, split in focus.compared.items()
    ]
    yield chart_of("causes", parts.causes_bars(causes, dark=focus.dark), tpot)


@view("load", "Load", ("serving",), offered=_has_tokens)
def load_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Latency and throughput as the load grows."""
    plan = focus.plan
    if plan.problem.workload.pooled:
        yield Note("A vector or a score has no time per output token to draw over the load.")
        return
    unit, current = plan.measures["load"].per, float(plan.columns["load"][focus.row])
    limit = plan.request.objective.limits.tpot_ms
    by_split = {name: load_curve(plan, row) for name, row in focus.compared.items()}
    at_limit: dict[str, Crossing | None] = {}
    if limit:
        at_limit = {name: crossing(plan, row, limit / 1e3) for name, row in focus.compared.items()}
    met = {name: at for name, at in at_limit.items() if at is not None}
    figure = curves.load_curves(by_split, current, unit, limit, met, dark=focus.dark)
    now = views.plain_load_text(current)
    yield chart_of("load", figure, plan.measures, limit, at_limit, now, unit)


@view("frontier", "Frontier", ("serving",), needs_fit=False, offered=_has_load)
def frontier_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Output per device against interactivity over all splits and loads, by device."""
    plan = focus.searched
    try:
        wide = evaluate_frontier(plan)
    except RecipeError as error:
        yield Note(str(error))
        return
    if not wide.envelopes:
        yield Note("No layout holds a single request on these devices.")
        return
    figure, m = frontier.frontier_lines(wide, focus.plan, focus.row, dark=focus.dark), plan.measures
    yield chart_of("interactivity", figure, m, len(wide.envelopes), wide.loads, m["load"].per)
    yield views.frontier_table(wide)


@view("cache", "Cache", ("serving",), offered=_has_reuse)
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
    figure = curves.reuse_figure(curve, estimate.prefix_cache, tiers, dark=focus.dark)
    yield chart_of("reuse", figure, focus.label, tiers)
    if tiers:
        yield views.tier_table(tiers)
        for tier in tiers:
            yield Note(f"{tier.name.capitalize()}: {tier.verdict}. {tier.because}")


@view("cost", "Cost", ("serving",), offered=_has_price)
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
    yield chart_of("use", curves.use_curves(rates, dark=focus.dark), plan.measures["usd"].title)


@view("accuracy", "Accuracy", ("serving",))
def accuracy_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """Costs, savings and losses of a split's number formats."""
    plan, label = focus.plan, focus.label
    points = {name: format_points(plan, row) for name, row in focus.compared.items()}
    figure = formats.cost_against_loss(points, dark=focus.dark)
    yield chart_of("accuracy-cost", figure, label, len(points[label]))
    yield views.formats_table(points[label], f"Number formats of {label}")
    if front_with_accuracy(focus.searched) is not None:
        yield chart_of("accuracy-axes", formats.three_axes(focus.searched, dark=focus.dark))
    expected = require_part(explain_estimate(plan, focus.row).accuracy)
    yield Note(f"Expected accuracy, {expected.benchmark} of benchmarks: {expected.basis}")
    if expected.nearest:
        yield views.published_table(expected.nearest)


def _tornado_measures(plan: Plan) -> list[str]:
    return [name for name in FIGURES if is_known(plan, name)]


@view("sensitivity", "Sensitivity", ("serving",), measures=_tornado_measures)
def sensitivity_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """A figure's change when each assumption is changed alone."""
    measure = focus.plan.measures[focus.measure]
    base, moves = tornado(focus.plan, focus.row, focus.measure)
    figure = curves.swings(base, moves, measure, dark=focus.dark)
    yield chart_of("tornado", figure, measure.label, focus.label)


# Training


@view("step", "Time", ("training",))
def step_time_charts(focus: Focus[Plan]) -> Iterator[Item]:
    seconds = focus.plan.estimate(focus.row).to_json()["breakdown_s"]["step"]
    figure = parts.waterfall(seconds, STEP_TITLES, dark=focus.dark)
    yield chart_of("waterfall-step", figure, focus.label)


@view("run", "Whole run", ("training",))
def training_run_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The run's time beside its steps, and its phases."""
    run = require_part(focus.plan.estimate(focus.row).run)
    shares: dict[str, float] = require_part(run.time_shares).to_json()
    losses = {name: share for name, share in shares.items() if name != "steps" and share > 0}
    yield Note(views.PHRASES.sentence("goodput", run, shares["steps"]))
    yield chart_of("losses", parts.loss_bars(losses, RUN_TITLES, dark=focus.dark), focus.label)
    if run.phases:
        yield views.phase_table(run.phases)


@view("pipeline", "Pipeline", ("training",), offered=_has_pipeline)
def pipeline_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The pipeline's schedule; of the best split that has one, where this one has none."""
    plan, row = focus.plan, focus.row
    if plan.columns["pp"][row] == 1:
        piped = best_with_pipeline(plan)
        if piped is None:
            yield Note("No layout that fits has a pipeline: each device holds all layers.")
            return
        row = piped
        best = f"{split_label(plan, row)}, {figures_phrase(plan, row)}"
        yield Note(f"This layout has no pipeline. The best layout with one: {best}.")
    try:
        tasks, note = step_timeline(plan, row)
    except RecipeError as error:
        yield Note(str(error))
        return
    yield chart_of("pipeline", parts.pipeline(tasks, dark=focus.dark), note)


@view("scaling", "Scaling", ("training",), offered=_has_counts)
def scaling_charts(focus: Focus[Plan]) -> Iterator[Item]:
    """The best split on each number of devices."""
    plan = focus.searched
    best = scaling(plan)
    if len(best.rows) < 2:
        yield Note("Layouts surely start on one device count only. Add nodes to see how it scales.")
        return
    labels = [split_label(plan, row) for row in best.rows]
    figure = curves.scaling_curve(best, labels, dark=focus.dark)
    drawn = chart_of("scaling", figure, plan.measures["output"].title)
    yield drawn
    yield views.scaling_table(plan, best, drawn.title)


# Both kinds


@view("arithmetic", "Arithmetic", ("serving",), needs_fit=False)
def serving_lines(focus: Focus[Plan]) -> Iterator[Item]:
    return views.arithmetic_items(arithmetic(focus.plan, focus.row), TIME_TITLES)


@view("training-arithmetic", "Arithmetic", ("training",), needs_fit=False)
def training_lines(focus: Focus[Plan]) -> Iterator[Item]:
    return views.arithmetic_items(training_arithmetic(focus.plan, focus.row), STEP_TITLES)
