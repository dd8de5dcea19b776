"""Layers that stay in the host's memory and are computed there, as llama.cpp leaves them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.weights import layer_weight_bytes, tensor_bytes
from recipe_core.hardware.host import host_links
from recipe_core.models.mlp import MoeMlp
from recipe_core.models.spec import Layer


def host_weight_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes of a device's weights that are in the host's memory instead, one per case.

    Layers on the host leave every stage with the same share of the others.
    """
    dense, experts = _host_bytes(setting, cases)
    return setting.effects.host_weights_bytes + (dense + experts) / cases.pp


def host_layers_s(setting: Setting, cases: Cases, rows: Float) -> Float:
    """Seconds of a step in which the host reads its layers once: ``bytes / host bandwidth``.

    Of experts the share that ``rows`` tokens choose: ``1 - (1 - chosen / all) ^ rows``. What the
    host computes for many rows at once, and copies that engines prefer for these, are left out.
    """
    dense, experts = _host_bytes(setting, cases)
    mlps = [layer.mlp for layer in setting.model.layers if isinstance(layer.mlp, MoeMlp)]
    routed_share = mlps[0].top_k / mlps[0].experts if mlps else 1.0
    touched = 1 - (1 - routed_share) ** np.maximum(rows, 1.0)
    return np.asarray((dense + touched * experts) / host_links().host_memory.value)


def _host_bytes(setting: Setting, cases: Cases) -> tuple[Float, Float]:
    """Bytes of what every token reads on the host, and of experts there."""
    effects, layers = setting.effects, setting.model.layers
    dense, experts = np.zeros(len(cases)), np.zeros(len(cases))
    with_experts = layers[: max(effects.host_layers, effects.host_expert_layers)]
    for layer, count in Counter(with_experts).items():
        experts = experts + count * _expert_bytes(setting, layer, cases)
    for layer, count in Counter(layers[: effects.host_layers]).items():
        weight_bytes = layer_weight_bytes(setting, layer, cases)
        dense = dense + count * (weight_bytes - _expert_bytes(setting, layer, cases))
    return dense, experts


def _expert_bytes(setting: Setting, layer: Layer, cases: Cases) -> Float:
    tensors = layer.tensors(setting.model.hidden) if isinstance(layer.mlp, MoeMlp) else []
    out = np.zeros(len(cases))
    for tensor in tensors:
        if tensor.role == "experts":
            out = out + tensor_bytes(setting, layer, tensor, cases)
    return out
