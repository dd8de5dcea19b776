"""How much property tests draw: one variable, ``RECIPE_EXAMPLES``, in percent of the full size."""

from __future__ import annotations

import os

PERCENT = float(os.environ.get("RECIPE_EXAMPLES", "10"))
FULL = PERCENT >= 100
"""``make test-full``: every sweep at full size, every oracle."""


def examples(full: int, least: int = 25) -> int:
    """The share of ``full`` that this run draws, at least ``least``; above 100 percent, more."""
    return max(min(least, full), round(full * PERCENT / 100))
