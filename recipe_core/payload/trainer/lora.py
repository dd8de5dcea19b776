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
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn.functional import linear, pad

from .errors import TrainError
from .model import Part, copy_part_weights, fill_random, stored_tensors
from .settings import Lora

# Arxiv:2305.14314, appendix E.
VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
BLOCK = 64
# Magnitudes that share a scale.
OUTER = 256
_EIGHT = torch.float8_e4m3fn
_LARGEST = torch.finfo(_EIGHT).max
NF4_NAMES = ("codes", "scales", "outer")


class Packed(NamedTuple):
    """A matrix of ``outputs`` × ``inputs``, all in bytes, so that nothing casts them.

    ``codes`` (outputs × inputs / 2): two weights a byte. ``scales`` (outputs × inputs / 64): 8-bit
    floats. ``outer`` (scales / 256, rounded up, × 8): the mean and the scale of a block, in fp32.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    outer: torch.Tensor


def shapes(outputs: int, inputs: int) -> tuple[tuple[int, int], ...]:
    """Of the tensors of a `Packed`.

    Raises:
        TrainError: when blocks do not fill rows.
    """
    if inputs % BLOCK:
        raise TrainError(
            f"a matrix of {inputs} inputs does not divide into blocks of {BLOCK}.",
            hint="Train 16-bit adapters: method lora.",
        )
    blocks = outputs * inputs // BLOCK
    return (outputs, inputs // 2), (outputs, inputs // BLOCK), (-(-blocks // OUTER), 8)


def quantize_nf4(weight: torch.Tensor) -> Packed:
    """A matrix in four bits."""
    codes_shape, scales_shape, _ = shapes(*weight.shape)
    blocks = weight.float().reshape(-1, BLOCK)
    largest = blocks.abs().amax(1)
    values = torch.tensor(VALUES, device=weight.device)
    middles = (values[1:] + values[:-1]) / 2
    # A block of zeros has no largest magnitude.
    codes = torch.bucketize(blocks / largest.clamp(min=1e-30)[:, None], middles).to(torch.uint8)
    packed = codes.view(-1, 2)
    inner = pad(largest, (0, -len(largest) % OUTER), value=float(largest.mean())).view(-1, OUTER)
    mean = inner.mean(1, keepdim=True)
    scale = ((inner - mean).abs().amax(1, keepdim=True) / _LARGEST).clamp(min=1e-30)
    eight = ((inner - mean) / scale).to(_EIGHT).view(torch.uint8).flatten()[: len(largest)]
    return Packed(
        (packed[:, 0] << 4 | packed[:, 1]).view(codes_shape),
        eight.view(scales_shape),
        torch.cat([mean, scale], 1).contiguous().view(torch.uint8),
    )


def dequantize(packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that four bits stand for."""
    codes, scales, outer = packed
    values = torch.tensor(VALUES, device=codes.device)
    blocks = torch.stack([codes >> 4, codes & 15], -1).view(-1, BLOCK)
    mean, scale = outer.contiguous().view(torch.float32).repeat_interleave(OUTER, 0).T
    count = scales.numel()
    largest = scales.flatten().view(_EIGHT).float() * scale[:count] + mean[:count]
    weight: torch.Tensor = values[blocks.int()] * largest[:, None]
    return weight.to(dtype).view(codes.shape[0], -1)


class _Product(torch.autograd.Function):
    """``W x`` that keeps four bits for the backward pass, in which only ``x`` has a gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, *packed: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*packed)
        return linear(x, dequantize(Packed(*packed), x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight = dequantize(Packed(*ctx.saved_tensors), gradient.dtype)
        return gradient @ weight, None, None, None


class Quantized(nn.Linear):
    """A frozen linear layer whose matrix is a `Packed`."""

    codes: nn.Parameter
    scales: nn.Parameter
    outer: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``W x + b``."""
        out: torch.Tensor = _Product.apply(x, self.codes, self.scales, self.outer)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias


def reserve_nf4_weight(module: Any) -> None:
    """Take the matrix of a linear layer on the meta device away, and leave room for four bits."""
    del module.weight
    for name, shape in zip(NF4_NAMES, shapes(module.out_features, module.in_features), strict=True):
        empty = torch.empty(shape, dtype=torch.uint8, device="meta")
        module.register_parameter(name, nn.Parameter(empty, requires_grad=False))


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
