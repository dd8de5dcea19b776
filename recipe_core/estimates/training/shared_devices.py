"""Memory of a device that a training and the engine that samples for it share.

While the model is trained, a device holds the training's peak and what a sleeping engine keeps.
While answers are sampled, it holds

    states that stay + contexts and reserves + the engine + what both have beside

The engine has its share, or at first its weights with what brings new ones to it, if that is more:
its cache wakes when they are there. What both have beside (the engine's own context, captured
graphs and communicators, the trainer's second ones, and what its allocator keeps) was measured at
two ends (``beside_share_bytes``): a share that leaves less than the lower cannot run, one that
leaves less than the higher is uncertain, and the share that is taken by itself leaves the higher.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import gib
from recipe_core.engines.frameworks import State, training_data
from recipe_core.estimates.columns.rollout import LEAST_SHARE, Sampling
from recipe_core.estimates.columns.training import TrainingSetting
from recipe_core.estimates.training.memory import REFERENCE_BYTES, Memory

# Bytes of a weight that the engine is sent.
WEIGHT_BYTES = 2.0
# States of the training that last from step to step; gradients are let go.
KEPT: tuple[State, ...] = ("parameters", "optimizer", "master")

Parts = dict[str, Float]


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
    """Why a share does not fit beside what stays on a device, with one that does."""
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
    """What to know of a share that leaves less than the most that was seen beside it."""
    low, high = beside_bytes()
    fits = float(sampling.share_left(np.array([resident + high]))[0])
    text = (
        f"memory_share {share:.2f} leaves {gib(free_bytes)} per GPU beside it and the states "
        f"of the training, where trainer and engine took {gib(low)} to {gib(high)}"
    )
    return text + (f"; {fits:.2f} leaves enough" if LEAST_SHARE <= fits < share else "")


def published_doubt(share: float) -> str:
    """What to know of a share that published runs died of, though all that is counted fits."""
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
