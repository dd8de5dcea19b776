"""Peak memory of a forward pass, counted by live storages."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class PeakTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all live storages that operators allocated, now and at most.

    Storages of ``model`` are not counted, nor are meta tensors (bookkeeping of transformers that no
    device holds). torch's own MemTracker does the same by module and takes ten times as long.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self._seen = WeakIdKeyDictionary()
        for tensor in [*model.parameters(), *model.buffers()]:
            self._seen[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and counts what it allocated."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        pytree.tree_map_only(torch.Tensor, self._count, out)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.device.type == "meta" or storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = weakref.ref(storage, lambda _: self._free(size))
        self.alive += size
        self.peak = max(self.peak, self.alive)

    def _free(self, size: int) -> None:
        self.alive -= size
