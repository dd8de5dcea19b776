"""Bytes that a rank exchanges in a step, by group, of shape (cases, stages).

An all-gather or reduce-scatter counts the whole tensor, an all-reduce twice that (it is both), a
message itself. FSDP gathers every unit for the forward pass and, if resharded, again for the
backward pass, except the head, whose backward pass follows at once. In a pipeline a unit stays
gathered from a backward pass until the next forward pass ends, and gradients are scattered once a
step. Full recomputation repeats a layer's gathers and the reduction after attention, but not the
last one, which nothing waits for; selective recomputation keeps what was scattered and repeats
gathers only.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import RECOMPUTE, TrainingCases, TrainingSetting
from recipe_core.estimates.training.activations import BYTES, boundary_bytes
from recipe_core.estimates.training.frozen_base import gathered_weight_bytes
from recipe_core.estimates.training.memory import parameters_by_stage
from recipe_core.estimates.training.peak_memory import hsdp_groups
from recipe_core.estimates.training.stages import stage_layer_counts


def fsdp_traffic(setting: TrainingSetting, cases: TrainingCases) -> dict[str, Float]:
    """Bytes by group for frameworks that shard layer by layer, of shape (cases, stages)."""
    states, rank = setting.states, parameters_by_stage(setting, cases)
    count, first, last = stage_layer_counts(setting, cases)
    layers = rank.dense + rank.experts
    parameters = layers + rank.vocabulary
    table = last * (setting.model.vocabulary * setting.model.hidden / cases.tp)[:, None]
    m, piped = cases.micro_batches[:, None].astype(float), cases.pp[:, None] > 1
    stays = cases.zero_stage[:, None] == 2
    gathers = np.where(stays, np.where(piped, 1.0, m), np.where(piped, m + 1, 2 * m))
    head = np.where(piped, 1.0, m)
    trained = rank.adapters if setting.frozen else parameters
    scattered = states.reduced * trained * np.where(piped, 1.0, m)
    copies = hsdp_groups(cases)[:, None]
    ranks = cases.replicas[:, None] / copies
    beside = rank.vocabulary - table + (rank.adapters if setting.frozen else 0.0)
    units = gathered_weight_bytes(setting) * layers + states.gathered * beside
    shard = gathers * units + states.gathered * head * table + scattered
    tensor = m * _tensor_traffic(setting, cases, count, first, last)
    none = 0.0 * count  # NaN where there is no stage
    return {
        "shard": np.where(ranks > 1, shard, none),
        "replicate": np.where(copies > 1, 2 * scattered / ranks, none),
        "tensor": np.where(cases.tp[:, None] > 1, tensor, none),
        "pipeline": np.where(piped, m * _hand_over_bytes(setting, cases, first, last), none),
    }


def _tensor_traffic(
    setting: TrainingSetting, cases: TrainingCases, count: Float, first: Float, last: Float
) -> Float:
    """Bytes of a micro-batch: halves of layers, and both ends as one, gather and reduce a pass."""
    model = setting.model
    halves = sum(
        n * ((kind.attention is not None) + (kind.mlp is not None)) for kind, n in model.kinds
    ) / len(model.layers)
    full = (cases.recompute == RECOMPUTE.index("full")) & (cases.sequence_parallel > 0)
    repeated = np.where(full, 0.75, np.where(cases.recompute > 0, 0.5, 0.0))
    hidden = (BYTES * cases.tokens * setting.model.hidden)[:, None]
    out: Float = 2 * hidden * (halves * count * (2 + repeated[:, None]) + first + last)
    return out


def _hand_over_bytes(
    setting: TrainingSetting, cases: TrainingCases, first: Float, last: Float
) -> Float:
    """Bytes of a micro-batch: hidden states to the next chunk, their gradients to the previous."""
    chunks = cases.virtual_stages[:, None]
    return (cases.tokens * boundary_bytes(setting, cases))[:, None] * (2.0 * chunks - first - last)
