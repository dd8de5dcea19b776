"""Evidence of each training bundle: the matrix of ``docs/reference/training-launches.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from scripts.documents import REFERENCE, exchange
from tests.life.matrix import STATES, TARGETS, Cell, cells

PAGE = REFERENCE / "training-launches.md"
MARKS = {"started": "**started**", "parsed": "parsed", "schema": "schema", "refused": "–"}


def life_table(cells: Sequence[Cell]) -> list[str]:
    """A row for each method that a framework launches, a column for each target, and the counts."""
    counts = Counter(cell.state for cell in cells)
    counts_text = ", ".join(f"{counts[state]} {state}" for state in STATES)
    lines = [f"{len(cells)} cells: {counts_text}.", ""]
    lines += [f"| framework | method | {' | '.join(TARGETS)} |", "|---" * (2 + len(TARGETS)) + "|"]
    for (framework, method), group in groupby(cells, lambda c: (c.framework, c.method)):
        row = list(group)
        if all(cell.state == "refused" for cell in row):
            continue
        marks = " | ".join(MARKS[cell.state] for cell in row)
        lines.append(f"| `{framework}` | {method} | {marks} |")
    return lines


def renewed(text: str) -> str:
    """The page with its matrix written anew."""
    return exchange(text, "lives", "\n".join(life_table(cells())))
