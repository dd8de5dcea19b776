"""The layers of a pipeline stage, and their parameters on a rank.

``even``: the same number of layers in each, the first ones take the remainder. ``reserved``: where
layers do not fill the chunks but layers and both ends do, embedding and loss count as a layer each
(Megatron Core's ``account_for_embedding_in_pipeline_split`` and its twin for the loss), so both end
stages hold a layer less; else even. ``cost``: where the head is worth a layer or more, a stage
takes layers until it reaches its share of the products, with the head counted (nanotron's rule), so
first stages hold more layers than last ones. With several chunks a stage, ``cost`` is even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.estimates.columns.columns import Columns, map_columns
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.frozen_base import adapter_sizes, split_ranks
from recipe_core.models.spec import Layer, MoeMlp


def stage_layer_counts(
    setting: TrainingSetting, cases: TrainingCases
) -> tuple[Float, Float, Float]:
    """Layers of each stage, and 1 where the embedding and where the head is, (cases, stages).

    Rows end in NaN past the last stage. Layers of multi-token prediction are the last ones.
    """
    stages = np.arange(int(cases.pp.max()), dtype=np.int64)[None, :]
    pp, layers = cases.pp[:, None], setting.trained_layers
    exists = stages < pp
    count = (layers // pp + (stages < layers % pp)).astype(float)
    if setting.framework.stages == "reserved":
        with_ends = (layers + 2) // pp - (stages == 0) - (stages == pp - 1)
        count = np.where(reserved_ends(setting, cases)[:, None], with_ends, count)
    if setting.framework.stages == "cost" and (head := _head_layers(setting)) >= 1:
        by_cost = _by_cost(stages, pp, layers, head)
        count = np.where(cases.virtual_stages[:, None] > 1, count, by_cost)
    first = np.where(exists, stages == 0, np.nan).astype(float)
    # a V brings the head back to the first stage
    with_head = np.where(cases.has("zb-v")[:, None], stages == 0, stages == pp - 1)
    last = np.where(exists, with_head, np.nan).astype(float)
    return np.where(exists, count, np.nan), first, last


def reserved_ends(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Mark where embedding and loss count as a layer each, so that all chunks come out even."""
    chunks, layers = cases.pp * cases.virtual_stages, setting.trained_layers
    reserves = (layers % chunks != 0) & ((layers + 2) % chunks == 0)
    return np.asarray((setting.framework.stages == "reserved") & reserves)


def with_mirror(cases: TrainingCases, values: Float) -> Float:
    """Add the mirrored stage's values where a pipeline is fed from both ends, (cases, stages).

    All cases have pipelines of one length.
    """
    return np.where(cases.has("dualpipe")[:, None], values + values[:, ::-1], values)


def by_length(
    cases: TrainingCases, columns: Callable[[TrainingCases], dict[str, Float]]
) -> dict[str, Float]:
    """Columns by name, computed for pipelines of one length at a time.

    ``columns`` returns arrays of shape (cases) or (cases, stages). So nothing is computed for
    stages that do not exist, which are most where few pipelines are long; these are NaN.
    """
    out: dict[str, Float] = {}
    lengths = np.unique(cases.pp)
    for pp in lengths:
        rows = np.flatnonzero(cases.pp == pp)
        for name, values in columns(cases.take(rows)).items():
            if name not in out:
                out[name] = np.full((len(cases), lengths[-1])[: values.ndim], np.nan)
            out[name][(rows, slice(pp))[: values.ndim]] = values
    return out


def _by_cost(stages: Int, pp: Int, layers: int, head: float) -> Float:
    """Layers of each stage if it ends with the layer that exceeds its share of layers and head."""
    exceeding = np.minimum(np.floor((layers + head) * (stages + 1) / pp) + 1, layers)
    until = np.where(stages >= pp - 1, layers, exceeding)
    return np.diff(until, axis=1, prepend=0.0)


def _head_layers(setting: TrainingSetting) -> float:
    """Return how many mean layers the products of the head are worth."""
    model, per_layer = setting.model, 0.0
    for layer, n in model.kinds:
        for tensor in layer.tensors(model.hidden):
            active = 1.0
            if tensor.shard == "experts" and isinstance(layer.mlp, MoeMlp):
                active = layer.mlp.top_k / layer.mlp.experts
            per_layer += n * tensor.numel * active
    return model.vocabulary * model.hidden * len(model.layers) / per_layer


# Parameters


@dataclass(frozen=True, slots=True)
class RankParameters(Columns):
    """Parameters on one rank before states are sharded, of shape (cases, stages).

    vocabulary: those of embedding and head.
    """

    dense: Float
    experts: Float
    vocabulary: Float
    adapters: Float


def layer_parameters(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer
) -> tuple[Float, Float]:
    """Dense and expert parameters of a layer on one rank (one of each per case)."""
    dense = experts = np.zeros(len(cases))
    for item in layer.tensors(setting.model.hidden):
        share = item.numel / split_ranks(cases, item)
        if item.shard == "experts":
            experts = experts + share
        else:
            dense = dense + share
    return dense, experts


def parameters_by_stage(setting: TrainingSetting, cases: TrainingCases) -> RankParameters:
    """Parameters of each stage on one rank, of shape (cases, stages).

    A tied head is copied where it is on another stage than the embedding. So is the embedding on
    the last stage for multi-token prediction, unless a pipeline that is fed from both ends has
    both there (arXiv:2412.19437, section 3.2.3).
    """
    model = setting.model
    count, first, last = stage_layer_counts(setting, cases)
    layers = [
        ((*layer_parameters(setting, cases, kind), adapter_sizes(setting, cases, kind)), n)
        for kind, n in model.kinds
    ]
    dense, experts, adapters = (
        add(sizes[k] * n for sizes, n in layers)[:, None] * count / len(model.layers)
        for k in range(3)
    )
    extras = [item.numel / split_ranks(cases, item) for item in model.extras] or [
        np.zeros(len(cases))
    ]
    table = (model.vocabulary * model.hidden / cases.tp)[:, None]
    heads = last * ~((first > 0) & model.tied_embeddings)
    apart = (first == 0) & ~cases.has("dualpipe")[:, None] & ~np.asarray(model.tied_embeddings)
    looked_up = last * apart * (setting.mtp_layers > 0)
    ahead = setting.mtp_layers * prediction_parameters(setting, cases)[:, None]
    rank = RankParameters(
        dense + first * add(extras)[:, None] + last * (model.hidden + ahead),
        experts,
        table * (first + heads + looked_up),
        adapters,
    )
    return map_columns(partial(with_mirror, cases), rank)


def prediction_parameters(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Parameters of multi-token prediction beside its layer, on one rank (one per case).

    The projection of a hidden state with an embedding, 2h × h, and three norms (arXiv:2412.19437,
    equation 21).
    """
    hidden = setting.model.hidden
    return np.asarray(2 * hidden * hidden / cases.tp + 3 * hidden)
