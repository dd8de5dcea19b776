"""What the logs of training frameworks have in common: steps, of which the first warm up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

# Logged intervals at the start that are left out, where others are left: compilation, caches.
WARM = 2


def steady_median(values: Sequence[float]) -> float | None:
    """The median of the logged intervals after the first; None without any."""
    steady_values = values[WARM:] if len(values) > 2 * WARM else values[1:] or values
    return median(steady_values) if steady_values else None


def devices_of_split(split: Mapping[str, Any]) -> int:
    """Devices of a split: its degrees multiplied."""
    product = 1
    for name in ("tp", "pp", "cp", "dp"):
        product *= int(split.get(name, 1))
    return product
