"""Frozen matrices in four bits: NormalFloat with double quantisation (QLoRA, arXiv:2305.14314).

A block of 64 weights is divided by its largest magnitude, and each is rounded to the nearest of 16
values, the quantiles of a normal distribution (appendix E). The magnitudes, less their mean, are
stored as 8-bit floats in blocks of 256 with one fp32 scale each (section 3): 0.516 bytes a weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear, pad

from .errors import TrainError

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
NAMES = ("codes", "scales", "outer")


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
    for name, shape in zip(NAMES, shapes(module.out_features, module.in_features), strict=True):
        empty = torch.empty(shape, dtype=torch.uint8, device="meta")
        module.register_parameter(name, nn.Parameter(empty, requires_grad=False))
