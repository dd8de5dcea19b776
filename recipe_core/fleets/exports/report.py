"""The answer of a fleet as one HTML file: it opens offline, runs nothing and requests nothing.

Racks and devices are drawn as cells with a letter for each model, so that no colour is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from string import ascii_uppercase

from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import engine
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.parts import Part, fleet_parts
from recipe_core.fleets.exports.texts import render_export

# Devices in all pictures together: a file of some hundred kilobytes opens anywhere.
MOST_CELLS = 1500
HUES = 8  # those that people with any colour vision tell apart (Okabe and Ito), then again

# A part of a device: a letter, its hue, and the share of the device.
Piece = tuple[str, int, float]
Cells = tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Nodes of one rack that are filled alike; a cell is a device, without pieces an idle one.

    ``later``: whether these are jobs for which others make room at their hours.
    """

    rack: str
    nodes: tuple[str, ...]
    cells: Cells
    later: bool


def owner_marks(parts: Sequence[Part]) -> dict[str, tuple[str, int]]:
    """A letter or two and a hue for each model and job that runs."""
    names = list(dict.fromkeys(part.owner.name for part in parts))
    letters = [*ascii_uppercase, *(a + b for a in ascii_uppercase for b in ascii_uppercase)]
    return {name: (letters[k % len(letters)], k % HUES) for k, name in enumerate(names)}


def node_rows(parts: Sequence[Part], pool: str, per_node: int) -> list[NodeRow]:
    """The nodes of a pool that run something, rack by rack; those filled alike are one row."""
    marks = owner_marks(parts)
    pieces: dict[tuple[str, str], tuple[list[Piece], list[Piece]]] = {}
    for part in parts:
        for share in part.placement.nodes if part.pool.name == pool else ():
            count = share.replicas if part.placement.slice else max(1, round(share.devices))
            piece = (*marks[part.owner.name], share.devices / max(count, 1))
            pieces.setdefault((share.rack, share.node), ([], []))[part.is_job].extend(
                [piece] * count
            )
    filled = [
        (rack, node, *row)
        for (rack, node), kinds in sorted(pieces.items(), key=lambda item: _by_number(item[0]))
        for row in _fill_rows(_pack_cells(kinds[0]), _pack_cells(kinds[1]), per_node)
    ]
    filled.sort(key=lambda row: row[3])
    return [
        NodeRow(rack, tuple(node for _, node, *_ in alike), cells, later)
        for (rack, cells, later), alike in groupby(filled, key=lambda row: (row[0], *row[2:]))
    ]


def _fill_rows(serving: Cells, jobs: Cells, per_node: int) -> Iterator[tuple[Cells, bool]]:
    """A node's devices in one row, or in a second one jobs that have no room beside the rest."""
    together = len(serving) + len(jobs) <= per_node
    rows = [serving + jobs] if together else [serving, jobs]
    for k, cells in enumerate(rows):
        yield cells + ((),) * (per_node - len(cells)), k > 0


def _by_number(place: tuple[str, str]) -> list[int]:
    numbers = [name.rpartition("-")[2].lstrip("r") for name in place]
    return [int(number) if number.isdecimal() else 0 for number in numbers]


def _pack_cells(pieces: Sequence[Piece]) -> Cells:
    """Devices that hold the pieces, whole ones first; slices of one model on a device together."""
    cells: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (-piece[2], piece[0])):
        space = next((c for c in cells if sum(s for *_, s in c) + piece[2] <= 1 + 1e-6), None)
        if space is None:
            cells.append(space := [])
        space.append(piece)
    return tuple(tuple(_join_alike(cell)) for cell in cells)


def _join_alike(cell: Sequence[Piece]) -> list[Piece]:
    joined = []
    for (letters, hue), alike in groupby(cell, key=lambda piece: piece[:2]):
        shares = [share for *_, share in alike]
        times = f"×{len(shares)}" if len(shares) > 1 else ""
        joined.append((letters + times, hue, sum(shares)))
    return joined


def _title_engine(name: str) -> str:
    """An engine as it calls itself; another name as it is."""
    with suppress(RecipeError):
        return engine(name).title
    return name


def fleet_report(answer: FleetAnswer) -> str:
    """The report, of at most some hundred kilobytes."""
    parts, room = fleet_parts(answer), MOST_CELLS
    rows: dict[str, list[NodeRow]] = {}
    cut_short = set[str]()
    for use in answer.pools:
        drawn = rows[use.name] = node_rows(parts, use.name, use.per_node)
        while drawn and sum(len(row.cells) for row in drawn) > room:
            drawn.pop()
            cut_short.add(use.name)
        room -= sum(len(row.cells) for row in drawn)
    return render_export(
        "report.html.j2",
        answer=answer,
        marks=owner_marks(parts),
        rows=rows,
        cut_short=cut_short,
        engine_name=_title_engine,
        jobs=[job.name for job in answer.jobs],
    )
