"""A training model on the meta device, parallelised as torchtitan does: tensor parallel, recomputed, sharded, in that order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from recipe_core.base.errors import InputError
from recipe_core.calibration.trace.build import layer_list

ATTENTION = "recipe_trace_training"
STYLES: Mapping[str, Any] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
aten = torch.ops.aten
KEPT = {
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""What torchtitan's selective recomputation keeps beside every second product (``torchtitan/distributed/activation_checkpoint.py``)."""


def flash_attention(
    _module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_args: Any,
    scaling: float | None = None,
    **_more: Any,
) -> tuple[torch.Tensor, None]:
    """The operator that CUDA devices run on ``[batch, heads, tokens, dim]``: for its gradient q, k, v, output and log-sum-exp are kept."""
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, True, False, scale=scaling
    )[0]
    return out.transpose(1, 2).contiguous(), None


class FusedNorm(torch.autograd.Function):
    """What a fused RMS norm allocates and keeps: its input and an fp32 value a row (CPU tensors would take it apart into fp32 steps)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Input ``[..., width]``."""
        ctx.save_for_backward(x, weight, x.narrow(-1, 0, 1).to(torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fuse_norms(model: nn.Module) -> None:
    """Run RMS norms as one operator."""

    def forward(norm: Any, x: torch.Tensor) -> Any:
        return FusedNorm.apply(x, norm.weight)  # type: ignore[no-untyped-call]

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = forward.__get__(module)


class FusedGate(torch.autograd.Function):
    """What a compiled activation times up allocates and keeps: gate and up (torch's partitioner makes the activation again)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Both ``[..., intermediate]``."""
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of gate and up."""
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


def fuse_gates(model: nn.Module) -> None:
    """Run the activation of dense feed-forward blocks, and its product with up, as one operator."""

    def forward(block: Any, x: torch.Tensor) -> Any:
        return block.down_proj(FusedGate.apply(block.gate_proj(x), block.up_proj(x)))  # type: ignore[no-untyped-call]

    for module in model.modules():
        if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            module.forward = forward.__get__(module)


class FusedLoss(torch.autograd.Function):
    """What a compiled cross entropy allocates and keeps: the 16-bit logits, and their gradient in 16 bits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        """Logits of any shape to a number."""
        ctx.save_for_backward(logits)
        return logits.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> torch.Tensor:
        """Gradient of the logits."""
        return torch.empty_like(ctx.saved_tensors[0])


def tensor_parallel(model: Any, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut by transformers' own plan; between blocks hidden states are whole, or cut along the sequence.

    Raises:
        InputError: a rule of the plan has no training counterpart here.
    """
    between = Shard(1) if sequence_parallel else Replicate()
    owner, name = layer_list(model)
    rules = {
        re.sub(r"^layers\.\*\.", "", key): style
        for key, style in (model.base_model._tp_plan or {}).items()
        if "layers.*" in key
    }
    odd = sorted({style for style in rules.values() if style not in STYLES})
    if odd or not rules:
        said = ", ".join(odd) or "nothing"
        raise InputError(
            f"transformers' plan for {type(model).__name__} cuts by {said}; traced are colwise and rowwise.",
            field="trace",
        )
    ends: dict[str, Any] = {}
    if isinstance(model.get_input_embeddings(), nn.Embedding):
        ends[_name_of(model, model.get_input_embeddings())] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=between
        )
    if isinstance(model.lm_head, nn.Linear):
        ends["lm_head"] = ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        )
        if sequence_parallel:
            ends[_name_of(model, model.base_model.norm)] = SequenceParallel()
    parallelize_module(model, mesh, ends, src_data_rank=None)
    for layer in getattr(owner, name):
        styles = {
            key: STYLES[style](output_layouts=between) if style == "rowwise" else STYLES[style]()
            for key, style in rules.items()
        }
        for child, module in layer.named_children():
            if any(key.startswith(f"{child}.") for key in rules):
                module.register_forward_pre_hook(_whole_input(mesh, between), with_kwargs=True)
            elif sequence_parallel:
                styles[child] = SequenceParallel()
        parallelize_module(layer, mesh, styles, src_data_rank=None)


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    found: str = next(name for name, module in model.named_modules() if module is wanted)
    return found


def _whole_input(mesh: DeviceMesh, layout: Any) -> Any:
    """A hook that gathers a block's hidden states once for all its projections (each alone would reduce its gradient alone)."""

    def gather(x: torch.Tensor) -> DTensor:
        cut = (
            x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [layout], run_check=False)
        )
        return cut.redistribute(mesh, [Replicate()])

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (gather(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": gather(kwargs["hidden_states"])}

    return hook


def recompute(model: nn.Module, policy: str) -> None:
    """Wrap each layer: ``full`` keeps its input, ``selective`` also attention and every second product (torchtitan's ``op`` option)."""
    owner, name = layer_list(model)
    layers = getattr(owner, name)
    more: dict[str, Any] = {"context_fn": _selective} if policy == "selective" else {}
    for i, layer in enumerate(layers):
        layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False, **more)


def _selective() -> Any:
    products: Counter[bool] = Counter()

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        products[context.is_recompute] += func is aten.mm.default
        kept = func in KEPT or (func is aten.mm.default and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def shard(stage: Any, mesh: DeviceMesh, *, reshard: bool) -> None:
    """FSDP2 units: the embedding, each layer, and final norm with head, which stays whole for the backward pass that follows at once."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = stage.model
    owner, name = layer_list(model)
    embedding, norm, head = model.get_input_embeddings(), model.base_model.norm, model.lm_head
    units = [module for module in (norm, head) if any(True for _ in module.parameters())]
    tied = getattr(head, "weight", None) is getattr(embedding, "weight", head)
    fully = partial(
        fully_shard,
        mesh=mesh,
        mp_policy=policy,
        shard_placement_fn=_placement(mesh.size(mesh.ndim - 1)),
    )
    if any(True for _ in embedding.parameters()) and not tied:
        fully(embedding, reshard_after_forward=reshard)
    for layer in getattr(owner, name):
        fully(layer, reshard_after_forward=reshard)
    if units:
        fully([embedding, *units] if tied else units, reshard_after_forward=False)
    fully(stage, reshard_after_forward=reshard)


def _placement(ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    """Stacked experts are cut along a dimension of their own where there are fewer of them than ranks, as torchtitan does."""
    return lambda parameter: (
        Shard(1) if parameter.ndim == 3 and parameter.shape[0] < ranks else None
    )
