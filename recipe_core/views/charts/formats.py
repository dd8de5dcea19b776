"""Advice on formats: accuracy against a figure, and who runs what as a matrix."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from recipe_core.accuracy.technique import technique, techniques
from recipe_core.views.charts.style import FRAME, SYMBOLS, Palette, mixed, palette
from recipe_core.views.formats import (
    LETTERS,
    MEANINGS,
    SPLITS,
    figure_ratio,
    figure_title,
    kept_accuracy,
    ratio_text,
    support_title,
)

Row = Mapping[str, Any]
KINDS: dict[str, tuple[str, ...]] = {
    "Weights": ("weights",),
    "Weights and activations": ("weights and activations",),
    "KV cache": ("kv cache",),
    "Fewer weights": ("sparsity", "pruning", "low rank", "distillation"),
}
"""Groups of the legend by kind of technique."""
NAMED = 4
"""Points that carry their name; others say it when pointed at."""
APART = (0.6, 3.5)
"""Distance of names: a share of the width, or points of accuracy."""
LEAST_SHOWN = 0.8
"""Lower end of the accuracy axis."""
WRAPPED = 62
"""Characters of a line that is shown when pointing."""


def accuracy_against(
    rows: Sequence[Row],
    name: str,
    split: str = "same_split",
    *,
    limit: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Accuracy that is kept against a figure's ratio to the base, one point a technique.

    Lines are the 80 % bands of accuracy; the diamond is the base. ``limit``: least accuracy asked.
    """
    colours = palette(dark)
    drawn = [row for row in rows if row["accuracy"]["retained"] and figure_ratio(row, name, split)]
    figure = go.Figure()
    for n, (title, kinds) in enumerate(KINDS.items()):
        group = [row for row in drawn if row["kind"] in kinds]
        if group:
            figure.add_scatter(**_points(group, name, split, n, title, colours))
    figure.add_scatter(
        x=[1.0],
        y=[100.0],
        mode="markers",
        name="base",
        marker={"symbol": "star", "size": 14, "color": colours.ink},
        hovertemplate="the model in its own format<extra></extra>",
    )
    if limit is not None:
        figure.add_hline(
            y=limit * 100,
            line={"color": colours.alarm, "dash": "dash", "width": 1},
            annotation={
                "text": f"least accuracy {limit * 100:g} %",
                "font": {"color": colours.alarm},
            },
            annotation_position="bottom right",
        )
    _name(figure, drawn, name, split, colours)
    figure.update_layout(height=460, **FRAME)
    figure.update_xaxes(title=f"{figure_title(name)} over the base's ({SPLITS[split].lower()})")
    figure.update_yaxes(title="Accuracy kept (%)", range=[LEAST_SHOWN * 100, 106])
    return figure


def _points(
    rows: Sequence[Row], name: str, split: str, n: int, title: str, colours: Palette
) -> dict[str, Any]:
    kept = [row["accuracy"]["retained"] for row in rows]
    return {
        "x": [figure_ratio(row, name, split) for row in rows],
        "y": [one["value"] * 100 for one in kept],
        "mode": "markers",
        "name": title,
        "marker": {
            "color": colours.series[n],
            "symbol": SYMBOLS[n],
            "size": 10,
            "line": {"width": 1, "color": colours.paper},
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [(one["high"] - one["value"]) * 100 for one in kept],
            "arrayminus": [(one["value"] - one["low"]) * 100 for one in kept],
            "color": mixed(colours.series[n], colours.paper, 0.45),
            "thickness": 1.5,
            "width": 0,
        },
        "customdata": [
            [
                row["technique"],
                row["title"],
                kept_accuracy(row),
                ratio_text(figure_ratio(row, name, split)),
                row["verdict"],
            ]
            for row in rows
        ],
        "hovertemplate": (
            "%{customdata[1]} (%{customdata[4]})<br>accuracy kept %{customdata[2]}"
            f"<br>{figure_title(name).lower()}: %{{customdata[3]}}<extra></extra>"
        ),
    }


def _name(figure: go.Figure, rows: Sequence[Row], name: str, split: str, colours: Palette) -> None:
    """Names beside the points that are the best at something, and those that no point is near."""
    placed: list[tuple[float, float]] = [(1.0, 100.0)]  # the base
    spans = [figure_ratio(row, name, split) or 1.0 for row in rows]
    width = max(max(spans, default=1.0) - min(spans, default=0.0), 1e-6)
    ordered = sorted(rows, key=lambda row: (not row["best_at"], row["rank"] or 999))
    for row in ordered:
        x, y = figure_ratio(row, name, split) or 1.0, row["accuracy"]["retained"]["value"] * 100
        if y < LEAST_SHOWN * 100 or len(placed) >= NAMED:
            continue
        if any(abs(x - a) / width < APART[0] and abs(y - b) < APART[1] for a, b in placed):
            continue
        placed.append((x, y))
        figure.add_annotation(
            x=x,
            y=y,
            text=technique(row["technique"]).label,
            showarrow=False,
            xanchor="left",
            xshift=9,
            font={"size": 11, "color": colours.ink},
        )


def not_drawn(rows: Sequence[Row], name: str, split: str) -> int:
    """How many techniques keep less than the axis shows."""
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
    colours = palette(dark)
    rows, columns = list(cells), list(next(iter(cells.values()), {}))
    verdicts = list(LETTERS)
    titles = techniques()
    z = [[verdicts.index(cells[row][column]["verdict"]) for column in columns] for row in rows]
    letters = [[LETTERS[cells[row][column]["verdict"]] for column in columns] for row in rows]
    hints = [
        [_said(titles[row].title, support_title(column), cells[row][column]) for column in columns]
        for row in rows
    ]
    shades = _shades(colours)
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=[support_title(column) for column in columns],
            y=[titles[row].label for row in rows],
            text=letters,
            texttemplate="%{text}",
            textfont={"size": 12},
            customdata=hints,
            hovertemplate="%{customdata}<extra></extra>",
            colorscale=_steps(shades),
            zmin=-0.5,
            zmax=len(verdicts) - 0.5,
            showscale=False,
            xgap=2,
            ygap=2,
        )
    )
    figure.update_layout(
        height=120 + 23 * len(rows), margin={"l": 10, "r": 16, "t": 100, "b": 10}, showlegend=False
    )
    every = {"title": None, "showgrid": False, "type": "category", "dtick": 1}
    figure.update_xaxes(side="top", tickangle=-50, **every)
    figure.update_yaxes(autorange="reversed", **every)
    return figure


def _shades(colours: Palette) -> list[str]:
    """One shade a verdict, from the strongest for native to the page's own for unknown."""
    blue, orange = colours.series[0], colours.series[1]
    return [
        blue,
        mixed(blue, colours.paper, 0.35),
        mixed(orange, colours.paper, 0.55),
        mixed(orange, colours.paper, 0.78),
        mixed(colours.muted, colours.paper, 0.55),
        mixed(colours.muted, colours.paper, 0.9),
    ]


def _steps(shades: Sequence[str]) -> list[tuple[float, str]]:
    """A colour scale of steps, one a verdict."""
    return [(edge / len(shades), shade) for n, shade in enumerate(shades) for edge in (n, n + 1)]


def _said(technique: str, where: str, cell: Row) -> str:
    """What a cell says when it is pointed at: verdict, the engine's words, and where they are."""
    verdict = cell["verdict"]
    lines = [f"<b>{technique} · {where}</b>", f"{verdict}: {MEANINGS[verdict]}"]
    if cell["min_version"]:
        lines.append(f"from {cell['min_version']}")
    if cell["words"]:
        lines += textwrap.wrap(_plain(cell["words"]), WRAPPED)[:5]
    if cell["source"]:
        lines += textwrap.wrap(_plain(f"Source: {cell['source']}, {cell['date'] or ''}"), WRAPPED)[
            :2
        ]
    return "<br>".join(lines)


def _plain(text: str) -> str:
    """Text without what plotly reads as markup."""
    return text.replace("<", "‹").replace(">", "›")
