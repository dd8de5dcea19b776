"""The answer of a fleet as one HTML file: it opens offline, runs nothing and requests nothing.

Nodes are drawn as bars with a letter for each model, so that no colour is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import NamedTuple

from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine, engine_names
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.parts import Part, fleet_parts
from recipe_core.fleets.exports.texts import render_export

# Rows of all pictures together: a file of some hundred kilobytes opens anywhere.
MOST_ROWS = 400
HUES = 8  # those that people with any colour vision tell apart (Okabe and Ito), then again


class NodeRow(NamedTuple):
    """Nodes of one rack that are filled alike: by owner replicas and the devices of all of them.

    ``jobs``: whether these are jobs, which may run at other hours than the models beside them.
    """

    rack: str
    nodes: list[str]
    uses: Sequence[tuple[str, int, float]]
    jobs: bool


def node_rows(parts: Sequence[Part], pool: str) -> list[NodeRow]:
    """The nodes of a pool that run something, rack by rack; those filled alike are one row."""
    uses: dict[tuple[bool, str, int, str], list[tuple[str, int, float]]] = {}
    for part in parts:
        for share in part.placement.nodes if part.pool.name == pool else ():
            number = int(share.node.rpartition("-")[2])
            key = (part.level.kind != "serving", share.rack, number, share.node)
            uses.setdefault(key, []).append((part.owner.name, share.replicas, share.devices))
    rows = groupby(sorted(uses.items()), key=lambda item: (*item[0][:2], item[1]))
    return [
        NodeRow(rack, [node for (*_, node), _ in alike], filled, jobs)
        for (jobs, rack, filled), alike in rows
    ]


def fleet_report(answer: FleetAnswer) -> str:
    """The report, of at most some hundred kilobytes."""
    parts = fleet_parts(answer)
    rows = {use.name: node_rows(parts, use.name) for use in answer.pools}
    letters = [*ascii_uppercase, *(a + b for a in ascii_uppercase for b in ascii_uppercase)]
    owners = dict.fromkeys(part.owner.name for part in parts)
    return render_export(
        "report.html.j2",
        answer=answer,
        marks={name: (letters[k % len(letters)], k % HUES) for k, name in enumerate(owners)},
        rows=rows,
        most=max(MOST_ROWS // max(len(answer.pools), 1), 1),
        engine_name=lambda name: (engine if name in engine_names() else framework)(name).title,
        jobs=[job.name for job in answer.jobs],
    )
