"""Tiers below the devices' cache that a command asks for, as a request states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.units import GIB
from recipe_core.engines.grammar import OffloadWords


@dataclass(frozen=True, slots=True)
class ToldOffload:
    """``asked``: as ``options.kv_offload`` states it; ``options``: those that say so, by name."""

    asked: dict[str, Any]
    options: frozenset[str]


def told_offload(
    ways: tuple[OffloadWords, ...], values: Mapping[str, Any], env: Mapping[str, str]
) -> ToldOffload | None:
    """The first way that options by name and variables ask for with a size; None for none."""
    for way in ways:
        if way.asked_by(values) and (size := _size(way, values, env)):
            field = "host_gib" if way.of == "server" else "host_gib_per_device"
            asked = {"through": way.through, field: size * way.unit_bytes / GIB}
            names = {way.when, *way.also, *([way.size] if way.size else [])}
            return ToldOffload(asked, frozenset(names & {*values}))
    return None


def _size(way: OffloadWords, values: Mapping[str, Any], env: Mapping[str, str]) -> float | None:
    """The size in the unit of the way; None where it is not said, or is no number above 0."""
    if way.size is not None:
        stated = values.get(way.size)
    else:
        stated = env.get(way.variable or "", way.usual)
    try:
        size = float(stated) if stated is not None else 0.0
    except (TypeError, ValueError):
        return None
    return size if 0 < size < 1e9 else None
