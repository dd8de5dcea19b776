"""Numbers as people type them, the ranges that they must lie in, and numbers as text to edit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
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


# Characters of a number that is read, and of one that a message repeats.
LONGEST = 60
_SUFFIXES = {
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "m": Decimal(10) ** 6,
    "b": Decimal(10) ** 9,
    "g": Decimal(10) ** 9,
    "t": Decimal(10) ** 12,
    "ki": Decimal(1 << 10),
    "mi": Decimal(1 << 20),
    "gi": Decimal(1 << 30),
}
_NUMBER = re.compile(
    r"""(?P<sign>[+-]?)
    (?P<whole>\d{1,3}(?P<gap>[,\ _'])\d{3}(?:(?P=gap)\d{3})*|\d*)
    (?P<part>\.\d*)?
    (?:(?P<power>e[+-]?\d{1,3})|\ ?(?P<suffix>ki|mi|gi|[kmbgt]))?""",
    re.VERBOSE | re.ASCII,
)
# Spaces and the minus that documents and other programs write.
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f\t", " ") | {"\u2212": "-"})
# Units of time in seconds, and a number with one of them behind it.
_SECONDS = {
    "us": Decimal("1e-6"),
    "\u03bcs": Decimal("1e-6"),  # as casefold writes the micro sign
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "day": Decimal(86400),
    "days": Decimal(86400),
}
_TIME = re.compile(r"(?P<number>.*\d\.?)\ ?(?P<unit>us|\u03bcs|ms|s|min|h|days?)")
# What an amount of money is for, as people write it, by what the field's own unit says of it.
_PERIODS = {
    "month": re.compile(r" ?(?:/|a |per )(?:month|mo)$"),
    "hour": re.compile(r" ?(?:/|an |per )(?:hour|h|device-hour)$"),
}
# A power of ten that is too large for every field, and still written out at once.
_LARGEST_POWER = 40
# A range that ends so high is said to have no end.
_UNBOUNDED = 1e15


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field takes; ``integer``: without fractions."""

    integer: bool = False
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )

    def scaled(self, factor: float) -> Range:
        """The range in another unit, of which ``factor`` make one of its own."""
        if factor == 1:
            return self
        ends = {
            end: None if value is None else float(f"{value * factor:.12g}")
            for end in ("minimum", "above", "maximum", "below")
            for value in [getattr(self, end)]
        }
        return Range(self.integer, **ends)

    @property
    def text(self) -> str:
        """The range in words: ``a whole number from 1 to 4,096``."""
        ends = []
        if self.minimum is not None:
            ends.append(f"from {number_text(self.minimum)}")
        elif self.above is not None:
            ends.append(f"above {number_text(self.above)}")
        if self.maximum is not None and self.maximum < _UNBOUNDED:
            joint = "to" if self.minimum is not None else "and at most"
            ends.append(f"{joint if ends else 'at most'} {number_text(self.maximum)}")
        elif self.below is not None:
            ends.append(f"{'to ' if ends else ''}below {number_text(self.below)}")
        return " ".join(["a whole number" if self.integer else "a number", *ends])


def number_text(value: float) -> str:
    """A number with separators and all digits that count, as ``read_number`` reads it back.

    Fractions keep ten significant digits.
    """
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.10g}"


def read_number(text: str, limits: Range, *, field: str | None = None, unit: str = "") -> float:
    """The number that a text means: an ``int`` where the range is of whole numbers.

    ``1e9``, ``1,000,000``, ``10 000``, ``64k`` (64,000), ``64Ki`` (65,536), ``10B`` and the field's
    own ``unit`` behind it (``40 ms``) or before it (``$5``) are understood, and so are other units
    of time (``2 s`` where milliseconds are asked) and the period that an amount of money is for
    (``$40k/month`` where dollars a month are); a comma is no decimal point.

    Raises:
        InputError: says what is wrong with the text, and the range.
    """
    shown = f"{text.strip()[:LONGEST]!r}"
    hint = f"Type {limits.text}{f', in {unit}' if unit else ''}."
    value = _parse_decimal(text, unit)
    if value is None:
        if re.fullmatch(r"\s*[+-]?\d+,\d+\s*", text):
            hint = f"A decimal point is a dot. {hint}"
        raise InputError(f"{shown} is not a number.", field=field, hint=hint)
    if value and value.adjusted() > _LARGEST_POWER:
        raise InputError(f"{shown} is too large.", field=field, hint=hint)
    if limits.integer and value != value.to_integral_value():
        raise InputError(f"{shown} is not a whole number.", field=field, hint=hint)
    number = int(value) if limits.integer else float(value)
    if number not in limits:
        raise InputError(f"{shown} is out of range.", field=field, hint=hint)
    return number


def read_numbers(
    text: str, limits: Range, *, limit: int, field: str | None = None, unit: str = ""
) -> tuple[float, ...]:
    """The numbers of a list, each as ``read_number`` reads it: ``16, 64, 1k``.

    Commas, semicolons and spaces divide, so numbers here have no separators.

    Raises:
        InputError: as ``read_number``, and for more than ``limit``.
    """
    words = [word for word in re.split(r"[;,\s]+", text) if word]
    if len(words) > limit:
        raise InputError(
            f"{len(words):,} numbers are too many.", field=field, hint=f"Type at most {limit:,}."
        )
    return tuple(read_number(word, limits, field=field, unit=unit) for word in words)


def _parse_decimal(text: str, unit: str) -> Decimal | None:
    if len(text) > LONGEST:
        return None
    plain = re.sub(r" +", " ", text.translate(_SPACES)).strip().casefold()
    factor = Decimal(1)
    if unit.startswith("$"):
        plain = plain.removeprefix("$").lstrip()
        if period := _PERIODS.get(unit.removeprefix("$/")):
            plain = period.sub("", plain)
    elif unit in _SECONDS and (with_unit := _TIME.fullmatch(plain)):
        plain, factor = with_unit["number"], _SECONDS[with_unit["unit"]] / _SECONDS[unit]
    elif unit:
        plain = plain.removesuffix(unit.casefold()).rstrip()
    match = _NUMBER.fullmatch(plain)
    if match is None or not (match["whole"] or (match["part"] or ".") != "."):
        return None
    integer_digits = re.sub(r"\D", "", match["whole"]) or "0"
    digits = Decimal(f"{match['sign']}{integer_digits}{match['part'] or ''}{match['power'] or ''}")
    return digits * _SUFFIXES[match["suffix"] or ""] * factor
