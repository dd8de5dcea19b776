"""A step of a scheduler, and the times of the kernels that it starts, on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.spec import Kernel
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.ledger import fold_factors
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.rules.kernels import untuned_time
from recipe_core.hardware.profile import Family
from recipe_core.models.spec import (
    Role,
)

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one scheduler in one step; arrays of shape (cases) or (steps, cases).

    prefill_tokens: prompt tokens, each attending to ``prefill_context`` tokens on average.
    sequences: requests that decode ``queries`` tokens each (more than one verifies a draft) at
    ``context`` tokens. sampled: rows that need logits.
    """

    prefill_tokens: Float
    prefill_context: Float
    sequences: Float
    context: Float
    sampled: Float
    queries: Float | float = 1.0

    @property
    def rows(self) -> Float:
        """Rows of the matrix products."""
        return self.prefill_tokens + self.sequences * self.queries


def stack_steps(steps: Sequence[Step]) -> Step:
    """Several steps of each case as one step of shape (steps, cases).

    What follows from the case alone, or from a column that the steps share, is then computed once.
    """
    columns = [[getattr(step, field.name) for step in steps] for field in fields(Step)]
    shape = np.broadcast_shapes(*(np.shape(value) for column in columns for value in column))

    def joined(column: list[Float]) -> Float:
        if all(value is column[0] for value in column):
            return column[0]
        out = np.empty((len(steps), *shape))
        for k, value in enumerate(column):
            out[k] = value
        return out

    return Step(*map(joined, columns))


def total(parts: Parts) -> Float:
    """Seconds of all parts together."""
    return add(parts.values())


def matmul_s(
    setting: Setting,
    role: Role,
    rows: Float,
    inputs: Float | float,
    outputs: Float | float,
    label: str,
    kernels: float = 1.0,
) -> Float:
    """Seconds of a dense product of ``rows`` with ``inputs × outputs`` weights of a role."""
    weights, values = inputs * outputs, (inputs + outputs) * setting.activation_bytes
    moved = weights * setting.stored_bytes(role) + values * rows
    dtype = setting.stored_dtype(role)
    dims = (rows, inputs, outputs)
    return kernel_s(
        setting, "gemm", dtype, 2 * weights * rows, moved, label, kernels=kernels, dims=dims
    )


def kernel_s(
    setting: Setting,
    family: Family,
    stored_dtype: str,
    flops: Float,
    moved_bytes: Float,
    label: str,
    *,
    kernels: float = 1.0,
    dims: tuple[Any, Any, Any] | None = None,
) -> Float:
    """Seconds of an operator (see `operator_s`) with the engine's own kernel for it."""
    device = setting.cluster.device
    seconds = operator_s(
        device,
        family,
        stored_dtype,
        flops,
        moved_bytes,
        kernels,
        label=label,
        dims=dims,
        widens=setting.widens,
    )
    time = kernel_time_factor(setting, family, stored_dtype)
    return seconds if time == 1 else fold_factors(time * seconds)


def elementwise_kernel_s(
    setting: Setting, flops: Float, moved_bytes: Float, kernels: float, label: str
) -> Float:
    """Seconds of elementwise work on activations, which no engine has a kernel of its own for."""
    device, dtype = setting.cluster.device, setting.model.dtype
    return operator_s(device, "elementwise", dtype, flops, moved_bytes, kernels, label=label)


def kernel_time_factor(
    setting: Setting, kernel: Kernel, stored_dtype: str = "any", share: float = 1.0
) -> float:
    """Time of the engine's kernel, to the power ``share``, over that of the device's profile."""
    architecture = setting.cluster.device.architecture
    factor: float = setting.engine.kernel_time(architecture, kernel, stored_dtype) ** share
    if kernel not in ("gemm", "moe") or stored_dtype in WIDE:
        return factor
    return factor * untuned_time(setting, "experts" if kernel == "moe" else "dense", stored_dtype)
