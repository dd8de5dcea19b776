"""Memory of attention over ranks that share a sequence, at the peak of its backward pass.

With q values of queries, and k of keys and values together, of a token of a rank, bytes a token:

    merged:    2 k (cp + 1) + 8 q + 12 k + 2 (q + k) + 2 q
    gathered:  4 k cp + 4 q

*Merged* is torch's ring: it gathers the keys and values of all ranks beside its own, and sums
gradients in fp32, those of queries in two copies, those of keys and values in three (its sum, what
it sends, what it receives), beside what a block gives in 16 bits and the gradient that came in.
*Gathered* is FlexAttention over gathered keys and values, with their gradients of all ranks.

Sources: ``torch/distributed/tensor/experimental/_context_parallel/_attention.py`` of torch 2.13,
with its defaults (all-gather, sums in fp32), which Accelerate 1.15 keeps; torchtitan 0.3.0,
``distributed/context_parallel/api.py``. TRL measured what other options save (trl#6846).
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.model.spec import Layer, LinearAttention
from recipe_core.space.training import TrainingCases, TrainingSetting


def exchange_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token of a rank beside what a layer saved (one per case); 0 without cp."""
    a = layer.attention
    if a is None or isinstance(a, LinearAttention) or not (cases.cp > 1).any():
        return np.zeros(len(cases))
    queries = a.heads * a.head_dim / cases.tp
    keys = np.maximum(a.kv_heads / cases.tp, 1.0) * (a.head_dim + a.v_head_dim)
    if setting.framework.context_exchange == "gathered":
        out = 4 * keys * cases.cp + 4 * queries
    else:
        out = 2 * keys * (cases.cp + 1) + 12 * keys + 8 * queries + 2 * (queries + keys)
        out = out + 2 * queries
    return np.where(cases.cp > 1, out, 0.0)
