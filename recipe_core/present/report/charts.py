"""The figures of a report: the plan that the recipe was chosen from, and a closer look at the recipe's own split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import CAUSES, TRAINING_CAUSES
from recipe_core.explain.curves import load_curve, scaling
from recipe_core.explain.timeline import step_timeline
from recipe_core.explain.tornado import FIGURES, tornado
from recipe_core.physics.prediction import known
from recipe_core.present import charts, tables
from recipe_core.recipe.build import recipe_request
from recipe_core.recipe.schema import Recipe
from recipe_core.request.schema import LOADS
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan_candidate
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan

_LOADS = {
    "concurrency": "in flight",
    "batch": "in a batch",
    "requests": "queued",
    "request_rate": "requests/s",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure, its title, and what to read off it."""

    title: str
    figure: go.Figure
    note: str = ""


def own_board(recipe: Recipe) -> Plan:
    """A plan of the recipe's split alone, which is row 0."""
    return plan_candidate(recipe_request(recipe))[0]


def plan_charts(board: Plan, pins: Sequence[str]) -> Iterator[Chart]:
    """All splits: what they trade, and the memory of some."""
    x, y = board.axes
    if board.known(x) and board.known(y):
        note = "A diamond is a best tradeoff: no split is better in both. The larger a mark, the more devices; rings are pinned splits."
        yield Chart(
            f"{board.measures[x].title} and {board.measures[y].title}",
            charts.tradeoff(board, x, y, pins=pins),
            note,
        )
    rows = tables.memory_rows(board, pins)
    if rows:
        note = "Pinned, best and nearest refused splits. The dotted line is what the engine may use, the solid one what a process can have."
        yield Chart("Memory of a device", charts.memory_bars(board, rows), note)


def split_charts(own: Plan, board: Plan | None) -> Iterator[Chart]:
    """The recipe's split; ``board``: the plan that it was chosen from, which a run over other numbers of devices is read off."""
    if isinstance(own, ServingPlan):
        yield from _serving(own)
    elif isinstance(own, TrainingPlan):
        yield from _training(own, board)
    if (memory := own.estimate(0).memory) and memory.stages:
        parts = [
            {name.removesuffix("_bytes"): value for name, value in stage.to_json().items()}
            for stage in memory.stages
        ]
        names = {name.removesuffix("_bytes"): said for name, said in own.parts.items()}
        yield Chart(
            "Memory of every pipeline stage",
            charts.stage_bars(parts, names, own.usable_bytes(0), own.capacity_bytes(0)),
        )


def _serving(own: ServingPlan) -> Iterator[Chart]:
    estimate = own.detailed(0)
    breakdown = known(estimate.breakdown_s)
    for part, title in (
        ("decode", "Time per output token, by part"),
        ("prefill", "Time to first token, by part"),
    ):
        yield Chart(title, charts.waterfall(getattr(breakdown, part), CAUSES))
    if estimate.causes_s and (causes := estimate.causes_s.decode):
        yield Chart("Time per output token, by cause", charts.causes_bars([(own.label(0), causes)]))
    load, limit = float(own.columns["load"][0]), own.request.objective.limits.tpot_ms
    unit = _LOADS[LOADS[own.problem.workload.mode]]
    curve = charts.load_curves(
        {own.label(0): load_curve(own, 0)}, load, unit, limit, unit=own.device_title
    )
    yield Chart(
        "Time per token as the load grows",
        curve,
        f"Each mark is a load, the large one the request's ({load:,.0f} {unit}).",
    )
    if own.known("usd_hour"):
        busy = {own.label(0): (float(own.raw("usd_hour")[0]), float(own.raw("output")[0]))}
        yield Chart(
            "Cost per million tokens when devices are not always busy", charts.use_curves(busy)
        )
    for name in [name for name in FIGURES if own.known(name)][:1]:
        base, found = tornado(own, 0, name)
        title = f"What the {own.measures[name].title.lower()} depends on"
        yield Chart(
            title,
            charts.swings(base, found, own.measures[name]),
            "The split estimated again with one assumption moved at a time.",
        )


def _training(own: TrainingPlan, board: Plan | None) -> Iterator[Chart]:
    yield Chart(
        "Time of a step, by part",
        charts.waterfall(known(own.estimate(0).breakdown_s).step, TRAINING_CAUSES),
    )
    try:
        tasks, note = step_timeline(own, 0)
        yield Chart("The pipeline's timetable", charts.pipeline(tasks), note)
    except RecipeError:  # no pipeline, or one with too many passes to draw
        pass
    if isinstance(board, TrainingPlan) and len((found := scaling(board)).rows) > 1:
        labels = [board.label(row) for row in found.rows]
        yield Chart("The best split on each number of devices", charts.scaling_curve(found, labels))
