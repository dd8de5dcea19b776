"""From micro-batches to a step: pipeline schedule, exchange of gradients and parameters, optimizer, and the parts that add up to it."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.physics.network import all_gather_s, all_reduce_s, rank_group, send_s
from recipe_core.physics.training.activations import BYTES
from recipe_core.physics.training.memory import Held, held
from recipe_core.physics.training.stages import by_length, stage_layers
from recipe_core.physics.training.steps import (
    Parts,
    Work,
    ends_work,
    layer_work,
    optimizer_s,
    recomputed,
)
from recipe_core.space.training import TrainingCases, TrainingSetting


def bubble_micro_batches(cases: TrainingCases) -> Float:
    """Idle time of a pipeline in micro-batches of a stage.

    (p - 1) for GPipe and 1F1B, a v-th of it interleaved (Narayanan et al., arXiv:2104.04473); a third of it for ZB-H1, where weights'
    gradients fill in, and none for ZB-V (Qi et al., arXiv:2401.10241).
    """
    warm = (cases.pp - 1) / cases.virtual_stages
    return np.asarray(
        warm * np.select([cases.has("zb-h1"), cases.has("zb-v")], [1 / 3, 0.0], 1.0), dtype=float
    )


def step_parts(setting: TrainingSetting, cases: TrainingCases) -> Parts:
    """Seconds of one optimizer step by part; the values add up to the step."""
    return by_length(cases, partial(_parts, setting))


def _parts(setting: TrainingSetting, cases: TrainingCases) -> Parts:
    """The same of pipelines of one length."""
    calibration = setting.calibration
    m = cases.micro_batches.astype(float)
    work = _mean_layer(setting, cases)
    again = recomputed(setting, cases, work)
    compared = add(work.forward.values()) if setting.method == "dpo" else np.zeros(len(cases))
    embedding, head = ends_work(setting, cases)
    count, first, last = stage_layers(setting, cases)
    per_layer = add(work.forward.values()) + add(work.backward.values()) + again + compared
    unhidden = np.maximum(
        setting.framework.launch_s.value - per_layer, 0.0
    )  # the host launches ahead of a device that is busy
    layer_s = (per_layer + unhidden)[:, None]
    stages = count * layer_s + first * _seconds(embedding)[:, None] + last * _seconds(head)[:, None]
    slowest = np.nanargmax(stages, axis=1)
    rows = np.arange(len(cases))
    n = count[rows, slowest]
    parts: Parts = {}
    for name in work.forward:
        parts[f"forward_{name}"], parts[f"backward_{name}"] = (
            m * n * work.forward[name],
            m * n * work.backward[name],
        )
    for end, there in ((embedding, first), (head, last)):
        for name in end.forward:
            parts[name] = m * there[rows, slowest] * (end.forward[name] + end.backward[name])
    parts["recompute"] = m * n * again
    parts["reference"] = m * n * compared
    parts["launch"] = m * n * unhidden
    mean = np.nanmean(stages, axis=1)
    parts["bubble"] = bubble_micro_batches(cases) * mean
    parts["pipeline_parallel"] = _hand_over(setting, cases, m)
    whole = held(setting, cases)
    parts["data_parallel"] = _data_parallel(
        setting,
        cases,
        whole,
        slowest,
        m,
        add(work.forward.values()) * n,
        (add(work.backward.values()) + again) * n,
    )
    trained = whole.adapters if setting.frozen else whole.dense + whole.experts + whole.vocabulary
    divided = np.where(cases.zero_stage > 0, cases.shard, 1)
    parts["optimizer"] = optimizer_s(setting, cases, np.nanmax(trained, axis=1) / divided)
    parts["fixed"] = np.full(len(cases), calibration.step_s.value)
    slow = calibration.straggler.value * np.log2(np.maximum(cases.nodes_used, 1))
    parts["stragglers"] = slow * add(parts.values())
    return parts


def _mean_layer(setting: TrainingSetting, cases: TrainingCases) -> Work:
    """A layer as the model has them on average."""
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    return reduce(
        Work.plus, [layer_work(setting, cases, kind).scaled(n / layers) for kind, n in kinds]
    )


def _seconds(work: Work) -> Float:
    return add(work.forward.values()) + add(work.backward.values())


def _hand_over(setting: TrainingSetting, cases: TrainingCases, m: Float) -> Float:
    """Hidden states forward and their gradients back, at each boundary of chunks that a stage has, for every micro-batch."""
    cluster = setting.cluster
    across = cases.devices > (
        (cluster.fabric.domain or 1) if cluster.rack_scale else cases.per_node
    )  # some boundary is: all wait for it
    one = send_s(cluster, across, BYTES * cases.tokens * setting.model.hidden / cases.norm_share)
    return np.where(
        cases.pp > 1,
        setting.calibration.pipeline_exposed.value
        * 2
        * one
        * cases.virtual_stages
        * (m + cases.pp - 1),
        0.0,
    )


def _data_parallel(
    setting: TrainingSetting,
    cases: TrainingCases,
    whole: Held,
    stage: Float,
    m: Float,
    forward_s: Float,
    backward_s: Float,
) -> Float:
    """Seconds that gradients and parameters take between replicas, beyond what computing hides.

    FSDP: every micro-batch gathers parameters before the forward pass, again before the backward pass (ZeRO-3), and scatters gradients;
    it hides behind both passes. Otherwise gradients are reduced once a step behind the last backward pass, then parameters gathered.
    HSDP adds an all-reduce of the shards between groups.
    """
    states, overlap = setting.states, setting.framework.data_overlap.value
    rows = np.arange(len(cases))
    parameters = (whole.dense + whole.experts * _expert_share(cases)[:, None] + whole.vocabulary)[
        rows, stage
    ]
    trained = whole.adapters[rows, stage] if setting.frozen else parameters
    group = rank_group(setting.cluster, cases, cases.shard, cases.tp)
    gather = all_gather_s(setting.cluster, group, states.gathered * parameters)
    scatter = all_gather_s(setting.cluster, group, states.reduced * trained)
    copies = np.maximum(cases.replicas // np.maximum(cases.shard, 1), 1)
    between = rank_group(setting.cluster, cases, copies, cases.tp * cases.shard)
    spread = np.where(
        copies > 1,
        all_reduce_s(
            setting.cluster, between, states.reduced * trained / np.maximum(cases.shard, 1)
        ),
        0.0,
    )
    everyone = all_reduce_s(
        setting.cluster,
        rank_group(setting.cluster, cases, cases.replicas, cases.tp),
        states.reduced * trained,
    )
    layerwise = cases.zero_stage >= (2 if setting.framework.sharding == "fsdp" else 3)
    twice = np.where(cases.zero_stage == 3, 2.0, 1.0)
    scattered = np.where(cases.sync_step > 0, 1.0, m)  # times a step
    ahead = m * np.maximum(gather - overlap * forward_s, 0) + (m - scattered) * np.maximum(
        (twice - 1) * gather - overlap * backward_s, 0
    )
    by_layer = (
        ahead
        + scattered * np.maximum((twice - 1) * gather + scatter - overlap * backward_s, 0)
        + spread
    )
    updated = states.gathered * trained
    once = np.where(
        cases.zero_stage >= 1,
        scatter + spread + all_gather_s(setting.cluster, group, updated),
        everyone,
    )
    at_end = np.maximum(once - overlap * (backward_s + forward_s), 0.0)
    return np.where(cases.replicas > 1, np.where(layerwise, by_layer, at_end), 0.0)


def _expert_share(cases: TrainingCases) -> Float:
    """Of experts' traffic, against that of dense parameters: (d - 1)/d of the copies of each; none where every expert is there once."""
    copies = np.maximum(cases.tp * cases.replicas / np.maximum(cases.ep, 1), 1.0)
    alone = 1 - 1 / np.maximum(cases.replicas, 2)
    return np.where(cases.ep > 1, np.minimum((1 - 1 / copies) / alone, 1.0), 1.0)
