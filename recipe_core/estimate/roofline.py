"""Time of one operator from its work and four numbers of the device."""

from __future__ import annotations

import numpy as np

from recipe_core.estimate.cases import Float
from recipe_core.hardware.catalog import roofline
from recipe_core.hardware.profile import Device, Family
from recipe_core.model.dtypes import compute_dtype


def operator_s(device: Device, family: Family, stored_dtype: str, flops: Float, moved_bytes: Float, kernels: float = 1.0) -> Float:
    """Seconds of an operator of ``flops`` that moves ``moved_bytes`` through device memory in ``kernels`` launches.

    ``t = kernels · overhead + (t_compute^r + t_memory^r)^(1/r)``: a roofline with a rounded corner. The four numbers are the
    device's own (fitted) or its runtime's prior; fits of this form are 4–7 % off (median) on measured 16-bit matrix products.
    ``stored_dtype`` is that of the weights (for decode attention, of the cache): kernels differ by it. The peak is that of the
    format the product runs in: 16 bit for weight-only formats and for attention over any cache.
    """
    dtype = compute_dtype("bf16" if family == "attention_decode" else stored_dtype, device.peak_flops_per_s)
    shape = roofline(device, family, stored_dtype, dtype)
    compute_s = flops / (device.peak_flops_per_s[dtype].value * shape.compute_efficiency)  # type: ignore[index]
    memory_s = moved_bytes / (device.memory_bandwidth_bytes_per_s.value * shape.memory_efficiency)
    longer = np.maximum(np.maximum(compute_s, memory_s), 1e-30)
    ratio = np.minimum(compute_s, memory_s) / longer
    rounded: Float = longer * (1 + ratio**shape.smoothing) ** (1 / shape.smoothing)
    return np.where(longer > 1e-30, kernels * shape.overhead_s + rounded, 0.0)
