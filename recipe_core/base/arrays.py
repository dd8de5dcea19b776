"""Columns of numbers, and a sum whose bits do not depend on who adds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


def add(parts: Iterable[Float]) -> Float:
    """Sum of arrays, from left to right: what adds up once adds up to the same bits again."""
    total: Float = np.asarray(0.0)
    for part in parts:
        total = total + part
    return total
