"""The default chart of an answer: how fast for a user against how much for the money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float
from recipe_core.base.errors import RecipeError
from recipe_core.base.units import significant, token_rate_text, usd
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import cluster_title, measure_text, split_label, split_labels
from recipe_core.plans.splits import is_known, row_key, row_keys
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.labels import Plane, add_labels, range_without_outliers
from recipe_core.views.charts.style import (
    DASHES,
    SYMBOLS,
    Drawing,
    Style,
    axis,
    error_bars,
    mix,
)
from recipe_core.views.explanations.curves import Envelope, Frontier, evaluate_frontier, scaling
from recipe_core.views.plan_words import shown_limit, used_devices_text

HEIGHT_PX, PLOT_HEIGHT_PX = 440, 340.0
# Shares of a curve at which its name may stand.
NAMED_AT = (0.5, 0.35, 0.65, 0.2, 0.8)
# Share of a curve's colour in its band, the rest is the page's.
BAND_SHADE = 0.78


def frontier_figure(
    plan: Plan, chosen_row: int | None, *, pins: Sequence[str] = (), dark: bool = False
) -> go.Figure:
    """The chart of an answer: curves by device with their 80 % bands, and the chosen split.

    Serving: tokens/s that a user sees against output per GPU, or per dollar where devices with
    prices differ, over all loads; what is slower than the limit is shaded. Training: days against
    dollars, one point a number of devices. Where neither can differ (no load to vary, one number of
    devices, no price), the two measures that tell splits apart. ``customdata[0]`` of a point is its
    split's key; ``pins``: keys of splits whose marks have rings.
    """
    if plan.kind == "training":
        counts = run_counts(plan, chosen_row, pins=pins, dark=dark)
        spent = "wall" if is_known(plan, "wall") else "step"
        return counts or tradeoff(plan, spent, "memory", pins=pins, dark=dark)
    try:
        frontier = evaluate_frontier(plan, money=_compares_prices(plan))
    except RecipeError:
        frontier = None
    if frontier is None or not frontier.envelopes:
        return tradeoff(plan, *plan.shown.axes, pins=pins, dark=dark)
    money = _compares_prices(plan)
    return frontier_lines(frontier, plan, chosen_row, money=money, pins=pins, dark=dark)


# Serving


@dataclass(frozen=True, slots=True)
class Curve:
    """An envelope as it is drawn: places, and the ends of the band of the height."""

    envelope: Envelope
    height: Float
    low: Float
    high: Float


def frontier_lines(
    frontier: Frontier,
    plan: Plan,
    row: int | None,
    *,
    money: bool = False,
    pins: Sequence[str] = (),
    dark: bool = False,
) -> go.Figure:
    """The envelope of each device; a star is ``row`` of ``plan``, the split that is looked at.

    ``money``: output per dollar, for which the frontier was evaluated, in place of that per device.
    """
    draw, load_plan = Drawing(dark=dark), frontier.plan
    curves = [_curve_of(load_plan, envelope, money) for envelope in frontier.envelopes]
    plane = _plane_of(curves)
    shapes = _slow_zone(draw, plan, plane)
    names = []
    for n, curve in enumerate(curves):
        colour = draw.colours.groups[n % len(draw.colours.groups)]
        _add_band(draw, curve, mix(colour, draw.colours.paper, BAND_SHADE))
        _add_curve(draw, n, load_plan, curve, colour)
        names.append((curve.envelope.title, _name_places(curve), colour))
    if star := _add_star(draw, plan, row, money):
        names.insert(0, (split_label(plan, row or 0, device=False), [star], draw.colours.ink))
    _add_rings(draw, pins)
    marks = [
        place
        for curve in curves
        for place in zip(curve.envelope.interactivity.tolist(), curve.height.tolist(), strict=True)
    ]
    add_labels(draw, plane, names, marks)
    vertical = "Output tokens per dollar (million)" if money else plan.measures["per_gpu"].axis
    traits: Style = {"hovermode": "closest", "showlegend": len(curves) > 1}
    return draw.set_axes(
        axis(plan.measures["interactivity"].axis, range=list(plane.x)),
        axis(vertical, range=list(plane.y)),
        HEIGHT_PX,
        clickmode="event+select",
        shapes=shapes,
        **traits,
    )


def _compares_prices(plan: Plan) -> bool:
    """True where devices differ, which output per GPU does not compare, and each has a price."""
    priced = [place.usd_per_device_hour is not None for place in plan.clusters]
    return len(priced) > 1 and all(priced)


def _curve_of(load_plan: Plan, envelope: Envelope, money: bool) -> Curve:
    name = "usd" if money else "per_gpu"
    low, high = band_ends(load_plan, name, envelope.rows)
    values = load_plan.raw(name)[envelope.rows]
    low, high = (values * _filled(end / values) for end in (low, high))
    if money:  # a price of a million tokens, upside down
        values, low, high = 1 / values, 1 / high, 1 / low
    return Curve(envelope, values, low, high)


def _name_places(curve: Curve) -> list[tuple[float, float]]:
    """Points of a curve at which its name may stand, the middle first."""
    last = len(curve.height) - 1
    points = [round(last * share) for share in NAMED_AT]
    return [(float(curve.envelope.interactivity[k]), float(curve.height[k])) for k in points]


def _filled(factors: Float) -> Float:
    """Factors of a band, those of rows beyond a limit, which have none, as of the next that has."""
    banded = np.flatnonzero(np.isfinite(factors))
    if not len(banded):
        return np.ones_like(factors)
    places = np.clip(np.searchsorted(banded, np.arange(len(factors))), 0, len(banded) - 1)
    return np.asarray(factors[banded[places]])


def _plane_of(curves: list[Curve]) -> Plane:
    across = [x for curve in curves for x in curve.envelope.interactivity.tolist()]
    vertical = [y for curve in curves for y in curve.high.tolist()]
    return Plane(
        range_without_outliers(across, from_zero=True),
        (0.0, range_without_outliers(vertical, from_zero=True)[1]),
        PLOT_HEIGHT_PX,
    )


def _slow_zone(draw: Drawing, plan: Plan, plane: Plane) -> list[Style]:
    """Name what is slower than the limit on the time per token; its shade and its edge."""
    limit_ms = shown_limit(plan, "tpot")
    if limit_ms is None:
        return []
    edge, alarm = 1e3 / limit_ms, draw.colours.alarm
    text = f"slower than {significant(limit_ms)} ms a token"
    draw.note(text, alarm, 11, x=0, y=1.0, yref="paper", xanchor="left", yanchor="bottom")
    high: Style = {"xref": "x", "y0": 0, "y1": 1, "yref": "y domain"}
    shade: Style = {"fillcolor": alarm, "opacity": 0.08, "layer": "below", "line": {"width": 0}}
    line: Style = {"color": alarm, "dash": "dash", "width": 1}
    return [
        {"type": "rect", "x0": 0, "x1": min(edge, plane.x[1]), **high, **shade},
        {"type": "line", "x0": edge, "x1": edge, **high, "line": line},
    ]


def _add_band(draw: Drawing, curve: Curve, shade: str) -> None:
    """The 80 % band as an area."""
    x = curve.envelope.interactivity
    edge = {"shape": "vh", "color": shade, "width": 0}
    draw.curve(None, x, curve.low, edge, showlegend=False)
    draw.curve(
        None, x, curve.high, edge, showlegend=False, fill="tonexty", fillcolor=shade, opacity=0.6
    )


def _add_curve(draw: Drawing, n: int, load_plan: Plan, curve: Curve, colour: str) -> None:
    envelope = curve.envelope
    keys, labels = row_keys(load_plan, envelope.rows), split_labels(load_plan, envelope.rows)
    about = [
        [
            keys[k],
            labels[k],
            used_devices_text(load_plan, split),
            f"{token_rate_text(float(envelope.per_gpu[k]))} per GPU"
            + _priced_label(float(load_plan.raw("usd")[split])),
            token_rate_text(float(envelope.interactivity[k])),
            measure_text(load_plan, "ttft", split),
        ]
        for k, split in enumerate(envelope.rows.tolist())
    ]
    draw.curve(
        envelope.title,
        envelope.interactivity,
        curve.height,
        {"shape": "vh", "color": colour, "width": 2, "dash": DASHES[n % len(DASHES)]},
        "<b>%{customdata[1]}</b><br>%{customdata[2]}<br>%{customdata[3]}"
        f"<br>%{{customdata[4]}} a user<br>{load_plan.measures['ttft'].head} %{{customdata[5]}}",
        about,
        mode="lines+markers",
        marker={"symbol": SYMBOLS[n % len(SYMBOLS)], "size": 6, "color": colour},
    )


def _priced_label(price: float) -> str:
    return f", {usd(price)} per million" if np.isfinite(price) else ""


def _add_star(
    draw: Drawing, plan: Plan, row: int | None, money: bool
) -> tuple[float, float] | None:
    """The chosen split at its load; its place, None where it has none."""
    if row is None:
        return None
    x, y = (float(plan.raw(name)[row]) for name in ("interactivity", "usd" if money else "per_gpu"))
    if not (np.isfinite(x) and np.isfinite(y)):
        return None
    place = (x, 1 / y if money else y)
    star = {"symbol": "star", "size": 16, "color": draw.colours.ink}
    about = [[row_key(plan, row), split_label(plan, row)]]
    draw.points(
        "Chosen", [place[0]], [place[1]], star, "<b>%{customdata[1]}</b>, at its load", about
    )
    return place


def _add_rings(draw: Drawing, pins: Sequence[str]) -> None:
    """Rings around the marks of pinned splits: around one at every load."""
    places = [
        place
        for trace in draw.figure.data
        if trace.customdata is not None
        for *place, about in zip(trace.x, trace.y, trace.customdata, strict=True)
        if about[0] in pins
    ]
    if places:
        ring = {"symbol": "circle-open", "size": 20, "color": draw.colours.series[3]}
        x, y = zip(*places, strict=True)
        draw.points("Pinned", x, y, {**ring, "line": {"width": 2}})


# Training


def run_counts(
    plan: Plan, chosen_row: int | None, *, pins: Sequence[str] = (), dark: bool = False
) -> go.Figure | None:
    """Days against dollars of a run, the best of each number of devices, with the 80 % band.

    None where one number of devices fits, or a run's time or price is not known: splits of one
    number of devices lie on a line, as money is time.
    """
    if not (is_known(plan, "wall") and is_known(plan, "usd_run")):
        return None
    best = scaling(plan)
    if len(best.rows) < 2:
        return None
    draw, wall, money = Drawing(dark=dark), plan.measures["wall"], plan.measures["usd_run"]
    groups: dict[str, list[int]] = {}
    for row in best.rows:
        groups.setdefault(cluster_title(plan, row), []).append(row)
    drawn_rows = [*best.rows, *([] if chosen_row is None else [chosen_row])]
    days, dollars = (_banded_range(plan, name, drawn_rows) for name in ("wall", "usd_run"))
    plane = Plane(days, dollars, PLOT_HEIGHT_PX)
    names = []
    for n, (title, rows) in enumerate(groups.items()):
        colour = draw.colours.groups[n % len(draw.colours.groups)]
        _add_counts(draw, n, plan, title, rows, colour)
        places = zip(plan.values("wall", rows), plan.values("usd_run", rows), strict=True)
        names += [
            (f"{int(plan.raw('gpus')[row])} GPUs", [(float(x), float(y))], colour)
            for row, (x, y) in zip(rows, places, strict=True)
        ]
    if chosen_row is not None and np.isfinite(plan.raw("wall")[chosen_row]):
        star = {"symbol": "star", "size": 16, "color": draw.colours.ink}
        x, y = (plan.values(name, [chosen_row]) for name in ("wall", "usd_run"))
        about = [[row_key(plan, chosen_row), split_label(plan, chosen_row)]]
        draw.points("Chosen", x, y, star, "<b>%{customdata[1]}</b>", about)
        label = split_label(plan, chosen_row, device=False)
        names.insert(0, (label, [(float(x[0]), float(y[0]))], draw.colours.ink))
    _add_rings(draw, pins)
    add_labels(draw, plane, names)
    for key, name in (("x", "wall"), ("y", "usd_run")):
        if (limit := shown_limit(plan, name)) is not None:
            place: Style = {key: limit}
            draw.limit(f" limit {significant(limit)} {plan.measures[name].unit.symbol}", **place)
    traits: Style = {"hovermode": "closest", "showlegend": len(groups) > 1}
    across, vertical = axis(wall.axis, range=list(plane.x)), axis(money.axis, range=list(plane.y))
    return draw.set_axes(across, vertical, HEIGHT_PX, clickmode="event+select", **traits)


def _banded_range(plan: Plan, name: str, rows: list[int]) -> tuple[float, float]:
    """The axis of a measure that holds the values of rows and their bands."""
    factor = plan.measures[name].factor
    ends = [end * factor for end in band_ends(plan, name, rows)]
    inside = np.concatenate([plan.values(name, rows), *ends])
    return range_without_outliers([], *inside[np.isfinite(inside)].tolist())


def _add_counts(
    draw: Drawing, n: int, plan: Plan, title: str, rows: list[int], colour: str
) -> None:
    """The best split of each number of devices of one cluster."""
    x, y = (plan.values(name, rows) for name in ("wall", "usd_run"))
    bars: Style = {}
    for error, name, values in (("error_x", "wall", x), ("error_y", "usd_run", y)):
        measure, shade = plan.measures[name], mix(colour, draw.colours.paper, 0.5)
        if measure.band is not None:
            low, high = (end * measure.factor for end in band_ends(plan, name, rows))
            bars[error] = error_bars(values, low, high, shade, thickness=1.25, width=0)
    about = [
        [
            row_key(plan, row),
            split_label(plan, row),
            measure_text(plan, "wall", row),
            measure_text(plan, "usd_run", row),
        ]
        for row in rows
    ]
    draw.curve(
        title,
        x,
        y,
        {"color": colour, "width": 1.5, "dash": DASHES[n % len(DASHES)]},
        "<b>%{customdata[1]}</b><br>%{customdata[2]}<br>%{customdata[3]}",
        about,
        mode="lines+markers",
        marker={"symbol": SYMBOLS[n % len(SYMBOLS)], "size": 10, "color": colour},
        **bars,
    )
