"""What a limit on the time of one start means for a run: its checkpoints, and what every end costs.

A scheduler ends a start after ``limit`` seconds, and the next one goes on from the newest
checkpoint: work that is in none is lost, and a run whose first checkpoint comes later never gets
past its first start (NVIDIA-NeMo/Megatron-Bridge issue 4765). So

    interval ≤ (limit - restart - write) / 2,

which leaves two checkpoints in each start, and an end counts as a failure in Young's interval where
the framework writes no checkpoint before it: sqrt(2 · stall / (1/MTBF + 1/limit)). Each start
loses a restart and either that last write or half an interval of work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import seconds_text
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal

MOST_LOST = 0.99  # share of a start; where it is more no checkpoint fits, and the run is refused
# That fit in the time of each start, at least.
CHECKPOINTS_PER_START = 2


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


def saves_at_limit(setting: TrainingSetting) -> bool:
    """Whether the framework writes a checkpoint before a start is ended at its time limit."""
    return bool(training_engine(setting.engine).saves_on)


def end_rate(setting: TrainingSetting, mtbf_s: Float, busy_s: Float) -> Float:
    """Ends per second that lose the work since the newest checkpoint.

    A run whose steps take ``busy_s``, less than the limit, does not come to it.
    """
    limit_s = setting.failures.limit_s
    if limit_s is None or saves_at_limit(setting):
        return 1 / mtbf_s
    return 1 / mtbf_s + np.where(busy_s <= limit_s, 0.0, 1 / limit_s)


def longest_interval_s(limit_s: float, restart_s: Float, write_s: Float) -> Float:
    """Longest time between checkpoints that leaves some in each start; negative where none fits."""
    return np.asarray((limit_s - restart_s - write_s) / CHECKPOINTS_PER_START)


def lost_share(setting: TrainingSetting, restart_s: Float, end_s: Float, wall_s: Float) -> Float:
    """Share of the time that ends at the limit cost; 0 for runs that end before it.

    ``end_s``: what an end loses beside a restart. ``wall_s``: of the run without these losses.
    """
    limit_s = setting.failures.limit_s
    if limit_s is None:
        return np.zeros(len(restart_s))
    lost = np.minimum((restart_s + end_s) / limit_s, MOST_LOST)
    return np.where(wall_s <= limit_s, 0.0, lost)


def time_rules(
    setting: TrainingSetting, step_s: Float, interval_s: Float, restart_s: Float, write_s: Float
) -> Iterator[Refusal]:
    """Refuses runs that write no checkpoint within the time of a start."""
    limit_s = setting.failures.limit_s
    if limit_s is None:
        return
    needed_s = restart_s + np.maximum(interval_s, step_s) + write_s
    yield Refusal(
        "time-limit",
        needed_s >= limit_s,
        lambda i: (
            f"no checkpoint is written within the time limit of {seconds_text(limit_s)}: "
            "a start takes "
            f"{seconds_text(restart_s[i])}, the first checkpoint comes "
            f"{seconds_text(max(interval_s[i], step_s[i]))} later and takes "
            f"{seconds_text(write_s[i])}; "
            f"state workload.time_limit_s of {np.ceil(needed_s[i] / 60 + 1) * 60:.0f} or more"
            + (", or a shorter checkpoint_interval_s" if setting.failures.interval_s else "")
        ),
    )
