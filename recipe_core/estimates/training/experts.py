"""Time of a layer's experts: products, copies of routed rows, and the exchange between ranks.

A routed row is a token's hidden state for one of its experts. Kernels made for it (DeepEP,
Megatron Core's dispatcher with fused permutation) send a token once to a rank and hide the copies.
The ``standard`` exchange is torch's all-to-all: rows are sorted by expert, sent one for each expert
by NCCL, sorted again on arrival, and brought back the same way; the host reads how many go where
before it launches what follows, so nothing is queued by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, fold_factors, record_entry
from recipe_core.estimates.network import Group, all_to_all_s, dispatch_s, rank_group
from recipe_core.estimates.roofline import experts_s
from recipe_core.estimates.training.activations import BYTES
from recipe_core.estimates.training.operators import cast_s, elementwise_s, product_s
from recipe_core.estimates.training.routing import imbalance
from recipe_core.models.spec import MoeMlp

# Recipes that quantise along rows and along columns. With one scale a tensor the casts of routed
# rows are in the fitted rate of products in 8 bits.
SCALED_TWICE = ("blockwise", "mxfp8")


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
