"""What all figures share: colour-blind safe colours, patterns, margins, legends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
