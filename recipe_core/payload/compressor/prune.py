"""Weights set to zero: by magnitude, or by Wanda, at n of m or anywhere in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .models import matrices
from .walk import layer_by_layer

METHODS = ("wanda", "magnitude")


def prune(
    model: Any,
    batches: Sequence[Sequence[int]],
    *,
    method: str,
    removed: float,
    block: int | None,
    ignore: Sequence[str],
) -> None:
    """Set weights of all matrices in the layers to zero.

    magnitude: the smallest go. wanda: those with the smallest |weight| × norm of their input over
    the samples (arXiv:2306.11695, equation 1), compared within an output. block: ``removed`` of
    every so many neighbours go (4 and 0.5: 2:4); None: anywhere in a row.
    """
    squares: dict[str, torch.Tensor] = {}

    def look(name: str, inputs: torch.Tensor) -> None:
        squares[name] = squares.get(name, 0) + inputs.float().square().sum(0)

    def change(_: int, layer: nn.Module) -> None:
        for name, matrix in matrices(layer, ignore):
            score = matrix.weight.float().abs()
            if method == "wanda":
                score *= squares[name].sqrt()
            matrix.weight[smallest(score, removed, block)] = 0
        squares.clear()

    with torch.no_grad():
        layer_by_layer(model, batches, look, change)


def smallest(score: torch.Tensor, removed: float, block: int | None) -> torch.Tensor:
    """True where a share ``removed`` of each row, or of each block of it, scores least.

    Columns that fill no block stay.
    """
    width = block or score.shape[1]
    full = score.shape[1] // width * width
    grouped = score[:, :full].reshape(score.shape[0], -1, width)
    order = grouped.argsort(-1)[..., : round(width * removed)]
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask[:, :full] = torch.zeros_like(grouped, dtype=torch.bool).scatter(-1, order, True).flatten(1)
    return mask
