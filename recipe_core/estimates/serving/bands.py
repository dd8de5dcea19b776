"""Errors of serving estimates: factors around them, and the shared part of an error."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.documents import read_shipped
from recipe_core.estimates.bands import SLICE_SPREAD, Band, BandFile, Uncertain, widen_band
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.prediction import FOLLOWING
from recipe_core.estimates.rules.kernels import UNTUNED_SPREAD, untuned_support
from recipe_core.hardware.cluster import host_speed, roofline
from recipe_core.hardware.profile import Family

# Groups of runs, from the narrowest to all.
GROUPS = (
    ("mode", "basis", "engine", "architecture"),
    ("mode", "basis", "engine"),
    ("mode", "basis", "vendor"),
    ("mode", "basis"),
    ("mode",),
    (),
)
# Standard deviation of the logarithm that errors of embeddings and scores have besides those of
# prompts: assumed from the few published runs held against them (docs/method/encoders.md).
POOLED_SPREAD = 0.5
# Formats of caches that no measured run has.
UNMEASURED_CACHES = ("nvfp4",)
# The same of times that an option moves which is not counted, or counted without a measured run:
# assumed, an 80 % band of a factor of 1.6 both ways.
UNCOUNTED_SPREAD = 0.35
# The same of formats without a fit of their own where other formats have one: over 41 fitted shapes
# compute reaches its peak by 0.45 otherwise (root mean square of logarithms) than at any format,
# memory by 0.11, and a step is some of both. An 80 % band of a factor of 1.5 both ways.
UNFITTED_SPREAD = 0.32
# Figures whose errors those of all others follow.
METRICS = ("ttft_s", "tpot_s", "output_tokens_per_s")
Grade = Literal["fitted", "prior"]


@cache
def serving_bands() -> BandFile:
    """The bands this version ships."""
    return BandFile.model_validate(read_shipped(Path(__file__).with_name("bands.yaml")))


def roofline_grade(setting: Setting) -> Grade:
    """Say what a device's roofline rests on.

    "fitted" to measurements of it, or "prior" figures of its kind.
    """
    status = roofline(setting.cluster.device, "gemm", setting.model.dtype).status
    return "fitted" if status in ("fitted", "measured") else "prior"


def speed_grade(setting: Setting) -> Grade:
    """Say what the speed of products with a setting's weights rests on.

    "fitted" to measurements of the format on the device, or of 16 bit where the weights are that;
    "prior": another format's efficiency, or figures of the device's kind.
    """
    if roofline_grade(setting) == "prior" or setting.weight_dtype in WIDE:
        return roofline_grade(setting)
    family: Family = "moe" if setting.model.is_moe else "gemm"
    fitted_dtypes = {str(name) for name in setting.cluster.device.roofline.get(family, {})}
    return "fitted" if setting.weight_dtype in fitted_dtypes else "prior"


def band_group(setting: Setting) -> dict[str, str]:
    """The group of a setting by key; an engine that wraps another is of the other's family."""
    device, engine = setting.cluster.device, setting.engine
    return {
        "mode": setting.mode,
        "basis": roofline_grade(setting),
        "engine": engine.wraps or engine.name,
        "architecture": device.architecture,
        "vendor": device.vendor,
    }


def bands_of(setting: Setting) -> dict[str, Band]:
    """The band of every measured figure, wider where the machine's own timings vary.

    The throughput of an open loop has that of a full server (``load_error`` says why).
    """
    spread = host_speed(setting.cluster.device).spread
    if setting.cluster.device.slice_of is not None:
        spread = math.hypot(spread, SLICE_SPREAD)
    if not setting.model.generates:
        spread = math.hypot(spread, POOLED_SPREAD)
    if untuned_support(setting).untuned:
        spread = math.hypot(spread, UNTUNED_SPREAD)
    effects, unmeasured = setting.effects, setting.kv_dtype in UNMEASURED_CACHES
    if "time" in effects.moved or effects.adapters is not None or unmeasured:
        spread = math.hypot(spread, UNCOUNTED_SPREAD)
    if speed_grade(setting) == "prior" and roofline_grade(setting) == "fitted":
        spread = math.hypot(spread, UNFITTED_SPREAD)
    return _bands_of(tuple(band_group(setting).items()), spread)


@cache
def _bands_of(values: tuple[tuple[str, str], ...], spread: float) -> dict[str, Band]:
    groups = {name: dict(values) for name in (*METRICS, "request_latency_s")}
    if dict(values)["mode"] == "open":
        groups["output_tokens_per_s"] = {**dict(values), "mode": "offline"}
    by_metric = {name: serving_bands().band(name, GROUPS, of) for name, of in groups.items()}
    return (
        {name: widen_band(band, spread) for name, band in by_metric.items()}
        if spread
        else by_metric
    )


def serving_errors(setting: Setting) -> tuple[Float, Float]:
    """Covariances of the common and of the independent part of the errors of ``METRICS``."""
    by_metric = bands_of(setting)
    return serving_bands().errors(METRICS, [by_metric[metric] for metric in METRICS])


def engine_errors(setting: Setting) -> tuple[Float, Float]:
    """Covariances as ``serving_errors``, beside another engine on the same device."""
    _, alone = serving_errors(setting)
    return serving_bands().engine_errors(METRICS, alone), alone


def engine_gap_shares() -> Float:
    """The shares of estimated differences between engines that are measured, of ``METRICS``."""
    gaps = serving_bands().engines
    return np.array([gaps[name].measured_share if name in gaps else 1.0 for name in METRICS])


def serving_uncertainty(setting: Setting, column: str) -> Uncertain | None:
    """Return what the error of a column follows; None for one that is certain."""
    by_metric = bands_of(setting)
    if column in by_metric:
        return Uncertain(column, 1, by_metric[column].factors)
    if column in FOLLOWING:
        rate = "output_tokens_per_s"
        return Uncertain(rate, -1, by_metric[rate].inverse())
    return None
