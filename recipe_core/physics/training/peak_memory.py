"""When a rank of FSDP is fullest: what is alive at five moments of a step, of which the largest is the peak.

A unit (a layer; the embedding; final norm and head) is gathered in 16 bits before it is used, the next one while it is used; its gradient
is cast to ``reduced`` bytes and scattered, which the next unit's backward pass hides. So around a layer's backward pass live two gathered
units, the unit before in ``reduced`` bytes, and the layer's own gradient in 16 bits. In a pipeline nothing is scattered before the last
micro-batch: gradients add up whole, and units stay gathered once their backward pass has run.

Source: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`` and ``torch/distributed/pipelining/stage.py`` of torch 2.13, and
traces of real models (`recipe_core.calibration.trace`), which this repeats to a few per cent. Left out: copies of inputs to collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.physics.training.activations import (
    BYTES,
    NORM_UPCAST,
    boundary_bytes,
    in_flight,
    kept_bytes,
    layer_bytes,
    mlp_bytes,
)
from recipe_core.space.training import TrainingCases, TrainingSetting

MLP_WORK = 0.75
"""Gradients inside a feed-forward block when its backward pass is fullest, of what the block kept: 6f of 8f bytes a token."""
MLP_LEFT = 0.5
"""Of what the block kept, what is gone when the gradients of all its weights are there: the other half are gradients of gate and up."""

FP32_LOSS = 8.0
"""Bytes for each logit from which a loss is not one compiled kernel: an fp32 copy and its gradient."""
ALIVE = ("gradients", "gathered", "activations", "loss", "temporary")
"""What a moment is made of; what it leaves out is not there."""
NOTHING = np.zeros(())
Moment = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Stage:
    """Columns of cases × stages.

    count: layers; first, last: whether embedding and head are there. every: parameters of the rank, uncut; unit: the largest layer's;
    table: those of embedding or head. cut: bytes of all gradients at the end; made,
    unit_made, table_made: as a backward pass leaves them (whole in a pipeline), of all, a layer, a table.
    logits: how many there are at once.
    """

    count: Float
    first: Float
    last: Float
    every: Float
    unit: Float
    table: Float
    cut: Float
    made: Float
    unit_made: Float
    table_made: Float
    logits: Float


def fullest(setting: TrainingSetting, cases: TrainingCases, stage: Stage) -> Moment:
    """Bytes of gradients, gathered, activations, loss and temporary at the moment when they are most together."""
    moments = [
        {part: moment.get(part, NOTHING) for part in ALIVE}
        for moment in _moments(setting, cases, stage)
    ]
    most, chosen = np.full(stage.count.shape, -np.inf), np.zeros(stage.count.shape, dtype=np.int64)
    for number, moment in enumerate(moments):
        total = add(moment.values())
        chosen[total > most] = number
        most = np.maximum(most, total)
    return {part: np.choose(chosen, [moment[part] for moment in moments]) for part in ALIVE}


def _moments(setting: TrainingSetting, cases: TrainingCases, s: Stage) -> Iterator[Moment]:
    """Of the first micro-batch's backward pass, and of a later one's, when gradients are there but a micro-batch less may wait."""
    flights, m = in_flight(cases), cases.micro_batches[:, None]
    stays, drains = cases.zero_stage[:, None] == 2, (cases.pp[:, None] > 1) & (flights >= m)
    yield from _backward(setting, cases, s, flights, np.ones_like(stays), stays)
    # where no forward pass comes between, what a backward pass gathered is there for the next
    yield from _backward(
        setting,
        cases,
        s,
        np.where(m > 1, np.minimum(flights, m - 1), flights),
        m == 1,
        stays | drains,
    )
    states = setting.framework.states
    yield {"gradients": s.cut, "temporary": states.step * s.cut / states.gradient}


def _backward(
    setting: TrainingSetting,
    cases: TrainingCases,
    s: Stage,
    flights: Float,
    first_one: Bool,
    stays: Bool,
) -> Iterator[Moment]:
    """Moments of a backward pass while ``flights`` micro-batches wait.

    first_one: it makes the gradients that others add to. stays: units are gathered before it begins.
    """
    states, frozen = setting.framework.states, setting.frozen
    piped, ranks = cases.pp[:, None] > 1, (cases.replicas / hybrid(cases))[:, None]
    every, unit, table = (states.gathered * size for size in (s.every, s.unit, s.table))
    scattered = np.where(piped | frozen, 0.0, states.reduced)
    own = 0.0 if frozen else unit
    layer, kept, block = _layer_bytes(setting, cases)
    inside = np.maximum(layer + MLP_WORK * block, own + layer - MLP_LEFT * block)
    waiting = flights * s.count * kept + _between_stages(setting, cases, s, flights)
    loss, logits = _loss(setting, cases, s, flights)
    # one chunk works while the others' units are as their last backward pass left them
    chunks, inside_only = cases.virtual_stages[:, None], every - (s.first + s.last) * table
    elsewhere = np.where(
        first_one | (chunks == 1), 0.0, inside_only * (1 - 1 / chunks) + s.first * table
    )
    copies = (
        (hybrid(cases) > 1)[:, None] & ~piped & ~first_one
    )  # an all-reduce holds what it reduced until the pass is over

    def moment(made: Float, gathered: Float, alive: Float, loss: Float) -> Moment:
        """``made``: bytes of the gradients that this pass has made."""
        gradients = np.where(first_one, made, s.made)
        return {
            "gradients": gradients,
            "gathered": gathered + np.where(copies, made, 0.0),
            "activations": alive,
            "loss": loss,
        }

    def layer_moment(done: Float | float, made: Float, gathered: Float, reduced: Float) -> Moment:
        """When the backward pass of the layer after ``done`` others is fullest."""
        alive = waiting - (np.clip(done, 0, s.count - 1) + 1) * kept + inside
        return moment(
            np.maximum(made, 0.0),
            np.minimum(gathered + elsewhere, every) + scattered * reduced,
            alive,
            logits,
        )

    yield moment(
        0.0 * s.count,
        np.where(stays, every, np.minimum(table + elsewhere, every)) * s.last,
        s.last * (waiting + _final_norm(setting, cases)),
        loss,
    )
    # DTensor makes the embedding's gradient of the whole vocabulary, which is cut when it is scattered
    uncut = cases.tp[:, None]
    yield (
        moment(  # of the head: gradients of logits and of its own weights; a pipeline still holds the logits
            0.0 * s.count,
            np.where(stays, every, np.minimum(table + unit + elsewhere, every)) * s.last,
            s.last * (waiting + _final_norm(setting, cases)),
            s.logits * BYTES * np.where(piped, 2, 1) + logits,
        )
        | {"temporary": s.last * (0.0 if frozen else BYTES) * s.table}
    )
    head, lookup = s.last * s.table_made, s.first * s.table_made * np.where(piped, uncut, 1)
    yield layer_moment(0, head, np.where(stays, every, 2 * unit), s.last * s.table)
    # a pipeline's units stay once their backward pass has run
    yield layer_moment(
        1, head + s.unit_made, np.where(stays, every, np.where(piped, 3, 2) * unit), s.unit
    )
    late = np.where(stays, every, np.where(piped, every - s.first * table, 2 * unit))
    yield layer_moment(s.count - 2, s.made - lookup - 2 * s.unit_made, late, s.unit)
    ends = np.where(
        stays | piped, every - np.where(piped, 0.0, s.last * table), unit + s.first * table
    )
    yield layer_moment(s.count - 1, s.made - lookup - s.unit_made, ends, s.unit)
    reduced = scattered * s.table + np.where(ranks > 1, s.table_made, 0.0)
    added = np.where(
        piped, np.where(first_one, lookup, 0.0), np.maximum(table + scattered * s.unit, reduced)
    )
    last = moment(
        s.made - lookup,
        np.where(piped, every, 0.0) + s.first * added,
        waiting - s.count * kept,
        logits,
    )
    yield last | {"temporary": s.first * (0.0 if frozen else BYTES) * s.table * uncut}


def hybrid(cases: TrainingCases) -> Int:
    """Groups that each hold everything once between them: replicas over the ranks that states are divided over."""
    shared = np.where(cases.zero_stage > 0, np.maximum(cases.shard, 1), 1)
    groups: Int = np.maximum(cases.replicas // shared, 1)
    return groups


def _layer_bytes(setting: TrainingSetting, cases: TrainingCases) -> tuple[Float, Float, Float]:
    """Bytes: what the largest layer keeps when nothing is recomputed, one on average as it is, and the largest feed-forward block."""
    kinds, tokens = setting.model.kinds, cases.tokens[:, None]
    kept = add(kept_bytes(setting, cases, kind) * n for kind, n in kinds) / len(
        setting.model.layers
    )
    layer = np.max([layer_bytes(setting, cases, kind) for kind, _ in kinds], axis=0)
    block = np.max([mlp_bytes(setting, cases, kind) for kind, _ in kinds], axis=0)
    return tokens * layer[:, None], tokens * kept[:, None], tokens * block[:, None]


def _between_stages(
    setting: TrainingSetting, cases: TrainingCases, s: Stage, flights: Float
) -> Float:
    """Buffers of torch's stages: what comes in has one for every micro-batch and keeps the gradients of those done.

    The inputs of micro-batches in flight are their first layers' already; what they handed on is held till their backward pass.
    """
    v, m = (column[:, None].astype(float) for column in (cases.virtual_stages, cases.micro_batches))
    received, handed = v - s.first, v - s.last  # chunks that take from, and give to, another stage
    edge = (cases.tokens * boundary_bytes(setting, cases))[:, None]
    return np.where(
        cases.pp[:, None] > 1, edge * (received * 2 * (m - flights) + handed * (m + flights)), 0.0
    )


def _loss(
    setting: TrainingSetting, cases: TrainingCases, s: Stage, flights: Float
) -> tuple[Float, Float]:
    """Bytes when the loss's backward pass begins, and of micro-batches whose backward pass has not.

    An fp32 loss keeps its log-softmax; over a vocabulary that is cut it makes its gradient in two steps. A pipeline holds the logits too.
    """
    each = setting.framework.loss_bytes.value
    eager = each >= FP32_LOSS
    output = np.where(eager & (cases.pp > 1), BYTES, 0.0)[:, None]
    peak = each + np.where(eager & (cases.tp > 1), 4.0, 0.0)[:, None] + output
    others = np.where((cases.has("gpipe") & (cases.pp > 1))[:, None], flights - 1, 0.0)
    waits = others * ((4.0 if eager else BYTES) + output)
    return s.logits * (peak + waits), s.logits * waits


def _final_norm(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Its input, and its output, which the head needs of all tokens."""
    hidden = setting.model.hidden
    upcast = 0.0 if setting.framework.fused_norm else NORM_UPCAST
    bytes_each = hidden * ((BYTES + upcast) / cases.norm_share + BYTES)
    out: Float = (cases.tokens * bytes_each)[:, None]
    return out
