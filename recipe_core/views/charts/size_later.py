"""A size through the months as figures: what growth costs, and buying against renting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from recipe_core.base.units import significant
from recipe_core.views import size_view
from recipe_core.views.charts.size_looks import named_devices
from recipe_core.views.charts.style import FRAME, SYMBOLS, palette, stroke

Row = Mapping[str, Any]


def growth_costs(answer: Row, chosen: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of each month by device; a mark in the month that takes the next unit."""
    colours = palette(dark)
    figure = go.Figure()
    rows = {size_view.key(row): row for row in answer["devices"] if row.get("growth")}
    for n, name in enumerate(key for key in named_devices(answer, chosen) if key in rows):
        row = rows[name]
        grown = row["growth"]
        months = list(range(len(grown["load"])))
        devices = [None if k is None else grown["ladder"][k]["units"] for k in grown["steps"]]
        title = size_view.short(row) + size_view.doubt(row)
        figure.add_scatter(
            x=months,
            y=grown["usd_by_month"],
            mode="lines",
            name=title,
            line={**stroke(colours, n), "shape": "hv", "width": 3 if name == chosen else 2},
            customdata=[
                [f"{count} devices", significant(load)]
                for count, load in zip(devices, grown["load"], strict=True)
            ],
            hovertemplate=f"<b>{title}</b><br>month %{{x}}: $%{{y:,.0f}}<br>%{{customdata[0]}}, "
            "load %{customdata[1]}<extra></extra>",
        )
        if (month := grown["next_unit_month"]) is not None:
            figure.add_scatter(
                x=[month],
                y=[grown["usd_by_month"][month]],
                mode="markers",
                name=title,
                showlegend=False,
                marker={"symbol": SYMBOLS[n], "size": 12, "color": colours.series[n]},
                hovertemplate=f"<b>{title}</b><br>next unit in month %{{x}}<extra></extra>",
            )
    figure.update_layout(height=400, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Month (0: today)", rangemode="tozero", zeroline=False)
    figure.update_yaxes(title="$ a month", rangemode="tozero", zeroline=False)
    return figure


def owned_or_rented(bought: Row, *, dark: bool = False) -> go.Figure:
    """What owning and renting have cost until the end of each month, and where they meet.

    ``bought``: a row's ``purchase`` with a stated price.
    """
    colours = palette(dark)
    figure = go.Figure()
    months = list(range(bought["months"] + 1))
    curves = {
        "Rented": bought["rented"],
        "Owned, paid up front": bought["owned_up_front"],
        "Owned, written off": bought["owned_written_off"],
    }
    for n, (name, values) in enumerate(curves.items()):
        figure.add_scatter(
            x=months,
            y=values,
            mode="lines",
            name=name,
            line=stroke(colours, n),
            hovertemplate=f"<b>{name}</b><br>until month %{{x}}: $%{{y:,.0f}}<extra></extra>",
        )
    month = bought["break_even_month"]
    if month is not None and month <= bought["months"]:
        figure.add_vline(
            x=month,
            line={"dash": "dash", "color": colours.alarm, "width": 2},
            annotation={
                "text": f" paid off in month {month}",
                "font": {"color": colours.alarm},
            },
            annotation_position="top left" if month > bought["months"] / 2 else "top right",
        )
    figure.update_layout(height=400, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Month", range=[0, bought["months"]], zeroline=False)
    figure.update_yaxes(title="$ until the end of the month", rangemode="tozero", zeroline=False)
    return figure
