"""Peak memory of FSDP: what is alive at each moment of a step; the largest moment is the peak.

A unit (a layer; the embedding; final norm and head) is gathered in 16 bits before it is used, the
next one while it is used. Its gradient is cast to ``reduced`` bytes and scattered, which the next
unit's backward pass hides. So around a layer's backward pass two gathered units are alive, the
previous unit in ``reduced`` bytes, and the layer's own gradient in 16 bits. In a pipeline nothing
is scattered before the last micro-batch: gradients accumulate unsharded, and units stay gathered
after their backward pass.

Source: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`` and
``torch/distributed/pipelining/stage.py`` of torch 2.13, and traces of real models
(`oracle`), which these formulas meet to a few per cent. Left out: copies of
the inputs of collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.activations import (
    BYTES,
    NORM_UPCAST,
    boundary_bytes,
    head_gradient_bytes,
    hidden_gradient_bytes,
    in_flight,
    in_pieces,
    is_eager,
    layer_bytes,
    logit_bytes,
    mlp_bytes,
    on_device,
    saved_bytes,
)
from recipe_core.estimates.training.frozen_base import gathered_weight_bytes, matrix_bytes
from recipe_core.estimates.training.unsharded_peak import working_bytes

# Share of what the block saved that is gone when all its weights have gradients; the other half are
# gradients of gate and up.
MLP_LEFT = 0.5
# Parts of a moment.
ALIVE = ("gradients", "gathered", "activations", "loss", "temporary")
NOTHING = np.zeros(())
Moment = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Stage:
    """A rank of each pipeline stage; columns of shape (cases, stages).

    count: layers; first, last: 1 where the embedding, the head is there. parameters: of the rank,
    unsharded; unit: of the largest layer; table: of embedding or head, of which there are tables.
    sharded_gradients: bytes of
    all gradients at the end of a step; gradients, unit_gradients, table_gradients: bytes after a
    backward pass (unsharded in a pipeline) of all, of a layer, of a table. logits: how many exist
    at once.
    """

    count: Float
    first: Float
    last: Float
    parameters: Float
    unit: Float
    table: Float
    tables: Float
    sharded_gradients: Float
    gradients: Float
    unit_gradients: Float
    table_gradients: Float
    logits: Float


def fullest_moment(setting: TrainingSetting, cases: TrainingCases, stage: Stage) -> Moment:
    """Bytes of each of ``ALIVE`` at the moment with the largest sum, of shape (cases, stages)."""
    moments = list(_step_moments(setting, cases, stage))
    peak = np.full(stage.count.shape, -np.inf)
    number_at_peak = np.zeros(stage.count.shape, dtype=np.int64)
    for number, moment in enumerate(moments):
        total = add(moment.values())
        number_at_peak[total > peak] = number
        peak = np.maximum(peak, total)
    return {part: np.choose(number_at_peak, [moment[part] for moment in moments]) for part in ALIVE}


def _step_moments(setting: TrainingSetting, cases: TrainingCases, s: Stage) -> Iterator[Moment]:
    """Of the first micro-batch's backward pass, of a later one's, and of the optimizer's step.

    In a later pass gradients exist already, but a micro-batch less may wait.
    """
    flights, m = in_flight(cases), cases.micro_batches[:, None]
    stays = cases.zero_stage[:, None] == 2
    yield from _backward_moments(
        _backward_pass(setting, cases, s, flights, np.ones_like(stays), stays)
    )
    # where no forward pass comes between, what a backward pass gathered is there for the next
    drains = (cases.pp[:, None] > 1) & (flights >= m)
    later = np.where(m > 1, np.minimum(flights, m - 1), flights)
    yield from _backward_moments(_backward_pass(setting, cases, s, later, m == 1, stays | drains))
    yield _optimizer_step(setting, s)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A backward pass; columns of shape (cases, stages), bytes unless said otherwise.

    opens: whether it makes the gradients that later passes add to. stays: whether units are
    gathered before it begins. piped: whether there is a pipeline. copies: whether an all-reduce
    holds what it reduced until the pass is over. parameters, unit, table: gathered, of the rank, a
    layer, a table. other_chunks: gathered units of the chunks that do not work. scattered: per
    parameter of a unit whose gradient is being scattered. temporary: per parameter of a table.
    waiting: activations of micro-batches in flight. saved: activations of a layer. working: of the
    layer at work. head_input: around the final norm, with what a loss in pieces keeps of hidden
    states. loss: at its start; later_loss: of micro-batches that wait. head_gradient: of a head
    that pieces add to.
    """

    cases: TrainingCases
    stage: Stage
    opens: Bool
    stays: Bool
    piped: Bool
    copies: Bool
    parameters: Float
    unit: Float
    table: Float
    other_chunks: Float
    scattered: Float
    temporary: float
    waiting: Float
    saved: Float
    working: Float
    head_input: Float
    loss: Float
    later_loss: Float
    head_gradient: Float

    def moment(
        self,
        gradients: Float,
        gathered: Float,
        activations: Float,
        loss: Float,
        temporary: Float = NOTHING,
    ) -> Moment:
        """A moment at which this pass has made so many bytes of ``gradients``."""
        return {
            "gradients": np.where(self.opens, gradients, self.stage.gradients),
            "gathered": gathered + np.where(self.copies, gradients, 0.0),
            "activations": activations,
            "loss": loss,
            "temporary": temporary,
        }

    def layer(self, done: Float | float, gradients: Float, gathered: Float, sent: Float) -> Moment:
        """The peak of a layer's pass after ``done`` others, ``sent`` parameters being scattered."""
        alive = self.waiting - (np.clip(done, 0, self.stage.count - 1) + 1) * self.saved
        alive = np.maximum(alive, 0.0)
        return self.moment(
            np.maximum(gradients, 0.0),
            np.minimum(gathered + self.other_chunks, self.parameters) + self.scattered * sent,
            alive + self.working,
            self.later_loss,
        )


def _backward_pass(
    setting: TrainingSetting,
    cases: TrainingCases,
    s: Stage,
    flights: Float,
    opens: Bool,
    stays: Bool,
) -> _Pass:
    """A backward pass while ``flights`` micro-batches wait."""
    states, frozen = setting.states, setting.frozen
    piped = cases.pp[:, None] > 1
    table = states.gathered * s.table
    per_weight = gathered_weight_bytes(setting)
    unit, tables = per_weight * s.unit, np.minimum(s.parameters, s.tables * s.table)
    parameters = per_weight * (s.parameters - tables) + states.gathered * tables
    layer, saved, block, working = _layer_bytes(setting, cases)
    matrix = matrix_bytes(setting, cases)[:, None]
    layer, working = layer + matrix, working + matrix
    gradient = 0.0 if frozen else unit
    loss, later_loss = _loss_bytes(setting, cases, s, flights)
    # one chunk works while the others' units are as their last backward pass left them
    chunks, layers_only = cases.virtual_stages[:, None], parameters - (s.first + s.last) * table
    idle = layers_only * (1 - 1 / chunks) + s.first * table
    return _Pass(
        cases,
        s,
        opens,
        stays,
        piped,
        copies=(hsdp_groups(cases) > 1)[:, None] & ~piped & ~opens,
        parameters=parameters,
        unit=unit,
        table=table,
        other_chunks=np.where(opens | (chunks == 1), 0.0, idle),
        scattered=np.where(piped | frozen, 0.0, states.reduced),
        temporary=0.0 if frozen else BYTES,
        waiting=on_device(cases, flights * s.count * saved, saved)
        + _between_stages(setting, cases, s, flights),
        saved=saved,
        working=np.maximum(working, gradient + layer - MLP_LEFT * block),
        head_input=_final_norm(setting, cases) + hidden_gradient_bytes(setting, cases)[:, None],
        loss=loss,
        later_loss=later_loss,
        head_gradient=s.last * head_gradient_bytes(setting, cases)[:, None],
    )


def _backward_moments(p: _Pass) -> Iterator[Moment]:
    yield _loss_moment(p)
    yield _head_moment(p)
    yield _last_layer(p)
    yield _second_last_layer(p)
    yield _second_layer(p)
    yield _first_layer(p)
    yield _embedding_moment(p)


def _loss_moment(p: _Pass) -> Moment:
    """Before the loss's backward pass: nothing but the head is needed."""
    s = p.stage
    gathered = np.where(p.stays, p.parameters, np.minimum(p.table + p.other_chunks, p.parameters))
    activations = s.last * (p.waiting + p.head_input)
    return p.moment(0.0 * s.count, gathered * s.last, activations, p.loss, p.head_gradient)


def _head_moment(p: _Pass) -> Moment:
    """Gradients of logits and of the head's weights; a pipeline still holds the logits."""
    s = p.stage
    units = np.minimum(p.table + p.unit + p.other_chunks, p.parameters)
    return p.moment(
        0.0 * s.count,
        np.where(p.stays, p.parameters, units) * s.last,
        s.last * (p.waiting + p.head_input),
        s.logits * BYTES * np.where(p.piped, 2, 1) + p.later_loss,
        np.maximum(s.last * p.temporary * s.table, p.head_gradient),
    )


def _last_layer(p: _Pass) -> Moment:
    """The first layer to go back, while the head's gradient is scattered, if it was not before."""
    s = p.stage
    gathered = np.where(p.stays, p.parameters, 2 * p.unit)
    sent = np.where(p.head_gradient > 0, 0.0, s.last * s.table)
    return p.layer(0, s.last * s.table_gradients, gathered, sent)


def _second_last_layer(p: _Pass) -> Moment:
    """The next one; a pipeline's units stay gathered once their backward pass has run."""
    s = p.stage
    gathered = np.where(p.stays, p.parameters, np.where(p.piped, 3, 2) * p.unit)
    return p.layer(1, s.last * s.table_gradients + s.unit_gradients, gathered, s.unit)


def _second_layer(p: _Pass) -> Moment:
    """The last layer but one to go back: nearly all gradients are there."""
    s = p.stage
    piped = np.where(p.piped, p.parameters - s.first * p.table, 2 * p.unit)
    gathered = np.where(p.stays, p.parameters, piped)
    gradients = s.gradients - _lookup_gradients(p) - 2 * s.unit_gradients
    return p.layer(s.count - 2, gradients, gathered, s.unit)


def _first_layer(p: _Pass) -> Moment:
    """The last layer to go back, while the embedding is gathered."""
    s = p.stage
    gathered = np.where(
        p.stays | p.piped,
        p.parameters - np.where(p.piped, 0.0, s.last * p.table),
        p.unit + s.first * p.table,
    )
    gradients = s.gradients - _lookup_gradients(p) - s.unit_gradients
    return p.layer(s.count - 1, gradients, gathered, s.unit)


def _embedding_moment(p: _Pass) -> Moment:
    """The embedding's gradient, of the whole vocabulary until it is scattered."""
    s, lookup = p.stage, _lookup_gradients(p)
    ranks = (p.cases.replicas / hsdp_groups(p.cases))[:, None]
    reduced = p.scattered * s.table + np.where(ranks > 1, s.table_gradients, 0.0)
    added = np.where(
        p.piped,
        np.where(p.opens, lookup, 0.0),
        np.maximum(p.table + p.scattered * s.unit, reduced),
    )
    return p.moment(
        s.gradients - lookup,
        np.where(p.piped, p.parameters, 0.0) + s.first * added,
        # of what waits on the host, the device holds no more than two layers
        np.maximum(p.waiting - s.count * p.saved, 0.0),
        p.later_loss,
        s.first * p.temporary * s.table * p.cases.tp[:, None],
    )


def _optimizer_step(setting: TrainingSetting, s: Stage) -> Moment:
    """Sharded gradients, and what the optimizer makes beside them."""
    states, gradients = setting.states, s.sharded_gradients
    temporary = states.step * gradients / states.gradient
    return {**dict.fromkeys(ALIVE, NOTHING), "gradients": gradients, "temporary": temporary}


def _lookup_gradients(p: _Pass) -> Float:
    """Bytes of the embedding's gradient after a pass.

    DTensor makes it of the whole vocabulary and splits it when it is scattered, in a pipeline at
    the end of the step.
    """
    s = p.stage
    return s.first * s.table_gradients * np.where(p.piped, p.cases.tp[:, None], 1)


def hsdp_groups(cases: TrainingCases) -> Int:
    """HSDP groups per case: replicas over the ranks that share one copy of the states."""
    shared = np.where(cases.zero_stage > 0, np.maximum(cases.shard, 1), 1)
    groups: Int = np.maximum(cases.replicas // shared, 1)
    return groups


def _layer_bytes(
    setting: TrainingSetting, cases: TrainingCases
) -> tuple[Float, Float, Float, Float]:
    """Bytes of layers, of shape (cases, 1).

    The largest without recomputation, a mean one as it is saved, the largest feed-forward block,
    and the largest at work.
    """
    kinds, tokens = setting.model.kinds, cases.tokens[:, None]
    total = add(saved_bytes(setting, cases, kind) * n for kind, n in kinds)
    saved = total / len(setting.model.layers)
    layer, block, working = (
        np.max([size(setting, cases, kind) for kind, _ in kinds], axis=0)
        for size in (layer_bytes, mlp_bytes, working_bytes)
    )
    sizes = (layer, saved, block, working)
    return tuple(tokens * size[:, None] for size in sizes)  # type: ignore[return-value]


def _between_stages(
    setting: TrainingSetting, cases: TrainingCases, s: Stage, flights: Float
) -> Float:
    """Bytes of the buffers between torch's pipeline stages.

    Inputs have one for every micro-batch, and gradients of finished ones stay. Inputs of
    micro-batches in flight are counted with their first layers; outputs stay until their backward
    pass.
    """
    v, m = (column[:, None].astype(float) for column in (cases.virtual_stages, cases.micro_batches))
    received, sent = v - s.first, v - s.last  # chunks that receive from, and send to, another stage
    edge = (cases.tokens * boundary_bytes(setting, cases))[:, None]
    buffers = edge * (received * 2 * (m - flights) + sent * (m + flights))
    return np.where(cases.pp[:, None] > 1, buffers, 0.0)


def _loss_bytes(
    setting: TrainingSetting, cases: TrainingCases, s: Stage, flights: Float
) -> tuple[Float, Float]:
    """Bytes when the loss's backward pass begins, and of micro-batches that wait for theirs.

    An fp32 loss keeps its log-softmax; over a split vocabulary it makes its gradient in two steps.
    A pipeline holds the logits too, and with GPipe the losses of all micro-batches in flight wait.
    """
    eager, apart = is_eager(setting, cases), _makes_piecewise_gradients(setting, cases)
    output = np.where(eager & (cases.pp > 1), BYTES, 0.0)[:, None]
    split = np.where(eager & (cases.tp > 1), 4.0, 0.0)[:, None]
    peak = logit_bytes(setting, cases)[:, None] + split + output
    piped = cases.has("gpipe") & (cases.pp > 1) & ~apart
    losses = np.where(piped[:, None], flights - 1, 0.0)
    waits = losses * (np.where(eager, 4.0, BYTES)[:, None] + output)
    return s.logits * (peak + waits), s.logits * waits


def _makes_piecewise_gradients(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Mark where a kernel makes gradients with each piece, so that no logits wait for them."""
    kernel = setting.framework.pieces.logit_bytes is not None
    return in_pieces(setting, cases) & kernel


def _final_norm(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of the final norm's input, and of its output, which the head needs of all tokens."""
    hidden = setting.model.hidden
    upcast = 0.0 if setting.framework.fused_norm else NORM_UPCAST
    bytes_a_token = hidden * ((BYTES + upcast) / cases.norm_share + BYTES)
    out: Float = (cases.tokens * bytes_a_token)[:, None]
    return out
