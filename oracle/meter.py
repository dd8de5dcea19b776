"""Meters of a training step: live storages by role, collectives by group."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

# Part of an operator's name once underscores are gone, and the name of the collective here.
KINDS = {
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "send": "send",
    "alltoall": "all_to_all",
}


class Block:
    """A live storage: its bytes, and what it is for."""

    __slots__ = ("__weakref__", "role", "size")

    def __init__(self, role: str, size: int) -> None:
        self.role, self.size = role, size


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes alive by role, their peak in each phase of a step, and bytes sent in each group.

    ``role`` is what new storages count as, ``phase`` what runs now; hooks set both.
    """

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.groups = groups
        self.role, self.phase = "activations", ""
        self.alive: Counter[str] = Counter()
        self.total = 0
        self.peaks: dict[str, tuple[int, Counter[str]]] = {}
        self.sent: dict[str, Counter[str]] = {}
        self._blocks = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator; counts what it allocated and sent."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        pytree.tree_map_only(torch.Tensor, self.hold, out)
        if func in collective_ops and func not in sync_ops:
            self._send(func, out, args, kwargs)
        return out

    def enter(self, phase: str, role: str) -> None:
        """Starts a phase of the step, and sets what new storages count as."""
        self.phase, self.role = phase, role
        self._note()

    def hold(self, tensor: torch.Tensor, role: str | None = None) -> None:
        """Counts a tensor's storage once; a later ``role`` replaces the first."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.device.type == "meta":
            return
        storage = local.untyped_storage()
        block = self._blocks.get(storage)  # type: ignore[no-untyped-call]
        if block is None:
            block = self._blocks[storage] = Block(role or self.role, 0)
            weakref.finalize(storage, self._resize, block, 0)
            self._resize(block, storage.nbytes())
        elif role is not None and role != block.role:
            size = block.size
            self._resize(block, 0)
            block.role = role
            self._resize(block, size)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage that was given memory again, or lost it."""
        block = self._blocks.get(storage)  # type: ignore[no-untyped-call]
        if block is None:
            block = self._blocks[storage] = Block(self.role, 0)
            weakref.finalize(storage, self._resize, block, 0)
        block.role = self.role if not block.size else block.role
        self._resize(block, storage.nbytes())

    def _resize(self, block: Block, size: int) -> None:
        change, block.size = size - block.size, size
        self.alive[block.role] += change
        self.total += change
        if change > 0:
            self._note()

    def _note(self) -> None:
        if self.total > self.peaks.get(self.phase, (0,))[0]:
            self.peaks[self.phase] = self.total, self.alive.copy()

    def _send(self, func: Any, out: Any, args: Any, kwargs: Any) -> None:
        name = func.name().replace("_", "")
        kind = next((kind for key, kind in KINDS.items() if key.replace("_", "") in name), None)
        group = CollectiveOp.get_process_group(func, args)
        if kind is not None and group.size() > 1:
            sent = self.sent.setdefault(self.groups.get(group.group_name, "other"), Counter())
            sent[kind] += CollectiveOp.get_comm_tensor_size(func, out, args, kwargs)


@contextmanager
def watched(meter: Meter) -> Iterator[None]:
    """Measures what runs inside, also what operators alone do not show.

    FSDP resizes storages to give and take their memory. What it gathers and reduces is told from
    activations by the method that does it. DTensor infers shapes of results by running operators on
    whole tensors, which no rank allocates: those stay unseen.
    """
    group: Any = FSDPParamGroup
    shapes: Any = ShardingPropagator
    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.UntypedStorage, "resize_", _resizing(meter)),
        (
            shapes,
            "_propagate_tensor_meta_non_cached",
            _unseen(shapes._propagate_tensor_meta_non_cached),
        ),
        *(
            (group, name, _gathering(meter, getattr(group, name)))
            for name in ("unshard", "wait_for_unshard", "post_backward")
        ),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, method in patches:
        setattr(owner, name, method)
    try:
        with meter:
            yield
    finally:
        for owner, name, method in originals:
            setattr(owner, name, method)


def _resizing(meter: Meter) -> Callable[..., Any]:
    resize = torch.UntypedStorage.resize_

    def run(storage: torch.UntypedStorage, size: int) -> Any:
        out = resize(storage, size)
        meter.resized(storage)
        return out

    return run


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run(*args: Any) -> Any:
        with _disable_current_modes():
            return method(*args)

    return run


def _gathering(meter: Meter, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run(group: Any, *args: Any, **kwargs: Any) -> Any:
        before, meter.role = meter.role, "gathered"
        out = method(group, *args, **kwargs)
        meter.role = before
        for parameter in group.fsdp_params:
            for gradient in (
                parameter.sharded_param.grad,
                parameter.unsharded_accumulated_grad,
            ):
                if gradient is not None:
                    meter.hold(gradient, "gradients")
        return out

    return run
