"""Which layers a pipeline stage holds.

``even``: as many layers in each, the first ones take what is over. ``cost``: where the head is worth a layer or more, a stage takes layers
until its share of the products is reached, the head counted among them (nanotron's rule; Megatron has pipeline layouts and
``account_for_loss_in_pipeline_split`` for it), so first stages hold more layers than last ones. Chunks of interleaved schedules are even:
every stage has the same number of them at the same size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.model.spec import MoeMlp
from recipe_core.space.training import TrainingCases, TrainingSetting


def stage_layers(setting: TrainingSetting, cases: TrainingCases) -> tuple[Float, Float, Float]:
    """Cases × stages: layers, whether the stage has the embedding, whether it has the head. Rows end in NaN past the last stage."""
    stages = np.arange(int(cases.pp.max()), dtype=np.int64)[None, :]
    pp, layers = cases.pp[:, None], len(setting.model.layers)
    there = stages < pp
    count = (layers // pp + (stages < layers % pp)).astype(float)
    if setting.framework.stages == "cost" and (head := _head_layers(setting)) >= 1:
        count = np.where(
            cases.virtual_stages[:, None] > 1, count, _by_cost(stages, pp, layers, head)
        )
    first = np.where(there, stages == 0, np.nan).astype(float)
    last = np.where(
        there, np.where(cases.has("zb-v")[:, None], stages == 0, stages == pp - 1), np.nan
    ).astype(float)
    return np.where(there, count, np.nan), first, last


def by_length(
    cases: TrainingCases, columns: Callable[[TrainingCases], dict[str, Float]]
) -> dict[str, Float]:
    """What ``columns`` makes of cases (a value each, or cases × stages), of pipelines of one length at a time.

    So nothing is computed for stages that are not there, which is most of cases × stages where few pipelines are long. Rows of stages
    end in NaN past the last one.
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
    """Layers of each stage when one ends with the first layer that passes its share of ``layers + head``."""
    passed = np.minimum(np.floor((layers + head) * (stages + 1) / pp) + 1, layers)
    until = np.where(stages >= pp - 1, layers, passed)
    return np.diff(until, axis=1, prepend=0.0)


def _head_layers(setting: TrainingSetting) -> float:
    """How many layers the products of the head are worth."""
    model = setting.model
    inside = sum(
        n
        * item.numel
        * (
            layer.mlp.top_k / layer.mlp.experts
            if item.shard == "experts" and isinstance(layer.mlp, MoeMlp)
            else 1.0
        )
        for layer, n in model.kinds
        for item in layer.tensors(model.hidden)
    )
    return model.vocabulary * model.hidden * len(model.layers) / inside
