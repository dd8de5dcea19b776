"""Tiers below the devices' cache that a command asks for, as a request states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.units import GIB
from recipe_core.engines.grammar import OffloadWords


def requested_offload(
    ways: tuple[OffloadWords, ...], values: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[dict[str, Any] | None, set[str]]:
    """The first way that options by name and variables ask for with a size; None for none.

    As ``options.kv_offload`` states it, and the names of the options that say so.
    """
    for words in ways:
        if words.asked_by(values) and (size := _offload_size(words, values, env)):
            field = "host_gib" if words.of == "server" else "host_gib_per_device"
            names = {words.when, *words.also, words.size}
            return {"through": words.through, field: size * words.unit_bytes / GIB}, {
                name for name in values if name in names
            }
    return None, set()


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
