"""One figure of kept choices as points with their bands, which a name of one's own tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go

from recipe_core.views.charts.figures import Drawing, Style, axis, error_bars
from recipe_core.views.charts.style import BELOW
from recipe_core.views.side_by_side import Choice, choice_band, measures, value

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
    return draw.between(across, up, 120 + ROW_PX * max(len(rows), 1), BELOW)


def _add_choices(
    draw: Drawing,
    name: str,
    choices: Sequence[Choice],
    title: str,
    rows: Sequence[int],
    *,
    holds: bool,
) -> None:
    """Points of some choices, with their band where one is known."""
    measure, colours = measures(choices)[title], draw.colours
    values = np.array([value(choices[n], title) for n in rows]) * measure.factor
    low, high = (np.array([choice_band(choices[n], title) for n in rows]) * measure.factor).T
    blue = colours.series[0]
    look: Style = {"size": 11, "line": {"color": blue, "width": 2}}
    look["color"] = blue if holds else colours.paper
    look["symbol"] = "circle" if holds else "diamond"
    texts = draw.beside([measure.show(value(choices[n], title)) for n in rows], "top center")
    bars = error_bars(values, low, high, blue, thickness=1.5)
    more = {"mode": "markers+text", "error_x": bars, **texts}
    about = [escape(choices[n].name) for n in rows]
    draw.points(name, values.tolist(), list(rows), look, "%{customdata}<br>%{text}", about, **more)


def _folded(name: str) -> str:
    """A name as an axis shows it: in lines, cut, and never read as markup."""
    lines = wrap(name, LINE, max_lines=LINES, placeholder=" …")
    return "<br>".join(escape(line) for line in lines)
