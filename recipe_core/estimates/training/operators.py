"""Time of matrix products and of elementwise work in training, by the device's roofline.

8-bit products take the time of 16-bit ones divided by the ratio of the peaks (training's libraries
differ from those that serve), and their inputs are cast first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.frameworks import AttentionKernel, KernelData, training_data
from recipe_core.estimates.columns.training import RECOMPUTE, TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, fold_factors, record_entry
from recipe_core.estimates.network import Group, all_to_all_s, dispatch_s, rank_group
from recipe_core.estimates.roofline import experts_s, operator_s
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.training.activations import BYTES, imbalance, recomputed_share
from recipe_core.models.spec import LinearAttention, MoeMlp

# Recipes that quantise along rows and along columns. With one scale a tensor the casts of routed
# rows are in the fitted rate of products in 8 bits.
SCALED_TWICE = ("blockwise", "mxfp8")


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


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Forward seconds of one layer's experts on one micro-batch (one per case).

    ``routed``: router and routed experts with their copies of rows; ``shared``: experts that every
    token passes; ``exchange``: of tokens between ranks, there and back; ``waits``: of the host for
    the sizes of that exchange, in the forward pass only, as the backward pass has them.
    """

    routed: Float
    shared: Float
    exchange: Float
    waits: Float


def expert_work(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, m: MoeMlp
) -> ExpertWork:
    """Experts of a layer for ``rows`` tokens of a rank; all wait for the fullest rank."""
    shared, inside = cases.ep > 1, m.expert_hidden(setting.model.hidden)
    fullest = imbalance(setting, cases, m)
    share = rows / cases.tp
    routed = np.where(shared, share, rows) * m.top_k * fullest
    width = np.where(shared, m.intermediate, m.intermediate / cases.tp)
    seconds = _products_s(setting, cases, m, routed, width)
    seconds = seconds + product_s(
        setting, rows, float(setting.model.hidden), float(m.experts), "Router", "bf16"
    )
    handling = setting.framework.experts
    if handling is not None:
        moves = handling.row_moves.value + np.where(shared, handling.exchanged_moves.value, 0.0)
        values = moves * inside / setting.framework.elementwise_passes.value + 3.0 * width
        seconds = seconds + elementwise_s(setting, routed, values)
    group = rank_group(setting.cluster, cases, cases.ep)
    exchange = _expert_exchange_s(setting, group, share, m, fullest)
    waits = np.zeros(len(cases))
    if handling is not None:
        waits = record_entry(
            np.where(shared, handling.wait_s.value, 0.0),
            lambda once_s: Overhead(
                "Sizes of the exchange, read by the host", once_s, each_s=once_s, per="layer"
            ),
        )
    return ExpertWork(
        seconds, _shared_s(setting, cases, rows, m), np.where(shared, exchange, 0.0), waits
    )


def _products_s(
    setting: TrainingSetting, cases: TrainingCases, m: MoeMlp, routed: Float, width: Float
) -> Float:
    """Seconds of the grouped products of routed experts."""
    inside = m.expert_hidden(setting.model.hidden)
    rank_experts = m.experts / np.where(cases.ep > 1, cases.ep, 1)
    weights = rank_experts * m.matrices * inside * width * BYTES
    moved = BYTES * routed * (2 * inside + m.matrices * width)
    flops = 2 * routed * m.matrices * inside * width
    tokens = np.asarray(routed, dtype=float)
    seconds = experts_s(setting.cluster.device, setting.precision, flops, weights, moved, tokens)
    seconds = fold_factors(seconds / setting.pace(setting.precision) / setting.grouped_rate)
    if setting.fp8_recipe in SCALED_TWICE:
        seconds = seconds + cast_s(setting, routed, inside + width, "Routed rows")
    return seconds


def _shared_s(setting: TrainingSetting, cases: TrainingCases, rows: Float, m: MoeMlp) -> Float:
    """Seconds of the experts that every token passes."""
    if not m.shared_intermediate:
        return np.zeros(len(cases))
    hidden, wide = float(setting.model.hidden), m.shared_intermediate / cases.tp
    up = product_s(setting, rows, hidden, (m.matrices - 1) * wide, "Shared experts, gate and up")
    return up + product_s(setting, rows, wide, hidden, "Shared experts, down")


def _expert_exchange_s(
    setting: TrainingSetting, group: Group, share: Float, m: MoeMlp, fullest: Float
) -> Float:
    """Seconds of an exchange and its way back."""
    handling, row_bytes = setting.framework.experts, BYTES * m.expert_hidden(setting.model.hidden)
    if handling is None or handling.exchange == "kernels":
        return 2 * dispatch_s(setting.cluster, group, share, m.top_k, row_bytes)
    return 2 * all_to_all_s(setting.cluster, group, share * m.top_k * fullest * row_bytes)


def flops_per_token(setting: TrainingSetting, sequence_length: Float) -> Float:
    """Model flops of a trained token.

    6 a parameter that multiplies, and attention over half the sequence (causal), forward and
    backward.

    What is recomputed is not counted (model flops, PaLM's convention, arXiv:2204.02311, with the
    causal half). DPO's frozen model adds a forward pass; reinforcement learning samples and scores
    too (`Sampling.passes`).
    """
    model = setting.model
    lookups = 0 if model.tied_embeddings else model.vocabulary * model.hidden
    forward = 2.0 * (model.active_parameters - lookups) + _score_flops(setting, sequence_length)
    passes = {"lora": 2.0, "qlora": 2.0, "dpo": 4.0}.get(setting.method, 3.0)
    if setting.sampling is not None:
        passes = setting.sampling.passes
    return np.asarray(passes * forward)


def _score_flops(setting: TrainingSetting, sequence_length: Float) -> Float:
    """Flops of a token's attention in a forward pass, causal."""
    scores: Float = np.zeros(len(sequence_length))
    for layer, n in setting.model.kinds:
        if (a := layer.attention) is not None and not isinstance(a, LinearAttention):
            seen_tokens = setting.seen(sequence_length, a.window)
            scores = scores + n * 2 * a.heads * (a.head_dim + a.v_head_dim) * seen_tokens
    return scores


def recomputed_flops_per_token(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Flops of a token that the backward pass repeats (one per case).

    Of the layers' forward pass all, or the share that selective recomputation repeats, which is at
    least the attention where its scores are stored otherwise. Embedding and head are not repeated.
    """
    model, scores = setting.model, _score_flops(setting, cases.sequence_length.astype(float))
    tables = (1 if model.tied_embeddings else 2) * model.vocabulary * model.hidden
    forward = 2.0 * (model.active_parameters - tables) + scores
    selective = setting.framework.selective_recomputes.value * forward
    if not setting.flash:
        selective = np.maximum(selective, scores)
    share, full = recomputed_share(setting, cases), cases.recompute == RECOMPUTE.index("full")
    return np.asarray(share * np.select([full, cases.recompute == 1], [forward, selective], 0.0))
