"""Layers that say little are removed; matrices become products of smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .errors import CompressError
from .models import decoder_layers, matrices


def block_influence(model: Any, batches: Sequence[Sequence[int]]) -> list[float]:
    """Per layer, 1 - cosine of what a token is before and after it (arXiv:2403.03853, eq. 1)."""
    sums = torch.zeros(len(decoder_layers(model)), dtype=torch.float64)
    count = 0
    with torch.inference_mode():
        for batch in batches:
            rows = torch.tensor([list(batch)], device=model.device)
            # the last of the states is behind the final norm: layers are looked at by hooks
            states = _record_layer_states(model, rows)
            sums += torch.tensor(
                [
                    float(1 - torch.cosine_similarity(before, after, dim=-1).double().mean())
                    for before, after in states
                ]
            )
            count += 1
    influence: list[float] = (sums / count).tolist()
    return influence


def _record_layer_states(model: Any, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What every layer reads and says."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], out: Any) -> None:
        before = inputs[0] if inputs else keywords["hidden_states"]
        pairs.append((before.float(), (out[0] if isinstance(out, tuple) else out).float()))

    handles = [
        layer.register_forward_hook(hook, with_kwargs=True) for layer in decoder_layers(model)
    ]
    model(rows, use_cache=False)
    for handle in handles:
        handle.remove()
    return pairs


def remove_layers(model: Any, batches: Sequence[Sequence[int]], removed: float) -> list[int]:
    """Take out the share of layers with the least influence, one at least; their old numbers.

    Raises:
        CompressError: where no layer would be left.
    """
    layers, config = decoder_layers(model), model.config.get_text_config()
    count = max(1, round(len(layers) * removed))
    if count >= len(layers):
        message = f"options.removed takes {count} of {len(layers)} layers."
        raise CompressError(message, hint="Use a smaller share.")
    influence = block_influence(model, batches)
    gone = sorted(sorted(range(len(layers)), key=influence.__getitem__)[:count])
    remaining_indexes = [index for index in range(len(layers)) if index not in gone]
    remaining = [layers[index] for index in remaining_indexes]
    while len(layers):
        del layers[-1]
    for number, layer in enumerate(remaining):
        holder: Any
        for holder in layer.modules():
            if hasattr(holder, "layer_idx"):
                holder.layer_idx = number
        layers.append(layer)
    config.num_hidden_layers = len(remaining_indexes)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in remaining_indexes]
    return gone


def low_rank(model: Any, removed: float, ignore: Sequence[str]) -> None:
    """Matrices in the layers as the nearest of rank r, by singular values (Eckart-Young).

    r (m + n) = (1 - removed) m n. The product is stored: no engine reads the factors of a plain
    checkpoint, so that accuracy is that of the factors, and bytes are those of the base.
    """
    with torch.no_grad():
        for _, matrix in matrices(decoder_layers(model), ignore):
            outputs, inputs = matrix.weight.shape
            rank = max(1, int((1 - removed) * outputs * inputs / (outputs + inputs)))
            u, values, vh = torch.linalg.svd(matrix.weight.float(), full_matrices=False)
            product = u[:, :rank] * values[:rank] @ vh[:rank]
            matrix.weight.copy_(product.to(matrix.weight.dtype))
