"""How the answers of a step are sampled: the serving estimate of all of them, queued at once.

Beside a training the engine has a share of each device (`shared_devices`); the fastest of the
tensor-parallel degrees is taken, and states stay on the devices where all fits beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving
from recipe_core.estimates.training.memory import Memory
from recipe_core.estimates.training.shared_devices import (
    Parts,
    beside_bytes,
    engine_bytes,
    published_doubt,
    share_doubt_text,
    too_large_text,
    training_resident_bytes,
    with_companions,
)

# Columns of `Rollouts` that are sentences.
TEXTS = ("reasons", "doubts")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How answers are sampled beside each case, one number per case.

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
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def refused(self) -> Bool:
        """Cases beside which no answers can be sampled."""
        return np.array([bool(reason) for reason in self.reasons], dtype=np.bool_)

    @property
    def certainty(self) -> Float:
        """What a start keeps of its probability beside them, one per case."""
        doubted_share = training_data().run.doubted_start.value
        return np.array([doubted_share if doubt else 1.0 for doubt in self.doubts])

    def take(self, rows: Int) -> Rollouts:
        """These cases, in that order."""
        columns: dict[str, Any] = {
            name: tuple(getattr(self, name)[row] for row in rows)
            if name in TEXTS
            else getattr(self, name)[rows]
            for name in Rollouts.__slots__
        }
        return Rollouts(**columns)


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
    return _select_rollouts(better & ~asleep.refused, asleep, awake)


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
    reasons, doubts = list(sampled.reasons), [""] * len(cases)
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
        reasons=tuple(reasons),
        doubts=tuple(doubts),
    )


def _select_rollouts(where: Bool, first: Rollouts, second: Rollouts) -> Rollouts:
    """``first`` in some cases, ``second`` in the rest."""
    columns: dict[str, Any] = {
        name: tuple(
            a if takes_first else b
            for takes_first, a, b in zip(
                where, getattr(first, name), getattr(second, name), strict=True
            )
        )
        if name in TEXTS
        else np.where(where, getattr(first, name), getattr(second, name))
        for name in Rollouts.__slots__
    }
    return Rollouts(**columns)


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
        best = _select_rollouts(fastest == k, rollouts, best)
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
        doubts=("",) * many,
    )


def _rollout_reasons(queued: Estimates, fits: Bool, devices: Int, tp: int) -> tuple[str, ...]:
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
