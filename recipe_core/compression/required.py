"""Checkpoints that rows of a plan need made, and what making them takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.accuracy.choice import Chosen, can_make, choose_tool
from recipe_core.compression.jobs import Job, estimate_job
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.results import Estimate, ServingEstimate
from recipe_core.estimates.serving.feature_results import CompressionEstimate
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.plan import Plan
from recipe_core.request.schema import PlanRequest

# Tools that show every text of calibration to every expert.
_EVERY_EXPERT = ("llm-compressor",)
# Tools whose scripts put the whole model on the devices.
_RESIDENT = ("modelopt", "quark")


def required_compression(request: PlanRequest, setting: Setting) -> Chosen | None:
    """Choose what is made for a setting; None where its checkpoint serves, or none is asked for.

    Raises:
        InputError: for a technique, tool or method that cannot be combined.
        NoAnswer: where no tool makes what this engine loads.
    """
    compression = request.options.compression
    if compression is None:
        return None
    return choose_tool(
        compression,
        setting.weight_dtype,
        setting.engine.name,
        setting.cluster.device.runtime,
        needed=setting.needs_other_checkpoint,
    )


def can_start(request: PlanRequest, setting: Setting) -> bool:
    return not setting.needs_other_checkpoint or can_make(
        request.options.compression,
        setting.weight_dtype,
        setting.engine.name,
        setting.cluster.device.runtime,
    )


def compression_job(choice: Chosen, model: ModelSpec) -> Job:
    """Return what is chosen, as physics takes it."""
    kind = choice.kind
    return Job(
        model=model,
        tool=choice.tool,
        technique=choice.technique,
        method=choice.method,
        samples=choice.samples,
        tokens=choice.tokens,
        weight_bits=kind.weight_bits,
        everywhere=choice.tool in _EVERY_EXPERT,
        observed=choice.samples > 0 and choice.method in ("RTN", "SmoothQuant"),
        resident=choice.tool in _RESIDENT,
        wide_copy=choice.tool in ("llama-cpp", "optimum-onnx"),
    )


def compression_estimate(choice: Chosen, setting: Setting, devices: int) -> CompressionEstimate:
    """Return what it takes to make the checkpoint on devices of a setting."""
    cluster = setting.cluster
    return estimate_job(
        compression_job(choice, setting.model),
        cluster.device,
        devices=min(devices, cluster.per_node),
        usd_per_device_hour=cluster.usd_per_device_hour,
    )


def add_compression(plan: Plan, row: int, estimate: Estimate) -> Estimate:
    """The estimate of a row with what it takes to make a checkpoint that the row needs."""
    if plan.request.options.compression is None or not isinstance(estimate, ServingEstimate):
        return estimate
    setting = plan.setting(row)
    choice = required_compression(plan.request, setting)
    if choice is None:
        return estimate
    devices = int(plan.columns["gpus"][row])
    return replace(estimate, compression=compression_estimate(choice, setting, devices))


def row_estimate_json(plan: Plan, row: int) -> dict[str, Any]:
    return add_compression(plan, row, plan.estimate(row)).to_json()


def detail_row_estimate(plan: Plan, row: int) -> Estimate:
    return add_compression(plan, row, plan.spec.detailed(plan, row))
