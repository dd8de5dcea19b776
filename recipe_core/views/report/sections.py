"""A report as data: sections of words, tables, commands and charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recipe_core.base.documents import to_yaml
from recipe_core.base.labels import split_name
from recipe_core.bundle.write import Bundle
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe.build import recipe_request
from recipe_core.request.describe import summary
from recipe_core.request.split_key import key_of
from recipe_core.targets.by_hand import node_commands
from recipe_core.targets.use import TITLES, uses
from recipe_core.views import overview
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.views import Chart, Focus, Table, views_of


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report; ``code`` are texts to copy, each with a caption."""

    title: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    charts: tuple[Chart, ...] = ()


def sections(
    bundle: Bundle, plan: Plan | None, pins: Sequence[str], addresses: Sequence[str]
) -> list[Section]:
    """The chapters of a bundle's report.

    ``plan``: the one its split was chosen from (None: left out). ``addresses``: of its nodes.
    """
    chosen_from = [] if plan is None else [_alternatives(bundle, plan, pins)]
    return [
        _decision(bundle, plan),
        _expected(bundle),
        *chosen_from,
        *_views(bundle, plan, pins),
        _start(bundle, addresses),
        _origins(bundle),
        _request(bundle),
    ]


def _decision(bundle: Bundle, plan: Plan | None) -> Section:
    recipe = bundle.recipe
    key = key_of(recipe.candidate)
    row = plan.find(key) if plan and key else None
    chance = None
    if plan and plan.limited and row is not None:
        chance = float(plan.confidence([row])[0])
    rows = tuple(overview.facts(recipe, chance).items())
    words = (f"Request: {summary(recipe_request(recipe))}.", *recipe.notes)
    return Section("Decision", words, (Table("", (), rows),))


def _expected(bundle: Bundle) -> Section:
    recipe = bundle.recipe
    rows = tuple(
        (row.label, row.value, overview.banded(row), row.basis) for row in overview.expected(recipe)
    )
    measured = [
        f"Measured {claim.date}, valid until {claim.expires}: "
        + ", ".join(f"{name} {value:.4g}" for name, value in claim.metrics.items())
        + "."
        for claim in recipe.claims
    ]
    figures = Table("Figures", ("Figure", "Estimate", "Likely range", "Basis"), rows)
    memory = Table("Memory of the fullest device", (), tuple(overview.memory(recipe).items()))
    words = ("Eight of ten measured runs are expected to fall within the range.", *measured)
    return Section("Expected figures", words, (figures, memory))


def _views(bundle: Bundle, plan: Plan | None, pins: Sequence[str]) -> Iterator[Section]:
    """A chapter for each registered view of the recipe's split that has something to show."""
    # planned by itself: a recipe may state a split that no search lists
    split, row = plan_candidate(recipe_request(bundle.recipe))
    for view in views_of(split):
        if not view.in_report:
            continue
        measure = view.first_measure(split)
        items = list(view.draw(Focus(split, row, tuple(pins), plan, measure)))
        tables = tuple(item for item in items if isinstance(item, Table))
        charts = tuple(item for item in items if isinstance(item, Chart))
        if tables or charts:
            yield Section(view.title, tables=tables, charts=charts)


def _alternatives(bundle: Bundle, plan: Plan, pins: Sequence[str]) -> Section:
    rows = overview.fallback_rows(bundle.recipe)
    waiting = int(plan.queues[plan.order].sum())
    queueing = f"; {waiting:,} of these start, but queue a part of the load" if waiting else ""
    doubtful = int((plan.feasible & plan.uncertain).sum())
    open_question = f"; of {doubtful:,} the estimate does not tell whether they start"
    words = (
        f"{len(plan.order):,} of {len(plan):,} splits can run{queueing}"
        f"{open_question if doubtful else ''}.",
    )
    table = (Table.of(rows, "Fallbacks"),) if rows else ()
    return Section("Alternatives", words, table, charts=tuple(_tradeoffs(plan, pins)))


def _start(bundle: Bundle, addresses: Sequence[str]) -> Section:
    context = bundle.context
    nodes = node_commands(context, addresses)
    several = context.nodes > 1
    code = [
        (f"On node {node.node}" if several else "In the bundle's folder", node.launcher)
        for node in nodes
    ]
    code += [
        (f"which starts {name}", command) for node in nodes for name, command in node.processes
    ]
    rows = tuple(
        (use.title, use.start, use.stop)
        for use in uses(bundle.files, context.name, context.kind, context.key_variable)
    )
    refused = tuple(
        (TITLES[name], reason) for name, reason in bundle.targets.items() if isinstance(reason, str)
    )
    tables = [Table("Targets", ("Target", "Start", "Stop"), rows)] if rows else []
    tables += [Table("Unavailable targets", ("Target", "Why"), refused)] if refused else []
    return Section("Deploy", tables=tuple(tables), code=tuple(code))


def _origins(bundle: Bundle) -> Section:
    rows = tuple(
        (row.name, row.value, row.layer, row.why) for row in overview.origins(bundle.recipe)
    )
    table = Table("", ("Option", "Value", "Set by", "Why"), rows)
    return Section("Option provenance", tables=(table,))


def _request(bundle: Bundle) -> Section:
    recipe = bundle.recipe
    words = (f"Written by {recipe.built_by}. Digest of the recipe: {recipe.digest}.",)
    return Section("Reproduce it", words, code=(("request.yaml", to_yaml(recipe.request)),))


def title(bundle: Bundle) -> str:
    """Model, devices and split."""
    recipe, device = bundle.recipe, bundle.recipe.device
    split = split_name(recipe.candidate)
    return f"{recipe.model.id} on {device.count} × {device.title}: {split}"


def _tradeoffs(plan: Plan, pins: Sequence[str]) -> list[Chart]:
    """Tradeoffs of all splits in the plan's first two measures; empty where one is unknown."""
    x, y = plan.axes
    if not (plan.known(x) and plan.known(y)):
        return []
    title = f"{plan.measures[x].title} and {plan.measures[y].title}"
    note = (
        "Diamonds are best tradeoffs: no split of their colour is better in both. Lines at them: "
        "eight of ten measured runs are expected within. Larger markers use more devices; rings "
        "are pinned splits."
    )
    if plan.queues.any():
        note += " Hourglasses start, but do not hold the whole load at once."
    if plan.uncertain.any():
        note += " Of open triangles memory is too close to tell whether they start."
    figure = tradeoff(plan, x, y, pins=pins)
    return [Chart("frontier", title, figure, f"{title} of {len(plan)} splits", note)]
