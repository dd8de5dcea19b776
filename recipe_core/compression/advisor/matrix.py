"""The matrix: verdicts of techniques by engine on a device, and by hardware under an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.accuracy.knowledge import support_of
from recipe_core.accuracy.runners import Support, families, family_of, runners
from recipe_core.accuracy.technique import techniques
from recipe_core.hardware.profile import Device

# Types of GGUF files that stand for the others of their kind: engines tell K-quants, plain types
# and i-quants apart, no more.
SHOWN_OF_FILES = ("gguf_q4_k_m", "gguf_q8_0", "gguf_iq3_xxs")

# Support by technique, then by engine or family.
Cells = Mapping[str, Mapping[str, Support]]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Verdicts by technique and engine on ``device``, by technique and family under ``engine``.

    Only techniques of which some cell is known, and columns of which some technique is.
    """

    engine: str
    device: str
    by_engine: Cells
    by_hardware: Cells

    def to_json(self) -> dict[str, Any]:
        """Plain values: every cell with its verdict, the words it rests on, and where they are."""
        return {
            "engines_on": self.device,
            "by_engine": _cells_json(self.by_engine),
            "hardware_under": self.engine,
            "by_hardware": _cells_json(self.by_hardware),
        }


def matrix_of(engine: str, device: Device) -> Matrix:
    names = [
        name for name in techniques() if not name.startswith("gguf_") or name in SHOWN_OF_FILES
    ]
    family = family_of(device)
    by_engine = {
        name: {column: support_of(name, column, device) for column in runners()} for name in names
    }
    by_hardware: dict[str, dict[str, Support]] = {}
    if engine in runners():
        by_hardware = {
            name: {column: support_of(name, engine, column) for column in families()}
            for name in names
        }
    return Matrix(
        engine,
        device.name,
        _known_cells(by_engine, engine) if family else {},
        _known_cells(by_hardware, family or ""),
    )


def _known_cells(cells: Cells, first: str) -> Cells:
    """Without rows and columns of which nothing is known.

    Columns in the order of how much is known, ``first`` before all.
    """
    known_of = Counter(
        column
        for row in cells.values()
        if len({cell.verdict for cell in row.values()}) > 1  # what is said of all says of none
        for column, cell in row.items()
        if cell.verdict != "unknown"
    )
    columns = sorted(known_of, key=lambda column: (column != first, -known_of[column]))
    ordered = {name: {column: row[column] for column in columns} for name, row in cells.items()}
    return {
        name: row
        for name, row in ordered.items()
        if any(cell.verdict != "unknown" for cell in row.values())
    }


def _cells_json(cells: Cells) -> dict[str, Any]:
    return {
        name: {column: _cell_json(support) for column, support in row.items()}
        for name, row in cells.items()
    }


def _cell_json(support: Support) -> dict[str, Any]:
    return {
        "verdict": support.verdict,
        "words": support.words or support.note or None,
        "min_version": support.min_version or None,
        "source": support.source or None,
        "url": support.url or None,
        "date": support.date or None,
    }
