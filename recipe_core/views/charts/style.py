"""The house style: colour-blind safe colours, patterns, legends, and a figure in the making.

Every chart is its data and a few calls of a ``Drawing``. Colours are set on every trace, so a
figure looks the same under any template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours in order of use; ``muted`` for the background, ``alarm`` for limits and excess.

    ``more`` follows ``series`` where up to eight groups are told apart: CIE Lab distances of at
    least 20, also as seen with deuteranopia and protanopia (Machado et al. 2009).
    """

    series: tuple[str, ...]
    more: tuple[str, ...]
    muted: str
    alarm: str
    ink: str
    paper: str
    grid: str

    @property
    def groups(self) -> tuple[str, ...]:
        return (*self.series, *self.more)


LIGHT = Palette(
    ("#0B57D0", "#B96A00", "#00936A", "#C2189B", "#22313A"),
    ("#6E2A0C", "#7D86F0", "#110561"),
    "#7C8894",
    "#B3261E",
    "#0B1118",
    "#FFFFFF",
    "#E3E8ED",
)
DARK = Palette(
    ("#4C86F0", "#B98A2E", "#35E0A1", "#D65AA8", "#C6E3F9"),
    ("#F2F26B", "#A4513F", "#6B3DF5"),
    "#8593A1",
    "#FF8A80",
    "#E6EAEE",
    "#12171D",
    "#2A343F",
)
PATTERNS = ("", "/", "x", ".", "\\", "|", "-", "+")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")


def palette(dark: bool) -> Palette:
    return DARK if dark else LIGHT


def mix(first: str, second: str, share: float) -> str:
    """A colour between two, given as #RRGGBB; ``share``: of the second, 0 to 1."""
    pairs = zip(_rgb(first), _rgb(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def translucent(colour: str) -> str:
    """A colour, given as #RRGGBB, with most of what is behind it to be seen."""
    red, green, blue = _rgb(colour)
    return f"rgba({red}, {green}, {blue}, 0.4)"


def _rgb(colour: str) -> list[int]:
    return [int(colour[n : n + 2], 16) for n in (1, 3, 5)]


# Legend above the plot.
FRAME: dict[str, Any] = {
    "margin": {"l": 10, "r": 16, "t": 40, "b": 10},
    "legend": {
        "orientation": "h",
        "yanchor": "bottom",
        "y": 1.05,
        "x": 0,
        "title": None,
        "itemsizing": "constant",
    },
}
# No legend.
PLAIN: dict[str, Any] = {"margin": {"l": 10, "r": 16, "t": 10, "b": 10}, "showlegend": False}

# Legend below the plot.
BELOW: dict[str, Any] = {
    "margin": {"l": 10, "r": 16, "t": 30, "b": 70},
    "legend": {
        "orientation": "h",
        "yref": "container",
        "yanchor": "bottom",
        "y": 0,
        "x": 0,
        "title": None,
        "traceorder": "normal",
    },
}


def part_marker(colours: Palette, n: int) -> dict[str, Any]:
    """The marker of the n-th part of a bar: a colour and a pattern."""
    pattern = {
        "shape": PATTERNS[n % len(PATTERNS)],
        "fillmode": "overlay",
        "fgcolor": colours.paper,
        "fgopacity": 0.5,
        "size": 7,
        "solidity": 0.25,
    }
    return {"color": colours.series[n % len(colours.series)], "pattern": pattern}


def stroke(colours: Palette, n: int) -> dict[str, Any]:
    """The line of the n-th curve: a colour and a dash."""
    return {
        "color": colours.series[n % len(colours.series)],
        "dash": DASHES[n % len(DASHES)],
        "width": 2,
    }


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

    def texts(self, x: Any, y: Any, texts: Sequence[str], colour: str = "", **more: Any) -> None:
        look = {"text": texts, "textfont": {"color": colour or self.colours.ink}, **more}
        self._scatter(x, y, "", {"mode": "text", "showlegend": False, **look})

    def matrix(self, z: Any, x: Any, y: Any, hover: str, about: Any = None, **more: Any) -> None:
        cells = {"z": z, "customdata": about, "hovertemplate": hover + _NO_BOX}
        self.figure.add_heatmap(x=x, y=y, **cells, **more)

    def legend_entry(self, name: str, **look: Any) -> None:
        self.figure.add_scatter(x=[None], y=[None], name=name, **look)

    def labels(self, texts: Sequence[str] | None, position: str = "outside") -> dict[str, Any]:
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

    def note(self, text: str, colour: str = "", size: int | None = None, **place: Any) -> None:
        look = {"color": colour or None, "size": size}
        font = {name: value for name, value in look.items() if value}
        self.figure.add_annotation(text=text, showarrow=False, font=font, **place)

    def set_axes(
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
    return {"title": None, "type": "category", "autorange": "reversed", **more}


def error_bars(values: Any, low: Any, high: Any, colour: str, **more: Any) -> dict[str, Any]:
    """The range around each value as an error bar; an unknown end is drawn as the value."""
    middle = np.asarray(values, dtype=np.float64)
    above = np.nan_to_num(np.asarray(high, dtype=np.float64) - middle).tolist()
    below = np.nan_to_num(middle - np.asarray(low, dtype=np.float64)).tolist()
    ends = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {**ends, "color": colour, **more}
