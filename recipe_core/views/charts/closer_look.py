"""The registered views of one split: where memory, time and money go, and what that depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import CAUSES, RUN_SHARES, TRAINING_CAUSES
from recipe_core.base.text_rows import memory_parts
from recipe_core.base.units import chance_text, count, duration, gib, significant
from recipe_core.estimates.prediction import known
from recipe_core.estimates.training.results import TrainingPhase, TrainingRun
from recipe_core.plans.measures import days, kept, utilisation
from recipe_core.plans.plan import Plan
from recipe_core.plans.serving_plan import ServingPlan
from recipe_core.plans.training_plan import TrainingPlan
from recipe_core.request.serving_workload import LOADS
from recipe_core.views import tables
from recipe_core.views.charts.accuracy import cost_against_loss, formats_table, three_axes
from recipe_core.views.charts.curves import (
    crossing_text,
    load_curves,
    load_text,
    scaling_curve,
    swings,
    use_curves,
)
from recipe_core.views.charts.degrees import heatmap
from recipe_core.views.charts.frontier import frontier_lines, frontier_table
from recipe_core.views.charts.kv_tiers import device_table, reuse_curve, tier_table
from recipe_core.views.charts.lines import parallel, passing
from recipe_core.views.charts.memory import memory_bars, stage_bars
from recipe_core.views.charts.time import causes_bars, loss_bars, pipeline, waterfall
from recipe_core.views.charts.views import Chart, Focus, Item, Note, Table, view
from recipe_core.views.explanations.arithmetic import arithmetic, training_arithmetic
from recipe_core.views.explanations.curves import Crossing, crossing, load_curve, scaling
from recipe_core.views.explanations.formats import format_points
from recipe_core.views.explanations.frontier import frontier
from recipe_core.views.explanations.operators import Constant, Working, time_text
from recipe_core.views.explanations.serving_time import Times
from recipe_core.views.explanations.timeline import best_with_pipeline, step_timeline
from recipe_core.views.explanations.tornado import FIGURES, tornado

UNITS = {
    "concurrency": ("in flight", "requests in flight"),
    "batch": ("in a batch", "requests in the batch"),
    "requests": ("queued", "requests queued"),
    "request_rate": ("requests/s", "requests per second"),
}
"""What a load counts: after a number, and by itself."""

Parts = Mapping[str, float]
"""Bytes or seconds by the name of a part."""


# What views read off an estimate


def _seconds(estimate: Any, part: str) -> Parts:
    """Seconds of a step, a token or a first token by part."""
    parts: Parts = estimate.to_json()["breakdown_s"][part]
    return parts


def _causes(plan: ServingPlan, row: int) -> Parts:
    """Seconds of an output token by bottleneck; empty without an estimate."""
    parts: Parts = plan.explained(row).to_json().get("causes_s", {}).get("decode", {})
    return parts


def _stages(plan: Plan, row: int) -> list[Parts]:
    """Bytes of every pipeline stage by part; empty where there is one stage."""
    stages = plan.estimate(row).to_json().get("memory", {}).get("stages") or []
    split = [
        {**stage, **memory_parts(stage)} if "encoder_bytes" in stage else stage for stage in stages
    ]
    return [
        {name.removesuffix("_bytes"): value for name, value in stage.items()} for stage in split
    ]


# Views of both kinds


@view("memory", "Memory", needs_fit=False)
def memory(focus: Focus[Any]) -> Iterator[Item]:
    """Memory of a device by part, of this split and others; of each stage where it has several."""
    plan, row, key = focus.searched, focus.row, focus.plan.key(focus.row)
    if plan.find(key) is None:  # a request may state a split that no search lists
        plan = focus.plan
    rows = tables.memory_rows(plan, [*focus.pins, key])
    capacities = sorted({gib(plan.capacity_bytes(row)) for row in rows})
    note = (
        "Pinned, best and nearest refused splits, with the cache that the engine will hold. "
        "Dotted line: what the engine may use. Solid line: what a process can allocate."
    )
    if len(capacities) > 1:
        note = note.replace("Dotted line", "Thin mark").replace("Solid line", "Thick mark")
    yield Chart(
        "memory",
        "Memory per device",
        memory_bars(plan, rows, dark=focus.dark),
        f"Memory of {len(rows)} splits by part against a capacity of {' or '.join(capacities)}",
        note,
    )
    if stages := _stages(focus.plan, row):
        yield Chart(
            "stages",
            f"Memory per pipeline stage, {focus.plan.label(row)}",
            stage_bars(
                stages,
                {name.removesuffix("_bytes"): text for name, text in focus.plan.parts.items()},
                focus.plan.usable_bytes(row),
                focus.plan.capacity_bytes(row),
                dark=focus.dark,
            ),
            f"Memory of {len(stages)} pipeline stages by part",
        )


# Serving


@view("time", "Time", ("serving",))
def token_time(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """Where the time of a token and of a first token goes."""
    plan, row = focus.plan, focus.row
    estimate = plan.explained(row)
    for part, title in (("decode", "Time per output token"), ("prefill", "Time to first token")):
        yield Chart(
            f"waterfall-{part}",
            f"{title}, {plan.label(row)}",
            waterfall(_seconds(estimate, part), CAUSES, dark=focus.dark),
            f"{title} by part",
            half=True,
        )
    causes = [(name, _causes(plan, other)) for name, other in focus.compared.items()]
    yield Chart(
        "causes",
        "Time per output token by bottleneck",
        causes_bars(causes, dark=focus.dark),
        "Time per output token by bottleneck",
        "Each part is attributed to its bottleneck: compute, memory traffic, links, "
        "engine overhead or waiting for other requests.",
    )


@view("load", "Load", ("serving",))
def load(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """Latency and throughput as the load grows."""
    plan = focus.plan
    if plan.problem.workload.pooled:
        yield Note("A vector or a score has no time per output token to draw over the load.")
        return
    unit, label = UNITS[LOADS[plan.problem.workload.mode]]
    current = float(plan.columns["load"][focus.row])
    limit = plan.request.objective.limits.tpot_ms
    curves = {name: load_curve(plan, row) for name, row in focus.compared.items()}
    crossings: dict[str, Crossing] = {}
    allowed = "Set a limit on the time per output token to see what it allows."
    if limit:
        at_limit = {name: crossing(plan, row, limit / 1e3) for name, row in focus.compared.items()}
        crossings = {name: at for name, at in at_limit.items() if at is not None}
        allowed = _allowed(limit, [*at_limit], crossings, unit)
    yield Chart(
        "load",
        "Time per output token as the load grows",
        load_curves(
            curves, current, unit, limit, crossings, unit=plan.device_title, dark=focus.dark
        ),
        "Time per output token against output per device as the load grows",
        f"{allowed} Each marker is one load, the large one what the split is planned "
        f"for ({load_text(current)} {unit}). "
        f"Labels: {label}; loads on one spot share a label, as a split holds no more of them.",
    )


def _allowed(
    limit_ms: float, names: Sequence[str], crossings: Mapping[str, Crossing], unit: str
) -> str:
    """What a limit on the time per output token allows each split, in a sentence."""
    parts = []
    for name in names:
        at = crossings.get(name)
        if at is None:
            parts.append(f"{name} exceeds it at every load")
            continue
        reach = "at least " if at.within else ""
        parts.append(f"{name} holds {reach}{crossing_text(at, unit)}")
    return f"At {limit_ms:g} ms: {'; '.join(parts)}."


@view("frontier", "Frontier", ("serving",), needs_fit=False)
def all_loads(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """Output per device against interactivity over all splits and loads, by device."""
    plan = focus.searched
    try:
        wide = frontier(plan)
    except RecipeError as error:
        yield Note(str(error))
        return
    if not wide.envelopes:
        yield Note("No split holds a single request on these devices.")
        return
    loads = wide.loads
    unit = UNITS[LOADS[plan.problem.workload.mode]][1]
    yield Chart(
        "interactivity",
        "Output per device against interactivity",
        frontier_lines(wide, focus.plan, focus.row, dark=focus.dark),
        f"Output per device against tokens per second of a user for {len(wide.envelopes)} devices",
        f"Each marker is the best split at a load, of {loads[0]:,.4g} to "
        f"{loads[-1]:,.4g} {unit}. Splits that queue are left out; limits on time are not "
        "applied.",
    )
    yield frontier_table(wide)


@view("cache", "Cache", ("serving",))
def prefix_cache(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """What the cache of the split finds, and what tiers below it add and cost."""
    plan, row = focus.plan, focus.row
    estimate, curve = plan.estimate(row), plan.setting(row).reuse
    yield device_table(estimate, plan.problem.workload.prefix_hit)
    if curve is None or estimate.prefix_cache is None:
        yield Note(
            "State workload.prefix_reuse to see what caches of several sizes find; "
            "`recipe trace` reads it out of a trace."
        )
        return
    tiers = estimate.kv_tiers or []
    names = ", ".join(tier.name for tier in tiers)
    yield Chart(
        "reuse",
        f"Prompt tokens found by the size of the cache, {plan.label(row)}",
        reuse_curve(curve, estimate.prefix_cache, tiers, dark=focus.dark),
        "Share of prompt tokens found over the size of the cache, with the devices' cache "
        + (f"and {names} marked" if tiers else "marked"),
        "Marks stand at what running requests leave of the devices' cache, and at the tiers below "
        "it; a tier also holds what is above it.",
    )
    if tiers:
        yield tier_table(tiers)
        for tier in tiers:
            yield Note(f"{tier.name.capitalize()}: {tier.verdict}. {tier.because}")


@view("cost", "Cost", ("serving",))
def cost(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """Cost per token when devices are not always busy."""
    plan = focus.plan
    if not plan.known("usd_hour"):
        yield Note("No price is known for these devices. Set one under Hardware.")
        return
    rates = {
        name: (float(plan.raw("usd_hour")[row]), float(plan.raw("output")[row]))
        for name, row in focus.compared.items()
    }
    yield Chart(
        "use",
        "Cost per million output tokens by utilisation",
        use_curves(rates, dark=focus.dark),
        "Cost per million output tokens over the share of paid hours in use",
        "Idle hours are billed too: at half utilisation a token costs twice as much.",
    )


@view("accuracy", "Accuracy", ("serving",))
def accuracy(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """What number formats of a split cost, save and lose."""
    plan = focus.plan
    points = {name: format_points(plan, row) for name, row in focus.compared.items()}
    own = points[plan.label(focus.row)]
    yield Chart(
        "accuracy-cost",
        f"Cost against accuracy lost, {plan.label(focus.row)}",
        cost_against_loss(points, dark=focus.dark),
        f"Cost of a token against the accuracy lost in {len(own)} pairs of number formats",
        "One split in every format that its device and engine take; lines join the weight formats "
        "of one cache. Bars: where eight of ten published figures are expected. Diamonds: no other "
        "format is better in cost, time per token or accuracy without being worse in another.",
    )
    yield formats_table(own, f"Number formats of {plan.label(focus.row)}")
    if focus.searched.accuracy_front is not None:
        yield Chart(
            "accuracy-axes",
            "Cost, time per token and accuracy of every split",
            three_axes(focus.searched, dark=focus.dark),
            "Cost against time per output token, coloured by the accuracy that is kept",
            "Rings: no other split is better in one of the three without being worse in another.",
        )
    yield from _published(plan, focus.row)


def _published(plan: ServingPlan, row: int) -> Iterator[Item]:
    """What a split's accuracy rests on, and the nearest published figures."""
    kept_here = known(plan.explained(row).accuracy)
    yield Note(f"Expected accuracy, {kept_here.benchmark} of benchmarks: {kept_here.basis}")
    if kept_here.nearest:
        rows = [
            {
                "Model": figure.model,
                "Technique": figure.technique,
                "Method": figure.method or "–",
                "Benchmark": figure.benchmark,
                "Base": significant(figure.base_value),
                "Compressed": significant(figure.value),
                "Kept": kept(figure.retained),
                "Source": figure.source,
            }
            for figure in kept_here.nearest
        ]
        yield Table.of(rows, "Nearest published figures")


def _traced(plan: Plan) -> list[str]:
    """Measures that the sensitivity can follow."""
    return [name for name in FIGURES if plan.known(name)]


@view("sensitivity", "Sensitivity", ("serving",), measures=_traced)
def sensitivity(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """How far a figure moves when each assumption is changed alone."""
    plan, measure = focus.plan, focus.plan.measures[focus.measure]
    base, moves = tornado(plan, focus.row, focus.measure)
    title = f"Sensitivity of the {measure.title[0].lower()}{measure.title[1:]}"
    yield Chart(
        "tornado",
        title,
        swings(base, moves, measure, dark=focus.dark),
        "How far the figure moves when each assumption is changed",
        f"{plan.label(focus.row)}, estimated again with one assumption changed at a time, between "
        "the two values beside its bar. Assumptions without effect are left out.",
    )


# Training


@view("step", "Time", ("training",))
def step_time(focus: Focus[TrainingPlan]) -> Iterator[Item]:
    """Where the time of a step goes."""
    parts = _seconds(focus.plan.estimate(focus.row), "step")
    yield Chart(
        "waterfall-step",
        f"Time of a step, {focus.plan.label(focus.row)}",
        waterfall(parts, TRAINING_CAUSES, dark=focus.dark),
        "Time of a step by part",
    )


@view("run", "Whole run", ("training",))
def whole_run(focus: Focus[TrainingPlan]) -> Iterator[Item]:
    """What of the run's time steps do not have, and its phases."""
    run = known(focus.plan.estimate(focus.row).run)
    shares: dict[str, float] = known(run.time_shares).to_json()
    losses = {name: share for name, share in shares.items() if name != "steps" and share > 0}
    yield Note(
        f"Steps take {shares['steps']:.1%} of the time (goodput), and the devices reach "
        f"{utilisation(run.mfu or 0.0)} of their peak over the whole run. {_failures_note(run)}"
    )
    title = f"What else takes time, {focus.plan.label(focus.row)}"
    yield Chart(
        "losses",
        title,
        loss_bars(losses, RUN_SHARES, dark=focus.dark),
        "Shares of the run's time that steps do not have, by what takes them",
    )
    if run.phases:
        yield Table.of([_phase_row(phase) for phase in run.phases], "Phases of the run")


def _failures_note(run: TrainingRun) -> str:
    """How often the run fails, and what a spare helps."""
    often = f"One failure is expected every {days(run.mtbf_s or 0.0)}"
    if run.failures is not None:
        often += f" ({significant(run.failures)} in the run)"
    spare = ""
    if run.spares_suffice is not None:
        spare = f" A spare node is there with a probability of {chance_text(run.spares_suffice)}."
    return f"{often}; a restart takes {duration(run.restart_s or 0.0)}.{spare}"


def _phase_row(phase: TrainingPhase) -> dict[str, str]:
    return {
        "Tokens": count(phase.tokens),
        "Batch": f"{phase.global_batch:,}",
        "Sequence length": f"{phase.sequence_length:,}",
        "cp × dp": f"{phase.cp} × {phase.dp}",
        "Steps": f"{phase.steps:,.0f}",
        "Step": duration(phase.step_s),
        "Peak memory": gib(phase.peak_memory_bytes),
        "Time": days(phase.wall_s),
    }


@view("pipeline", "Pipeline", ("training",))
def schedule(focus: Focus[TrainingPlan]) -> Iterator[Item]:
    """The pipeline's schedule; of the best split that has one, where this one has none."""
    plan, row = focus.plan, focus.row
    if plan.degree("pp")[row] == 1:
        piped = best_with_pipeline(plan)
        if piped is None:
            yield Note("No split that fits has a pipeline: each device holds all layers.")
            return
        row = piped
        best = f"{plan.label(row)}, {plan.phrase(row)}"
        yield Note(f"This split has no pipeline. The best split with one: {best}.")
    try:
        tasks, note = step_timeline(plan, row)
    except RecipeError as error:
        yield Note(str(error))
        return
    yield Chart(
        "pipeline",
        "Pipeline schedule",
        pipeline(tasks, dark=focus.dark),
        "Which micro-batch each stage works on over time",
        note,
    )


@view("scaling", "Scaling", ("training",))
def scale(focus: Focus[TrainingPlan]) -> Iterator[Item]:
    """The best split on each number of devices."""
    plan = focus.searched
    best = scaling(plan)
    if len(best.rows) < 2:
        yield Note("Splits fit on one device count only. Add nodes to see how the run scales.")
        return
    title = "Best split at each device count"
    yield Chart(
        "scaling",
        title,
        scaling_curve(best, [plan.label(row) for row in best.rows], dark=focus.dark),
        "Tokens per second of the best split at each device count",
        "Percent of linear scaling from the smallest device count. "
        "Over 100 %: more memory lets a better split fit.",
    )
    names = [name for name in ("output", "wall", "usd_run", "usd") if plan.known(name)]
    rows = [
        {
            "Devices": f"{plan.raw('gpus')[row]:,.0f}",
            "Split": plan.label(row),
            **{plan.measures[name].title: plan.text(name, row) for name in names},
        }
        for row in best.rows
    ]
    yield Table.of(rows, title)


# Views of both kinds, continued


def _compared(plan: Plan) -> list[str]:
    """Measures that stand in tables and are known."""
    return [name for name in plan.listed if plan.known(name)]


@view("degrees", "Degrees", in_report=False, measures=_compared, preferred=2)
def degrees(focus: Focus[Any]) -> Iterator[Item]:
    """Splits by their degrees."""
    plan, names = focus.plan, _compared(focus.plan)[1:6]
    title = plan.measures[focus.measure].title
    yield Chart(
        "heatmap",
        f"{title} at each tp × pp",
        heatmap(plan, focus.measure, dark=focus.dark),
        "The best split at each tp and pp",
        "The best over all other degrees. ✕: none fits; hover for the reason.",
    )
    yield Chart(
        "parallel",
        "Splits along degrees and measures",
        parallel(plan, names, dark=focus.dark),
        "Every split along its degrees and measures",
        f"Each line is one split, stronger the better its {plan.measures[names[0]].title.lower()}. "
        "Drag a box over part of an axis to list the splits that pass through it; "
        "Shift adds a box, a double click clears them.",
        passing=lambda boxes: passing(plan, names, boxes),
    )


def _lines(times: Times, causes: Mapping[str, str]) -> Iterator[Item]:
    """Formulas with the numbers in them, down to operators, and where these are from."""
    if not times.lines:
        yield Note("The split breaks a rule, so nothing was estimated.")
    for title, lines in times.lines.items():
        rows = tuple((line.name, line.formula, line.numbers, line.value) for line in lines)
        yield Table(title, ("Figure", "Formula", "With your numbers", "Value"), rows, "Value")
    for work in times.workings:
        yield _operators(work, causes)
    if times.constants:
        yield _sources(times.constants)


def _operators(work: Working, causes: Mapping[str, str]) -> Table:
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


def _sources(constants: Sequence[Constant]) -> Table:
    """Where the numbers of operators are from."""
    head = ("Number", "Value", "Status", "Source")
    rows = tuple((one.name, one.value, one.status, one.source) for one in constants)
    return Table("Where these numbers are from", head, rows, "Value")


@view("arithmetic", "Arithmetic", ("serving",), needs_fit=False)
def serving_lines(focus: Focus[ServingPlan]) -> Iterator[Item]:
    """The arithmetic of a serving split."""
    return _lines(arithmetic(focus.plan, focus.row), CAUSES)


@view("training-arithmetic", "Arithmetic", ("training",), needs_fit=False)
def training_lines(focus: Focus[TrainingPlan]) -> Iterator[Item]:
    """The arithmetic of a training split."""
    return _lines(training_arithmetic(focus.plan, focus.row), TRAINING_CAUSES)
