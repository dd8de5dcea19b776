"""Scales of the times of cases, as runs of one's own teach them, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.columns import Columns

# How the basis of a figure begins that rests on own runs.
CALIBRATED = "calibrated"

# Scopes as an estimate names them, from narrow to wide.
SCOPES = {
    "deployment": "this deployment",
    "model": "this model, device and engine",
    "version": "this engine version and device",
    "device": "this device",
}


@dataclass(frozen=True, slots=True)
class Scales(Columns):
    """Scales of the times of cases, one number a case; see ``corrections``.

    ``variances`` and ``covariance`` are of their logarithms, noise included, ``priors`` those
    without any run. ``runs`` counts for each of ``SCOPES`` the runs that show a scale (rows:
    steps, prompts, either).
    """

    steps: Float
    prompts: Float
    variances: tuple[Float, Float]
    covariance: Float
    priors: tuple[float, float]
    runs: NDArray[np.int64]

    def left(self, steps: Float, prompts: Float) -> Float:
        """Standard deviation that runs leave of a time, as a share of that without any.

        ``steps`` and ``prompts`` say how much of the time each is.
        """
        before = steps**2 * self.priors[0] + prompts**2 * self.priors[1]
        after = steps**2 * self.variances[0] + prompts**2 * self.variances[1]
        after = after + 2 * steps * prompts * self.covariance
        return np.sqrt(np.clip(after, 0.0, before) / np.maximum(before, 1e-30))

    def basis(self, showing: int, case: int) -> str | None:
        """Return which runs a figure rests on, by the narrowest scope that has any; None without.

        ``showing``: 0 for runs that show steps, 1 prompts, 2 either.
        """
        for scope, count in zip(SCOPES.values(), self.runs[case, showing].tolist(), strict=True):
            if count:
                return f"{CALIBRATED}: {count} own run{'s' * (count > 1)} of {scope}"
        return None
