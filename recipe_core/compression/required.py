"""Which checkpoint a row of a plan needs made, and what that takes."""

from __future__ import annotations

from recipe_core.accuracy.choice import Chosen, can_make, choose
from recipe_core.compression.jobs import CompressionEstimate, Job, estimate
from recipe_core.estimates.columns.serving import Setting
from recipe_core.models.spec import ModelSpec
from recipe_core.request.schema import PlanRequest

_EVERY_EXPERT = ("llm-compressor",)
"""Tools that show every text of calibration to every expert."""
_RESIDENT = ("modelopt", "quark")
"""Tools whose scripts put the whole model on the devices."""


def compression_of(request: PlanRequest, setting: Setting) -> Chosen | None:
    """What is made for a setting; None where its checkpoint serves as it is, or none is asked for.

    Raises:
        InputError: for a technique, tool or method that cannot be combined.
        NoAnswer: where no tool makes what this engine loads.
    """
    compression = request.options.compression
    if compression is None:
        return None
    return choose(
        compression,
        setting.weight_dtype,
        setting.engine.name,
        setting.cluster.device.runtime,
        needed=setting.needs_other_checkpoint,
    )


def can_start(request: PlanRequest, setting: Setting) -> bool:
    """Whether the weights of a setting exist, are made while loading, or can be made before."""
    return not setting.needs_other_checkpoint or can_make(
        request.options.compression,
        setting.weight_dtype,
        setting.engine.name,
        setting.cluster.device.runtime,
    )


def job_of(chosen: Chosen, model: ModelSpec) -> Job:
    """What is chosen, as physics takes it."""
    kind = chosen.kind
    return Job(
        model=model,
        tool=chosen.tool,
        technique=chosen.technique,
        method=chosen.method,
        samples=chosen.samples,
        tokens=chosen.tokens,
        weight_bits=kind.weight_bits,
        everywhere=chosen.tool in _EVERY_EXPERT,
        observed=chosen.samples > 0 and chosen.method in ("RTN", "SmoothQuant"),
        resident=chosen.tool in _RESIDENT,
        wide_copy=chosen.tool in ("llama-cpp", "optimum-onnx"),
    )


def compression_estimate(chosen: Chosen, setting: Setting, devices: int) -> CompressionEstimate:
    """What it takes to make the checkpoint on devices of a setting."""
    cluster = setting.cluster
    return estimate(
        job_of(chosen, setting.model),
        cluster.device,
        devices=min(devices, cluster.per_node),
        usd_per_device_hour=cluster.usd_per_device_hour,
    )
