"""How long a fused attention kernel takes, of the one that a framework's figures were fitted with.

    time(kernel) = time(fitted) · rate(fitted) / rate(kernel),  forward and backward apart

Rates: FlashAttention-3, arXiv:2407.08608, and what ``engines/training/frameworks.yaml`` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.engines.frameworks import AttentionKernel, KernelData, training_data
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Time of a kernel's passes, of those of the fitted kernel."""

    forward: float
    backward: float


def kernel_of(setting: TrainingSetting) -> AttentionKernel | None:
    """The fused kernel that a setting runs, by name; None where scores are kept."""
    if not setting.flash:
        return None
    usual, _ = setting.framework.kernels_on(setting.cluster.device.architecture)
    if setting.attention == "flash":
        return usual
    return setting.attention  # type: ignore[return-value]  # what is left of the schema's words


def kernel_times(setting: TrainingSetting) -> KernelTimes:
    """Times of the setting's kernel; 1 where it is the fitted one, or nothing is known of it."""
    architecture = setting.cluster.device.architecture
    kernel, (_, fitted) = kernel_of(setting), setting.framework.kernels_on(architecture)
    if kernel is None or kernel == fitted:
        return KernelTimes(1.0, 1.0)
    rates, of_fitted = (_kernel_data(name).rates_on(architecture) for name in (kernel, fitted))
    if rates is None or of_fitted is None:
        return KernelTimes(1.0, 1.0)
    return KernelTimes(of_fitted.forward / rates.forward, of_fitted.backward / rates.backward)


def kernel_rule(setting: TrainingSetting, cases: TrainingCases) -> Iterator[Refusal]:
    """Refuses a named kernel that does not run on the device, or of which nothing is known there.

    A framework's own choice is never refused.
    """
    kernel, device = kernel_of(setting), setting.cluster.device
    if kernel is None or setting.attention == "flash":
        return
    data = _kernel_data(kernel)
    if data.rates_on(device.architecture) is None:
        architectures = ", ".join(data.rates)
        yield Refusal(
            "attention",
            np.ones(len(cases), dtype=np.bool_),
            lambda _: (
                f"{data.title} (workload.attention: {kernel}) is known on {architectures}, not on "
                f"{device.title}, {device.architecture}; use workload.attention: flash"
            ),
        )


def _kernel_data(kernel: AttentionKernel) -> KernelData:
    return training_data().attention_kernels[kernel]
