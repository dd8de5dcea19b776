"""Rules about launches, and those that several frameworks share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.estimates.columns.training import RECOMPUTE, TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.models.attention import LatentAttention, LinearAttention


@dataclass(frozen=True, slots=True)
class LaunchRule(Refusal):
    """A rule about launches: the field of the request that it is about, and what to use."""

    field: str = "candidate"
    hint: str = ""


def accumulates(cases: TrainingCases) -> Bool:
    """Where a step has several micro-batches."""
    return cases.micro_batches > 1


def synchronised(title: str, cases: TrainingCases) -> LaunchRule:
    """Frameworks that divide gradients exchange them after every micro-batch."""
    waits = (cases.sync_step > 0) & (cases.zero_stage > 1) & accumulates(cases)
    return LaunchRule(
        "launch-gradients",
        waits,
        lambda _: f"{title} exchanges divided gradients after every micro-batch",
        "candidate.gradient_sync",
        "Exchange gradients after every micro-batch.",
    )


def heads_divide(setting: TrainingSetting, cases: TrainingCases) -> LaunchRule:
    """Ranks share heads of keys and values; those of queries where attention is latent."""
    kinds = [kind for kind, _ in setting.model.mixers if not isinstance(kind, LinearAttention)]
    latent = any(isinstance(kind, LatentAttention) for kind in kinds)
    heads = math.gcd(*(kind.heads if latent else kind.kv_heads for kind in kinds))
    named = "attention heads" if latent else "key/value heads"
    return LaunchRule(
        "launch-tensor",
        heads % np.maximum(cases.tp, 1) != 0,
        lambda i: f"{heads} {named} are not divisible by tp {cases.tp[i]}",
        "candidate.tp",
        "Use a divisor of them.",
    )


def host_activations(
    setting: TrainingSetting, cases: TrainingCases, allowed: Bool, kept: str
) -> LaunchRule:
    """Only the inputs of recomputed layers wait on the host, where that is ``allowed``."""
    again = cases.recompute == RECOMPUTE.index("full")
    return LaunchRule(
        "launch-activation",
        (cases.activation_offload > 0) & ~(again & allowed),
        lambda _: f"{setting.framework.title} keeps activations on the host {kept}",
        "candidate.activation_offload",
        "Leave it out, or recompute all layers.",
    )
