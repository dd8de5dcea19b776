"""What a report says, as data: sections of words, tables, commands and charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recipe_core.base.documents import to_yaml
from recipe_core.base.labels import split_name
from recipe_core.bundle.write import Bundle
from recipe_core.explain.arithmetic import arithmetic, training_arithmetic
from recipe_core.present import overview
from recipe_core.present.report.charts import Chart, own_board, plan_charts, split_charts
from recipe_core.recipe.build import recipe_request
from recipe_core.request.describe import summary
from recipe_core.search.plan import Plan
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan
from recipe_core.targets.by_hand import node_commands
from recipe_core.targets.use import TITLES, uses


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(rows: Sequence[Mapping[str, str]], title: str = "") -> Table:
        """From mappings that all have the same keys."""
        return Table(
            title, tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows)
        )


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report; ``code`` are texts to copy, each with a caption."""

    title: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    charts: tuple[Chart, ...] = ()


def sections(
    bundle: Bundle, board: Plan | None, pins: Sequence[str], addresses: Sequence[str]
) -> list[Section]:
    """The report of a bundle; ``board`` is the plan that it was chosen from (None: left out), ``addresses`` those of its nodes."""
    own = own_board(bundle.recipe)
    found = [_decision(bundle), _expected(bundle), _look(own, board)]
    found += [_choice(bundle, board, pins)] if board is not None else []
    return [*found, _start(bundle, addresses), _origins(bundle), _arithmetic(own), _request(bundle)]


def _decision(bundle: Bundle) -> Section:
    recipe = bundle.recipe
    rows = tuple(overview.facts(recipe).items())
    said = (f"Asked: {summary(recipe_request(recipe))}.", *recipe.notes)
    return Section("What was decided", said, (Table("", (), rows),))


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
    figures = Table("Figures", ("Figure", "Estimate", "Likely between", "Basis"), rows)
    memory = Table("Memory of the fullest device", (), tuple(overview.memory(recipe).items()))
    return Section(
        "What to expect",
        ("Eight of ten measured runs are expected within a band.", *measured),
        (figures, memory),
    )


def _look(own: Plan, board: Plan | None) -> Section:
    return Section("Where time and memory go", charts=tuple(split_charts(own, board)))


def _choice(bundle: Bundle, board: Plan, pins: Sequence[str]) -> Section:
    fallbacks = overview.fallback_rows(bundle.recipe)
    words = (f"{len(board.order):,} of {len(board):,} splits fit.",)
    table = (Table.of(fallbacks, "Where this one cannot run"),) if fallbacks else ()
    return Section("What it was chosen from", words, table, charts=tuple(plan_charts(board, pins)))


def _start(bundle: Bundle, addresses: Sequence[str]) -> Section:
    context = bundle.context
    nodes = node_commands(context, addresses)
    typed = [
        (f"On node {each.node}" if context.nodes > 1 else "In the bundle's folder", each.launcher)
        for each in nodes
    ]
    typed += [
        (f"which starts {name}", command) for each in nodes for name, command in each.processes
    ]
    rows = tuple(
        (use.title, use.start, use.stop) for use in uses(bundle.files, context.name, context.kind)
    )
    refused = tuple(
        (TITLES[name], made) for name, made in bundle.targets.items() if isinstance(made, str)
    )
    tables = [Table("Elsewhere", ("Where", "Start", "Stop"), rows)] if rows else []
    tables += [Table("Not offered", ("Where", "Why"), refused)] if refused else []
    return Section("How to start it", tables=tuple(tables), code=tuple(typed))


def _origins(bundle: Bundle) -> Section:
    rows = tuple(
        (row.name, row.value, row.layer, row.why) for row in overview.origins(bundle.recipe)
    )
    return Section(
        "Why each option", tables=(Table("", ("Option", "Value", "Set by", "Because"), rows),)
    )


def _arithmetic(own: Plan) -> Section:
    return Section("The arithmetic", tables=tuple(_lines(own)))


def _lines(own: Plan) -> Iterator[Table]:
    found = (
        training_arithmetic(own, 0)
        if isinstance(own, TrainingPlan)
        else arithmetic(own, 0)
        if isinstance(own, ServingPlan)
        else {}
    )
    for title, lines in found.items():
        rows = tuple((line.name, line.formula, line.numbers, line.value) for line in lines)
        yield Table(title, ("Figure", "Formula", "With the numbers", "Value"), rows)


def _request(bundle: Bundle) -> Section:
    recipe = bundle.recipe
    said = f"Made by {recipe.built_by}; the recipe's digest is {recipe.digest}."
    return Section("To make it again", (said,), code=(("request.yaml", to_yaml(recipe.request)),))


def title(bundle: Bundle) -> str:
    """The report's title."""
    recipe = bundle.recipe
    return f"{recipe.model.id} on {recipe.device.count} × {recipe.device.title}: {split_name(recipe.candidate)}"
