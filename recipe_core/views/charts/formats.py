"""Advice on formats: accuracy against a figure, and the support of each technique as a matrix."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from recipe_core.accuracy.technique import technique, techniques
from recipe_core.views.charts.figures import Drawing, error_bars
from recipe_core.views.charts.style import SYMBOLS, Palette, mix
from recipe_core.views.formats import (
    LETTERS,
    MEANINGS,
    SPLITS,
    figure_metric,
    figure_ratio,
    kept_accuracy,
    ratio_text,
    support_title,
)

Row = Mapping[str, Any]
# Groups of the legend by kind of technique.
KINDS: dict[str, tuple[str, ...]] = {
    "Weights": ("weights",),
    "Weights and activations": ("weights and activations",),
    "KV cache": ("kv cache",),
    "Fewer weights": ("sparsity", "pruning", "low rank", "distillation"),
}
# Points that carry their name; the rest say it when pointed at.
LABELS = 4
# Distance of names: a share of the width, or points of accuracy.
APART = (0.6, 3.5)
# Lower end of the accuracy axis.
LEAST_SHOWN = 0.8
# Characters of a line that is shown when pointing.
WRAPPED = 62


def accuracy_against(
    rows: Sequence[Row],
    name: str,
    split: str = "same_split",
    *,
    limit: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Accuracy that is kept against a figure's ratio to the base, one point a technique.

    Lines are the 80 % bands of accuracy; the star is the base. ``limit``: least accuracy allowed.
    """
    draw = Drawing(dark=dark)
    drawn = [row for row in rows if row["accuracy"]["retained"] and figure_ratio(row, name, split)]
    for n, (title, kinds) in enumerate(KINDS.items()):
        group = [row for row in drawn if row["kind"] in kinds]
        if group:
            _add_techniques(draw, n, title, group, name, split)
    star = {"symbol": "star", "size": 14, "color": draw.colours.ink}
    draw.points("base", [1.0], [100.0], star, "the model in its own format")
    if limit is not None:
        text = f"least accuracy {limit * 100:g} %"
        draw.limit(text, y=limit * 100, width=1, position="bottom right")
    _add_names(draw, drawn, name, split)
    across = {"title": f"{figure_metric(name).title} over the base's ({SPLITS[split].lower()})"}
    up = {"title": figure_metric("accuracy").axis, "range": [LEAST_SHOWN * 100, 106]}
    return draw.between(across, up, 460)


def _add_techniques(
    draw: Drawing, n: int, title: str, rows: Sequence[Row], name: str, split: str
) -> None:
    colour, paper = draw.colours.series[n], draw.colours.paper
    low, high, y = (
        [row["accuracy"]["retained"][end] * 100 for row in rows] for end in ("low", "high", "value")
    )
    x = [figure_ratio(row, name, split) for row in rows]
    about = [
        [row["technique"], row["title"], kept_accuracy(row), ratio_text(change), row["verdict"]]
        for row, change in zip(rows, x, strict=True)
    ]
    look = {"color": colour, "symbol": SYMBOLS[n], "size": 10, "line": {"width": 1, "color": paper}}
    hover = "%{customdata[1]} (%{customdata[4]})<br>accuracy kept %{customdata[2]}"
    hover += f"<br>{figure_metric(name).label}: %{{customdata[3]}}"
    bars = error_bars(y, low, high, mix(colour, paper, 0.45), thickness=1.5, width=0)
    draw.points(title, x, y, look, hover, about, error_y=bars)


def _add_names(draw: Drawing, rows: Sequence[Row], name: str, split: str) -> None:
    """Names beside the points that are the best at something, and those that no point is near."""
    labels: list[tuple[float, float]] = [(1.0, 100.0)]  # the base
    spans = [figure_ratio(row, name, split) or 1.0 for row in rows]
    width = max(max(spans, default=1.0) - min(spans, default=0.0), 1e-6)
    for row in sorted(rows, key=lambda row: (not row["best_at"], row["rank"] or 999)):
        x, y = figure_ratio(row, name, split) or 1.0, row["accuracy"]["retained"]["value"] * 100
        if y < LEAST_SHOWN * 100 or len(labels) >= LABELS:
            continue
        if any(abs(x - a) / width < APART[0] and abs(y - b) < APART[1] for a, b in labels):
            continue
        labels.append((x, y))
        text, font = technique(row["technique"]).label, {"size": 11, "color": draw.colours.ink}
        place = {"x": x, "y": y, "xanchor": "left", "xshift": 9, "showarrow": False}
        draw.figure.add_annotation(text=text, font=font, **place)


def hidden_count(rows: Sequence[Row], name: str, split: str) -> int:
    return sum(
        figure_ratio(row, name, split) is not None
        and row["accuracy"]["retained"] is not None
        and row["accuracy"]["retained"]["value"] < LEAST_SHOWN
        for row in rows
    )


def support_matrix(cells: Mapping[str, Row], *, dark: bool = False) -> go.Figure:
    """Verdicts of techniques (rows) by engine or hardware (columns): a letter and a shade each.

    Letters say what shades say, so that no colour has to be told from another.
    """
    draw, verdicts, titles = Drawing(dark=dark), list(LETTERS), techniques()
    columns = list(next(iter(cells.values()), {}))
    lines = [[row[column] for column in columns] for row in cells.values()]
    shades = _shades(draw.colours)
    steps = [edge / len(shades) for edge in range(len(shades) + 1)]
    draw.matrix(
        [[verdicts.index(cell["verdict"]) for cell in line] for line in lines],
        [support_title(column) for column in columns],
        [titles[name].label for name in cells],
        "%{customdata}",
        [
            [
                _verdict_cell_text(titles[name].title, support_title(column), cell)
                for column, cell in row.items()
            ]
            for name, row in cells.items()
        ],
        text=[[LETTERS[cell["verdict"]] for cell in line] for line in lines],
        texttemplate="%{text}",
        textfont={"size": 12},
        colorscale=[(steps[n + end], shade) for n, shade in enumerate(shades) for end in (0, 1)],
        zmin=-0.5,
        zmax=len(verdicts) - 0.5,
        showscale=False,
        xgap=2,
        ygap=2,
    )
    frame = {"margin": {"l": 10, "r": 16, "t": 100, "b": 10}, "showlegend": False}
    names = {"title": None, "showgrid": False, "type": "category", "dtick": 1}
    across, up = {"side": "top", "tickangle": -50, **names}, {"autorange": "reversed", **names}
    return draw.between(across, up, 120 + 23 * len(cells), frame)


def _shades(colours: Palette) -> list[str]:
    """One shade a verdict, from the strongest for native to the page's own for unknown."""
    blue, orange, grey = colours.series[0], colours.series[1], colours.muted
    mixtures = ((blue, 0.35), (orange, 0.55), (orange, 0.78), (grey, 0.55), (grey, 0.9))
    return [blue, *(mix(colour, colours.paper, share) for colour, share in mixtures)]


def _verdict_cell_text(title: str, column: str, cell: Row) -> str:
    """The hover text of a cell: verdict, the engine's words, and their source."""
    verdict = cell["verdict"]
    lines = [f"<b>{title} · {column}</b>", f"{verdict}: {MEANINGS[verdict]}"]
    if cell["min_version"]:
        lines.append(f"from {cell['min_version']}")
    if cell["words"]:
        lines += _wrap(cell["words"])[:5]
    if cell["source"]:
        lines += _wrap(f"Source: {cell['source']}, {cell['date'] or ''}")[:2]
    return "<br>".join(lines)


def _wrap(text: str) -> list[str]:
    """Text in lines, without the characters that plotly reads as markup."""
    return textwrap.wrap(text.replace("<", "‹").replace(">", "›"), WRAPPED)
