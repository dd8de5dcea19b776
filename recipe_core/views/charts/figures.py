"""A figure in the house style: bars, curves, marks, matrices and limits between two axes.

Every chart is its data and a few calls of a ``Drawing``. Colours are set on every trace, so a
figure looks the same under any template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.views.charts.style import FRAME, palette, part_marker, stroke

Look = Mapping[str, Any]
Style = dict[str, Any]
# Without it plotly shows a box with the trace's name beside a hover text.
_NO_BOX = "<extra></extra>"


class Drawing:
    """A figure in the making. Hover texts that are empty leave nothing to point at.

    ``about`` is what hover texts call ``customdata``; ``more`` is plotly's own.
    """

    def __init__(self, *, dark: bool) -> None:
        self.colours = palette(dark)
        self.figure = go.Figure()

    def bars(
        self,
        name: str | None,
        labels: Any,
        values: Any,
        look: int | Look,
        hover: str,
        about: Any = None,
        **more: Any,
    ) -> None:
        """Horizontal bars of one part; ``look``: a marker, or the number of a colour."""
        marker = part_marker(self.colours, look) if isinstance(look, int) else look
        bar = {"name": name, "orientation": "h", "marker": marker, "customdata": about, **more}
        self.figure.add_bar(y=labels, x=values, hovertemplate=hover + _NO_BOX, **bar)

    def curve(
        self,
        name: str | None,
        x: Any,
        y: Any,
        look: int | Look,
        hover: str = "",
        about: Any = None,
        **more: Any,
    ) -> None:
        """A line; ``look``: of plotly's line, or the number of a colour and dash."""
        line = stroke(self.colours, look) if isinstance(look, int) else look
        trace = {"mode": "lines", "name": name, "line": line, "customdata": about, **more}
        self._scatter(x, y, hover, trace)

    def points(
        self,
        name: str | None,
        x: Any,
        y: Any,
        look: Look,
        hover: str = "",
        about: Any = None,
        **more: Any,
    ) -> None:
        """Marks; ``look``: of plotly's marker."""
        trace = {"mode": "markers", "name": name, "marker": look, "customdata": about, **more}
        self._scatter(x, y, hover, trace)

    def words(self, x: Any, y: Any, texts: Sequence[str], colour: str = "", **more: Any) -> None:
        """Texts at places of the plot."""
        look = {"text": texts, "textfont": {"color": colour or self.colours.ink}, **more}
        self._scatter(x, y, "", {"mode": "text", "showlegend": False, **look})

    def matrix(self, z: Any, x: Any, y: Any, hover: str, about: Any = None, **more: Any) -> None:
        """A heat map."""
        cells = {"z": z, "customdata": about, "hovertemplate": hover + _NO_BOX}
        self.figure.add_heatmap(x=x, y=y, **cells, **more)

    def legend_entry(self, name: str, **look: Any) -> None:
        self.figure.add_scatter(x=[None], y=[None], name=name, **look)

    def beside(self, texts: Sequence[str] | None, position: str = "outside") -> dict[str, Any]:
        """Texts beside bars or marks, never cut at the edge of the plot."""
        font = {"color": self.colours.ink}
        return {"text": texts, "textposition": position, "textfont": font, "cliponaxis": False}

    def limit(
        self,
        text: str = "",
        *,
        x: float | None = None,
        y: float | None = None,
        colour: str = "",
        dash: str | None = "dash",
        width: float = 2,
        position: str | None = None,
    ) -> None:
        """A line across the plot, with a text at its end in the same colour."""
        colour = colour or self.colours.alarm
        look: dict[str, Any] = {"line": {"dash": dash, "color": colour, "width": width}}
        if text:
            look["annotation"] = {"text": text, "font": {"color": colour}}
            look["annotation_position"] = position
        if x is None:
            self.figure.add_hline(y=y, **look)
        else:
            self.figure.add_vline(x=x, **look)

    def note(self, text: str, colour: str = "", **place: Any) -> None:
        """A text without an arrow."""
        font = {"color": colour} if colour else {}
        self.figure.add_annotation(text=text, showarrow=False, font=font, **place)

    def between(
        self, x: Look, y: Look, height: int | None = None, frame: Look = FRAME, **layout: Any
    ) -> go.Figure:
        """The figure between two axes; ``frame`` and ``layout`` are of plotly's layout."""
        layout = {"height": height, "xaxis": x, "yaxis": y, **frame, **layout}
        return self.figure.update_layout(**layout)

    def _scatter(self, x: Any, y: Any, hover: str, trace: Look) -> None:
        pointing = {"hovertemplate": hover + _NO_BOX} if hover else {"hoverinfo": "skip"}
        self.figure.add_scatter(x=x, y=y, **{**pointing, **trace})


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    return {"title": title, "zeroline": False, **more}


def categories(**more: Any) -> dict[str, Any]:
    """A vertical axis of names, the first on top."""
    return {"title": None, "type": "category", "autorange": "reversed", **more}


def error_bars(values: Any, low: Any, high: Any, colour: str, **more: Any) -> dict[str, Any]:
    """The range around each value as an error bar; an unknown end is drawn as the value."""
    middle = np.asarray(values, dtype=np.float64)
    above = np.nan_to_num(np.asarray(high, dtype=np.float64) - middle).tolist()
    below = np.nan_to_num(middle - np.asarray(low, dtype=np.float64)).tolist()
    ends = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {**ends, "color": colour, **more}
