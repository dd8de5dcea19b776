"""One figure as a formula and with the numbers of a request in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One metric: its name, its formula, the same with numbers, and the result."""

    name: str
    formula: str
    numbers: str
    value: str
