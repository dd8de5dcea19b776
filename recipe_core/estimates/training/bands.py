"""How far estimates of training are off: factors around them, and what is shared of an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from recipe_core.base.arrays import Float
from recipe_core.base.documents import read_shipped
from recipe_core.estimates.bands import Band, BandFile, Uncertain, enclosing_band
from recipe_core.estimates.columns.training import TrainingSetting

# Groups of devices and frameworks, from the narrowest to all.
GROUPS = (("engine", "architecture"), ("engine",), ("vendor",), ())
# Figures whose errors those of rates, cost and energy follow.
METRICS = ("step_s",)
# What a figure is off by where a step samples answers too.
SAMPLED = {"step_s": "sampled_step_s"}


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
    return training_bands().band(metric, GROUPS, values | {"basis": ""})


def training_errors(setting: TrainingSetting) -> tuple[Float, Float]:
    """Covariances of the common and of the independent part of the errors of ``METRICS``."""
    of_metrics = [training_band(setting, metric) for metric in METRICS]
    common = training_bands().covariance(METRICS, [of.common for of in of_metrics])
    return common, training_bands().covariance(METRICS, [of.independent for of in of_metrics])


# Columns whose errors are those of the time of a step.
FOLLOWING = ("wall_s", "usd", "usd_per_million_tokens", "joules_per_token")


def training_uncertainty(setting: TrainingSetting, column: str) -> Uncertain | None:
    """What the error of a column follows; None for one that is certain."""
    if column not in FOLLOWING:
        return None
    return Uncertain("step_s", 1, training_band(setting, "step_s").factors)
