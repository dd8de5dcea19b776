"""A sizing's answer as figures: cost by device, against a limit and by month; confidence by count.

Functions of ``Answer.to_json``; rows to highlight are named by ``size_view.key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from recipe_core.base.units import chance_text, share_text, significant
from recipe_core.request.metrics import Limit, Unit, column_metric, limits_by_name
from recipe_core.views import size_view
from recipe_core.views.charts.style import (
    DASHES,
    FRAME,
    SYMBOLS,
    Drawing,
    Palette,
    axis,
    categories,
    part_marker,
    stroke,
)

Row = Mapping[str, Any]
# The value that a limit bounds, the cost, and the row of a number of devices.
Point = tuple[float, float, Row]
# Ticks of axes of dollars and of devices.
DOLLARS = [base * 10.0**power for power in range(-3, 9) for base in (1, 2, 5)]
DOUBLINGS = [2**n for n in range(17)]
# Devices that the cost chart shows, the best.
BARS = 16
# Devices with a colour of their own; the rest are grey.
COLOURED = 5
INTERACTIVITY = "tokens_per_s_per_user"
# Figures that cost is drawn against, in the unit of the limit on them.
AXES = ("tpot_s", INTERACTIVITY, "ttft_s", "request_latency_s", "wall_s")


def axes_of(answer: Row) -> list[str]:
    """The axes that the cost of an answer can be drawn against."""
    if not size_view.is_training(answer):
        return [name for name in AXES if name != "wall_s"]
    return ["wall_s"] if any(row.get("wall_s") for row in answer["devices"]) else []


def limit_of(axis: str) -> Limit:
    limited = column_metric("tpot_s" if axis == INTERACTIVITY else axis)
    return limits_by_name()[limited.limit or ""]


def _axis_unit(axis: str) -> Unit:
    return column_metric(axis).unit if axis == INTERACTIVITY else limit_of(axis).unit


# How devices are told apart


def coloured_devices(answer: Row, selected: str = "") -> list[str]:
    """Keys of the devices that get a colour: the selected one, then the best."""
    keys = [size_view.key(row) for row in (*answer["devices"], *(answer.get("unpriced") or []))]
    first = [selected] if selected in keys else []
    return list(dict.fromkeys([*first, *keys]))[:COLOURED]


def _drawn_last(rows: Sequence[Row], coloured: Sequence[str]) -> list[Row]:
    """Rows in the order of drawing: grey ones first, the first of the coloured ones on top."""
    ranks = {name: -n for n, name in enumerate(coloured)}
    return sorted(rows, key=lambda row: ranks.get(size_view.key(row), -COLOURED))


def _look(row: Row, coloured: Sequence[str], colours: Palette) -> dict[str, Any]:
    name = size_view.key(row)
    if name not in coloured:
        return {"rank": None, "color": colours.muted, "symbol": "circle", "dash": "solid"}
    n = coloured.index(name)
    return {"rank": n, "color": colours.series[n], "symbol": SYMBOLS[n], "dash": DASHES[n]}


def _log_ticks_among(
    values: Sequence[float], steps: Sequence[float], unit: str = "", reach: float = 1.0
) -> dict[str, Any]:
    """Steps of a logarithmic axis between its values, or a factor beyond them."""
    if not values:
        return {}
    shown = [step for step in steps if min(values) / reach <= step <= max(values) * reach]
    return {"tickvals": shown, "ticktext": [f"{unit}{step:,.10g}" for step in shown]}


# Cost by device


def cost_bars(answer: Row, selected: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of a month by device, cheapest first: devices at work and idle ones."""
    draw = Drawing(dark=dark)
    rows = [row for row in answer["devices"] if row["usd_per_month"] is not None][:BARS]
    rows = sorted(rows, key=lambda row: float(row["usd_per_month"]))
    names = [size_view.short(row) for row in rows]
    keys = [size_view.key(row) for row in rows]
    labels = [f"<b>{n}</b>" if key == selected else n for n, key in zip(names, keys, strict=True)]
    costs = [row["usd_per_month"] for row in rows]
    idle = [row["usd_per_month"] * row["idle"] / row["devices_rented"] for row in rows]
    work = [cost - part for cost, part in zip(costs, idle, strict=True)]
    blue = {"color": draw.colours.series[0]}
    parts = [("Devices at work", work, blue)]
    if any(idle):
        # hatched in the same colour: paid for, and nothing comes of it
        parts.append(("Idle devices", idle, part_marker(draw.colours, 1) | blue))
    about = [[size_view.sentence(row), size_view.price_text(row)] for row in rows]
    texts = [f"{size_view.rented(row)} · {size_view.money(row, 'month')}" for row in rows]
    hover = "%{customdata[0]}<br>%{customdata[1]}"
    for title, values, marker in parts:
        beside = draw.labels(texts if title == parts[-1][0] else None)
        draw.bars(title, labels, values, marker, hover, about, **beside)
    layout: dict[str, Any] = {"barmode": "stack", "bargap": 0.3, "showlegend": any(idle)}
    if not any(idle):
        layout["margin"] = {**FRAME["margin"], "t": 10}
    across = axis("$ a month", range=[0, max(costs, default=1.0) * 1.45])
    height = (110 if any(idle) else 70) + 30 * len(rows)
    return draw.set_axes(across, categories(), height, **layout)


def cost_against(
    answer: Row,
    axis_name: str,
    selected: str = "",
    *,
    limit: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Cost against a bounded figure: the best tradeoffs of each device, and those of all.

    Filled marks hold the limits, open ones do not. ``limit``: in the unit of its field.
    """
    draw, higher = Drawing(dark=dark), axis_name == INTERACTIVITY
    shape = {"shape": "vh" if higher else "hv"}
    points: list[Point] = []
    coloured = coloured_devices(answer, selected)
    for row in _drawn_last(answer["devices"], coloured):
        tradeoffs = cheapest_points(_ladder_points(row, axis_name), higher)
        points += tradeoffs
        _add_device(draw, row, tradeoffs, _look(row, coloured, draw.colours), shape)
    x, y, _ = _unzipped(cheapest_points(points, higher))
    ink = {**shape, "color": draw.colours.ink, "width": 3}
    draw.curve("Cheapest of all devices", x, y, ink, legendrank=1000, opacity=0.35)
    title = f"{column_metric(axis_name).title} ({_axis_unit(axis_name).symbol})"
    up = axis("$ for the run" if axis_name == "wall_s" else "$ a month", type="log")
    up |= _log_ticks_among([cost for _, cost, _ in points], DOLLARS, "$", reach=2.5)
    reach = {}
    if limit is not None:
        bound = limit / limit_of(axis_name).factor
        place = 1 / bound if higher else bound * _axis_unit(axis_name).factor
        draw.limit(f" limit {significant(place)}", x=place)
        # an axis that shows the limit beside its neighbours: a few slow points would crush all
        longest = max((x for x, _, _ in points), default=place)
        reach = {"range": [0, max(min(longest * 1.05, 4 * place), 1.1 * place)]}
    across = axis(title, **reach)
    return draw.set_axes(across, up, 440, hovermode="closest", showlegend=True)


def _add_device(
    draw: Drawing, row: Row, points: Sequence[Point], look: Row, shape: dict[str, Any]
) -> None:
    """The tradeoffs of a device, and open marks over those beyond a limit."""
    highlighted = look["rank"] is not None
    name = size_view.short(row) + size_view.price_doubt_mark(row)
    x, y, rungs = _unzipped(points)
    draw.curve(
        name,
        x,
        y,
        {**shape, "color": look["color"], "dash": look["dash"], "width": 2 if highlighted else 1},
        "%{customdata[0]}<br>%{customdata[1]}",
        [[size_view.sentence(rung), rung["label"]] for rung in rungs],
        mode="lines+markers",
        marker={"symbol": look["symbol"], "size": 10 if highlighted else 6},
        showlegend=highlighted,
        legendrank=1001 + (look["rank"] or 0),
    )
    # on top of their filled ones, so that the legend shows the device's own mark
    x, y, _ = _unzipped([point for point in points if not point[2]["holds"]])
    ring = {"symbol": look["symbol"], "color": draw.colours.paper, "size": 9 if highlighted else 5}
    ring["line"] = {"width": 1.5, "color": look["color"]}
    draw.points(f"{name} over a limit", x, y, ring, showlegend=False)


def _unzipped(points: Sequence[Point]) -> tuple[list[float], list[float], list[Row]]:
    return [x for x, _, _ in points], [y for _, y, _ in points], [rung for *_, rung in points]


def _ladder_points(row: Row, axis_name: str) -> list[Point]:
    amount = size_view.MONEY["run" if axis_name == "wall_s" else "month"]
    return [
        (x * _axis_unit(axis_name).factor, float(cost), rung)
        for rung in row["ladder"]
        if (x := _rung_value(rung, axis_name)) and (cost := rung.get(amount))
    ]


def _rung_value(rung: Row, axis_name: str) -> float | None:
    if axis_name == INTERACTIVITY:
        tpot = rung["figures"].get("tpot_s")
        return 1.0 / tpot if tpot else None
    values: Row = rung if axis_name == "wall_s" else rung["figures"]
    value: float | None = values.get(axis_name)
    return value


def cheapest_points(points: Sequence[Point], higher: bool = False) -> list[Point]:
    """Points that nothing beats in both, by x; ``higher``: more x is better, less y always."""
    front: list[Point] = []
    sign = -1.0 if higher else 1.0
    for point in sorted(points, key=lambda point: (sign * point[0], point[1])):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return sorted(front, key=lambda point: point[0])


def confidence_curves(
    answer: Row, selected: str = "", *, confidence: float | None = None, dark: bool = False
) -> go.Figure:
    """The highest confidence against the devices rented; a line at the one that is required.

    Counts that cost more than another which is as sure are left out.
    """
    draw, coloured = Drawing(dark=dark), coloured_devices(answer, selected)
    counts: list[float] = []
    for row in _drawn_last([*answer["devices"], *(answer.get("unpriced") or [])], coloured):
        rungs = [rung for rung in row["ladder"] if not rung.get("dominated")]
        rungs = [rung for rung in rungs if rung.get("highest_confidence") is not None]
        if not rungs:
            continue
        devices = [float(rung["devices_rented"]) for rung in rungs]
        chances = [rung["highest_confidence"] for rung in rungs]
        counts += devices
        look = _look(row, coloured, draw.colours)
        highlighted = look["rank"] is not None
        width = 3 if size_view.key(row) == selected else 1 + highlighted
        texts = [size_view.sentence(rung) for rung in rungs]
        draw.curve(
            size_view.short(row),
            devices,
            [100.0 * chance for chance in chances],
            {"color": look["color"], "dash": look["dash"], "width": width},
            "%{customdata[0]}<br>at most %{customdata[1]}",
            [[text, chance_text(chance)] for text, chance in zip(texts, chances, strict=True)],
            mode="lines+markers",
            marker={"symbol": look["symbol"], "size": 9 if highlighted else 5},
            showlegend=highlighted,
            legendrank=1001 + (look["rank"] or 0),
        )
    if confidence is not None:
        draw.limit(f"asked {share_text(confidence)}", y=100.0 * confidence, position="bottom right")
    across = axis("Devices rented", type="log", **_log_ticks_among(counts, DOUBLINGS))
    up = axis("Confidence (%)", range=[0, 104])
    return draw.set_axes(across, up, 440, hovermode="closest", showlegend=True)


# Through the months


def growth_costs(answer: Row, selected: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of each month by device; a mark in the month that takes the next unit."""
    draw = Drawing(dark=dark)
    rows = {size_view.key(row): row for row in answer["devices"] if row.get("growth")}
    coloured = [key for key in coloured_devices(answer, selected) if key in rows]
    for n, name in enumerate(coloured):
        row, growth = rows[name], rows[name]["growth"]
        title = size_view.short(row) + size_view.price_doubt_mark(row)
        costs, loads = growth["usd_by_month"], growth["load"]
        devices = [None if k is None else growth["ladder"][k]["units"] for k in growth["steps"]]
        line = {**stroke(draw.colours, n), "shape": "hv", "width": 3 if name == selected else 2}
        hover = f"<b>{title}</b><br>month %{{x}}: $%{{y:,.0f}}<br>"
        hover += "%{customdata[0]}, load %{customdata[1]}"
        about = [
            [f"{count} devices", significant(load)]
            for count, load in zip(devices, loads, strict=True)
        ]
        draw.curve(title, list(range(len(loads))), costs, line, hover, about)
        if (month := growth["next_unit_month"]) is not None:
            mark = {"symbol": SYMBOLS[n], "size": 12, "color": draw.colours.series[n]}
            hover = f"<b>{title}</b><br>next unit in month %{{x}}"
            draw.points(title, [month], [costs[month]], mark, hover, showlegend=False)
    across = axis("Month (0: today)", rangemode="tozero")
    up = axis("$ a month", rangemode="tozero")
    return draw.set_axes(across, up, 400, hovermode="closest", showlegend=True)


def owned_or_rented(bought: Row, *, dark: bool = False) -> go.Figure:
    """Costs of owning and renting until the end of each month, and where they meet.

    ``bought``: a row's ``purchase`` with a stated price.
    """
    draw, months = Drawing(dark=dark), list(range(bought["months"] + 1))
    curves = {
        "Rented": bought["rented"],
        "Owned, paid up front": bought["owned_up_front"],
        "Owned, written off": bought["owned_written_off"],
    }
    for n, (name, values) in enumerate(curves.items()):
        hover = f"<b>{name}</b><br>until month %{{x}}: $%{{y:,.0f}}"
        draw.curve(name, months, values, n, hover)
    month = bought["break_even_month"]
    if month is not None and month <= bought["months"]:
        side = "top left" if month > bought["months"] / 2 else "top right"
        draw.limit(f" paid off in month {month}", x=month, position=side)
    across = axis("Month", range=[0, bought["months"]])
    up = axis("$ until the end of the month", rangemode="tozero")
    return draw.set_axes(across, up, 400, hovermode="closest", showlegend=True)
