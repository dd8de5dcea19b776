"""One figure of kept choices as points with their bands, which a name of one's own tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go

from recipe_core.views.charts.style import BELOW, Palette, palette
from recipe_core.views.side_by_side import Choice, ends, measures, value

LINE, LINES = 24, 3
"""Characters and lines of a name beside an axis; the whole name is in the hover."""
ROW_PX = 54


def kept_points(
    choices: Sequence[Choice], title: str, baseline: int = 0, *, dark: bool = False
) -> go.Figure:
    """A figure of every choice that has it, in order, with the band where measured runs lie.

    Filled marks hold their load, open ones do not; a line stands at the baseline's.
    """
    colours, measure = palette(dark), measures(choices)[title]
    values = [value(choice, title) * measure.factor for choice in choices]
    known = [n for n, amount in enumerate(values) if np.isfinite(amount)]
    figure = go.Figure()
    for holds, name in (
        (True, "holds its load, or can run"),
        (False, "queues, may not start, or is refused"),
    ):
        rows = [n for n in known if choices[n].holds == holds]
        if rows:
            figure.add_scatter(**_marks(choices, title, rows, colours, holds=holds), name=name)
    if baseline in known:
        figure.add_vline(
            x=values[baseline], line={"color": colours.muted, "dash": "dot", "width": 1}
        )
    figure.update_layout(height=120 + ROW_PX * max(len(known), 1), **BELOW)
    figure.update_xaxes(title=measure.axis, rangemode="tozero", zeroline=False)
    figure.update_yaxes(
        title=None,
        autorange="reversed",
        tickvals=known,
        ticktext=[_folded(choices[n].name) for n in known],
        zeroline=False,
    )
    return figure


def _marks(
    choices: Sequence[Choice], title: str, rows: Sequence[int], colours: Palette, *, holds: bool
) -> dict[str, object]:
    """Points of some choices; where a band is known it is drawn, and said in the hover."""
    measure = measures(choices)[title]
    values = np.array([value(choices[n], title) for n in rows]) * measure.factor
    low, high = (np.array([ends(choices[n], title) for n in rows]) * measure.factor).T
    texts = [measure.show(value(choices[n], title)) for n in rows]
    colour = colours.series[0]
    return {
        "x": values.tolist(),
        "y": list(rows),
        "mode": "markers+text",
        "text": texts,
        "textposition": "top center",
        "textfont": {"color": colours.ink},
        "cliponaxis": False,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(high - values).tolist(),
            "arrayminus": np.nan_to_num(values - low).tolist(),
            "color": colour,
            "thickness": 1.5,
        },
        "marker": {
            "color": colour if holds else colours.paper,
            "line": {"color": colour, "width": 2},
            "size": 11,
            "symbol": "circle" if holds else "diamond",
        },
        "customdata": [escape(choices[n].name) for n in rows],
        "hovertemplate": "%{customdata}<br>%{text}<extra></extra>",
    }


def _folded(name: str) -> str:
    """A name as an axis shows it: in lines, cut, and never read as markup."""
    lines = wrap(name, LINE, max_lines=LINES, placeholder=" …")
    return "<br>".join(escape(line) for line in lines)
