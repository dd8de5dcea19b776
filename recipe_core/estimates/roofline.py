"""Time of one operator from its work and a few numbers of the device."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.ledger import Kernel, only_number, record_entry
from recipe_core.hardware.cluster import roofline
from recipe_core.hardware.profile import Device, Dtype, Family, Roofline
from recipe_core.models.tensors import compute_dtype

# Families whose ``stored_dtype`` is that of a cache: values are widened to 16 bits before they are
# multiplied, whatever they are stored in.
SIXTEEN_BIT = ("attention_decode", "mla_decode")

# In place of zero in a denominator or a logarithm.
_TINY = 1e-300

# Tokens at which half of ``sort_s`` is reached. Of 16, 32 and 64 the value that fits the most
# measured layers best.
SORT_TOKENS = 64


def operator_s(
    device: Device,
    family: Family,
    stored_dtype: str,
    flops: Float,
    moved_bytes: Float,
    kernels: float = 1.0,
    *,
    label: str = "",
    dims: tuple[Any, Any, Any] | None = None,
    widens: bool = False,
) -> Float:
    """Seconds of an operator of ``flops`` that moves ``moved_bytes`` to or from device memory.

    ``t = kernels · overhead + (t_compute^r + t_memory^r)^(1/r)``: a roofline with a rounded corner.
    Its four parameters are fitted to the device, or priors of its runtime; fits of this form are
    4–7 % off (median) on measured 16-bit matrix products. ``stored_dtype`` is that of the weights
    (in decode attention, of the cache): kernels differ by it. The peak is that of the format that
    is multiplied: 16 bit for weight-only formats and for attention over any cache. ``label`` and
    ``dims`` (rows, inputs, outputs) are for the ledger; ``widens`` as in `product_dtype`.
    """
    busy_s, shape, dtype = _busy(device, family, stored_dtype, flops, moved_bytes, widens=widens)
    return record_entry(
        np.where(busy_s > 1e-30, kernels * shape.overhead_s + busy_s, 0.0),
        lambda seconds: Kernel(
            label or family,
            seconds,
            device=device,
            family=family,
            stored_dtype=stored_dtype,
            dtype=dtype,
            shape=shape,
            flops=only_number(flops),
            moved_bytes=only_number(moved_bytes),
            starts=kernels,
            dims=None
            if dims is None
            else (only_number(dims[0]), only_number(dims[1]), only_number(dims[2])),
        ),
    )


def experts_s(
    device: Device,
    stored_dtype: str,
    flops: Float,
    weight_bytes: Float,
    row_bytes: Float,
    tokens: Float,
    row_time: float = 1.0,
    starts: float = 1.0,
    *,
    widens: bool = False,
) -> Float:
    """Seconds of a layer's routed experts on one rank: sort tokens, move rows, multiply.

    As `operator_s` for the products, plus what surrounds them: ``row_bytes`` at a share of the
    bandwidth of their own (``row_efficiency``) and ``sort_s · tokens / (tokens + SORT_TOKENS)``.
    ``row_time``: an engine's own time for what grows with rows over the profile's; ``starts``: the
    share of the fixed time that is left where a captured graph launches the kernels.
    Fits of this form are 4–13 % off (median) on the layers they were fitted to; without both 10–22
    %.
    """
    busy_s, shape, dtype = _busy(
        device, "moe", stored_dtype, row_time * flops, weight_bytes, widens=widens
    )
    rows_s = (row_time * row_bytes) / (
        device.memory_bandwidth_bytes_per_s.value
        * (shape.row_efficiency or shape.memory_efficiency)
    )
    sorted_share = tokens / (tokens + SORT_TOKENS)
    return record_entry(
        starts * (shape.overhead_s + shape.sort_s * sorted_share) + busy_s + rows_s,
        lambda seconds: Kernel(
            "Routed experts",
            seconds,
            device=device,
            family="moe",
            stored_dtype=stored_dtype,
            dtype=dtype,
            shape=shape,
            flops=only_number(flops),
            moved_bytes=only_number(weight_bytes),
            row_bytes=only_number(row_bytes),
            starts=starts,
            sorted_share=only_number(starts * sorted_share),
            row_time=row_time,
        ),
    )


def product_dtype(device: Device, stored_dtype: str, *, widens: bool = False) -> Dtype:
    """The format, one of the device's peaks, in which products with such weights run.

    ``widens``: whether an engine's kernels turn 16 bit into fp32 where the device is faster so, as
    processors without 16-bit products are.
    """
    peaks = device.peak_flops_per_s
    dtype = cast("Dtype", compute_dtype(stored_dtype, peaks))
    wide = peaks.get("fp32")
    if widens and wide and dtype in ("bf16", "fp16") and wide.value > peaks[dtype].value:
        return "fp32"
    return dtype


def _busy(
    device: Device,
    family: Family,
    stored_dtype: str,
    flops: Float,
    moved_bytes: Float,
    *,
    widens: bool,
) -> tuple[Float, Roofline, str]:
    """Seconds of compute and memory by the rounded roofline, its parameters, the peak's dtype."""
    stored = "bf16" if family in SIXTEEN_BIT else stored_dtype
    # kernels that widen read weights as they are stored, which their shape is about
    shape = roofline(device, family, stored_dtype, product_dtype(device, stored))
    dtype = product_dtype(device, stored, widens=widens)
    compute_s = flops / (device.peak_flops_per_s[dtype].value * shape.compute_efficiency)
    memory_s = moved_bytes / (device.memory_bandwidth_bytes_per_s.value * shape.memory_efficiency)
    return smooth_roofline_s(compute_s, memory_s, shape.smoothing), shape, dtype


def smooth_roofline_s(compute_s: Float, memory_s: Float, smoothing: float) -> Float:
    """Seconds of work that computes and moves bytes at once: ``(a^r + b^r)^(1/r)``."""
    if smoothing == 1:
        return compute_s + memory_s
    longer_s = np.maximum(compute_s, memory_s)
    # longer · (1 + (shorter / longer)^r)^(1/r), in place and by binary logarithms, which are faster
    # than powers: most of an estimate's time is spent here
    corner = np.minimum(compute_s, memory_s)
    corner /= np.maximum(longer_s, _TINY)
    np.log2(np.maximum(corner, _TINY, out=corner), out=corner)
    corner *= smoothing
    np.exp2(corner, out=corner)
    corner += 1
    np.log2(corner, out=corner)
    corner *= 1 / smoothing
    np.exp2(corner, out=corner)
    corner *= longer_s
    return corner
