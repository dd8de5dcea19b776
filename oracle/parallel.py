"""A training model on the meta device: tensor parallel, recomputed, sharded, as torchtitan does."""

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

from oracle.build import layer_list
from recipe_core.base.errors import InputError

ATTENTION = "recipe_trace_training"
STYLES: Mapping[str, Any] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
aten = torch.ops.aten
# What torchtitan's selective recomputation saves besides every second product
# (``torchtitan/distributed/activation_checkpoint.py``).
SAVED = {
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def flash_attention(
    _module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_args: Any,
    scaling: float | None = None,
    **_more: Any,
) -> tuple[torch.Tensor, None]:
    """The operator of CUDA devices on ``[batch, heads, tokens, dim]``.

    Its gradient needs q, k, v, output and log-sum-exp, which are saved.
    """
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, True, False, scale=scaling
    )[0]
    return out.transpose(1, 2).contiguous(), None


class FusedNorm(torch.autograd.Function):
    """Allocations of a fused RMS norm: saves its input and an fp32 value a row.

    On CPU tensors torch would run it as separate fp32 steps.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Output for an input ``[..., width]``."""
        ctx.save_for_backward(x, weight, x.narrow(-1, 0, 1).to(torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fuse_norms(model: nn.Module) -> None:
    """Replaces RMS norms by one operator."""

    def forward(norm: Any, x: torch.Tensor) -> Any:
        return FusedNorm.apply(x, norm.weight)  # type: ignore[no-untyped-call]

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = forward.__get__(module)


class FusedGate(torch.autograd.Function):
    """Allocations of a compiled gated activation: saves gate and up.

    torch's partitioner recomputes the activation.
    """

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Product for gate and up ``[..., intermediate]``."""
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of gate and up."""
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


def fuse_gates(model: nn.Module) -> None:
    """Replaces activation and product of dense gated feed-forward blocks by one operator."""

    def forward(block: Any, x: torch.Tensor) -> Any:
        return block.down_proj(FusedGate.apply(block.gate_proj(x), block.up_proj(x)))  # type: ignore[no-untyped-call]

    for module in model.modules():
        if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            module.forward = forward.__get__(module)


class FusedLoss(torch.autograd.Function):
    """Allocations of a compiled cross entropy: 16-bit logits, and their gradient in 16 bits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        """A number for logits of any shape."""
        ctx.save_for_backward(logits)
        return logits.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


def tensor_parallel(model: Any, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Splits by transformers' own plan.

    Between blocks hidden states are complete, or split along the sequence.

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
        styles = ", ".join(odd) or "nothing"
        raise InputError(
            f"transformers' plan for {type(model).__name__} splits by {styles}; only colwise and "
            "rowwise can be traced.",
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
        parallel: dict[str, Any] = {
            key: STYLES[style](output_layouts=between) if style == "rowwise" else STYLES[style]()
            for key, style in rules.items()
        }
        for child, module in layer.named_children():
            if any(key.startswith(f"{child}.") for key in rules):
                module.register_forward_pre_hook(_whole_input(mesh, between), with_kwargs=True)
            elif sequence_parallel:
                parallel[child] = SequenceParallel()
        parallelize_module(layer, mesh, parallel, src_data_rank=None)


def _name_of(model: nn.Module, target: nn.Module) -> str:
    name: str = next(name for name, module in model.named_modules() if module is target)
    return name


def _whole_input(mesh: DeviceMesh, layout: Any) -> Any:
    """A hook that gathers a block's hidden states once for all its projections.

    Each projection alone would reduce its gradient alone.
    """

    def gather(x: torch.Tensor) -> DTensor:
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, [layout], run_check=False)
        return x.redistribute(mesh, [Replicate()])

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (gather(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": gather(kwargs["hidden_states"])}

    return hook


def recompute(model: nn.Module, policy: str) -> None:
    """Wraps each layer so that its forward pass is run again.

    ``full`` saves its input, ``selective`` also attention and every second product (torchtitan's
    ``op`` option).
    """
    owner, name = layer_list(model)
    layers = getattr(owner, name)
    more: dict[str, Any] = {"context_fn": _selective} if policy == "selective" else {}
    for i, layer in enumerate(layers):
        layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False, **more)


def _selective() -> Any:
    products: Counter[bool] = Counter()

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        products[context.is_recompute] += func is aten.mm.default
        saved = func in SAVED or (func is aten.mm.default and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def shard(
    stage: Any,
    mesh: DeviceMesh,
    *,
    reshard: bool,
    reduced: torch.dtype,
    head_apart: bool = False,
) -> None:
    """FSDP2 units: the embedding, each layer, and final norm with head, or both ``head_apart``.

    The last one is not resharded, as its backward pass follows at once. ``reduced``: the format in
    which gradients are scattered.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
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
    if head_apart:
        fully(norm, reshard_after_forward=reshard)
        fully(head, reshard_after_forward=False)
    elif units:
        fully([embedding, *units] if tied else units, reshard_after_forward=False)
    fully(stage, reshard_after_forward=reshard)


def _placement(ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    return lambda parameter: (
        Shard(1) if parameter.ndim == 3 and parameter.shape[0] < ranks else None
    )
