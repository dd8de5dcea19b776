"""With which probability training starts, by how far peaks of memory are from their estimates.

A job starts where its peak fits into what a process can have of a device. Measured peaks are
distributed about their estimates as the band of ``peak_memory_bytes`` says (``bands.yaml``). On a
device that is no more than announced nobody knows whether anything starts. The bound below which a
start is refused is that of serving (``estimates/serving/starts.yaml``).
"""

from __future__ import annotations

import math

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.intervals import scores_below
from recipe_core.base.units import chance_text, gib
from recipe_core.estimates.bands import normal_probability
from recipe_core.estimates.columns.training import TrainingSetting
from recipe_core.estimates.serving.starts import DOUBT, start_errors
from recipe_core.estimates.training.bands import training_band

# From which probability on a job counts as one that starts.
SURE = 0.8


def is_training_uncertain(probability: Float) -> Bool:
    """Cases of which estimates do not tell whether they start."""
    return np.asarray((probability >= start_errors().bounds[0]) & (probability < SURE))


def training_start_probability(
    setting: TrainingSetting, peak_bytes: Float, usable_bytes: Float
) -> Float:
    """The probability that a measured peak is at most what is usable, one per estimated peak.

    Between the levels of the band normal scores are linear in log(measured / estimated).
    """
    factors = training_band(setting, "peak_memory_bytes").factors
    some = np.maximum(usable_bytes, 1.0)
    fits = np.array(normal_probability(scores_below(factors, some / peak_bytes)))
    fits = np.where(usable_bytes > 0, fits, 0.0)
    return fits if setting.cluster.device.announced is None else fits * start_errors().unknown


def training_doubt_text(
    setting: TrainingSetting, peak_bytes: float, usable_bytes: float, probability: float
) -> str:
    """Why a start is uncertain, as a sentence without its full stop."""
    around = training_band(setting, "peak_memory_bytes")
    # rounded down, so that none reads as the bound that it is below
    chance = chance_text(math.floor(probability * 100) / 100)
    device = setting.cluster.device
    if device.announced is not None:
        return f"{DOUBT}: nobody has run a {device.title}; starts with a probability of {chance}"
    return (
        f"{DOUBT}: needs {gib(peak_bytes)} per GPU, {gib(usable_bytes)} usable, and measured runs "
        f"needed {around.low:.2f} to {around.high:.2f} times their estimates; "
        f"starts with a probability of {chance}"
    )
