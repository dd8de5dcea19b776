"""From micro-batches to a step: pipeline schedule, gradient exchange, optimizer, and their sum."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, record_entry, strip_entries
from recipe_core.estimates.network import all_gather_s, all_reduce_s, rank_group, send_s
from recipe_core.estimates.training.activations import BYTES
from recipe_core.estimates.training.frozen_base import gathered_weight_bytes
from recipe_core.estimates.training.frozen_base import launched_s as dequantize_launch_s
from recipe_core.estimates.training.memory import stored_parameters
from recipe_core.estimates.training.optimizer_states import copied_s, update_s
from recipe_core.estimates.training.stages import (
    RankParameters,
    by_length,
    parameters_by_stage,
    stage_layer_counts,
    with_mirror,
)
from recipe_core.estimates.training.steps import Parts, Work, ends_work, layer_work, recomputed_s
from recipe_core.estimates.training.unsharded_peak import offloaded_activations
from recipe_core.models.spec import MoeMlp


def captured_launches(setting: TrainingSetting) -> float:
    """Share of a layer's launches, without those of its experts, that graphs take from the host."""
    attention = setting.calibration.attention_launches.value
    shares = {"none": 0.0, "attention": attention, "layer": 1.0, "iteration": 1.0}
    return shares[setting.cuda_graphs]


def bubble_micro_batches(cases: TrainingCases) -> Float:
    """Idle time of a pipeline in micro-batches of a stage.

    (p - 1) for GPipe and 1F1B, divided by v if interleaved (Narayanan et al., arXiv:2104.04473); a
    third of it for ZB-H1, where gradients of weights fill in, and none for ZB-V (Qi et al.,
    arXiv:2401.10241). DualPipe: (p/2 - 1) times a forward and a backward pass together and a
    backward pass less three of its gradients of weights, two thirds of a micro-batch
    (arXiv:2412.19437, table 2).
    """
    warm_up = (cases.pp - 1) / cases.virtual_stages
    warm_up = np.where(cases.has("dualpipe"), np.maximum(cases.pp / 2 - 1, 0) * 2 / 3, warm_up)
    share = np.select([cases.has("zb-h1"), cases.has("zb-v")], [1 / 3, 0.0], 1.0)
    return np.asarray(warm_up * share, dtype=float)


def training_step_parts(setting: TrainingSetting, cases: TrainingCases) -> Parts:
    """Seconds of one optimizer step by part (one per case); the parts add up to the step."""
    return by_length(cases, partial(parts_of_length, setting))


def parts_of_length(setting: TrainingSetting, cases: TrainingCases) -> Parts:
    """The same of pipelines of one length."""
    m = cases.micro_batches.astype(float)
    work = _mean_layer(setting, cases)
    repeated = recomputed_s(setting, cases, work)
    forward_s, backward_s = add(work.forward.values()), add(work.backward.values())
    reference_s = forward_s if setting.method == "dpo" else np.zeros(len(cases))
    embedding, head = ends_work(setting, cases)
    # a device of a pipeline fed from both ends computes half of two stages
    ways = np.where(cases.has("dualpipe"), 2.0, 1.0)[:, None]
    count, first, last = (with_mirror(cases, x) / ways for x in stage_layer_counts(setting, cases))
    per_layer = forward_s + backward_s + repeated + reference_s
    # the host launches kernels ahead of a busy device: only what the device does not cover counts
    launched_s = _launched_s(setting, cases)
    # activations go to the host behind the forward pass and come back behind the backward pass
    link = setting.calibration.host_link_bytes_per_s.value
    copy_s = _fitted_s(
        offloaded_activations(setting, cases) / link, "Activations by the host link", "layer"
    )
    waits = np.maximum(copy_s - forward_s, 0.0) + np.maximum(copy_s - backward_s - repeated, 0.0)
    unhidden = np.maximum(launched_s - per_layer, 0.0) + waits
    layer_s = (per_layer + unhidden)[:, None]
    stages = count * layer_s + first * _work_s(embedding)[:, None] + last * _work_s(head)[:, None]
    slowest = np.nanargmax(strip_entries(stages), axis=1)
    rows = np.arange(len(cases))
    n = count[rows, slowest]
    parts: Parts = {}
    for name in work.forward:
        parts[f"forward_{name}"] = m * n * work.forward[name]
        parts[f"backward_{name}"] = m * n * work.backward[name]
    for end, stage_has in ((embedding, first), (head, last)):
        for name in end.forward:
            seconds = end.forward[name] + end.backward[name]
            parts[name] = m * stage_has[rows, slowest] * seconds
    parts["recompute"] = m * n * repeated
    parts["reference"] = m * n * reference_s
    parts["launch"] = m * n * unhidden
    parts["bubble"] = bubble_micro_batches(cases) * np.nanmean(stages, axis=1)
    parts["pipeline_parallel"] = _hand_over_s(setting, cases, m)
    rank = parameters_by_stage(setting, cases)
    exchange = partial(_data_parallel, setting, cases, rank, slowest, m)
    passes = forward_s * n, (backward_s + repeated) * n
    parts["data_parallel"] = exchange(*passes)
    parts["host_parameters"] = np.zeros(len(cases))
    if cases.host_parameters.any():
        stored = stored_parameters(setting, cases, rank)
        copies = copied_s(setting, cases, *(part[rows, slowest] for part in stored))
        parts["host_parameters"] = exchange(*passes, copies) - parts["data_parallel"]
    trained = rank.adapters if setting.frozen else rank.dense + rank.experts + rank.vocabulary
    divided = np.where(cases.zero_stage > 0, cases.shard, 1)
    parts["optimizer"] = update_s(setting, cases, np.nanmax(trained, axis=1) / divided)
    parts["fixed"] = _fitted_s(
        np.full(len(cases), setting.calibration.step_s.value), "Step", "step"
    )
    # the slowest of many nodes sets the pace: the fitted share grows with each doubling of them
    slow = setting.calibration.straggler.value * np.log2(np.maximum(cases.nodes_used, 1))
    parts["stragglers"] = slow * add(parts.values())
    return parts


def _launched_s(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Host seconds of a mean layer, one per case.

    What any layer launches, and what experts, 4 bits and the ranks of a pipeline's stage launch
    beside it.
    """
    kinds, framework = setting.model.kinds, setting.framework
    experts = sum(n for layer, n in kinds if isinstance(layer.mlp, MoeMlp))
    each_s = framework.launch_s.value * (1 - captured_launches(setting))
    each_s += framework.expert_launch_s.value * experts / len(setting.model.layers)
    piped_s = framework.pipeline_launch_s.value * np.where(cases.pp > 1, cases.tp, 0)
    beside_s = dequantize_launch_s(setting, cases) + piped_s
    seconds: Float = _fitted_s(each_s + beside_s, "Kernel launches of a layer", "layer")
    return seconds


def _fitted_s(seconds: Any, label: str, per: str) -> Any:
    """Seconds that were fitted as they are, for the ledger."""
    return record_entry(seconds, lambda once_s: Overhead(label, once_s, each_s=once_s, per=per))


def _mean_layer(setting: TrainingSetting, cases: TrainingCases) -> Work:
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    return reduce(
        Work.plus, [layer_work(setting, cases, kind).scaled(n / layers) for kind, n in kinds]
    )


def _work_s(work: Work) -> Float:
    return add(work.forward.values()) + add(work.backward.values())


def _hand_over_s(setting: TrainingSetting, cases: TrainingCases, m: Float) -> Float:
    """Seconds to send hidden states forward and gradients back at all boundaries, for a step."""
    cluster = setting.cluster
    reach = (cluster.fabric.domain or 1) if cluster.rack_scale else cases.per_node
    across = cases.devices > reach  # some boundary is between nodes: all wait for it
    data = BYTES * cases.tokens * setting.model.hidden / cases.norm_share
    exposed = setting.calibration.pipeline_exposed.value
    boundary_s = exposed * 2 * send_s(cluster, across, data) * cases.virtual_stages
    return np.where(cases.pp > 1, boundary_s * (m + cases.pp - 1), 0.0)


def _data_parallel(
    setting: TrainingSetting,
    cases: TrainingCases,
    rank: RankParameters,
    stage: Float,
    m: Float,
    forward_s: Float,
    backward_s: Float,
    host: tuple[Float, Float] | None = None,
) -> Float:
    """Seconds that gradients and parameters take between replicas, beyond what computing hides.

    With ``host``, seconds forward and backward, also between the host and the devices: a layer is
    copied before it is gathered, and its gradient once it is scattered.

    FSDP: every micro-batch gathers parameters before the forward pass, again before the backward
    pass (ZeRO-3), and scatters gradients; both passes hide it. Otherwise gradients are reduced once
    a step behind the last backward pass, then parameters gathered. HSDP adds an all-reduce of the
    shards between groups.
    """
    states, overlap = setting.states, setting.framework.data_overlap.value
    cluster, shard = setting.cluster, np.maximum(cases.shard, 1)
    layers = rank.dense + rank.experts * _expert_share(cases)[:, None]
    rows = np.arange(len(cases))
    trained = (rank.adapters if setting.frozen else layers + rank.vocabulary)[rows, stage]
    beside = rank.vocabulary + (rank.adapters if setting.frozen else 0.0)
    gathered = gathered_weight_bytes(setting) * layers + states.gathered * beside
    reduced = states.reduced * trained
    group = rank_group(cluster, cases, cases.shard, cases.tp)
    gather = all_gather_s(cluster, group, gathered[rows, stage], "Gather of parameters")
    scatter = all_gather_s(cluster, group, reduced, "Scatter of gradients")
    copies = np.maximum(cases.replicas // shard, 1)
    between = rank_group(cluster, cases, copies, cases.tp * cases.shard)
    spread = np.where(copies > 1, all_reduce_s(cluster, between, reduced / shard), 0.0)
    everyone = rank_group(cluster, cases, cases.replicas, cases.tp)
    layerwise = cases.zero_stage >= (2 if setting.framework.sharding == "fsdp" else 3)
    regathers = np.where(cases.zero_stage == 3, 2.0, 1.0) - 1
    scatters = np.where(cases.sync_step > 0, 1.0, m)  # times a step
    down, up = (np.zeros(len(cases)),) * 2 if host is None else host
    by_layer = m * np.maximum(down + gather - overlap * forward_s, 0)
    again = up + regathers * gather
    by_layer = by_layer + (m - scatters) * np.maximum(again - overlap * backward_s, 0)
    exchange = again + scatter
    if host is not None:
        link = setting.calibration.host_link_bytes_per_s.value
        exchange = exchange + np.where(cases.host_parameters, reduced / shard / link, 0.0)
    by_layer = by_layer + scatters * np.maximum(exchange - overlap * backward_s, 0) + spread
    updated = all_gather_s(cluster, group, states.gathered * trained, "Gather of the update")
    reduce_s = all_reduce_s(cluster, everyone, reduced)
    once = np.where(cases.zero_stage >= 1, scatter + spread + updated, reduce_s)
    at_end = np.maximum(once - overlap * (backward_s + forward_s), 0.0)
    moves = (cases.replicas > 1) | (cases.host_parameters & (host is not None))
    return np.where(moves, np.where(layerwise, by_layer, at_end), 0.0)


def gradient_copies_s(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Seconds of a step in which gradients of the fullest stage go to the host, none hidden."""
    rank = parameters_by_stage(setting, cases)
    trained = rank.adapters if setting.frozen else rank.dense + rank.experts + rank.vocabulary
    moved = setting.states.reduced * np.nanmax(trained, axis=1) / np.maximum(cases.shard, 1)
    times = np.where(cases.sync_step > 0, 1, cases.micro_batches)
    return np.asarray(times * moved / setting.calibration.host_link_bytes_per_s.value)


def _expert_share(cases: TrainingCases) -> Float:
    """Traffic of experts against dense parameters of the same size: (d - 1)/d of their copies.

    None where every expert exists once.
    """
    copies = np.maximum(cases.tp * cases.replicas / np.maximum(cases.ep, 1), 1.0)
    dense = 1 - 1 / np.maximum(cases.replicas, 2)
    return np.where(cases.ep > 1, np.minimum((1 - 1 / copies) / dense, 1.0), 1.0)
