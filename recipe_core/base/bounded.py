"""Numbers that a caller gives, held to their limits."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from recipe_core.base.errors import InputError

# The largest number that is taken: sums of a few thousand of them stay finite.
LARGEST = 1e30
# The most replicas, devices or units that are taken: each is a place in an array.
LARGEST_COUNT = 100_000
LONGEST_MONTHS = 600


def bounded_float(
    field: str,
    value: Any,
    *,
    minimum: float = -LARGEST,
    above: float = -math.inf,
    maximum: float = LARGEST,
    below: float = math.inf,
) -> float:
    """``value`` as a float within its limits.

    Raises:
        InputError: names the field, its value and the limit.
    """
    plain = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        plain = float(value)
    if not math.isfinite(plain):
        raise InputError(f"must be a number (got {value!r:.40}).", field=field, hint="Correct it.")
    if minimum <= plain <= maximum and above < plain < below:
        return plain
    low = f"above {above:g}" if above >= minimum else f"at least {minimum:g}"
    high = f"below {below:g}" if below <= maximum else f"at most {maximum:g}"
    raise InputError(f"is {plain:g}.", field=field, hint=f"Give a number that is {low} and {high}.")


def bounded_integer(
    field: str, value: Any, *, minimum: int = 1, maximum: int = LARGEST_COUNT
) -> int:
    """``value`` as a whole number within its limits.

    Raises:
        InputError: names the field, its value and the limits.
    """
    plain = minimum - 1
    if isinstance(value, Integral) and not isinstance(value, bool):
        plain = int(value)
    if not minimum <= plain <= maximum:
        raise InputError(
            f"is {value!r:.40}.",
            field=field,
            hint=f"Give a whole number from {minimum:,} to {maximum:,}.",
        )
    return plain
