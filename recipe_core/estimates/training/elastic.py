"""Sizes at which an elastic run can continue.

Replicas leave with their nodes; the split of a replica and the global batch stay.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.columns.training import TrainingCases


def _shares_batch_evenly(cases: TrainingCases, nodes: Int) -> Bool:
    """Whether that many nodes give whole replicas that share the global batch evenly."""
    used = cases.nodes_used.astype(np.int64)
    replicas = cases.dp * nodes // used
    complete = (cases.dp * nodes % used == 0) & (replicas > 0) & (nodes > 0)
    divides = cases.global_batch % np.maximum(replicas * cases.micro_batch, 1) == 0
    return np.asarray(complete & divides)


def elastic_nodes(cases: TrainingCases, fewest: int, i: int) -> list[int]:
    """Numbers of nodes, from ``fewest`` to all of case ``i``, that it can run on."""
    case, used = cases.take([i]), int(cases.nodes_used[i])
    return [
        n
        for n in range(min(fewest, used), used + 1)
        if _shares_batch_evenly(case, np.array([n]))[0]
    ]


def next_smaller(cases: TrainingCases, fewest: int) -> Float:
    """Nodes, at least ``fewest``, on which each case continues after losing one; 0: it cannot."""
    used = cases.nodes_used.astype(np.int64)
    remaining = np.zeros(len(cases), dtype=np.int64)
    for lost in range(1, int(used.max(initial=0)) - fewest + 1):
        nodes = used - lost
        fits = (nodes >= fewest) & _shares_batch_evenly(cases, np.maximum(nodes, 1))
        remaining = np.where((remaining == 0) & fits, nodes, remaining)
        if remaining.all():
            break
    return remaining.astype(float)
