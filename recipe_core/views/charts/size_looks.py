"""How the figures of a sizing tell its devices apart, and their round ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.views import size_view
from recipe_core.views.charts.style import DASHES, SYMBOLS, Palette

Row = Mapping[str, Any]
NAMED = 5
"""Devices with a colour of their own; the others are grey."""


def named_devices(answer: Row, chosen: str = "") -> list[str]:
    """Keys of the devices that get a colour: the chosen one, then the best."""
    keys = [size_view.key(row) for row in (*answer["devices"], *(answer.get("unpriced") or []))]
    first = [chosen] if chosen in keys else []
    return list(dict.fromkeys([*first, *keys]))[:NAMED]


def drawn_last(rows: Sequence[Row], named: Sequence[str]) -> list[Row]:
    """Rows in the order of drawing: grey ones first, the first of the named ones on top."""
    ranks = {name: -n for n, name in enumerate(named)}
    return sorted(rows, key=lambda row: ranks.get(size_view.key(row), -NAMED))


def look_of(row: Row, named: Sequence[str], colours: Palette) -> dict[str, Any]:
    """Colour, symbol and dash of a device; grey for those without a rank."""
    name = size_view.key(row)
    if name not in named:
        return {"rank": None, "colour": colours.muted, "symbol": "circle", "dash": "solid"}
    rank = named.index(name)
    return {
        "rank": rank,
        "colour": colours.series[rank],
        "symbol": SYMBOLS[rank],
        "dash": DASHES[rank],
    }


def money_ticks(values: Sequence[float], unit: str = "") -> dict[str, Any]:
    """Ticks of a logarithmic axis at 1, 2, 5 and their tenfolds."""
    if not values:
        return {}
    steps = [base * 10.0**power for power in range(-3, 9) for base in (1, 2, 5)]
    low, high = min(values) / 2.5, max(values) * 2.5
    shown = [step for step in steps if low <= step <= high]
    return {"tickvals": shown, "ticktext": [f"{unit}{step:,.10g}" for step in shown]}


def powers(values: Sequence[float]) -> dict[str, Any]:
    """Ticks at powers of two."""
    if not values:
        return {}
    shown = [2**n for n in range(17) if min(values) <= 2**n <= max(values)]
    return {"tickvals": shown, "ticktext": [f"{count:,}" for count in shown]}
