"""With which probability training starts, by how far peaks of memory are from their estimates.

A job starts where its peak fits into what a process can have of a device. Measured peaks are
distributed about their estimates as the band of ``peak_memory_bytes`` says (``bands.yaml``). On a
device that is no more than announced nobody knows whether anything starts. The bound below which a
start is refused is that of serving (``estimates/serving/starts.yaml``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.documents import read_shipped
from recipe_core.base.intervals import scores_below
from recipe_core.base.units import chance_text, gib
from recipe_core.estimates.bands import (
    SLICE_SPREAD,
    Band,
    BandFile,
    Uncertain,
    enclosing_band,
    normal_probability,
    widen_band,
)
from recipe_core.estimates.columns.training import OFFLOADS, TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.serving.starts import DOUBT, start_errors
from recipe_core.estimates.training.memory import MEMORY_TITLES, PARTS, Memory
from recipe_core.request.objective import SURE

# Groups of devices and frameworks, from the narrowest to all.
GROUPS = (("engine", "architecture"), ("engine",), ("vendor",), ())
# Figures whose errors those of rates, cost and energy follow.
METRICS = ("step_s",)
# What a figure is off by where a step samples answers too.
SAMPLED = {"step_s": "sampled_step_s"}
# Columns whose errors are those of the time of a step.
FOLLOWING = ("wall_s", "usd", "usd_per_million_tokens", "joules_per_token")


@cache
def training_bands() -> BandFile:
    """The bands this version ships."""
    return BandFile.model_validate(read_shipped(Path(__file__).with_name("bands.yaml")))


def training_band(setting: TrainingSetting, metric: str) -> Band:
    """The band of a figure (``step_s`` or ``peak_memory_bytes``).

    That of a step that samples answers holds the one of its updates and that of published steps.
    """
    metric_band = _metric_band(setting, metric)
    if setting.sampling is None or metric not in SAMPLED:
        return metric_band
    return enclosing_band(metric_band, _metric_band(setting, SAMPLED[metric]))


def _metric_band(setting: TrainingSetting, metric: str) -> Band:
    device = setting.cluster.device
    values = {
        "engine": setting.engine,
        "architecture": device.architecture,
        "vendor": device.vendor,
    }
    band = training_bands().band(metric, GROUPS, values | {"basis": ""})
    sliced = device.slice_of is not None and metric != "peak_memory_bytes"
    return widen_band(band, SLICE_SPREAD) if sliced else band


def training_errors(setting: TrainingSetting) -> tuple[Float, Float]:
    """Covariances of the common and of the independent part of the errors of ``METRICS``."""
    bands = [training_band(setting, metric) for metric in METRICS]
    return training_bands().errors(METRICS, bands)


def training_uncertainty(setting: TrainingSetting, column: str) -> Uncertain | None:
    """Return what the error of a column follows; None for one that is certain."""
    if column not in FOLLOWING:
        return None
    return Uncertain("step_s", 1, training_band(setting, "step_s").factors)


def memory_rule(setting: TrainingSetting, mem: Memory) -> Refusal:
    """Refuses peaks above the capacity plus the share by which estimates are known to be high."""
    peak = mem.peak_bytes

    def sentence(i: int) -> str:
        by_stage = mem.stages_of(i)
        stage = int(np.nanargmax(by_stage))
        parts = {name: float(mem.parts[name][i, stage]) for name in PARTS}
        largest = max(parts, key=lambda name: parts[name])
        place = f" on stage {stage}" if np.isfinite(by_stage).sum() > 1 else ""
        return (
            f"needs {gib(peak[i])} per GPU{place}, {gib(mem.capacity_bytes[i])} usable: "
            f"{gib(peak[i] - mem.capacity_bytes[i])} short "
            f"(largest part: {MEMORY_TITLES[largest].lower()}, {gib(parts[largest])})"
        )

    limit = (1 + setting.calibration.tight.value) * mem.capacity_bytes
    return Refusal("memory", peak > limit, sentence)


def host_rule(setting: TrainingSetting, cases: TrainingCases, mem: Memory) -> Iterator[Refusal]:
    """Refuses what waits on a node's host and exceeds its memory, where a profile has it."""
    host = setting.cluster.device.node.host_memory_bytes
    if host is None:
        return
    needed = mem.host_bytes * np.minimum(cases.per_node, cases.devices)
    disks = cases.offload == OFFLOADS.index("optimizer-nvme")
    offloaded = ~disks & ((cases.offload > 0) | (cases.activation_offload > 0))
    yield Refusal(
        "host-memory",
        offloaded & (needed > host.value),
        lambda i: (
            f"what is offloaded needs {gib(needed[i])} of host memory per node, "
            f"only {gib(host.value)} available"
        ),
    )


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
    fits = normal_probability(scores_below(factors, some / peak_bytes))
    fits = np.where(usable_bytes > 0, fits, 0.0)
    return fits if setting.cluster.device.announced is None else fits * start_errors().unknown


def training_doubt_text(
    setting: TrainingSetting, peak_bytes: float, usable_bytes: float, probability: float
) -> str:
    """Say why a start is uncertain, as a sentence without its full stop."""
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
