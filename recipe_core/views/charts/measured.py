"""Runs of one's own against their predictions: all figures, ratios by group, and one by parts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import plotly.graph_objects as go

from recipe_core.calibration.residuals import ComparedFigure, Prediction
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.request.metrics import Metric, column_metric
from recipe_core.views.charts.figures import Drawing, axis, categories, error_bars
from recipe_core.views.charts.style import SYMBOLS

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
    return draw.between(across, up, 460)


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
    return draw.between(across, {"type": "category", "title": None}, 150 + 46 * len(names))


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
    return draw.between(axis("ms"), categories(), 230, barmode="stack", bargap=0.35)
