"""How evenly routers spread tokens over the ranks that share experts."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.models.spec import MoeMlp


def imbalance(setting: TrainingSetting, cases: TrainingCases, mlp: MoeMlp) -> Float:
    """Tokens of the fullest rank that shares experts, over the mean (one per case).

    1 where every rank has all experts. Pre-training balances its router by a loss. Without one
    experts' loads differ by ``router_spread`` of their mean; a rank adds up ``experts / ep`` of
    them, and the largest of ``ep`` such sums counts (Blom's approximation of a normal's largest).
    """
    figures = setting.calibration
    balanced = figures.imbalance.value
    if setting.method == "pretrain":
        return np.where(cases.ep > 1, balanced, 1.0)
    ranks = np.maximum(cases.ep, 1)
    counts, places = np.unique(ranks, return_inverse=True)
    normal = NormalDist()
    largest = np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in counts.tolist()])[places]
    spread = figures.router_spread.value * np.sqrt(ranks / mlp.experts)
    return np.where(cases.ep > 1, np.maximum(1 + spread * largest, balanced), 1.0)
