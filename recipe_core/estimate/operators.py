"""A model step as named operators with their times, on one rank, over all layers.

Work per layer: projections and feed-forward ``2·rows·weights`` flops; attention ``2·(d_k + d_v)`` flops per head and pair of
tokens; bytes are weights, activations in and out, and the cache that decoding reads. Decoding with MLA is absorbed (it works
on the latent); prefill expands it. Distinct experts a step touches: ``E·(1 - (1 - K/E)^rows)``. Left out: expert imbalance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Cases, Float, Setting, add
from recipe_core.estimate.memory import expert_ranks, kv_token_bytes, padded_vocabulary, state_bytes
from recipe_core.estimate.network import all_gather_s, all_reduce_s, group, send_s
from recipe_core.estimate.roofline import operator_s
from recipe_core.model.spec import Attention, LatentAttention, Layer, LinearAttention, MoeMlp, Role

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Step:
    """What one scheduler runs in one step (arrays over cases).

    prefill_tokens: prompt tokens, each seeing ``prefill_context`` tokens on average. sequences: requests that decode one token
    at ``context`` tokens. sampled: rows that need logits.
    """

    prefill_tokens: Float
    prefill_context: Float
    sequences: Float
    context: Float
    sampled: Float

    @property
    def rows(self) -> Float:
        """Tokens that go through the matrices."""
        return self.prefill_tokens + self.sequences


def step_parts(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by cause, through all pipeline stages; the values add up to the step."""
    parts: Parts = {}
    for layer, count in setting.model.kinds:
        for name, seconds in _layer_parts(setting, cases, step, layer).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
    balance = _stage_imbalance(setting, cases)
    parts = {name: seconds * balance for name, seconds in parts.items()}
    parts |= _ends(setting, cases, step)
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    parts["engine"] = overhead.step_s + overhead.sequence_s * step.sequences + overhead.layer_s * len(setting.model.layers)
    return parts


def total(parts: Parts) -> Float:
    """Sum of the parts."""
    return add(parts.values())


def _stage_imbalance(setting: Setting, cases: Cases) -> Float:
    """All stages wait for the longest: its layers against the mean."""
    layers = len(setting.model.layers)
    return np.ceil(layers / cases.pp) * cases.pp / layers


def _matmul(setting: Setting, role: Role, rows: Float, inputs: Float | float, outputs: Float | float, kernels: float = 1.0) -> Float:
    """A dense product of ``rows × inputs`` with ``inputs × outputs`` weights that are stored as their role is."""
    moved = inputs * outputs * setting.stored_bytes(role) + rows * (inputs + outputs) * setting.activation_bytes
    return operator_s(setting.cluster.device, "gemm", setting.stored_dtype(role), 2 * rows * inputs * outputs, moved, kernels)


def _layer_parts(setting: Setting, cases: Cases, step: Step, layer: Layer) -> Parts:
    """One layer: its mixer, its feed-forward (either may be missing) and the norms around them."""
    hidden, b, rows = setting.model.hidden, setting.activation_bytes, step.rows
    tp = group(setting.cluster, cases, cases.tp)
    reduce_s = all_reduce_s(setting.cluster, tp, rows * hidden * b)
    parts: Parts = {}
    wide: Float | float = 4 * hidden
    if layer.attention is not None:
        parts |= _projections(setting, cases, rows, layer.attention) | _attention(setting, cases, step, layer)
        wide = wide + 2 * hidden + 4 * layer.attention.heads * layer.attention.v_head_dim / cases.tp
    if isinstance(layer.mlp, MoeMlp):
        parts |= _experts(setting, cases, rows, layer.mlp)
        wide = wide + 2 * hidden + 3 * layer.mlp.shared_intermediate / cases.tp
    elif layer.mlp is not None:
        width = layer.mlp.intermediate / cases.tp
        up = _matmul(setting, "linear", rows, hidden, (layer.mlp.matrices - 1) * width)
        parts["mlp"] = up + _matmul(setting, "linear", rows, width, hidden)
        wide = wide + 2 * hidden + 3 * width
    blocks = (layer.attention is not None) + (layer.mlp is not None)
    parts["all_reduce"] = blocks * reduce_s
    parts["norms"] = operator_s(setting.cluster.device, "elementwise", setting.model.dtype, rows * wide, rows * wide * b, 2.0 * blocks)
    return parts


def _projections(setting: Setting, cases: Cases, rows: Float, attention: Attention) -> Parts:
    """Into and out of the mixer. MLA's up-projections are two products over the latent; a state layer's inputs are one."""
    hidden, a = float(setting.model.hidden), attention
    heads = a.heads / cases.tp
    role: Role = "mixer" if isinstance(a, LinearAttention) else "attention"
    if isinstance(a, LatentAttention):
        latent = a.kv_lora_rank + a.rope_head_dim
        query = _matmul(setting, role, rows, float(a.q_lora_rank or hidden), heads * a.head_dim)
        expand = _matmul(setting, role, rows, float(a.kv_lora_rank), heads * (a.nope_head_dim + a.v_head_dim), 2.0)
        qkv = _matmul(setting, role, rows, hidden, float(latent + (a.q_lora_rank or 0))) + query + expand
    elif isinstance(a, LinearAttention):
        qkv = _matmul(setting, role, rows, hidden, a.in_columns / cases.tp)
    else:
        kv = np.ceil(a.kv_heads / np.minimum(cases.tp, a.kv_heads)) * a.kv_values_per_head
        qkv = _matmul(setting, role, rows, hidden, heads * a.head_dim + a.gate / cases.tp + kv)
    return {"qkv": qkv, "o": _matmul(setting, role, rows, heads * a.v_head_dim, hidden)}


def _attention(setting: Setting, cases: Cases, step: Step, layer: Layer) -> Parts:
    """What mixes tokens: attention over the prompt and over the cache (a window bounds both), or the update of a state."""
    a = layer.attention
    if isinstance(a, LinearAttention):
        return {"state": _state_update(setting, cases, step, layer)}
    if a is None:
        return {}
    b, device = setting.activation_bytes, setting.cluster.device
    heads = a.heads / cases.tp
    window = a.window or np.inf
    pairs = step.prefill_tokens * np.minimum(step.prefill_context, window)
    token_bytes = kv_token_bytes(setting, layer, cases.tp)
    io = heads * (a.head_dim + a.v_head_dim) * b
    prefill = operator_s(
        device,
        "attention_prefill",
        setting.model.dtype,
        2 * pairs * heads * (a.head_dim + a.v_head_dim),
        step.prefill_tokens * (io + 2 * token_bytes),
    )
    per_pair = 2 * heads * (a.kv_values_per_head + a.kv_lora_rank if isinstance(a, LatentAttention) else a.head_dim + a.v_head_dim)
    seen = step.sequences * np.minimum(step.context, window)
    decode = operator_s(device, "attention_decode", setting.kv_dtype, seen * per_pair, seen * token_bytes + step.sequences * io)
    return {"attention": np.where(step.prefill_tokens > 0, prefill, 0.0) + np.where(step.sequences > 0, decode, 0.0)}


def _state_update(setting: Setting, cases: Cases, step: Step, layer: Layer) -> Float:
    """Reading and writing each sequence's state once a step, and about four operations per value and token on it."""
    state = state_bytes(setting, layer, cases.tp)
    values = layer.attention.state_values / cases.tp if layer.attention is not None else 0.0
    moved = 2 * state * (step.sequences + np.minimum(step.prefill_tokens, 1.0))
    return operator_s(setting.cluster.device, "elementwise", setting.model.dtype, 4 * step.rows * values, moved, 2.0)


def _experts(setting: Setting, cases: Cases, rows: Float, mlp: MoeMlp) -> Parts:
    """Router, routed and shared experts, and what moves tokens to experts.

    With shared experts (ep) and data-parallel attention every rank sees the tokens of all: they are gathered before and
    scattered after the experts (vLLM's default all-gather/reduce-scatter backend); otherwise tensor parallelism's all-reduce.
    """
    hidden, b, device = setting.model.hidden, setting.activation_bytes, setting.cluster.device
    shared = cases.shares_experts
    ranks = expert_ranks(cases)
    tokens = np.where(shared, rows * cases.dp, rows)
    distinct = mlp.experts * (1 - (1 - mlp.top_k / mlp.experts) ** tokens)
    inside = mlp.expert_hidden(hidden)
    per_expert = mlp.matrices * inside * mlp.intermediate
    flops = 2 * tokens * mlp.top_k * per_expert / ranks
    moved = distinct * per_expert * setting.stored_bytes("experts") / ranks
    inner = 3 * mlp.intermediate / np.where(shared, cases.ep, cases.tp)
    moved += tokens * mlp.top_k * (2 * inside + inner) * b  # dispatched in and out, and the expert's own activations
    out = {
        "router": _matmul(setting, "router", rows, float(hidden), float(mlp.experts)),
        "experts": operator_s(device, "moe", setting.stored_dtype("experts"), flops, moved),
    }
    if mlp.shared_intermediate:
        width = mlp.shared_intermediate / cases.tp
        up = _matmul(setting, "shared", rows, float(hidden), (mlp.matrices - 1) * width)
        out["shared_experts"] = up + _matmul(setting, "shared", rows, width, float(hidden))
    everyone = group(setting.cluster, cases, cases.dp, cases.tp)
    exchange = 2 * all_gather_s(setting.cluster, everyone, rows * cases.dp * hidden * b)
    out["all_to_all"] = np.where(shared & (cases.dp > 1), exchange, 0.0)
    return out


def _ends(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Embedding, head, and hand-over between pipeline stages."""
    hidden, b, dtype = setting.model.hidden, setting.activation_bytes, setting.model.dtype
    vocabulary = padded_vocabulary(setting.model.vocabulary) / cases.tp
    tp = group(setting.cluster, cases, cases.tp)
    logits = all_gather_s(setting.cluster, tp, step.sampled * vocabulary * cases.tp * b)
    crosses = cases.tp * cases.pp > cases.per_node
    hand_over = send_s(setting.cluster, crosses, step.rows * hidden * b / cases.tp)
    lookup = operator_s(setting.cluster.device, "elementwise", dtype, 0 * step.rows, 2 * step.rows * hidden * b)
    return {
        "embedding": lookup + np.where(cases.tp > 1, all_reduce_s(setting.cluster, tp, step.rows * hidden * b), 0.0),
        "head": _matmul(setting, "head", step.sampled, float(hidden), vocabulary) + np.where(cases.tp > 1, logits, 0.0),
        "pipeline": np.where(cases.pp > 1, (cases.pp - 1) * hand_over, 0.0),
    }
