"""Tiers below the devices' cache that a command asks for, as a request states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.units import GIB
from recipe_core.engines.grammar import OffloadWords


@dataclass(frozen=True, slots=True)
class ToldOffload:
    """``tiers``: as ``options.kv_offload`` states it; ``options``: those that say so, by name."""

    tiers: dict[str, Any]
    options: frozenset[str]


def requested_offload(
    ways: tuple[OffloadWords, ...], values: Mapping[str, Any], env: Mapping[str, str]
) -> ToldOffload | None:
    """The first way that options by name and variables ask for with a size; None for none."""
    for words in ways:
        if words.asked_by(values) and (size := _offload_size(words, values, env)):
            field = "host_gib" if words.of == "server" else "host_gib_per_device"
            tier = {"through": words.through, field: size * words.unit_bytes / GIB}
            names = {words.when, *words.also, *([words.size] if words.size else [])}
            return ToldOffload(tier, frozenset(names & {*values}))
    return None


def _offload_size(
    words: OffloadWords, values: Mapping[str, Any], env: Mapping[str, str]
) -> float | None:
    """The size in the unit of the way; None where it is not said, or is no number above 0."""
    if words.size is not None:
        text = values.get(words.size)
    else:
        text = env.get(words.variable or "", words.usual)
    try:
        size = float(text) if text is not None else 0.0
    except (TypeError, ValueError):
        return None
    return size if 0 < size < 1e9 else None
