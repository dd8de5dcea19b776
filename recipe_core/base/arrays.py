"""Array types, and a sum whose bits do not depend on the number of columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


def add(parts: Iterable[Float]) -> Float:
    """Sum of arrays from left to right, so that the same parts always give the same bits."""
    total: Float = np.asarray(0.0)
    for part in parts:
        total = total + part
    return total
