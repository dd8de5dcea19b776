"""Number formats: bytes per stored value, and the format of a product."""

from __future__ import annotations

from collections.abc import Collection

from recipe_core.base.errors import InputError, unknown

BYTES_PER_VALUE: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0 + 4.0 / 128**2,  # one fp32 scale a 128 × 128 block
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,  # groups of 128: a 16-bit scale and a 4-bit zero point
    "int3": 0.375 + 4.0 / 32,  # of caches: groups of 32 with two 16-bit numbers (KIVI)
    "int2": 0.25 + 4.0 / 32,
    "mxfp4": 0.5 + 1.0 / 32,  # OCP MX: an 8-bit scale for 32 values
    "nvfp4": 0.5 + 1.0 / 16,  # an fp8 scale for 16 values
}

_COMPUTE = {"fp8-block": "fp8", "int4": "bf16"}
_HALF = ("bf16", "fp16", "fp32")


def bytes_per_value(dtype: str, *, field: str | None = None) -> float:
    """Stored bytes per value, scales included; raises InputError for an unknown format."""
    if dtype not in BYTES_PER_VALUE:
        message, hint = unknown("number format", dtype, list(BYTES_PER_VALUE))
        raise InputError(message, field=field, hint=hint)
    return BYTES_PER_VALUE[dtype]


def compute_dtype(dtype: str, native: Collection[str]) -> str:
    """The format in which a product with weights in ``dtype`` runs, given the ``native`` ones.

    Weight-only formats (int4 always; fp8, fp4, int8 where the device has no such units) are widened
    to 16 bit first, as Marlin-like kernels do; one 4-bit float format stands in for the other.
    """
    compute = _COMPUTE.get(dtype, dtype)
    if compute in native:
        return compute
    if compute in ("mxfp4", "nvfp4"):
        stand_in = "nvfp4" if compute == "mxfp4" else "mxfp4"
        if stand_in in native:
            return stand_in
    return next(half for half in _HALF if half in native)
