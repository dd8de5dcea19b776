"""A model on a device: how engines load it there, and what to know of the device."""

from __future__ import annotations

from dataclasses import replace

from recipe_core.hardware.profile import Device
from recipe_core.models.spec import ModelSpec

# 16-bit formats, the one that models are published in first.
HALVES = ("bf16", "fp16")


def model_on_device(model: ModelSpec, device: Device) -> ModelSpec:
    """The model as engines load it on a device: in the 16-bit format that the device computes in.

    A T4 has no bf16 (``--dtype half``), a TPU no fp16.
    """
    model = with_device_note(model, device)
    if model.dtype not in HALVES or model.dtype in device.weight_dtypes:
        return model
    dtype = next((half for half in HALVES if half in device.kv_dtypes), None)
    return model if dtype is None else replace(model, dtype=dtype)


def with_device_note(model: ModelSpec, device: Device) -> ModelSpec:
    """The model with what every answer about the device has to say."""
    if device.announcement is None or device.announcement in model.notes:
        return model
    return replace(model, notes=(*model.notes, device.announcement))
