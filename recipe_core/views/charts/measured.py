"""Runs beside their predictions, and kept choices beside each other, as points with their bands."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median
from textwrap import wrap
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from recipe_core.calibration.residuals import ComparedFigure, Prediction
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.request.metrics import Metric, column_metric
from recipe_core.views.charts.style import (
    BELOW,
    SYMBOLS,
    Drawing,
    Style,
    axis,
    categories,
    error_bars,
)
from recipe_core.views.side_by_side import Choice, measures, value, value_with_band

# Characters and lines of a name beside an axis; the whole name is in the hover.
LINE, LINES = 24, 3
ROW_PX = 54
LEGEND = {True: "holds its load, or can run", False: "queues, may not start, or is refused"}


def choice_points(
    choices: Sequence[Choice], title: str, baseline: int = 0, *, dark: bool = False
) -> go.Figure:
    """A figure of every choice that has it, in order, with the band where measured runs lie.

    Filled marks hold their load, open ones do not; a line stands at the baseline's.
    """
    draw, measure = Drawing(dark=dark), measures(choices)[title]
    values = np.array([value(choice, title) for choice in choices], dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(values)).tolist()
    for holds, name in LEGEND.items():
        some = [n for n in rows if choices[n].holds == holds]
        if some:
            _add_choices(draw, name, choices, title, some, holds=holds)
    if baseline in rows:
        place, grey = float(values[baseline] * measure.factor), draw.colours.muted
        draw.limit(x=place, colour=grey, dash="dot", width=1)
    names = {"tickvals": rows, "ticktext": [_folded(choices[n].name) for n in rows]}
    across = axis(measure.axis, rangemode="tozero")
    up = axis(None, autorange="reversed", **names)
    return draw.set_axes(across, up, 120 + ROW_PX * max(len(rows), 1), BELOW)


def _add_choices(
    draw: Drawing,
    name: str,
    choices: Sequence[Choice],
    title: str,
    rows: Sequence[int],
    *,
    holds: bool,
) -> None:
    measure, colours = measures(choices)[title], draw.colours
    amounts = np.array([value_with_band(choices[n], title) for n in rows])
    values, low, high = (amounts * measure.factor).T
    blue = colours.series[0]
    look: Style = {"size": 11, "line": {"color": blue, "width": 2}}
    look["color"] = blue if holds else colours.paper
    look["symbol"] = "circle" if holds else "diamond"
    texts = draw.labels([measure.show(amount) for amount in amounts[:, 0]], "top center")
    bars = error_bars(values, low, high, blue, thickness=1.5)
    more = {"mode": "markers+text", "error_x": bars, **texts}
    about = [escape(choices[n].name) for n in rows]
    draw.points(name, values.tolist(), list(rows), look, "%{customdata}<br>%{text}", about, **more)


def _folded(name: str) -> str:
    """A name as an axis shows it: in lines, cut, and never read as markup."""
    lines = wrap(name, LINE, max_lines=LINES, placeholder=" …")
    return "<br>".join(escape(line) for line in lines)


Predictor = Literal["formulas", "corrected"]
PREDICTED_BY: dict[Predictor, str] = {
    "formulas": "Formulas alone",
    "corrected": "With the other runs",
}
# Parts that are shown one by one; a legend has no room for all.
LARGEST = 5


def _prediction_of(row: ComparedFigure, predictor: Predictor) -> Prediction:
    return row.corrected if predictor == "corrected" else row.formulas


def measured_against(
    rows: Sequence[ComparedFigure], predictor: Predictor, *, dark: bool = False
) -> go.Figure:
    """Predicted against measured values of one figure on two log axes, with the 80 % bands.

    Filled marks lie in their band, open ones outside of it.
    """
    draw, metric = Drawing(dark=dark), column_metric(rows[0].figure)
    predictions = [_prediction_of(row, predictor) for row in rows]
    values = [row.measured for row in rows]
    values += [end for prediction in predictions for end in (prediction.low, prediction.high)]
    ends = [min(values) * metric.factor / 1.3, max(values) * metric.factor * 1.3]
    diagonal = {"color": draw.colours.muted, "dash": "dot", "width": 1}
    draw.curve("measured as predicted", ends, ends, diagonal)
    for inside in (True, False):
        pairs = zip(rows, predictions, strict=True)
        some = [pair for pair in pairs if pair[1].holds(pair[0].measured) == inside]
        _add_predictions(draw, some, metric, inside=inside)
    across, up = (
        {"title": f"{kind} ({metric.unit.symbol})", "type": "log"}
        for kind in ("Predicted", "Measured")
    )
    return draw.set_axes(across, up, 460)


def _add_predictions(
    draw: Drawing,
    pairs: Sequence[tuple[ComparedFigure, Prediction]],
    metric: Metric,
    *,
    inside: bool,
) -> None:
    colour = draw.colours.series[0] if inside else draw.colours.alarm
    line = {"width": 1 if inside else 2, "color": colour}
    low, high, x = (
        [getattr(prediction, name) * metric.factor for _, prediction in pairs]
        for name in ("low", "high", "value")
    )
    about = [
        [
            row.run,
            f"{row.model} on {row.device}, {row.engine} {row.version}".rstrip(),
            *map(metric.show, (row.measured, prediction.value, prediction.low, prediction.high)),
        ]
        for row, prediction in pairs
    ]
    symbol = "circle" if inside else "circle-open"
    draw.points(
        "in its band" if inside else "outside its band",
        x,
        [row.measured * metric.factor for row, _ in pairs],
        {"color": colour, "size": 9, "symbol": symbol, "line": line},
        "%{customdata[1]}<br>measured %{customdata[2]}, predicted %{customdata[3]} "
        "(%{customdata[4]} to %{customdata[5]})<br>run %{customdata[0]}",
        about,
        error_x=error_bars(x, low, high, colour, thickness=1, width=0),
    )


def ratios_by_group(
    rows: Sequence[ComparedFigure], groups: Sequence[str], *, dark: bool = False
) -> go.Figure:
    """Measured over predicted by group, before and after; ``groups``: that of each row.

    The line of a group and prediction is its median.
    """
    draw, names = Drawing(dark=dark), sorted(set(groups))
    for n, (predictor, title) in enumerate(PREDICTED_BY.items()):
        colour = draw.colours.series[n]
        ratios = [row.measured / _prediction_of(row, predictor).value for row in rows]
        by_group: dict[str, list[float]] = {name: [] for name in names}
        for ratio, group in zip(ratios, groups, strict=True):
            by_group[group].append(ratio)
        look = {"color": colour, "symbol": SYMBOLS[n], "size": 8, "opacity": 0.7}
        hover = "%{y}: %{x:.2f} × predicted<br>run %{customdata}"
        draw.points(title, ratios, list(groups), look, hover, [row.run for row in rows])
        middles = [median(by_group[name]) for name in names]
        bar = {"symbol": "line-ns-open", "size": 26, "color": colour, "line": {"width": 3}}
        median_name = f"median, {title[0].lower()}{title[1:]}"
        draw.points(median_name, middles, names, bar, "%{y}: median %{x:.2f} × predicted")
    draw.limit(x=1, colour=draw.colours.muted, dash="dot", width=1)
    across = {"title": "Measured / predicted", "type": "log"}
    return draw.set_axes(across, {"type": "category", "title": None}, 150 + 46 * len(names))


def parts_against(row: ComparedFigure, *, dark: bool = False) -> go.Figure:
    """The parts that a predicted time is made of, above the measured whole; both in ms."""
    draw = Drawing(dark=dark)
    ordered = sorted(row.parts.items(), key=lambda part: -part[1])
    parts = [
        (TIME_TITLES.get(name, name.replace("_", " ")), value) for name, value in ordered[:LARGEST]
    ]
    if rest := ordered[LARGEST:]:
        parts.append(("Other parts", sum(seconds for _, seconds in rest)))
    for n, (label, seconds) in enumerate(parts):
        draw.bars(label, ["predicted"], [seconds * 1e3], n, f"{label}: %{{x:.3g}} ms")
    milliseconds, grey = [row.measured * 1e3], {"color": draw.colours.muted}
    draw.bars(None, ["measured"], milliseconds, grey, "measured: %{x:.3g} ms", showlegend=False)
    return draw.set_axes(axis("ms"), categories(), 230, barmode="stack", bargap=0.35)
