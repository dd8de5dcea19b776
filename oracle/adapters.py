"""Low-rank adapters beside the frozen linear layers of a traced model, as peft adds them."""

from __future__ import annotations

import torch
from torch import nn

from oracle.build import layer_list

# Part of the name of a layer's attention, in transformers' classes.
_ATTENTION = "attn"


class Adapted(nn.Module):
    """A frozen linear layer and ``B A x`` beside it, whose two matrices are in fp32."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        make = {"bias": False, "device": "meta", "dtype": torch.float32}
        self.down = nn.Linear(base.in_features, rank, **make)  # type: ignore[arg-type]
        self.up = nn.Linear(rank, base.out_features, **make)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``W x + B A x``."""
        out: torch.Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapt(model: nn.Module, rank: int, targets: str) -> None:
    """Freezes a model on the meta device and puts adapters beside the linear layers of its blocks.

    ``targets``: ``attention``, ``mlp`` or ``all``.
    """
    model.requires_grad_(False)
    owner, name = layer_list(model)
    for layer in getattr(owner, name):
        linear = [(path, m) for path, m in layer.named_modules() if isinstance(m, nn.Linear)]
        for path, module in linear:
            half = "attention" if _ATTENTION in path else "mlp"
            if targets in (half, "all"):
                parent, _, leaf = path.rpartition(".")
                setattr(layer.get_submodule(parent), leaf, Adapted(module, rank))
