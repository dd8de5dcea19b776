"""Low-rank adapters (Hu et al., arXiv:2106.09685): frozen weights, two thin matrices that learn.

For linear layers of every block (those of attention, of the feed-forward block, or all), as
estimated: ``y = W x + alpha / rank · B (A x)``. Where tensor parallelism cuts W along its outputs,
B is cut with it; along its inputs, A is. The other one is complete on every rank.

With a base in four bits (`nf4`) every linear layer of every block is stored so.
"""

from __future__ import annotations

import json
import math
import re
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
from .model import Part, copy_part_weights, fill_random, stored_tensors
from .nf4 import Quantized, dequantize, quantize_nf4, reserve_nf4_weight
from .settings import Lora

NAMES = ("lora_A", "lora_B")
# What the names of attention's blocks have in them.
_ATTENTION = re.compile(r"att(entio)?n|mixer")


class Adapted(nn.Linear):
    """A frozen matrix plus the product of two thin ones."""

    lora_A: nn.Parameter  # noqa: N815 - peft's names
    lora_B: nn.Parameter  # noqa: N815
    scale: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``W x + scale · B (A x)``; without the second part where the scale is 0."""
        out: torch.Tensor = super().forward(x)
        if not self.scale:
            return out
        return out + self.scale * linear(linear(x, self.lora_A), self.lora_B)


class AdaptedQuantized(Adapted, Quantized):
    """The same beside a matrix in four bits."""


def narrow(part: Part, dtype: torch.dtype | None) -> None:
    """Store frozen weights in the 16-bit format of the run: no optimizer changes them."""
    for parameter in part.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)


def adapt(part: Part, lora: Lora) -> None:
    """Freeze a part, and add adapters to its linear layers on the meta device.

    After tensor parallelism: adapters follow its cuts, and it would make parameters trainable.
    """
    part.requires_grad_(False)
    quantized = lora.base == "nf4"
    for layer in part.layers:
        adapter_targets = dict(find_adapter_targets(layer, lora))
        for name, module in linears(layer):
            # In place: hooks of tensor parallelism and names stay.
            if name in adapter_targets:
                module.__class__ = AdaptedQuantized if quantized else Adapted
                _add_adapter(module, lora)
            elif quantized:
                module.__class__ = Quantized
            if quantized:
                reserve_nf4_weight(module)


def _add_adapter(module: Any, lora: Lora) -> None:
    module.scale = lora.alpha / lora.rank
    for name, shape in zip(NAMES, _adapter_shapes(module, lora), strict=True):
        value: torch.Tensor = torch.empty(shape, device="meta")
        if isinstance(module.weight, DTensor):
            cut = [_adapter_placement(name, module.weight.placements[0])]
            value = distribute_tensor(value, module.weight.device_mesh, cut)
        module.register_parameter(name, nn.Parameter(value))


def linears(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, child) for name, child in module.named_modules() if isinstance(child, nn.Linear))


def find_adapter_targets(layer: nn.Module, lora: Lora) -> Iterator[tuple[str, Any]]:
    for name, module in linears(layer):
        kind = "attention" if _ATTENTION.search(name) else "mlp"
        if lora.targets in (kind, "all"):
            yield name, module


def fill_pretrained(part: Part, reference: Any, folder: str, device: torch.device) -> None:
    """Load weights from the folder's safetensors; buffers are as after a random start.

    Raises:
        TrainError: when a tensor of the model is missing.
    """
    fill_random(part, reference, 0, device)
    names = {name for name, _ in reference.named_parameters()}
    for name, tensor in stored_tensors(folder, select_part_weights(part, names)):
        copy_part_weights(part, as_held(part, name, tensor.to(device, torch.float32)))


def select_part_weights(part: Part, names: set[str]) -> set[str]:
    """Which weights of a checkpoint the part holds, also those that it holds in four bits."""
    packed = {
        f"{name}.weight"
        for name, module in part.inner.named_modules()
        if isinstance(module, Quantized)
    }
    return ({name for name, _ in part.named()} | packed) & names


def as_held(part: Part, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A weight of a checkpoint as the part's tensors."""
    layer, _, last = name.rpartition(".")
    if last == "weight" and isinstance(part.inner.get_submodule(layer), Quantized):
        return {f"{layer}.{key}": value for key, value in quantize_nf4(weight)._asdict().items()}
    return {name: weight}


def _adapter_shapes(module: Any, lora: Lora) -> tuple[tuple[int, int], tuple[int, int]]:
    return (lora.rank, module.in_features), (module.out_features, lora.rank)


def _adapter_placement(name: str, cut: Placement) -> Placement:
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
            copy_part_weights(part, {f"{name}.lora_A": first, f"{name}.lora_B": second})


class Adapters:
    """The trained adapters of a model by layer; ``read`` fills tensors from a checkpoint."""

    def __init__(self, reference: Any, lora: Lora, read: Any) -> None:
        self.lora = lora
        self.linears = [f"model.layers.{name}" for name, _ in linears(reference.model.layers)]
        self.layers = [
            f"model.layers.{index}.{name}"
            for index, layer in enumerate(reference.model.layers)
            for name, _ in find_adapter_targets(layer, lora)
        ]
        empty = {}
        for layer in self.layers:
            shapes = _adapter_shapes(reference.get_submodule(layer), lora)
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
        """The weights with the adapters merged, in ``dtype``: those that were trained beside.

        Of a base in four bits these are the rounded ones.
        """
        scale, adapted = self.lora.alpha / self.lora.rank, set(self.layers)
        packed = set(self.linears) if self.lora.base == "nf4" else set()
        out: dict[str, torch.Tensor] = {}
        for name, weight in stored:
            layer, _, last = name.rpartition(".")
            if layer in packed and last == "weight":
                weight = dequantize(quantize_nf4(weight), torch.float32)
            if layer in adapted and last == "weight":
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
