"""Numbers as a person reads them; everything else in the project is SI."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

GIB = float(1 << 30)
# Of shares in percent, at most.
SHARE_DECIMALS = 4
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def gib(value_bytes: float) -> str:
    """Bytes as GiB, one decimal (two below 10)."""
    value = value_bytes / GIB
    return f"{value:.2f} GiB" if abs(value) < 10 else f"{value:,.1f} GiB"


def significant(value: float, digits: int = 3) -> str:
    """A number to ``digits`` significant digits, with separators; a dash if it is not finite."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    return f"{value:,.{_decimals(value, digits)}f}"


def trimmed(value: float, digits: int = 3) -> str:
    """The same without zeros at its end: ``12`` of 12.0, ``0.5`` of 0.500."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds_text(seconds: float) -> str:
    """Seconds as ms below one second, else s."""
    return f"{significant(seconds * 1e3)} ms" if abs(seconds) < 1 else f"{significant(seconds)} s"


def long_duration(seconds: float) -> str:
    """A time of milliseconds to days: ``450 ms``, ``45 s``, ``7.7 min``, ``2.1 h``, ``3 days``."""
    if 0 < seconds < 1:
        return f"{trimmed(seconds * 1e3)} ms"
    for threshold, factor, unit in (
        (172_800.0, 86_400.0, "days"),
        (5400.0, 3600.0, "h"),
        (120.0, 60.0, "min"),
    ):
        if seconds >= threshold:
            return f"{trimmed(seconds / factor, 2)} {unit}"
    return f"{trimmed(seconds, 2)} s"


def alike(parts_s: Sequence[float], total_s: float) -> list[str]:
    """Parts of a time with the unit and the decimals of their total, which has three digits.

    A part below the last of these decimals is less than that: an estimate does not know it better.
    """
    factor, unit = (1e3, "ms") if abs(total_s) < 1 else (1.0, "s")
    decimals = _decimals(total_s * factor)
    threshold = 10.0**-decimals
    return [
        f"{part_s * factor:,.{decimals}f} {unit}"
        if part_s == 0 or part_s * factor >= threshold / 2
        else f"<{threshold:.{decimals}f} {unit}"
        for part_s in parts_s
    ]


def _decimals(value: float, digits: int = 3) -> int:
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def seconds(value_s: float, digits: int = 3) -> str:
    """Seconds from microseconds on, with significant digits: ``88.59 µs``, ``2.42 s``."""
    size = abs(value_s)
    for threshold, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if size >= threshold:
            return f"{significant(value_s * factor, digits)} {unit}"
    return f"{significant(value_s * 1e6, digits)} µs" if size else "0 s"


def prefixed(value: float, unit: str, digits: int = 3) -> str:
    """An amount or a rate with a decimal prefix: ``3.676 GFLOP``, ``450.0 GB/s``."""
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{significant(value / size, digits)} {prefix}{unit}"
    return f"{significant(value, digits)} {unit}"


def token_rate_text(tokens_per_s: float) -> str:
    """Tokens per second as text."""
    return f"{significant(tokens_per_s)} tok/s"


def usd(value: float) -> str:
    """US dollars; a dash when the price is not known."""
    return f"${significant(value)}" if math.isfinite(value) else "–"


def count_text(value: float) -> str:
    """A large count with three digits: ``8.03 B``, ``630 M``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{significant(value / size)} {letter}"
    return significant(value)


def per_second(value: float, unit: str) -> str:
    """A rate with a decimal prefix: ``3.35 TB/s``, ``989 TFLOP/s``."""
    return f"{prefixed(value, unit)}/s"


def band_ends_text(low_high: Sequence[float], show: Any) -> str:
    """A band as two formatted ends; of a time in one unit, rounded alike."""
    low, high = low_high
    if show is seconds_text:
        ends = alike([low, high], high)
        return f"{ends[0].rpartition(' ')[0]} – {ends[1]}"
    return f"{show(low)} – {show(high)}"


def plain_range_text(low_high: Sequence[float], show: Any, *, unit: bool = True) -> str:
    """A range in words; a unit that both ends share is said once: ``24.7 to 68.5 ms``.

    ``unit``: whether it is said at all.
    """
    low, high = (str(show(end)) for end in low_high)
    (first, _, first_unit), (last, _, last_unit) = low.partition(" "), high.partition(" ")
    if first_unit != last_unit:
        return f"{low} to {high}"
    return f"{first} to {high if unit else last}"


def round_significant(values: Any, digits: int = 3) -> Any:
    """An array rounded to significant digits, for a table that formats numbers itself."""
    array = np.asarray(values, dtype=float)
    safe = np.where((array == 0) | ~np.isfinite(array), 1.0, np.abs(array))
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(safe)))
    return np.round(array * scale) / scale


def chance_text(probability: float) -> str:
    """A probability in percent, ``57 %``, without claiming certainty at either end."""
    if 0 < probability < 0.01:
        return "<1 %"
    if 0.99 < probability < 1:
        return ">99 %"
    return f"{probability * 100:.0f} %"


def percent_text(share: float) -> str:
    """A share in percent, never rounded up, with two digits of what it lacks: ``99.95 %``."""
    missing = 1 - share
    if missing <= 0:
        return "100 %"
    decimals = 1
    while missing * 10**decimals < 0.1 - 1e-9 and decimals < SHARE_DECIMALS:
        decimals += 1
    scale = 10**decimals
    percent = math.floor(share * 100 * scale + 1e-6) / scale
    return f"{percent:.{decimals}f}".rstrip("0").rstrip(".") + " %"


def amount_text(value: float) -> str:
    """A number of things: whole, but for a measured mean of few."""
    return f"{value:,.0f}" if value >= 1e3 else trimmed(value)


def share_text(share: float, digits: int = 0, *, signed: bool = False) -> str:
    """A share in percent, rounded: ``92 %``; ``signed``: ``+14 %``."""
    return f"{share:{'+' if signed else ''}.{digits}%}".replace("%", " %")


def utilisation(share: float) -> str:
    """A share, such as of a peak, whose first decimal is compared."""
    return share_text(share, 1)


def accuracy_text(share: float) -> str:
    """A share of accuracy, of which a tenth of a percent counts."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def accuracy_bound(share: float) -> str:
    """A share of accuracy with as many digits as tell it from a limit."""
    return f"{share * 100:.4g} %"


def watts(value: float) -> str:
    return f"{significant(value)} W"


def joules(value: float) -> str:
    return f"{significant(value)} J"


def in_hours(value_s: float) -> str:
    return f"{significant(value_s / HOUR_S)} h"


def in_days(value_s: float) -> str:
    return f"{significant(value_s / DAY_S)} days"


def days(value_s: float) -> str:
    """A long time by itself: days, or hours below two of them."""
    return in_days(value_s) if value_s >= 2 * DAY_S else in_hours(value_s)
