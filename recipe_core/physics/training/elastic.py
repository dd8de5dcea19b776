"""Sizes that an elastic run can go on with: replicas leave with their nodes, the split of a replica and the global batch stay."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.space.training import TrainingCases


def _even(cases: TrainingCases, nodes: Int) -> Bool:
    """Whether the run can have so many nodes: whole replicas, and a global batch that they share evenly."""
    used = cases.nodes_used.astype(np.int64)
    replicas = cases.dp * nodes // used
    whole = (cases.dp * nodes % used == 0) & (replicas > 0) & (nodes > 0)
    return np.asarray(
        whole & (cases.global_batch % np.maximum(replicas * cases.micro_batch, 1) == 0)
    )


def elastic_nodes(cases: TrainingCases, least: int, i: int) -> list[int]:
    """Numbers of nodes from ``least`` to all of case ``i`` that it can run on."""
    one, used = cases.take([i]), int(cases.nodes_used[i])
    return [n for n in range(min(least, used), used + 1) if _even(one, np.array([n]))[0]]


def next_smaller(cases: TrainingCases, least: int) -> Float:
    """Nodes that each case goes on with when it loses one: the most below all of them, 0 where it cannot go on."""
    used = cases.nodes_used.astype(np.int64)
    found = np.zeros(len(cases), dtype=np.int64)
    for lost in range(1, int(used.max(initial=0)) - least + 1):
        nodes = used - lost
        found = np.where(
            (found == 0) & (nodes >= least) & _even(cases, np.maximum(nodes, 1)), nodes, found
        )
        if found.all():
            break
    return found.astype(float)
