"""Checkpoints for any number of devices, written in the background.

torch.distributed.checkpoint stores tensors by name, so that a reader may divide them otherwise.
Nothing but tensors is stored.
"""

from __future__ import annotations

import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from .errors import TrainError
from .model import Part
from .optimizer import STATES, LossScale

_NAME = re.compile(r"step-(\d+)")


def complete(folder: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints with their steps, oldest first: ``.metadata`` is written last."""
    out = [
        (int(match.group(1)), path)
        for path in folder.glob("step-*")
        if (match := _NAME.fullmatch(path.name))
    ]
    return sorted((step, path) for step, path in out if (path / ".metadata").is_file())


def state(
    parts: list[Part], optimizers: list[torch.optim.Optimizer], optimizer: str
) -> dict[str, Any]:
    """Every tensor that a run changes, by name; reading a checkpoint fills them in place."""
    out: dict[str, Any] = {}
    for part, states in zip(parts, optimizers, strict=True):
        for name, parameter in part.learning():
            out[f"model.{name}"] = parameter.detach()
            for key in STATES[optimizer]:
                out[f"optimizer.{name}.{key}"] = states.state[parameter][key]
    return out


class Checkpointer:
    """Writes checkpoints into ``folder``, one at a time, and keeps the newest ``keep``."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        parts: list[Part],
        optimizers: list[torch.optim.Optimizer],
        optimizer: str,
    ) -> None:
        self.folder, self.keep = folder, keep
        self.parts, self.optimizers, self.optimizer = parts, optimizers, optimizer
        self._group = dist.new_group(backend="gloo")  # its own, as it is busy during training
        self._pending: Future[Any] | None = None
        self.last: int | None = None

    def save(self, step: int, scale: LossScale) -> None:
        """Copy everything and write it in the background, after the one before."""
        self.wait()
        numbers = {
            "run.step": torch.tensor(step),
            "run.scale": torch.tensor([scale.value, float(scale.good)], dtype=torch.float64),
        }
        if dist.get_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        dist.barrier(self._group)
        tensors = {**state(self.parts, self.optimizers, self.optimizer), **numbers}
        target = self.folder / f"step-{step}"
        pending = async_save(tensors, checkpoint_id=target, process_group=self._group)
        self._pending = pending if isinstance(pending, Future) else pending.upload_completion
        self.last = step

    def wait(self) -> None:
        """Wait until nothing is being written; then remove old checkpoints."""
        if self._pending is None:
            return
        self._pending.result()
        self._pending = None
        if dist.get_rank() == 0:
            for _, path in complete(self.folder)[: -self.keep]:
                shutil.rmtree(path, ignore_errors=True)

    def resume(self, choice: str, scale: LossScale) -> int:
        """Read the newest checkpoint (``auto``), a given one or none (``never``).

        Returns the step to go on with.

        Raises:
            TrainError: when it is not complete or does not fit the model.
        """
        step = [self._choose(choice) if dist.get_rank() == 0 else 0]
        dist.broadcast_object_list(step, group=self._group)
        if step[0] < 0:
            return 0
        numbers = {"run.step": torch.tensor(0), "run.scale": torch.zeros(2, dtype=torch.float64)}
        path = self.folder / f"step-{step[0]}"
        tensors = {**state(self.parts, self.optimizers, self.optimizer), **numbers}
        try:
            load(tensors, checkpoint_id=path, process_group=self._group)
        except Exception as error:
            reason = str(error).splitlines()[0][:300]
            raise TrainError(f"{path} does not fit this model: {reason}") from None
        scale.value, scale.good = float(numbers["run.scale"][0]), int(numbers["run.scale"][1])
        return int(numbers["run.step"])

    def _choose(self, choice: str) -> int:
        steps = [step for step, _ in complete(self.folder)]
        if choice == "never" or (choice == "auto" and not steps):
            return -1
        return steps[-1] if choice == "auto" else int(choice)
