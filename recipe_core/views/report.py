"""A recipe as one HTML file with its charts: it opens offline and requests nothing.

``report_sections`` makes its chapters as data, one for each registered view of the split included;
``html_report`` puts them into ``templates/report.html.j2``, which escapes every text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from recipe_core.base.documents import to_yaml
from recipe_core.bundle.write import Bundle
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import find_row, is_known
from recipe_core.recipe.build import recipe_request
from recipe_core.request.describe import request_summary
from recipe_core.request.metrics import column_metric
from recipe_core.request.split_key import candidate_key, split_name
from recipe_core.targets.by_hand import TITLES, node_commands, read_addresses, target_uses
from recipe_core.views import overview
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.style import LIGHT
from recipe_core.views.charts.views import Chart, Focus, Table, views_of
from recipe_core.views.columns import Column, Row, cell_texts
from recipe_core.views.estimates import FIGURES, figure_rows, memory_facts
from recipe_core.views.exports import light_chart
from recipe_core.views.texts import read_html_template

_CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": LIGHT.ink}


def html_report(
    bundle: Bundle,
    plan: Plan | None = None,
    *,
    pins: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> str:
    """The report of a bundle.

    Args:
        bundle: with the recipe and its files.
        plan: the one its split was chosen from; without it the charts of all splits are left out.
        pins: keys of splits to compare.
        addresses: of the nodes; placeholders by default.
    """
    recipe = bundle.recipe
    chapters = report_sections(
        bundle, plan, pins, addresses or read_addresses("", bundle.context.nodes)
    )
    devices = f"{recipe.device.count} × {recipe.device.title}"
    return read_html_template("report.html.j2").render(
        title=f"{recipe.model.id} on {devices}: {split_name(recipe.candidate)}",
        name=recipe.name,
        sections=chapters,
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - the library
        chart=_chart_markup,
    )


def _chart_markup(figure: go.Figure, place: str) -> Markup:
    """A figure as a place in the page and the script that draws it.

    Plotly writes its JSON so that no text can end the script.
    """
    return Markup(  # noqa: S704
        plotly.io.to_html(
            light_chart(figure, font=_FONT),
            full_html=False,
            include_plotlyjs=False,
            config=_CONFIG,
            div_id=place,
            default_width="100%",
        )
    )


# --- chapters ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report; ``code`` are texts to copy, each with a caption."""

    title: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    charts: tuple[Chart, ...] = ()


def report_sections(
    bundle: Bundle, plan: Plan | None, pins: Sequence[str], addresses: Sequence[str]
) -> list[Section]:
    """The chapters of a bundle's report.

    ``plan``: the one its split was chosen from (None: left out). ``addresses``: of its nodes.
    """
    recipe = bundle.recipe
    alternatives = [] if plan is None else [_alternatives_section(bundle, plan, pins)]
    origins = _report_table(overview.option_origins(recipe), overview.ORIGINS)
    writer = f"Written by {recipe.built_by}. Digest of the recipe: {recipe.digest}."
    request = ("request.yaml", to_yaml(recipe.request))
    return [
        _decision_section(bundle, plan),
        _expected_section(bundle),
        *alternatives,
        *_view_sections(bundle, plan, pins),
        _start_section(bundle, addresses),
        Section("Option provenance", tables=(origins,)),
        Section("Reproduce it", (writer,), code=(request,)),
    ]


def _report_table(rows: Sequence[Row], columns: Sequence[Column[Row]], title: str = "") -> Table:
    return Table(
        title,
        tuple(column.title for column in columns),
        tuple(map(tuple, cell_texts(rows, columns))),
    )


def _decision_section(bundle: Bundle, plan: Plan | None) -> Section:
    recipe = bundle.recipe
    key = candidate_key(recipe.candidate)
    row = find_row(plan, key) if plan and key else None
    chance = None
    if plan and stated_limits(plan) and row is not None:
        chance = float(plan.chances[row])
    rows = tuple(overview.recipe_facts(recipe, chance).items())
    words = (f"Request: {request_summary(recipe_request(recipe))}.", *recipe.notes)
    return Section("Decision", words, (Table("", (), rows),))


def _expected_section(bundle: Bundle) -> Section:
    recipe = bundle.recipe
    estimate = recipe.estimate
    figures = _report_table(figure_rows(recipe.kind, estimate), FIGURES, "Figures")
    title = column_metric("total_bytes").title
    memory = Table(title, (), tuple(memory_facts(estimate).items()))
    measured = [
        f"Measured {claim.date}, valid until {claim.expires}: "
        + ", ".join(f"{name} {value:.4g}" for name, value in claim.metrics.items())
        + "."
        for claim in recipe.claims
    ]
    words = ("Eight of ten measured runs are expected to fall within the range.", *measured)
    return Section("Expected figures", words, (figures, memory))


def _view_sections(bundle: Bundle, plan: Plan | None, pins: Sequence[str]) -> Iterator[Section]:
    """A chapter for each registered view of the recipe's split that has something to show."""
    # planned by itself: a recipe may state a split that no search lists
    split, row = plan_candidate(recipe_request(bundle.recipe))
    for view in views_of(split, plan):
        measure = view.first_measure(split)
        items = list(view.draw(Focus(split, row, tuple(pins), plan, measure)))
        tables = tuple(item for item in items if isinstance(item, Table))
        drawings = tuple(item for item in items if isinstance(item, Chart))
        if tables or drawings:
            yield Section(view.title, tables=tables, charts=drawings)


def _alternatives_section(bundle: Bundle, plan: Plan, pins: Sequence[str]) -> Section:
    recipe = bundle.recipe
    fallbacks = _report_table(recipe.fallbacks, overview.fallback_columns(recipe), "Fallbacks")
    waiting = int(plan.queues[plan.order].sum())
    queueing = f"; {waiting:,} of these start, but queue a part of the load" if waiting else ""
    doubtful = int((plan.feasible & plan.uncertain).sum())
    open_question = f"; of {doubtful:,} the estimate does not tell whether they start"
    words = (
        f"{len(plan.order):,} of {len(plan):,} layouts can run{queueing}"
        f"{open_question if doubtful else ''}.",
    )
    tables = (fallbacks,) if recipe.fallbacks else ()
    return Section("Alternatives", words, tables, charts=tuple(_tradeoff_charts(plan, pins)))


def _tradeoff_charts(plan: Plan, pins: Sequence[str]) -> list[Chart]:
    """All splits in the plan's first two measures; empty where one is unknown."""
    x, y = plan.shown.axes
    if not (is_known(plan, x) and is_known(plan, y)):
        return []
    title = f"{plan.measures[x].title} and {plan.measures[y].title}"
    note = (
        "Diamonds are best tradeoffs: no layout of their colour is better in both. Lines at them: "
        "eight of ten measured runs are expected within. Larger markers use more devices; rings "
        "are pinned layouts."
    )
    if plan.queues.any():
        note += " Hourglasses start, but do not hold the whole load at once."
    if plan.uncertain.any():
        note += " Of open triangles memory is too close to tell whether they start."
    figure = tradeoff(plan, x, y, pins=pins)
    return [Chart("frontier", title, figure, f"{title} of {len(plan)} layouts", note)]


def _start_section(bundle: Bundle, addresses: Sequence[str]) -> Section:
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
        for use in target_uses(bundle.files, context.name, context.kind, context.key_variable)
    )
    refused = tuple(
        (TITLES[name], reason) for name, reason in bundle.targets.items() if isinstance(reason, str)
    )
    tables = [Table("Targets", ("Target", "Start", "Stop"), rows)] if rows else []
    tables += [Table("Unavailable targets", ("Target", "Why"), refused)] if refused else []
    return Section("Deploy", tables=tuple(tables), code=tuple(code))
