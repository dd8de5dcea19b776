"""A step of reinforcement learning: answers are sampled, scored and trained on (GRPO, PPO).

    step = rollout + scoring + updates + weight sync + moves      (colocated)
    step = max(rollout, scoring + updates) + weight sync          (apart, one step ahead)

*Rollout*: the serving estimate of all answers queued at once at their mean length, and the tail,
when only the longest are left: (longest - mean) decode steps of one sequence. With a step's time
linear in the sequences that it decodes, the two together are exact for any spread of lengths: a
step costs what its sequences cost, and there are as many as the longest answer has tokens.

*Scoring*: forward passes over every answer: the model's own log-probabilities, a frozen reference,
a model that rewards, and a critic's values (PPO; critic and frozen models have the model's size).
A forward pass is the share of an optimizer step that is computed forward, without recomputation.

*Updates*: optimizer steps at the mean length, as answers are packed; PPO trains the critic too.
A micro-batch must hold the longest answer, which counts for memory.

*Weight sync*: all ranks gather the weights in 16 bits; apart they are sent on once more. Of
adapters beside the engine only these are gathered: its frozen weights wait in the host's memory
while it sleeps (vLLM's level 1), and come back in every step.

*Memory*, colocated: while it trains, a device holds the training's peak and what a sleeping engine
keeps; while it samples, the engine's share beside parameters, optimizer states, frozen models and
critic, unless these wait in the host's memory (moved out and in every step).

Sources: HybridFlow, arXiv:2409.19256 (phases, colocation); OpenRLHF, arXiv:2405.11143; GRPO,
arXiv:2402.03300. Left out: tools and other turns of a conversation, filtered answers (DAPO),
partial rollouts, time of programs that reward (``reward_s`` states it), engines that start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import gib
from recipe_core.engines.frameworks import State, training_data
from recipe_core.physics.network import all_gather_s, rank_group, send_s
from recipe_core.physics.serving.estimates import Estimates
from recipe_core.physics.serving.estimates import estimate as serving_estimate
from recipe_core.physics.training.memory import REFERENCE_BYTES, Memory, adapter_parameters
from recipe_core.space.refusal import Refusal
from recipe_core.space.rollout import Sampling
from recipe_core.space.training import TrainingCases, TrainingSetting

WEIGHT_BYTES = 2.0
"""Bytes of a weight that the engine is sent."""
KEPT: tuple[State, ...] = ("parameters", "optimizer", "master")
"""States of the training that last from step to step; gradients are let go."""

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How answers are sampled beside each case, one number per case.

    ``offload``: whether states of the training wait on the host meanwhile; ``share``: of the
    device that the engine takes; ``in_flight``: answers that a copy decodes at once;
    ``reasons``: why none of them can, empty where one can.
    """

    seconds: Float
    tail_s: Float
    tokens_per_s: Float
    tp: Int
    copies: Int
    share: Float
    in_flight: Float
    offload: Bool
    reasons: tuple[str, ...]

    @property
    def refused(self) -> Bool:
        """Cases beside which no answers can be sampled."""
        return np.array([bool(reason) for reason in self.reasons], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """A step by its phases, in seconds, and bytes of a device by phase, one number per case.

    ``parts`` add up to the step; ``phases`` are whole, also where they run side by side.
    """

    sampling: Sampling
    rollouts: Rollouts
    parts: Parts
    phases: Parts
    memory: Memory
    training_bytes: Float
    rollout_bytes: Float
    offloaded_bytes: Float
    sync_bytes: float

    def refusals(self, setting: TrainingSetting, cases: TrainingCases) -> list[Refusal]:
        """Cases beside which the engine does not fit, or whose states exceed the host's memory."""
        found, rollouts = self.rollouts.refused, self.rollouts
        out = [Refusal("rollout", found, lambda i: rollouts.reasons[i])]
        host = setting.cluster.device.node.host_memory_bytes
        if host is not None:
            needed = self.offloaded_bytes * np.minimum(cases.per_node, cases.devices)
            out.append(
                Refusal(
                    "host-memory",
                    needed > host.value,
                    lambda i: (
                        f"states that wait for the rollout need {gib(needed[i])} of host memory "
                        f"per node, only {gib(host.value)} available; set workload.rollout."
                        "placement: apart, or add nodes"
                    ),
                )
            )
        return out


def at_mean(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases of an optimizer step on answers of the mean length."""
    length = np.full(len(cases), sampling.work.mean_tokens)
    return replace(cases, sequence_length=length)


def of_run(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases with all answers of a step as its batch, which the whole run counts in."""
    answers = np.full(len(cases), sampling.work.sequences)
    return replace(at_mean(sampling, cases), global_batch=answers)


def at_longest(sampling: Sampling, cases: TrainingCases) -> TrainingCases:
    """The cases with one packed row a micro-batch: its mean answers, or one of the longest."""
    mean = cases.micro_batch * sampling.work.mean_tokens
    return replace(
        cases,
        sequence_length=np.maximum(mean, cases.sequence_length),
        micro_batch=np.ones_like(cases.micro_batch),
        global_batch=cases.micro_batches * cases.dp,
    )


def forward_share(parts: Parts) -> Float:
    """Share of an optimizer step's computation that its forward pass is (one per case).

    Of the head's three products one, of lookup and loss half.
    """
    forward = add(seconds for name, seconds in parts.items() if name.startswith("forward_"))
    backward = add(seconds for name, seconds in parts.items() if name.startswith("backward_"))
    ends = parts["embedding"] / 2 + parts["loss"] / 2 + parts["head"] / 3
    whole = parts["embedding"] + parts["loss"] + parts["head"]
    return np.asarray((forward + ends) / (forward + backward + whole))


def forward_s(parts: Parts) -> Float:
    """Seconds of a forward pass over the answers of an optimizer step.

    Bubble, launches and exchange take as much of it as of the step.
    """
    once = ("recompute", "optimizer", "fixed")
    rest = add(seconds for name, seconds in parts.items() if name not in once)
    return np.asarray(forward_share(parts) * rest)


def reinforced(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    mem: Memory,
    update: Parts,
) -> Reinforcement:
    """A whole step of every case.

    ``mem``: of the training alone, at its longest; ``update``: parts of one optimizer step.
    """
    work, many = sampling.work, work_batches(sampling)
    residents = _residents(setting, sampling, mem)
    rollouts = _rollouts(setting, sampling, cases, mem, residents)
    pass_s = many * forward_s(update)
    zero = np.zeros(len(cases))
    scored = {
        "old_log_probs": pass_s if work.old_log_probs else zero,
        "reference": pass_s if work.reference else zero,
        "rewards": np.full(len(cases), work.reward_s) + (pass_s if work.reward == "model" else 0.0),
        "values": pass_s if sampling.critic else zero,
    }
    update_s = add(update.values())
    trained = {name: sampling.updates * seconds for name, seconds in update.items()}
    if sampling.critic:
        scored["critic"] = sampling.updates * update_s
    synced, sync_bytes = _sync(setting, sampling, cases)
    waiting = _waiting(sampling, residents)
    base = _sleeping_bytes(setting, sampling, rollouts)
    asleep = base + np.where(rollouts.offload, add(waiting.values()), 0.0)
    moved = np.where(rollouts.offload, 2 * waiting["trained"] + waiting["frozen"], 0.0) + 2 * base
    moves = moved / setting.calibration.host_link_bytes_per_s.value
    learning = add(scored.values()) + add(trained.values())
    waits = np.maximum(rollouts.seconds - learning, 0.0) if sampling.apart else rollouts.seconds
    phases = {
        "rollout": rollouts.seconds,
        **scored,
        "update": sampling.updates * update_s,
        "weight_sync": synced,
        "state_moves": moves,
    }
    parts = {**trained, "rollout": waits, **scored, "weight_sync": synced, "state_moves": moves}
    parts["reference"] = scored["reference"]
    whole = _with_companions(setting, sampling, rollouts.offload, mem)
    return Reinforcement(
        sampling,
        rollouts,
        parts,
        phases,
        whole,
        training_bytes=whole.peak_bytes,
        rollout_bytes=_rollout_bytes(setting, sampling, rollouts, residents),
        offloaded_bytes=asleep,
        sync_bytes=sync_bytes,
    )


def work_batches(sampling: Sampling) -> float:
    """Batches of an optimizer step that all answers make."""
    return sampling.work.sequences / sampling.global_batch


# Memory


def _residents(setting: TrainingSetting, sampling: Sampling, mem: Memory) -> Parts:
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
        "frozen": np.nanmax(_frozen(setting, sampling, mem), axis=1),
    }


def _waiting(sampling: Sampling, residents: Parts) -> Parts:
    """Bytes of a device that wait on the host where states are offloaded.

    Apart the model trains all the time: only the critic's states, half of all, make room for it.
    """
    share = 1.0
    if sampling.apart:
        share = 0.5 if sampling.critic else 0.0
    return {"trained": share * residents["trained"], "frozen": residents["frozen"]}


def _frozen(setting: TrainingSetting, sampling: Sampling, mem: Memory) -> Float:
    """Bytes of the frozen models of each stage, of shape (cases, stages)."""
    stored = WEIGHT_BYTES if setting.frozen else setting.states.parameter
    each = mem.parts["parameters"] / stored * REFERENCE_BYTES
    return np.asarray(sampling.frozen_models * each)


def _sleeping_bytes(setting: TrainingSetting, sampling: Sampling, rollouts: Rollouts) -> Float:
    """Bytes of a device's part of the engine's weights that wait on the host while it sleeps.

    Weights that are sent anew are let go.
    """
    waits = sampling.adapters and not sampling.apart
    whole = WEIGHT_BYTES * setting.model.language_parameters if waits else 0.0
    return np.asarray(whole / rollouts.tp)


def _with_companions(
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
    parts["reference"] = parts["reference"] + stays * _frozen(setting, sampling, mem)
    kept = 0.0 if sampling.apart else training_data().run.sleeping_engine_bytes.value
    parts["reserve"] = parts["reserve"] + kept
    return replace(mem, parts=parts, peak_bytes=np.nanmax(add(parts.values()), axis=1))


def _resident_bytes(setting: TrainingSetting, residents: Parts, offload: Bool | bool) -> Float:
    """Bytes of a device that the training keeps while answers are sampled."""
    figures = setting.calibration
    moved = np.where(offload, 0.0, residents["trained"] + residents["frozen"])
    fixed = figures.context_bytes.value + figures.reserve_bytes.value
    return np.asarray(residents["stays"] + moved + fixed)


def _rollout_bytes(
    setting: TrainingSetting, sampling: Sampling, rollouts: Rollouts, residents: Parts
) -> Float:
    """Bytes of a device while it samples: the engine's share, beside what stays."""
    engine = rollouts.share * setting.cluster.device.usable_memory_bytes
    if sampling.apart:
        return engine
    return engine + _resident_bytes(setting, residents, rollouts.offload)


# Rollout


def _rollouts(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    mem: Memory,
    residents: Parts,
) -> Rollouts:
    """The fastest rollout beside each case.

    States stay on the device where the engine and the update fit beside them, and otherwise, if the
    request leaves it open, wait on the host.
    """
    stated = sampling.work.offload
    if stated is not None:
        return _beside(setting, sampling, cases, residents, stated)
    awake, asleep = (
        _beside(setting, sampling, cases, residents, offload) for offload in (False, True)
    )
    trains = _with_companions(setting, sampling, awake.offload, mem).peak_bytes
    better = awake.refused | (trains > mem.capacity_bytes)
    return _choose(better & ~asleep.refused, asleep, awake)


def _beside(
    setting: TrainingSetting,
    sampling: Sampling,
    cases: TrainingCases,
    residents: Parts,
    offload: bool,
) -> Rollouts:
    """Rollouts with the share of a device that is left, or on devices of their own."""
    usable, flags = setting.cluster.device.usable_memory_bytes, np.full(len(cases), offload)
    if sampling.apart:
        share, devices = (
            np.full(len(cases), value) for value in (sampling.usual_share, sampling.own_devices)
        )
        return _sampled(setting, sampling, devices, share, flags, np.zeros_like(flags))
    beside = _resident_bytes(setting, residents, flags)
    share = sampling.share_beside(beside)
    over = beside + share * usable > usable
    return _sampled(setting, sampling, cases.devices, share, flags, over)


def _choose(where: Bool, one: Rollouts, other: Rollouts) -> Rollouts:
    """``one`` in some cases, ``other`` in the rest."""
    columns = {
        name: np.where(where, getattr(one, name), getattr(other, name))
        for name in Rollouts.__slots__
        if name != "reasons"
    }
    reasons = (
        a if chosen else b for chosen, a, b in zip(where, one.reasons, other.reasons, strict=True)
    )
    return Rollouts(**columns, reasons=tuple(reasons))


def _sampled(
    setting: TrainingSetting,
    sampling: Sampling,
    devices: Int,
    share: Float,
    offload: Bool,
    over: Bool,
) -> Rollouts:
    """The fastest of the tensor-parallel degrees on so many devices, with such a share of each.

    Cases that agree in both are estimated once. ``over``: where the share and what stays exceed
    the device.
    """
    keys, back = np.unique(np.stack([devices, share]), axis=1, return_inverse=True)
    counts, shares = keys[0].astype(np.int64), keys[1]
    tried = [_with_ranks(sampling, counts, shares, tp) for tp in sampling.tensor_ranks]
    seconds = np.stack([np.where(one.refused, np.inf, one.seconds) for one in tried])
    fastest = np.argmin(seconds, axis=0)
    best = tried[0]
    for k, one in enumerate(tried[1:], 1):
        best = _choose(fastest == k, one, best)
    rows = back.reshape(-1)
    columns = {
        name: getattr(best, name)[rows] for name in Rollouts.__slots__ if name != "reasons"
    } | {"offload": offload}
    usable = setting.cluster.device.usable_memory_bytes
    reasons = tuple(
        f"rollout: memory_share {share[i]:.2f} is {gib(share[i] * usable)} per GPU, which does not "
        "fit beside the states of the training; lower workload.rollout.memory_share, or set "
        "workload.rollout.offload: true"
        if over[i]
        else best.reasons[row]
        for i, row in enumerate(rows)
    )
    return Rollouts(**columns, reasons=reasons)


def _with_ranks(sampling: Sampling, devices: Int, share: Float, tp: int) -> Rollouts:
    """Rollouts by copies of ``tp`` ranks, estimated as a queue that the engine works off."""
    work = sampling.work
    ranks = np.full(len(devices), tp)
    columns, fits = sampling.cases(devices, ranks, share)
    queued = serving_estimate(sampling.serving, columns)
    alone = replace(sampling.serving, mode="static")
    last = serving_estimate(alone, replace(columns, load=columns.dp.astype(float)))
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
        offload=np.zeros(len(devices), dtype=np.bool_),
        reasons=_reasons(queued, fits, devices, tp),
    )


def _reasons(queued: Estimates, fits: Bool, devices: Int, tp: int) -> tuple[str, ...]:
    """Why a rollout cannot run, with what to change; empty where it can."""
    feasible = queued.feasible
    out = []
    for i in range(len(devices)):
        if not fits[i]:
            out.append(
                f"rollout: {devices[i]} devices are not divisible by tp {tp}; set "
                "workload.rollout.tp to a divisor, or leave it out"
            )
        elif not feasible[i]:
            reason = queued.reasons(i)[0]
            out.append(f"rollout with tp {tp}: {reason}; use a larger workload.rollout.tp")
        else:
            out.append("")
    return tuple(out)


# Weights


def _sync(
    setting: TrainingSetting, sampling: Sampling, cases: TrainingCases
) -> tuple[Float, float]:
    """Seconds to bring the trained weights to the engine, and their bytes.

    Every training rank gathers all of them. An engine beside it takes its part from there; devices
    apart are sent them over the slowest link on the way, one after another at full rate.
    """
    sent = float(setting.model.language_parameters)
    if sampling.adapters and not sampling.merged:
        sent = adapter_parameters(setting)
    size = WEIGHT_BYTES * sent
    data = np.full(len(cases), size)
    group = rank_group(setting.cluster, cases, cases.devices)
    gathered = all_gather_s(setting.cluster, group, data, "Gather of weights")
    seconds = np.where(cases.devices > 1, gathered, 0.0)
    if sampling.apart:
        across = (cases.all_devices > cases.per_node).astype(float)
        seconds = seconds + send_s(setting.cluster, across, data)
    return np.asarray(seconds), size
