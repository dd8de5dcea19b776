"""Numbers as a person reads them; everything else in the project is SI."""

from __future__ import annotations

import math

GIB = float(1 << 30)


def gib(value_bytes: float) -> str:
    """Bytes as GiB, one decimal (two below 10)."""
    value = value_bytes / GIB
    return f"{value:.2f} GiB" if abs(value) < 10 else f"{value:,.1f} GiB"


def significant(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits and thousands separators, never in scientific notation."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds as ms below one second, else s."""
    return f"{significant(seconds * 1e3)} ms" if abs(seconds) < 1 else f"{significant(seconds)} s"


def rate(tokens_per_s: float) -> str:
    """Tokens per second."""
    return f"{significant(tokens_per_s)} tok/s"


def usd(value: float) -> str:
    """US dollars; a dash when the price is not known."""
    return f"${significant(value)}" if math.isfinite(value) else "–"
