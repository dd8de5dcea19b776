"""Time of matrix products and of elementwise work in training, by the device's roofline.

8-bit products take the time of 16-bit ones divided by the ratio of the peaks (training's libraries
differ from those that serve), and their inputs are cast first.
"""

from __future__ import annotations

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import TrainingSetting
from recipe_core.estimates.ledger import fold_factors
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.training.activations import BYTES


def product_s(
    setting: TrainingSetting,
    rows: Float,
    inputs: Float | float,
    outputs: Float | float,
    label: str,
    dtype: str | None = None,
) -> Float:
    """Seconds of a product of ``rows × inputs`` with ``inputs × outputs`` weights, one per case.

    Where it runs in 8 bits, with the cast of its inputs.
    """
    device = setting.cluster.device
    used = dtype or setting.precision
    peaks = device.peak_flops_per_s
    half = "bf16" if "bf16" in peaks else "fp16"
    narrow = used == "fp8" and "fp8" in peaks
    # half is a key of the peaks, which its type does not say
    faster = peaks["fp8"].value / peaks[half].value if narrow else 1.0  # type: ignore[index]
    moved = (1.0 if narrow else BYTES) * (inputs * outputs + rows * inputs) + BYTES * rows * outputs
    flops = 2 * rows * inputs * outputs / faster
    stored = half if narrow else used
    dims = (rows, inputs, outputs)
    kernel = f"{label} (fp8: operations ÷ {faster:.3g})" if narrow else label
    seconds = operator_s(device, "gemm", stored, flops, moved, label=kernel, dims=dims)
    seconds = fold_factors(seconds / setting.pace(used))
    if narrow:
        seconds = seconds + cast_s(setting, rows, inputs, label)
    return seconds


def cast_s(setting: TrainingSetting, rows: Float, values: Float | float, label: str) -> Float:
    """Seconds to scale and cast ``values`` of every row to 8 bits, as the recipe has it."""
    figures = setting.calibration
    passes = figures.quantize_passes_by_recipe.get(setting.fp8_recipe or "")
    if setting.framework.casts_by_operator:
        passes = figures.quantize_passes_by_operator
    moved = (passes or figures.quantize_passes).value * 1.5 * BYTES * rows * values
    return operator_s(
        setting.cluster.device,
        "elementwise",
        "bf16" if "bf16" in setting.cluster.device.peak_flops_per_s else "fp16",
        rows * values,
        moved,
        1.0,
        label=f"{label}, cast to fp8",
    )


def elementwise_s(setting: TrainingSetting, rows: Float, values: Float) -> Float:
    """Seconds of elementwise work on values a token."""
    moved = setting.framework.elementwise_passes.value * BYTES * rows * values
    return operator_s(
        setting.cluster.device,
        "elementwise",
        "bf16",
        rows * values,
        moved,
        4.0,
        label="Norms, residuals, activations",
    )
