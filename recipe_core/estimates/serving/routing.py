"""Routing to experts: how many distinct experts a step touches, and the load of the fullest rank.

Popularity of experts is taken as Gamma distributed with variance ``SPREAD`` (as a share of the
squared mean), so tokens per expert are negative-binomial instead of Poisson. ``SPREAD`` = 0 would
be uniform routing.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.models.spec import MoeMlp

# Chosen by the loss that `scripts/fit_serving.py` reaches with it, on published runs of five
# families of models on H100, H200, B200 and MI355X.
#
# The optimum is flat: with 0.5, 1 and 1.5 the loss is 1.713, 1.706 and 1.705 %. With 1 popularity
# is exponential.
SPREAD = 1.0


def distinct_experts(mlp: MoeMlp, tokens: Float) -> Float:
    """Expected number of experts that at least one of ``tokens`` picks.

    The first token picks ``top_k``. Each further one misses an expert with probability ``1 - top_k
    / experts``, and popular experts are picked again: ``E - (E - K) · (1 + s·x)^(-1/s)`` with ``x =
    -(tokens - 1) · ln(1 - K/E)``, the Gamma mixture of ``E - (E - K) · exp(-x)``.
    """
    if mlp.top_k >= mlp.experts:
        return np.full_like(np.asarray(tokens, dtype=float), mlp.experts)
    expected = -np.maximum(tokens - 1, 0.0) * np.log1p(-mlp.top_k / mlp.experts)
    missed: Float = (1 + SPREAD * expected) ** (-1 / SPREAD)
    return mlp.experts - (mlp.experts - mlp.top_k) * missed


def crowding(mlp: MoeMlp, tokens: Float, ranks: Float) -> Float:
    """Rows on the fullest of ``ranks`` that share the experts, over the mean of all: 1 on one rank.

    A rank's rows vary by its experts' popularity (``SPREAD`` over experts per rank) and by chance
    (``1 / rows``); the largest of n lies about ``sqrt(2 ln n)`` standard deviations above the mean
    (Gumbel). Assumes no balancer that copies popular experts.
    """
    variance = SPREAD * ranks / mlp.experts + ranks / np.maximum(tokens * mlp.top_k, 1.0)
    fullest: Float = np.minimum(1 + np.sqrt(2 * np.log(ranks) * variance), ranks)
    return fullest
