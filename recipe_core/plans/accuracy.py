"""Accuracy beside cost and latency: what a row keeps, which checkpoint already is its format.

``accuracy_of`` a setting is an estimate (``physics/serving/accuracy.py``); here is what a search
makes of it.
"""

from __future__ import annotations

import math

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.rules.applied import Applied, applied
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.models.variants import stored_as, variants

__all__ = [
    "AS_GOOD",
    "Applied",
    "accuracy_of",
    "applied",
    "checkpoint_of",
    "lost",
    "wider_formats",
]

AS_GOOD = 0.02
"""Share of accuracy that is added to what is lost before goals are weighed: about the noise of a
published score, so that losing the first two percent counts as much as twice the cost."""


def lost(kept: Float) -> Float:
    """What rows are ranked by where accuracy is a goal: the share that is lost, and ``AS_GOOD``.

    All of it where unknown, so that what nobody has measured comes last.

    Args:
        kept: expected share of the base's accuracy, one per row; NaN where unknown.
    """
    gone = np.where(np.isfinite(kept), np.maximum(1 - kept, 0.0), 1.0)
    return np.asarray(gone + AS_GOOD)


def checkpoint_of(setting: Setting) -> str | None:
    """The checkpoint of the catalog that already is a setting's weights; None where it has none.

    The request's own where it stores them, or the engine makes them while it loads.
    """
    if not setting.needs_other_checkpoint:
        return setting.model.weights
    return stored_as(setting.model.name, setting.weight_dtype)


def wider_formats(setting: Setting, least: float) -> list[tuple[str, str | None]]:
    """Weight formats that keep at least a share of accuracy, the smallest first.

    With the catalog's checkpoint to be loaded for each; None where the engine makes the format of
    the request's own while it loads.
    """
    from dataclasses import replace

    from recipe_core.models.dtypes import bytes_per_value

    known = variants(setting.model.name)
    out: dict[str, str | None] = {}
    for name, dtype in known.items():
        out.setdefault(dtype, name)
    if setting.model.quantization is None:
        out |= dict.fromkeys(setting.engine.online_weight_dtypes)
    able = [dtype for dtype in out if dtype in setting.cluster.device.weight_dtypes]
    kept = {dtype: accuracy_of(replace(setting, weight_dtype=dtype)).value for dtype in able}
    enough = [dtype for dtype in able if math.isfinite(kept[dtype]) and kept[dtype] >= least]
    order = sorted(enough, key=lambda dtype: (bytes_per_value(dtype), dtype in WIDE))
    return [(dtype, out[dtype]) for dtype in order if dtype != setting.weight_dtype]
