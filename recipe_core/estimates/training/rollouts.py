"""Rollouts of a step: the serving estimate of all its answers, queued at once.

Beside a training the engine has a share of each device (`shared_devices`); the fastest of the
tensor-parallel degrees is taken, and states stay on the devices where all fits beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import gib
from recipe_core.engines.frameworks import State, training_data
from recipe_core.estimates.columns.columns import Columns, select_rows
from recipe_core.estimates.columns.rollout import LEAST_SHARE, Sampling
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving
from recipe_core.estimates.training.memory import REFERENCE_BYTES, Memory

# Bytes of a weight that the engine is sent.
WEIGHT_BYTES = 2.0
# States of the training that last from step to step; gradients are let go.
KEPT: tuple[State, ...] = ("parameters", "optimizer", "master")

Parts = dict[str, Float]
Texts = NDArray[np.object_]


def resident_states(setting: TrainingSetting, sampling: Sampling, mem: Memory) -> Parts:
    """Bytes of a device's fullest stage that last from step to step (one of each per case).

    ``trained``: states that the framework can move to the host, the critic's among them, which are
    as large; ``stays``: those that it cannot. ``frozen``: frozen models, which are divided as
    parameters are.
    """
    models = 2.0 if sampling.critic else 1.0
    moves = setting.framework.offloads
    none = np.zeros_like(mem.parts["parameters"])
    movable = add(mem.parts[name] for name in KEPT if name in moves) + none
    fixed = add(mem.parts[name] for name in KEPT if name not in moves) + none
    return {
        "trained": models * np.nanmax(movable, axis=1),
        "stays": models * np.nanmax(fixed, axis=1),
        "frozen": np.nanmax(_frozen_model_bytes(setting, sampling, mem), axis=1),
    }


def host_waiting_bytes(sampling: Sampling, resident: Parts) -> Parts:
    """Bytes of a device that wait on the host where states are offloaded.

    Apart the model trains all the time: only the critic's states, half of all, make room for it.
    """
    share = 1.0
    if sampling.apart:
        share = 0.5 if sampling.critic else 0.0
    return {"trained": share * resident["trained"], "frozen": resident["frozen"]}


def sleeping_bytes(setting: TrainingSetting, sampling: Sampling, tp: Int) -> Float:
    """Bytes of a device's part of the engine's weights that wait on the host while it sleeps.

    Weights that are let go are sent anew. Those of an engine at level 1 wait, and those of a frozen
    base always do.
    """
    sync = setting.framework.sync
    level = 1 if sampling.adapters or sync is None else sync.sleep_level
    waits = level == 1 and not sampling.apart
    weight_bytes = WEIGHT_BYTES * setting.model.language_parameters if waits else 0.0
    return np.asarray(weight_bytes / tp)


def with_companions(
    setting: TrainingSetting, sampling: Sampling, offload: Bool, mem: Memory
) -> Memory:
    """Memory while the model is trained: with the critic's states, frozen models, sleeping engine.

    Where states are offloaded, those that are not at work are on the host, as far as the framework
    moves them.
    """
    stays = (~offload)[:, None]
    parts = dict(mem.parts)
    if sampling.critic:
        for name in KEPT:
            moved = name in setting.framework.offloads
            parts[name] = parts[name] * (1 + (stays if moved else 1.0))
    parts["reference"] = parts["reference"] + stays * _frozen_model_bytes(setting, sampling, mem)
    asleep = training_data().run.sleeping_engine_bytes
    sleeping_engine = asleep.get(sampling.work.engine, asleep["any"]).value
    parts["reserve"] = parts["reserve"] + (0.0 if sampling.apart else sleeping_engine)
    return replace(mem, parts=parts, peak_bytes=np.nanmax(add(parts.values()), axis=1))


def training_resident_bytes(
    setting: TrainingSetting, resident: Parts, offload: Bool | bool
) -> Float:
    """Bytes of a device that the training keeps while answers are sampled."""
    figures = setting.calibration
    moved = np.where(offload, 0.0, resident["trained"] + resident["frozen"])
    fixed = figures.context_bytes.value + figures.reserve_bytes.value
    return np.asarray(resident["stays"] + moved + fixed)


def engine_bytes(setting: TrainingSetting, sampling: Sampling, share: Float, tp: Int) -> Float:
    """Bytes of a device that the engine has: its share, or its weights and what brings new ones."""
    share_bytes = share * setting.cluster.device.usable_memory_bytes
    sync = setting.framework.sync
    if sampling.apart or sync is None:
        return np.asarray(share_bytes)
    weights = WEIGHT_BYTES * setting.model.language_parameters / tp
    largest = 0.0 if sampling.adapters else _largest_tensor(setting)
    arriving = sync.buffer_bytes + sync.bytes_per_value * largest
    return np.asarray(np.maximum(share_bytes, weights + arriving))


def beside_bytes() -> tuple[float, float]:
    """The least and the most that trainer and engine have beside states and share, in bytes."""
    beside = training_data().run.beside_share_bytes
    return beside.low.value, beside.high.value


def too_large_text(sampling: Sampling, share: float, resident: float, offload: bool) -> str:
    """Say why a share does not fit beside what stays on a device, with one that does."""
    usable, (low, high) = sampling.serving.cluster.device.usable_memory_bytes, beside_bytes()
    fits = float(sampling.share_left(np.array([resident + high]))[0])
    remedies = [f"workload.rollout.memory_share: {fits:.2f}"] if fits >= LEAST_SHARE else []
    remedies += [] if offload else ["workload.rollout.offload: true"]
    remedies += ["workload.rollout.placement: apart"]
    return (
        f"rollout: memory_share {share:.2f} is {gib(share * usable)} per GPU, which does not fit "
        f"beside the states of the training, {gib(resident)}, and {gib(low)} to {gib(high)} that "
        f"trainer and engine have beside; set {', or '.join(remedies)}"
    )


def share_doubt_text(sampling: Sampling, share: float, free_bytes: float, resident: float) -> str:
    """Say what to know of a share that leaves less than the most that was seen beside it."""
    low, high = beside_bytes()
    fits = float(sampling.share_left(np.array([resident + high]))[0])
    text = (
        f"memory_share {share:.2f} leaves {gib(free_bytes)} per GPU beside it and the states "
        f"of the training, where trainer and engine took {gib(low)} to {gib(high)}"
    )
    return text + (f"; {fits:.2f} leaves enough" if LEAST_SHARE <= fits < share else "")


def published_doubt(share: float) -> str:
    """Say what to know of a share that published runs died of, though all that is counted fits."""
    doubted = training_data().run.doubted_share.value
    return (
        f"memory_share {share:.2f} is in the range of published runs that ran out of "
        f"memory ({doubted:g} and more); {doubted - 0.1:g} ran"
    )


def _frozen_model_bytes(setting: TrainingSetting, sampling: Sampling, mem: Memory) -> Float:
    """Bytes of the frozen models of each stage, of shape (cases, stages)."""
    stored = WEIGHT_BYTES if setting.frozen else setting.states.parameter
    model_bytes = mem.parts["parameters"] / stored * REFERENCE_BYTES
    return np.asarray(sampling.frozen_models * model_bytes)


def _largest_tensor(setting: TrainingSetting) -> float:
    """Values of the model's largest tensor: an embedding, or the stacked experts of a layer."""
    model = setting.model
    layers = (item.numel for kind, _ in model.kinds for item in kind.tensors(model.hidden))
    return float(max(model.vocabulary * model.hidden, *layers))


@dataclass(frozen=True, slots=True)
class Rollouts(Columns):
    """The sampling of answers beside each case, one number per case.

    ``offload``: whether states of the training wait on the host meanwhile; ``share``: of the
    device that the engine takes; ``in_flight``: answers that a copy decodes at once;
    ``device_bytes``: of a device while it samples. ``reasons``: why none of them can, empty where
    one can; ``doubts``: why it is uncertain that one can.
    """

    seconds: Float
    tail_s: Float
    tokens_per_s: Float
    tp: Int
    copies: Int
    share: Float
    in_flight: Float
    offload: Bool
    device_bytes: Float
    reasons: Texts
    doubts: Texts

    @property
    def refused(self) -> Bool:
        """Cases beside which no answers can be sampled."""
        return self.reasons.astype(np.bool_)

    @property
    def certainty(self) -> Float:
        """Return what a start keeps of its probability beside them, one per case."""
        doubted_share = training_data().run.doubted_start.value
        return np.where(self.doubts.astype(np.bool_), doubted_share, 1.0)


def rollouts_of(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    mem: Memory,
    resident: Parts,
) -> Rollouts:
    """The fastest rollout beside each case.

    States stay on the device where the engine and the update fit beside them, and otherwise, if the
    request leaves it open, wait on the host. ``mem``: of the training alone; ``resident``: what of
    it lasts from step to step.
    """
    stated_offload = sampling.work.offload
    if stated_offload is not None:
        return _rollouts_beside(setting, sampling, cases, resident, stated_offload)
    awake, asleep = (
        _rollouts_beside(setting, sampling, cases, resident, offload) for offload in (False, True)
    )
    trains = with_companions(setting, sampling, awake.offload, mem).peak_bytes
    better = awake.refused | (trains > mem.capacity_bytes)
    return select_rows(better & ~asleep.refused, asleep, awake)


def _rollouts_beside(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    resident: Parts,
    offload: bool,
) -> Rollouts:
    """Rollouts with the share of a device that is left, or on devices of their own."""
    flags = np.full(len(cases), offload)
    if sampling.apart:
        share, devices = (
            np.full(len(cases), value) for value in (sampling.usual_share, sampling.own_devices)
        )
        sampled = _fastest_rollouts(sampling, devices, share)
        device_bytes = engine_bytes(setting, sampling, share, sampled.tp)
        return replace(sampled, offload=flags, device_bytes=device_bytes)
    stays = training_resident_bytes(setting, resident, flags)
    (low, high), usable = beside_bytes(), setting.cluster.device.usable_memory_bytes
    share = sampling.share_beside(stays + high)
    sampled = _fastest_rollouts(sampling, cases.devices, share)
    device_bytes = stays + engine_bytes(setting, sampling, share, sampled.tp)
    free_bytes = usable - device_bytes
    reasons, doubts = sampled.reasons.copy(), sampled.doubts.copy()
    large = share >= training_data().run.doubted_share.value
    for i in np.flatnonzero((free_bytes < high) | large):
        about = (sampling, float(share[i]))
        if free_bytes[i] < low:
            reasons[i] = too_large_text(*about, float(stays[i]), offload)
        elif free_bytes[i] < high:
            doubts[i] = share_doubt_text(*about, float(free_bytes[i]), float(stays[i]))
        else:
            doubts[i] = published_doubt(float(share[i]))
    return replace(
        sampled,
        offload=flags,
        device_bytes=device_bytes + low,
        reasons=reasons,
        doubts=doubts,
    )


def _fastest_rollouts(sampling: Sampling, devices: Int, share: Float) -> Rollouts:
    """The fastest of the tensor-parallel degrees on so many devices, with such a share of each.

    Cases that agree in both are estimated once.
    """
    keys, back = np.unique(np.stack([devices, share]), axis=1, return_inverse=True)
    counts, shares = keys[0].astype(np.int64), keys[1]
    tried = [_with_ranks(sampling, counts, shares, tp) for tp in sampling.tensor_ranks]
    seconds = np.stack([np.where(rollouts.refused, np.inf, rollouts.seconds) for rollouts in tried])
    fastest = np.argmin(seconds, axis=0)
    best = tried[0]
    for k, rollouts in enumerate(tried[1:], 1):
        best = select_rows(fastest == k, rollouts, best)
    return best.take(back.reshape(-1))


def _with_ranks(sampling: Sampling, devices: Int, share: Float, tp: int) -> Rollouts:
    """Rollouts by copies of ``tp`` ranks, estimated as a queue that the engine works off."""
    work, many = sampling.work, len(devices)
    ranks = np.full(many, tp)
    columns, fits = sampling.cases(devices, ranks, share)
    queued = estimate_serving(sampling.serving, columns)
    alone = replace(sampling.serving, mode="static")
    last = estimate_serving(alone, replace(columns, load=columns.dp.astype(float)))
    served = queued.serving
    tail = np.maximum(work.longest_response - work.response_tokens, 0) * last.serving.tpot_s
    answers_s = work.sequences * work.response_tokens / served.output_tokens_per_s
    return Rollouts(
        seconds=answers_s + tail,
        tail_s=tail,
        tokens_per_s=served.output_tokens_per_s,
        tp=ranks,
        copies=columns.dp,
        share=share,
        in_flight=served.resident,
        offload=np.zeros(many, dtype=np.bool_),
        device_bytes=np.zeros(many),
        reasons=_rollout_reasons(queued, fits, devices, tp),
        doubts=np.full(many, "", dtype=object),
    )


def _rollout_reasons(queued: Estimates, fits: Bool, devices: Int, tp: int) -> Texts:
    """Say why a rollout cannot run, with what to change; empty where it can."""
    feasible = queued.feasible
    out = []
    for i in range(len(devices)):
        if not fits[i]:
            out.append(
                f"rollout: {devices[i]} devices are not divisible by TP {tp}; set "
                "workload.rollout.tp to a divisor, or leave it out"
            )
        elif not feasible[i]:
            reason = queued.reasons(i)[0]
            out.append(f"rollout with TP {tp}: {reason}; use a larger workload.rollout.tp")
        else:
            out.append("")
    return np.array(out, dtype=object)
