"""Ranks of a run, and a part of the model cut for each: tensors, recomputation, FSDP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from .errors import TrainError
from .model import Part
from .settings import Batch, Settings, Split


@dataclass(frozen=True)
class Degrees:
    """PP × replicate × shard × TP = devices, outermost first.

    ``micro_batches``: those of a step on one replica.
    """

    pp: int
    replicate: int
    shard: int
    tp: int
    micro_batches: int

    @property
    def dp(self) -> int:
        return self.replicate * self.shard


def resolve_mesh_degrees(split: Split, batch: Batch, world: int, *, elastic: bool) -> Degrees:
    """Degrees for ``world`` devices: as planned, or, elastic, with as many replicas as fit.

    Raises:
        TrainError: when devices or global batch are not divisible; the message has every term.
    """
    model = split.tp * split.pp
    planned = model * split.dp
    if world != planned and (not elastic or world % model):
        terms = f"TP {split.tp} × PP {split.pp} × DP {split.dp} = {planned} ≠ {world} processes"
        hint = f"Start {planned} processes."
        if elastic:
            hint = f"An elastic run needs a multiple of TP × PP = {model}."
        raise TrainError(f"{terms}.", hint=hint)
    dp = world // model
    sequences = dp * batch.micro_batch
    if batch.global_batch % sequences:
        terms = f"DP {dp} × micro_batch {batch.micro_batch} = {sequences}"
        message = f"global_batch {batch.global_batch} is not divisible by {terms}."
        raise TrainError(message, hint="Use another number of devices, or plan again.")
    shard = _shard(split, dp)
    return Degrees(split.pp, dp // shard, shard, split.tp, batch.global_batch // sequences)


def _shard(split: Split, dp: int) -> int:
    """Ranks that divide states: as planned where that divides the replicas, else all."""
    if split.zero_stage == 0:
        return 1
    return split.shard if split.shard < split.dp and dp % split.shard == 0 else dp


@dataclass(frozen=True)
class World:
    """One process: its device, the mesh, and its place in it."""

    device: torch.device
    mesh: DeviceMesh
    degrees: Degrees

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def dp_rank(self) -> int:
        """The replica that this process belongs to."""
        replicate = self.mesh.get_local_rank("replicate")
        return replicate * self.degrees.shard + self.mesh.get_local_rank("shard")

    @property
    def pp_rank(self) -> int:
        return self.mesh.get_local_rank("pp")

    @property
    def data_mesh(self) -> DeviceMesh:
        """The mesh of FSDP; one dimension where nothing is replicated."""
        names = "shard" if self.degrees.replicate == 1 else ("replicate", "shard")
        return self.mesh[names]


def join_processes(settings: Settings) -> World:
    """Join the other processes.

    Raises:
        TrainError: when torchrun did not start this, or the number of processes is wrong.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    if missing := [name for name in names if name not in os.environ]:
        hint = "Start it with torchrun, or with `python launch.py up`."
        raise TrainError(f"{missing[0]} is not set.", hint=hint)
    processes = int(os.environ["WORLD_SIZE"])
    run = resolve_mesh_degrees(settings.split, settings.batch, processes, elastic=settings.elastic)
    if torch.cuda.is_available():  # ROCm builds of torch say cuda too, and their nccl is RCCL
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cuda:nccl,cpu:gloo", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    shape = (run.pp, run.replicate, run.shard, run.tp)
    axes = ("pp", "replicate", "shard", "tp")
    return World(device, init_device_mesh(device.type, shape, mesh_dim_names=axes), run)


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The dimension of the heads at query and key norms: batch, sequence, heads, values.
_HEADS = 2


def lay_out(part: Part, settings: Settings, world: World) -> Part:
    """Apply everything in the settings; the parameters stay on the meta device."""
    half = HALF.get(settings.precision)
    computed = torch.float32 if emulated(settings.precision, world.device) else half
    for parameter in part.parameters():
        if not parameter.requires_grad:  # no optimizer changes it
            parameter.data = parameter.data.to(half or parameter.dtype)
    if settings.split.tp > 1:
        _tensor_parallel(part, world.mesh["tp"], sequence=settings.split.sequence_parallel)
    _recompute(part, settings.recompute)
    policy = MixedPrecisionPolicy(
        param_dtype=computed,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=half is not None,
    )
    shard = partial(fully_shard, mesh=world.data_mesh, mp_policy=policy)
    for modules, reshard in gathered_units(part, reshard=settings.split.zero_stage == 3):
        shard(modules, reshard_after_forward=reshard)
    shard(part)
    return part


def emulated(precision: str, device: torch.device) -> bool:
    """Return whether a processor lacks products of this 16-bit format, done by scalars then.

    Such runs are calculated in fp32, tens of times faster; what they store keeps its format.
    """
    if precision != "bf16" or device.type != "cpu":
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    native: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return not native


def gathered_units(part: Part, *, reshard: bool) -> Iterator[tuple[list[nn.Module], bool]]:
    """Yield what FSDP gathers at once, and whether it frees it after the forward pass.

    Embedding, each layer, last norm and head, as in torchtitan.

    The head's unit stays gathered, as its backward pass follows at once. A table that is embedding
    and head is one unit.
    """
    embedding = [part.body.embed_tokens] if part.first else []
    head = [part.body.norm, part.inner.lm_head] if part.last else []
    if embedding and head and part.inner.lm_head.weight is part.body.embed_tokens.weight:
        embedding, head = [], [*embedding, *head]
    yield from (([module], reshard) for module in (*embedding, *part.layers))
    if head:
        yield head, False


def micro_batch_mode(part: Part, settings: Settings, *, last: bool) -> None:
    """Set whether gradients are exchanged after this backward pass, or accumulated for now."""
    assert isinstance(part, FSDPModule)  # noqa: S101 - lay_out made it one
    part.set_requires_gradient_sync(last or settings.split.gradient_sync == "micro-batch")
    part.set_reshard_after_backward(last or settings.split.zero_stage > 0)
    part.set_is_last_backward(last)


def _tensor_parallel(part: Part, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Follow the model's plan for its layers; embedding and head are cut by vocabulary.

    Logits stay cut for the loss.
    """
    config = part.inner.config
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not plan:
        message = f"{config.model_type} models have no plan for tensor parallelism."
        raise TrainError(message, hint="Set tp: 1.")
    for index, layer in enumerate(part.body.layers):
        if layer in part.layers:
            _parallel_layer(layer, f"layers.{index}.", plan, mesh, sequence=sequence)
    ends: dict[str, ParallelStyle] = {}
    if part.first:
        ends["model.embed_tokens"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Replicate()
        )
    if part.last:
        ends["lm_head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(part.inner, mesh, ends)
    if config.tie_word_embeddings and part.first and part.last:
        part.inner.lm_head.weight = part.body.embed_tokens.weight
    if sequence:
        part.layers[0].register_forward_pre_hook(partial(_cut_sequence, mesh))
        part.layers[-1].register_forward_hook(partial(_join, mesh))


def _parallel_layer(
    layer: nn.Module, prefix: str, plan: dict[str, str], mesh: DeviceMesh, *, sequence: bool
) -> None:
    """Cut projections as the plan says.

    What enters a block is one tensor for all projections, so that its gradient is summed once.

    With ``sequence``, each rank keeps its piece of the sequence between blocks: norms work on
    pieces, blocks gather them before and scatter sums after (Korthikanti et al., arXiv:2205.05198).
    """
    styles: dict[str, ParallelStyle] = {}
    for name, _ in layer.named_modules():
        words = (style for pattern, style in plan.items() if fnmatchcase(prefix + name, pattern))
        if (word := next(words, None)) is not None:
            styles[name] = _style(word, sequence=sequence)
    for name, child in layer.named_children():
        if "norm" not in name:
            layout = Shard(1) if sequence else Replicate()
            child.register_forward_pre_hook(partial(_gather, mesh, layout), with_kwargs=True)
        elif sequence:
            styles[name] = SequenceParallel(use_local_output=True)
    parallelize_module(layer, mesh, styles)


def _style(word: str, *, sequence: bool) -> ParallelStyle:
    """The style of torch for a word of the model's plan."""
    if word == "replicated_with_grad_allreduce":  # a norm over each head: every rank has some heads
        return SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
    if word == "colwise":
        return ColwiseParallel()
    if word == "rowwise":
        return RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    raise TrainError(
        f"the model's plan for tensor parallelism needs {word}, which this version lacks.",
        hint="Set tp: 1.",
    )


def _gather(
    mesh: DeviceMesh, layout: Placement, _: nn.Module, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Before a block: gather its hidden states on every rank."""
    if "hidden_states" in kwargs:
        hidden = _redistribute_tensor(kwargs["hidden_states"], mesh, layout, Replicate())
        return args, {**kwargs, "hidden_states": hidden}
    return (_redistribute_tensor(args[0], mesh, layout, Replicate()), *args[1:]), kwargs


def _cut_sequence(mesh: DeviceMesh, _: nn.Module, args: Any) -> Any:
    """Before the first layer: keep this rank's piece of the sequence."""
    return (_redistribute_tensor(args[0], mesh, Replicate(), Shard(1)).to_local(), *args[1:])


def _join(mesh: DeviceMesh, _: nn.Module, __: Any, hidden: torch.Tensor) -> torch.Tensor:
    """After the last layer: gather the whole sequence."""
    return _redistribute_tensor(hidden, mesh, Shard(1), Replicate()).to_local()


def _redistribute_tensor(
    x: torch.Tensor, mesh: DeviceMesh, before: Placement, after: Placement
) -> DTensor:
    return DTensor.from_local(x, mesh, [before], run_check=False).redistribute(placements=[after])


_PRODUCT = torch.ops.aten.mm.default
_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention")
)


def _recompute(part: Part, policy: str) -> None:
    """Full keeps only the input of a layer; selective also attention and every second product."""
    if policy == "none":
        return
    more = {"context_fn": _selective} if policy == "selective" else {}
    part.inner.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False, **more}
    )


def _selective() -> Any:
    # The first pass and its recomputation count products apart, so that they decide alike.
    products: dict[bool, int] = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        save = operator in _ATTENTION
        if operator is _PRODUCT:
            products[context.is_recompute] += 1
            save = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
