"""When a rank of FSDP is fullest: what is alive at five moments of a step, of which the largest is the peak.

A unit (a layer; the embedding; final norm and head) is gathered in 16 bits before it is used, the next one while it is used; its gradient
is cast to ``reduced`` bytes and scattered, which the next unit's backward pass hides. So around a layer's backward pass live two gathered
units, the unit before in ``reduced`` bytes, and the layer's own gradient in 16 bits. In a pipeline nothing is scattered before the last
micro-batch: gradients add up whole, and units stay gathered once their backward pass has run.

Source: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`` and ``torch/distributed/pipelining/stage.py`` of torch 2.13, and traces of
real models (`recipe_core.trace`), which this repeats to a few per cent. Left out: temporary copies of inputs to collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Float, add
from recipe_core.model.spec import Layer
from recipe_core.training.activations import BYTES, NORM_UPCAST, boundary_bytes, in_flight, kept_bytes, layer_bytes, mlp_bytes
from recipe_core.training.cases import TrainingCases, TrainingSetting

MLP_WORK = 0.75
"""Gradients inside a feed-forward block when its backward pass is fullest, of what the block kept: 6f of 8f bytes a token."""

Moment = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Stage:
    """Columns of cases × stages.

    count: layers; first, last: whether embedding and head are there. every: parameters of the rank, uncut; unit: the largest layer's;
    table: those of embedding or head. whole, cut: bytes of all gradients before and after they are scattered; table_cut: of a table's, after.
    loss: bytes of logits and what the loss makes of them.
    """

    count: Float
    first: Float
    last: Float
    every: Float
    unit: Float
    table: Float
    whole: Float
    cut: Float
    table_cut: Float
    loss: Float


def fullest(setting: TrainingSetting, cases: TrainingCases, stage: Stage) -> Moment:
    """Bytes of gradients, gathered, activations, loss and temporary at the moment when they are most together."""
    moments = [_complete(moment, stage) for moment in _moments(setting, cases, stage)]
    totals = np.stack([add(moment.values()) for moment in moments])
    chosen = np.argmax(np.nan_to_num(totals), axis=0)[None]
    return {name: np.take_along_axis(np.stack([moment[name] for moment in moments]), chosen, axis=0)[0] for name in moments[0]}


def _complete(moment: Moment, stage: Stage) -> Moment:
    """Every part, NaN where there is no stage."""
    nothing = 0.0 * stage.count
    return {name: moment.get(name, nothing) + nothing for name in ("gradients", "gathered", "activations", "loss", "temporary")}


def _moments(setting: TrainingSetting, cases: TrainingCases, s: Stage) -> Iterator[Moment]:
    gathered, reduced = setting.framework.states.gathered, 0.0 if setting.frozen else setting.framework.states.reduced
    piped, stays, more = ((each)[:, None] for each in (cases.pp > 1, cases.zero_stage == 2, cases.micro_batches > 1))
    adds_up = np.where(piped, s.whole, s.cut)
    before = np.where(more, adds_up, 0.0)
    every, unit, table = gathered * s.every, gathered * s.unit, gathered * s.table
    scattered = np.where(piped, 0.0, 1.0) * reduced
    again, inner, waiting, buffers = _activations(setting, cases, s)
    inside = np.maximum(again, 0.0 if setting.frozen else unit)

    yield {
        "gradients": before,
        "gathered": np.where(stays, every, table) * s.last,
        "activations": s.last * (waiting + buffers + _final_norm(setting, cases)),
        "loss": s.loss,
    }
    yield {  # backward pass of the last layer: the head's gradient is under way
        "gradients": np.where(more, adds_up, s.last * s.table_cut),
        "gathered": np.where(stays, every, np.minimum(2 * unit, every)) + s.last * scattered * s.table,
        "activations": waiting + buffers - inner + inside,
    }
    yield {  # of one before it: a layer's is
        "gradients": np.where(more, adds_up, s.last * s.table_cut),
        "gathered": np.where(stays, every, np.minimum(np.where(piped, 3, 2) * unit, every)) + scattered * s.unit,
        "activations": waiting + buffers - np.minimum(2, s.count) * inner + inside,
    }
    ends = np.where(stays | piped, every - np.where(piped, 0.0, s.last * table), unit + s.first * table)
    nearly = np.where(more | piped, adds_up, adds_up - s.first * s.table_cut)
    yield {  # of the first layer
        "gradients": nearly,
        "gathered": ends + scattered * s.unit,
        "activations": waiting + buffers - s.count * inner + inside,
    }
    lookup = BYTES * s.table * cases.tp[:, None]  # of the whole vocabulary, however it is cut
    yield {  # of the embedding, on the first stage; on others gradients are scattered
        "gradients": nearly,
        "gathered": np.where(piped, every, s.first * table) + s.first * scattered * np.maximum(s.unit, s.table),
        "activations": waiting + buffers - s.count * inner,
        "temporary": s.first * (0.0 if setting.frozen else 1.0) * lookup,
    }
    yield {"gradients": s.cut, "temporary": setting.framework.states.step * s.cut / setting.framework.states.gradient}


def _activations(setting: TrainingSetting, cases: TrainingCases, s: Stage) -> tuple[Float, Float, Float, Float]:
    """Bytes: of one layer in its backward pass, of one that waits for it, of all that wait, of what goes between stages."""
    kinds = [(kind, n) for kind, n in setting.model.kinds]
    kept = add(kept_bytes(setting, cases, kind) * n for kind, n in kinds) / len(setting.model.layers)
    inside = np.max([layer_bytes(setting, cases, kind) + _working(setting, cases, kind) for kind, _ in kinds], axis=0)
    tokens, flights = cases.tokens[:, None], in_flight(cases)
    waiting = tokens * kept[:, None] * flights * s.count
    v, m = (column[:, None].astype(float) for column in (cases.virtual_stages, cases.micro_batches))
    received, handed = v - s.first, v - s.last  # chunks that take from, and give to, another stage
    edge = tokens * boundary_bytes(setting, cases)[:, None]
    # a buffer for every micro-batch, and the gradients of those done; the inputs of those in flight are layers' already
    between = edge * (received * 2 * (m - flights) + handed * (m + flights))
    buffers = np.where(cases.pp[:, None] > 1, between, 0.0)
    return tokens * inside[:, None], tokens * kept[:, None], waiting, buffers


def _working(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token of gradients inside a layer, when they are most."""
    return MLP_WORK * mlp_bytes(setting, cases, layer)


def _final_norm(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Its input, and its output, which the head needs of all tokens."""
    hidden = setting.model.hidden
    upcast = 0.0 if setting.framework.fused_norm else NORM_UPCAST
    bytes_each = hidden * ((BYTES + upcast) / cases.norm_share + BYTES)
    out: Float = (cases.tokens * bytes_each)[:, None]
    return out
