"""A sizing's answer as figures: cost by device, cost against a limit, confidence against count.

Functions of ``Answer.to_json``; rows to highlight are named by ``size_view.key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from recipe_core.base.units import chance_text, significant
from recipe_core.views import size_view
from recipe_core.views.charts.size_looks import (
    drawn_last,
    look_of,
    money_ticks,
    named_devices,
    powers,
)
from recipe_core.views.charts.style import FRAME, Palette, filled, palette

Row = Mapping[str, Any]
Point = tuple[float, float, Row]
"""What a limit bounds, the cost, and the row of a number of devices."""
BARS = 16
"""Devices that the cost chart shows, the best."""
AXES = {
    "tpot_s": ("Time per output token (ms)", 1e3, "tpot_ms"),
    "interactivity": ("Tokens/s that one user sees", 1.0, "tpot_ms"),
    "ttft_s": ("Time to first token (ms)", 1e3, "ttft_ms"),
    "request_latency_s": ("Request latency (ms)", 1e3, "request_latency_ms"),
    "wall_s": ("Time to finish (h)", 1 / 3600.0, "wall_hours"),
}
"""What cost is drawn against: title, factor of the figure, and the limit's field."""


def axes_of(answer: Row) -> list[str]:
    """What the cost of an answer can be drawn against."""
    if not size_view.is_training(answer):
        return [name for name in AXES if name != "wall_s"]
    return ["wall_s"] if any(row.get("wall_s") for row in answer["devices"]) else []


def limit_of(axis: str) -> str:
    """The field of the limit that bounds an axis."""
    return AXES[axis][2]


def cost_bars(answer: Row, chosen: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of a month by device, cheapest first: what works and what is idle."""
    colours = palette(dark)
    rows = [row for row in answer["devices"] if row["usd_per_month"] is not None][:BARS]
    rows = sorted(rows, key=lambda row: float(row["usd_per_month"]))
    names = [_bold(row, chosen) for row in rows]
    idle = [row["usd_per_month"] * row["idle"] / row["devices_rented"] for row in rows]
    used = [row["usd_per_month"] - part for row, part in zip(rows, idle, strict=True)]
    about = [[size_view.sentence(row), size_view.price_text(row)] for row in rows]
    figure = go.Figure()
    parts = [("Devices at work", used, {"color": colours.series[0]})]
    if any(idle):
        # hatched in the same colour: paid for, and nothing comes of it
        parts.append(("Idle devices", idle, {**filled(colours, 1), "color": colours.series[0]}))
    for n, (title, values, marker) in enumerate(parts):
        last = n == len(parts) - 1
        figure.add_bar(
            y=names,
            x=values,
            orientation="h",
            name=title,
            marker=marker,
            text=[f"{size_view.rented(row)} · {size_view.money(row, 'month')}" for row in rows]
            if last
            else None,
            textposition="outside",
            textfont={"color": colours.ink},
            cliponaxis=False,
            customdata=about,
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    widest = max((row["usd_per_month"] for row in rows), default=1.0)
    figure.update_layout(
        barmode="stack",
        height=(110 if any(idle) else 70) + 30 * len(rows),
        bargap=0.3,
        showlegend=any(idle),
        **{**FRAME, **({} if any(idle) else {"margin": {**FRAME["margin"], "t": 10}})},
    )
    figure.update_xaxes(title="$ a month", range=[0, widest * 1.45], zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def _bold(row: Row, chosen: str) -> str:
    name = size_view.short(row)
    return f"<b>{name}</b>" if size_view.key(row) == chosen else name


def cost_against(
    answer: Row, axis: str, chosen: str = "", *, limit: float | None = None, dark: bool = False
) -> go.Figure:
    """Cost against what a limit bounds: the best tradeoffs of each device, and those of all.

    Filled marks hold the limits, open ones do not. ``limit``: in the unit of its field.
    """
    colours = palette(dark)
    higher = axis == "interactivity"
    figure = go.Figure()
    every: list[Point] = []
    named = named_devices(answer, chosen)
    for row in drawn_last(answer["devices"], named):
        points = frontier(_points(row, axis), higher)
        every += points
        look = look_of(row, named, colours)
        highlighted = look["rank"] is not None
        name = size_view.short(row) + size_view.doubt(row)
        figure.add_scatter(
            x=[x for x, _, _ in points],
            y=[y for _, y, _ in points],
            mode="lines+markers",
            name=name,
            showlegend=highlighted,
            legendrank=1001 + (look["rank"] or 0),
            line={
                "color": look["colour"],
                "dash": look["dash"],
                "width": 2 if highlighted else 1,
                "shape": "vh" if higher else "hv",
            },
            marker={"symbol": look["symbol"], "size": 10 if highlighted else 6},
            customdata=[[size_view.sentence(rung), rung["label"]] for _, _, rung in points],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
        # on top of their filled ones, so that the legend shows the device's own mark
        missed = [point for point in points if not point[2]["holds"]]
        figure.add_scatter(
            x=[x for x, _, _ in missed],
            y=[y for _, y, _ in missed],
            mode="markers",
            name=f"{name} over a limit",
            showlegend=False,
            marker={
                "symbol": look["symbol"],
                "color": colours.paper,
                "size": 9 if highlighted else 5,
                "line": {"width": 1.5, "color": look["colour"]},
            },
            hoverinfo="skip",
        )
    front = frontier(every, higher)
    figure.add_scatter(
        x=[x for x, _, _ in front],
        y=[y for _, y, _ in front],
        mode="lines",
        name="Cheapest of all devices",
        legendrank=1000,
        line={"shape": "vh" if higher else "hv", "color": colours.ink, "width": 3},
        opacity=0.35,
        hoverinfo="skip",
    )
    figure.update_layout(height=440, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title=AXES[axis][0], zeroline=False)
    figure.update_yaxes(
        title="$ for the run" if axis == "wall_s" else "$ a month",
        type="log",
        zeroline=False,
        **money_ticks([y for _, y, _ in every], "$"),
    )
    if limit is not None:
        _limit_line(figure, 1e3 / limit if higher else limit, every, colours)
    return figure


def _limit_line(figure: go.Figure, place: float, points: Sequence[Point], colours: Palette) -> None:
    """A limit, and an axis that shows it beside what is near: a few slow points would crush all."""
    figure.add_vline(
        x=place,
        line={"dash": "dash", "color": colours.alarm, "width": 2},
        annotation={"text": f" limit {significant(place)}", "font": {"color": colours.alarm}},
    )
    most = max((x for x, _, _ in points), default=place)
    figure.update_xaxes(range=[0, max(min(most * 1.05, 4 * place), 1.1 * place)])


def _points(row: Row, axis: str) -> list[Point]:
    """Each number of a device's: what is bounded, in the axis' unit, and its cost."""
    amount = size_view.MONEY["run" if axis == "wall_s" else "month"]
    return [
        (x * AXES[axis][1], float(cost), rung)
        for rung in row["ladder"]
        if (x := _value(rung, axis)) and (cost := rung.get(amount))
    ]


def _value(rung: Row, axis: str) -> float | None:
    if axis == "wall_s":
        return rung.get("wall_s")
    if axis == "interactivity":
        tpot = rung["figures"].get("tpot_s")
        return 1.0 / tpot if tpot else None
    found: float | None = rung["figures"].get(axis)
    return found


def frontier(points: Sequence[Point], higher: bool = False) -> list[Point]:
    """Points that nothing beats in both, by x; ``higher``: more x is better, less y always."""
    out: list[Point] = []
    best = float("inf")
    sign = -1.0 if higher else 1.0
    for point in sorted(points, key=lambda point: (sign * point[0], point[1])):
        if point[1] < best:
            out.append(point)
            best = point[1]
    return sorted(out, key=lambda point: point[0])


def confidence_curves(
    answer: Row, chosen: str = "", *, confidence: float | None = None, dark: bool = False
) -> go.Figure:
    """The highest confidence against the devices rented; a line at the one that is asked for.

    Counts that cost more than another which is as sure are left out.
    """
    colours = palette(dark)
    figure = go.Figure()
    named = named_devices(answer, chosen)
    counts: list[float] = []
    for row in drawn_last([*answer["devices"], *(answer.get("unpriced") or [])], named):
        rungs = [
            rung
            for rung in row["ladder"]
            if not rung.get("dominated") and rung.get("highest_confidence") is not None
        ]
        if not rungs:
            continue
        counts += [float(rung["devices_rented"]) for rung in rungs]
        look = look_of(row, named, colours)
        highlighted = look["rank"] is not None
        figure.add_scatter(
            x=[rung["devices_rented"] for rung in rungs],
            y=[100.0 * rung["highest_confidence"] for rung in rungs],
            mode="lines+markers",
            name=size_view.short(row),
            showlegend=highlighted,
            legendrank=1001 + (look["rank"] or 0),
            line={
                "color": look["colour"],
                "dash": look["dash"],
                "width": 3 if size_view.key(row) == chosen else 2 if highlighted else 1,
            },
            marker={"symbol": look["symbol"], "size": 9 if highlighted else 5},
            customdata=[
                [size_view.sentence(rung), chance_text(rung["highest_confidence"])]
                for rung in rungs
            ],
            hovertemplate="%{customdata[0]}<br>at most %{customdata[1]}<extra></extra>",
        )
    if confidence is not None:
        figure.add_hline(
            y=100.0 * confidence,
            line={"dash": "dash", "color": colours.alarm, "width": 2},
            annotation={"text": f"asked {confidence:.0%}", "font": {"color": colours.alarm}},
            annotation_position="bottom right",
        )
    figure.update_layout(height=440, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Devices rented", type="log", zeroline=False, **powers(counts))
    figure.update_yaxes(title="Confidence (%)", range=[0, 104], zeroline=False)
    return figure
