"""What a rank exchanges in a step, in bytes: by group, cases × stages.

An all-gather and a reduce-scatter count the whole tensor, an all-reduce twice that (it is both), a message itself.
FSDP gathers every unit for the forward pass and, resharded, again for the backward pass, but the head, whose backward pass follows at once.
In a pipeline a unit stays gathered from a backward pass until the next forward pass is over, and gradients are scattered once a step.
Recomputation repeats a layer's gathers and the reduction after attention, not the last one, which nothing waits for; the selective one
keeps what was scattered, and repeats gathers only.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.physics.training.activations import BYTES, boundary_bytes
from recipe_core.physics.training.memory import held
from recipe_core.physics.training.peak_memory import hybrid
from recipe_core.physics.training.stages import stage_layers
from recipe_core.space.training import RECOMPUTE, TrainingCases, TrainingSetting


def fsdp_traffic(setting: TrainingSetting, cases: TrainingCases) -> dict[str, Float]:
    """Bytes by group for frameworks that shard layer by layer."""
    states, whole = setting.framework.states, held(setting, cases)
    count, first, last = stage_layers(setting, cases)
    every = whole.dense + whole.experts + whole.vocabulary
    table = last * (setting.model.vocabulary * setting.model.hidden / cases.tp)[:, None]
    m, piped = cases.micro_batches[:, None].astype(float), cases.pp[:, None] > 1
    stays = cases.zero_stage[:, None] == 2
    again = np.where(stays, np.where(piped, 1.0, m), np.where(piped, m + 1, 2 * m))
    head = np.where(piped, 1.0, m)
    trained = whole.adapters if setting.frozen else every
    scattered = states.reduced * trained * np.where(piped, 1.0, m)
    copies = hybrid(cases)[:, None]
    ranks = cases.replicas[:, None] / copies
    return {
        "shard": np.where(
            ranks > 1,
            states.gathered * (again * (every - table) + head * table) + scattered,
            0.0 * count,
        ),
        "replicate": np.where(copies > 1, 2 * scattered / ranks, 0.0 * count),
        "tensor": np.where(
            cases.tp[:, None] > 1, m * _tensor(setting, cases, count, first, last), 0.0 * count
        ),
        "pipeline": np.where(piped, m * _hand_over(setting, cases, first, last), 0.0 * count),
    }


def _tensor(
    setting: TrainingSetting, cases: TrainingCases, count: Float, first: Float, last: Float
) -> Float:
    """Of a micro-batch: each half of a layer gathers and reduces once in each pass; embedding and head once together in each."""
    halves = sum(
        n * ((kind.attention is not None) + (kind.mlp is not None))
        for kind, n in setting.model.kinds
    ) / len(setting.model.layers)
    full = (cases.recompute == RECOMPUTE.index("full")) & (cases.sequence_parallel > 0)
    repeated = np.where(full, 0.75, np.where(cases.recompute > 0, 0.5, 0.0))
    hidden = (BYTES * cases.tokens * setting.model.hidden)[:, None]
    out: Float = 2 * hidden * (halves * count * (2 + repeated[:, None]) + first + last)
    return out


def _hand_over(setting: TrainingSetting, cases: TrainingCases, first: Float, last: Float) -> Float:
    """Of a micro-batch: hidden states to the next chunk, their gradients to the one before."""
    chunks = cases.virtual_stages[:, None]
    return (cases.tokens * boundary_bytes(setting, cases))[:, None] * (2.0 * chunks - first - last)
