"""Low-rank adapters (Hu et al., arXiv:2106.09685): frozen weights, two thin matrices that learn.

For every linear layer of every block, as estimated: ``y = W x + alpha / rank · B (A x)``. Where
tensor parallelism cuts W along its outputs, B is cut with it; along its inputs, A is. The other one
is complete on every rank.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn.functional import linear

from .errors import TrainError
from .model import Part, put
from .settings import Lora

NAMES = ("lora_A", "lora_B")


class Adapted(nn.Linear):
    """A frozen matrix plus the product of two thin ones."""

    lora_A: nn.Parameter  # noqa: N815 - peft's names
    lora_B: nn.Parameter  # noqa: N815
    scale: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``W x + scale · B (A x)``."""
        change = linear(linear(x, self.lora_A), self.lora_B)
        out: torch.Tensor = super().forward(x) + self.scale * change
        return out


def narrow(part: Part, dtype: torch.dtype | None) -> None:
    """Store frozen weights in the 16-bit format of the run: no optimizer changes them."""
    for parameter in part.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)


def adapt(part: Part, lora: Lora) -> None:
    """Freeze a part, and add adapters to its linear layers on the meta device.

    After tensor parallelism: adapters follow its cuts, and it would make parameters trainable.
    """
    part.requires_grad_(False)
    for layer in part.layers:
        for _, module in linears(layer):
            module.__class__ = Adapted  # in place: hooks of tensor parallelism and names stay
            module.scale = lora.alpha / lora.rank
            for name, shape in zip(NAMES, _shapes(module, lora), strict=True):
                value: torch.Tensor = torch.empty(shape, device="meta")
                if isinstance(module.weight, DTensor):
                    cut = [_beside(name, module.weight.placements[0])]
                    value = distribute_tensor(value, module.weight.device_mesh, cut)
                module.register_parameter(name, nn.Parameter(value))


def linears(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The linear layers by name."""
    return ((name, child) for name, child in module.named_modules() if isinstance(child, nn.Linear))


def _shapes(module: Any, lora: Lora) -> tuple[tuple[int, int], tuple[int, int]]:
    return (lora.rank, module.in_features), (module.out_features, lora.rank)


def _beside(name: str, cut: Placement) -> Placement:
    """How an adapter is cut next to its weight: B along outputs, A along inputs."""
    return cut if isinstance(cut, Shard) and cut.dim == 1 - NAMES.index(name) else Replicate()


def fill_adapters(part: Part, seed: int, device: torch.device) -> None:
    """A as peft draws it (uniform within 1/sqrt of the inputs), B zero.

    The model starts unchanged, on any number of devices.
    """
    for name, module in part.inner.named_modules():
        if isinstance(module, Adapted):
            torch.manual_seed(seed + zlib.crc32(f"{name}.lora_A".encode()))
            bound = 1 / math.sqrt(module.in_features)
            first = torch.empty(module.lora_A.shape, device=device).uniform_(-bound, bound)
            second = torch.zeros(module.lora_B.shape, device=device)
            put(part, {f"{name}.lora_A": first, f"{name}.lora_B": second})


class Adapters:
    """The trained adapters of a model by layer; ``read`` fills tensors from a checkpoint."""

    def __init__(self, reference: Any, lora: Lora, read: Any) -> None:
        self.lora = lora
        layers = reference.model.layers
        self.layers = [f"model.layers.{name}" for name, _ in linears(layers)]
        empty = {}
        for layer in self.layers:
            shapes = _shapes(reference.get_submodule(layer), lora)
            for name, shape in zip(NAMES, shapes, strict=True):
                empty[f"{layer}.{name}"] = torch.empty(shape)
        self.tensors: dict[str, torch.Tensor] = read(empty)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.tensors.values()):
            raise TrainError(
                "the adapters are not finite; nothing was exported.",
                hint="Train with a lower learning rate.",
            )

    def merged(
        self, stored: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        """The weights with the adapters merged, in ``dtype``."""
        scale, known = self.lora.alpha / self.lora.rank, set(self.layers)
        out: dict[str, torch.Tensor] = {}
        for name, weight in stored:
            layer, _, last = name.rpartition(".")
            if layer in known and last == "weight":
                first, second = (self.tensors[f"{layer}.{adapter}"] for adapter in NAMES)
                weight = weight.float() + scale * (second @ first)
            out[name] = weight.to(dtype)
        return out

    def save(self, folder: Path, base: str) -> None:
        """Write what peft and inference engines read as a LoRA adapter of ``base``."""
        folder.mkdir(parents=True)
        tensors = {
            f"base_model.model.{name}.weight": tensor.contiguous()
            for name, tensor in self.tensors.items()
        }
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.lora.rank,
            "lora_alpha": self.lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({layer.rpartition(".")[2] for layer in self.layers}),
            "inference_mode": True,
        }
        (folder / "adapter_config.json").write_text(
            json.dumps(config, indent=2) + "\n", encoding="utf-8"
        )
