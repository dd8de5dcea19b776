"""What torchtitan asks of an accelerator, on processors: imported by every Python that it starts.

Its program, its parallelism and its collectives stay as they are. Dense attention stands in for
CUDA's kernels, and for what gloo lacks of NCCL stands what gives the same sums.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import varlen

MEMORY = 1 << 34


def _device() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    properties = SimpleNamespace(total_memory=MEMORY)
    for name, value in {
        "set_device": None,
        "current_device": 0,
        "get_device_name": "cpu",
        "get_device_properties": properties,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "memory_stats": {},
    }.items():
        setattr(torch.cpu, name, lambda *_, value=value: value)


def _dense(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of ``[…, heads, positions, width]``, and the logarithms of its sums."""
    groups = query.shape[-3] // key.shape[-3]
    key, value = (part.repeat_interleave(groups, dim=-3) for part in (key, value))
    scores = query.float() @ key.float().transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    scores = scores.masked_fill(~mask, float("-inf"))
    sums = torch.logsumexp(scores, -1)
    return ((scores - sums.unsqueeze(-1)).exp() @ value.float()).to(value.dtype), sums


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float | None, **more: Any
) -> Any:
    batch, _, positions, _ = query.shape
    mask = flex.create_mask(
        block_mask.mask_mod, batch, 1, positions, key.shape[2], str(query.device)
    )
    out, sums = _dense(query, key, value, mask, scale)
    return (out, flex.AuxOutput(lse=sums)) if more.get("return_aux") else out


def _varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *_: Any, **more: Any
) -> Any:
    """Documents one after another; ``starts``: where each begins, and where the last ends."""
    places = torch.arange(query.shape[0])
    document = torch.bucketize(places, starts[1:].long(), right=True)
    back = places[:, None] - places[None, :]
    mask = (document[:, None] == document[None, :]) & (back >= 0)
    if (window := more["window_size"][0]) >= 0:
        mask &= back <= window
    heads_first = (part.transpose(0, 1) for part in (query, key, value))
    out, sums = _dense(*heads_first, mask, more.get("scale"))
    out = out.transpose(0, 1)
    return (out, sums) if more.get("return_aux") else out


def _all_to_all(outputs: list[Tensor], inputs: list[Tensor], group: Any = None) -> None:
    """Gloo exchanges pieces of unequal size only where they are one tensor."""
    sizes = [len(part) for part in outputs], [len(part) for part in inputs]
    merged = torch.cat(outputs)
    dist.all_to_all_single(merged, torch.cat(inputs), *sizes, group=group)
    for out, part in zip(outputs, merged.split(sizes[0]), strict=True):
        out.copy_(part)


def _divide(module: FSDPModule, factor: float) -> None:
    """Gloo has no sum that divides first."""
    _set_factor(module, factor)
    module.set_force_sum_reduction_for_comms(True)


_device()
_set_factor = FSDPModule.set_gradient_divide_factor
FSDPModule.set_gradient_divide_factor = _divide
dist.all_to_all = _all_to_all
flex.flex_attention = _flex_attention
varlen.varlen_attn = _varlen_attention
