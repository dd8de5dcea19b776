"""Sampling of answers in a step of reinforcement learning, as serving cases beside a split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.request.rollout import Rollout

# Shares of a device's memory that are left to the engine come in steps of this.
SHARE_STEP = 0.05
# A smaller share is not tried: weights of any model, and graphs, take more.
LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Sampling:
    """The facts of a rollout that all cases of a call share.

    ``work``: what the request says of it; ``critic``: whether a critic is trained beside the model
    (PPO); ``global_batch``: answers of an optimizer step. ``serving``: the engine on these devices,
    with all answers queued at once; ``template``: one serving case with the engine's own limits.
    ``adapters``: whether only adapters are trained, on a frozen model.
    """

    work: Rollout
    critic: bool
    adapters: bool
    global_batch: int
    serving: Setting
    template: Cases

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.work.sequences // self.global_batch * self.work.epochs

    @property
    def apart(self) -> bool:
        """Return whether answers are sampled on devices of their own."""
        return self.work.placement == "apart"

    @property
    def own_devices(self) -> int:
        """Devices that only sample."""
        return self.work.devices or 0

    @property
    def frozen_models(self) -> int:
        """Frozen models of the trained one's size: the reference, and one that rewards.

        With adapters the reference is the model without them.
        """
        reference = self.work.reference and not self.adapters
        return int(reference) + int(self.work.reward == "model")

    @property
    def merged(self) -> bool:
        """Return whether adapters are sent as whole weights: devices apart have no base."""
        return self.adapters and self.apart

    @property
    def passes(self) -> float:
        """Forward passes that an answer's token costs, a backward pass being two.

        Sampling, own log-probabilities, frozen models, the critic's values, and the updates, whose
        backward pass is one where weights are frozen.
        """
        update = 2.0 if self.adapters else 3.0
        trained = update * self.work.epochs * (2 if self.critic else 1)
        rewarded = self.work.reward == "model"
        scored = self.work.old_log_probs + self.work.reference + rewarded + self.critic
        return 1.0 + scored + trained

    @property
    def tensor_ranks(self) -> tuple[int, ...]:
        """Degrees of tensor parallelism that are tried, or the one that is stated."""
        if self.work.tp:
            return (self.work.tp,)
        per_node = int(self.template.per_node[0])
        return tuple(1 << k for k in range(per_node.bit_length()) if 1 << k <= per_node)

    @property
    def usual_share(self) -> float:
        """The share of a device that the engine takes where it is not stated."""
        return self.work.memory_share or float(self.template.memory_fraction[0])

    def share_beside(self, taken_bytes: Float) -> Float:
        """The share that the engine can take beside what else is on a device; the stated one as is.

        Never more than is usual, nor one that published runs died of.
        """
        if self.work.memory_share:
            return np.full(len(taken_bytes), self.work.memory_share)
        highest_share = min(self.usual_share, training_data().run.doubted_share.value - SHARE_STEP)
        share = np.clip(self.share_left(taken_bytes), LEAST_SHARE, highest_share)
        return np.asarray(share, dtype=np.float64)

    def share_left(self, taken_bytes: Float) -> Float:
        """The share of a device that ``taken_bytes`` leave, in steps, so that few shares differ."""
        free_share = 1.0 - taken_bytes / self.serving.cluster.device.usable_memory_bytes
        return np.asarray(np.round(np.floor(free_share / SHARE_STEP) * SHARE_STEP, 4))

    def cases(self, devices: Int, tp: Int, share: Float) -> tuple[Cases, Bool]:
        """Serving cases on so many devices, and where ``tp`` divides them.

        Where it does not, the case is that of one copy.
        """
        fits = devices % tp == 0
        copies = np.where(fits, devices // tp, 1)
        rows: Any = np.zeros(len(devices), dtype=np.int64)
        base = self.template.take(rows)
        return replace(base, tp=tp, dp=copies, memory_fraction=share), fits
