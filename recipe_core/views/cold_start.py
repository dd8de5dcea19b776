"""A cold start as a sentence and phases, for terminal and page.

Starts are those of ``ColdStart.to_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.units import long_duration
from recipe_core.views.columns import Column, terminal

Json = Mapping[str, Any]
PHASES: tuple[Column[Json], ...] = (
    Column("Phase", lambda phase: phase["name"].replace("_", " ").capitalize(), align="left"),
    Column("Time", lambda phase: phase["seconds"], long_duration),
    Column(
        "Likely",
        lambda phase: f"{long_duration(phase['low_s'])} to {long_duration(phase['high_s'])}",
        help="Eight of ten starts",
    ),
    Column("Basis", lambda phase: phase["basis"], align="left"),
)


def start_text(candidate: Json, devices: int, start: Json) -> str:
    """The time of a start, its phases, and what single changes save."""
    lines = [
        f"{candidate['engine']} on {devices} device{'s' * (devices != 1)}. "
        + start_sentence(start),
        terminal(start["phases"], PHASES),
    ]
    savings = [(_saving_text(saving), saving["change"]) for saving in start["savings"]]
    if savings:
        lines.append("One change of options.start at a time:")
        lines += [f"  {text} ({change})" for text, change in savings]
    return "\n".join(lines)


def start_sentence(start: Json) -> str:
    """The time of a start with its band."""
    low, high = long_duration(start["low_s"]), long_duration(start["high_s"])
    return (
        f"A replica answers {long_duration(start['seconds'])} after it is ordered; "
        f"eight of ten starts take {low} to {high}."
    )


def start_savings(start: Json) -> list[tuple[str, dict[str, Any]]]:
    """Each saving, the largest first, and the change of a request that makes it."""
    changes = []
    for saving in start["savings"]:
        field, _, value = saving["change"].partition(": ")
        changes.append((_saving_text(saving), {f"options.start.{field}": value}))
    return changes


def _saving_text(saving: Json) -> str:
    text = saving["text"]
    return f"{text[0].upper()}{text[1:]}: {long_duration(saving['seconds_saved'])} shorter"
