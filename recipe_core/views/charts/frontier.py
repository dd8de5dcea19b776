"""Output per device against interactivity over all loads, one line a device."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import rate, significant
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.style import DASHES, FRAME, SYMBOLS, palette
from recipe_core.views.charts.views import Table
from recipe_core.views.explanations.frontier import INTERACTIVITIES, Frontier


def frontier_lines(
    frontier: Frontier, plan: Plan, row: int | None, *, dark: bool = False
) -> go.Figure:
    """The envelope of each device; a star is ``row`` of ``plan``, the split that is looked at."""
    colours, wide = palette(dark), frontier.plan
    figure = go.Figure()
    for n, envelope in enumerate(frontier.envelopes):
        colour = colours.groups[n % len(colours.groups)]
        figure.add_scatter(
            x=envelope.interactivity,
            y=envelope.per_gpu,
            mode="lines+markers",
            name=envelope.title,
            line={"shape": "vh", "color": colour, "width": 2, "dash": DASHES[n % len(DASHES)]},
            marker={"symbol": SYMBOLS[n % len(SYMBOLS)], "size": 8, "color": colour},
            customdata=[
                [
                    wide.label(row),
                    wide.devices_text(row),
                    rate(float(envelope.per_gpu[k])),
                    rate(float(envelope.interactivity[k])),
                    wide.text("ttft", row),
                ]
                for k, row in enumerate(envelope.rows.tolist())
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]} per GPU"
            "<br>%{customdata[3]} a user<br>First token %{customdata[4]}<extra></extra>",
        )
    if row is not None and np.isfinite(plan.raw("interactivity")[row]):
        figure.add_scatter(
            x=plan.values("interactivity", [row]),
            y=plan.values("per_gpu", [row]),
            mode="markers",
            name="This split at its load",
            marker={"symbol": "star", "size": 16, "color": colours.ink},
            customdata=[[plan.label(row)]],
            hovertemplate="<b>%{customdata[0]}</b><extra></extra>",
        )
    if (tpot_ms := plan.limit("tpot")) is not None:
        figure.add_vline(
            x=1e3 / tpot_ms,
            line={"dash": "dash", "color": colours.alarm, "width": 2},
            annotation={
                "text": f" limit {significant(tpot_ms)} ms a token",
                "font": {"color": colours.alarm},
            },
        )
    figure.update_layout(height=460, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(
        title=plan.measures["interactivity"].axis, rangemode="tozero", zeroline=False
    )
    figure.update_yaxes(title=plan.measures["per_gpu"].axis, rangemode="tozero", zeroline=False)
    return figure


def frontier_table(frontier: Frontier) -> Table:
    """The most output per device at round interactivities, and by how much others beat the first.

    Of one device also the split and its load.
    """
    first, *others = frontier.envelopes
    rows = []
    for interactivity in INTERACTIVITIES:
        places = [envelope.at(interactivity) for envelope in frontier.envelopes]
        if all(place is None for place in places):
            continue
        best = [
            None if place is None else float(envelope.per_gpu[place])
            for envelope, place in zip(frontier.envelopes, places, strict=True)
        ]
        cells = {"At least": f"{interactivity:,.0f} tok/s a user"}
        for envelope, place, value in zip(frontier.envelopes, places, best, strict=True):
            cells[f"{envelope.title}, per GPU"] = _cell(frontier, envelope.rows, place, value)
        for envelope, value in zip(others, best[1:], strict=True):
            cells[f"{envelope.title} over {first.title}"] = _advantage(value, best[0])
        rows.append(cells)
    return Table.of(rows, "Most output per GPU at an interactivity")


def _cell(frontier: Frontier, rows: np.ndarray, place: int | None, value: float | None) -> str:
    if place is None or value is None:
        return "–"
    plan, row = frontier.plan, int(rows[place])
    return f"{rate(value)} ({plan.label(row, device=False)})"


def _advantage(value: float | None, first: float | None) -> str:
    if value is None or first is None:
        return "–"
    text = f"{value / first - 1:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text
