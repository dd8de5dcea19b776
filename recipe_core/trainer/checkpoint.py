"""Checkpoints that any number of devices can go on from: torch.distributed.checkpoint, written beside the training.

Tensors are stored by name, whole; which device held which piece does not matter to a reader.
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


def found(folder: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints, oldest first: the file that describes one is written last."""
    out = [
        (int(match.group(1)), path)
        for path in folder.glob("step-*")
        if (match := _NAME.fullmatch(path.name))
    ]
    return sorted((step, path) for step, path in out if (path / ".metadata").is_file())


def state(
    parts: list[Part], optimizers: list[torch.optim.Optimizer], optimizer: str
) -> dict[str, Any]:
    """Every tensor that a run changes, by name; reading a checkpoint writes into these."""
    out: dict[str, Any] = {}
    for part, each in zip(parts, optimizers, strict=True):
        for name, parameter in part.learning():
            out[f"model.{name}"] = parameter.detach()
            out |= {
                f"optimizer.{name}.{key}": each.state[parameter][key] for key in STATES[optimizer]
            }
    return out


class Checkpointer:
    """Writes into ``folder``, at most one at a time, and keeps the newest ``keep``."""

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
        self._group = dist.new_group(backend="gloo")  # its own: it talks while the training does
        self._pending: Future[Any] | None = None
        self.last: int | None = None

    def save(self, step: int, scale: LossScale) -> None:
        """Copy everything and write it in the background; waits for the one before."""
        self.wait()
        numbers = {
            "run.step": torch.tensor(step),
            "run.scale": torch.tensor([scale.value, float(scale.good)], dtype=torch.float64),
        }
        if dist.get_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        dist.barrier(self._group)
        tensors, where = (
            state(self.parts, self.optimizers, self.optimizer) | numbers,
            self.folder / f"step-{step}",
        )
        pending = async_save(tensors, checkpoint_id=where, process_group=self._group)
        self._pending = pending if isinstance(pending, Future) else pending.upload_completion
        self.last = step

    def wait(self) -> None:
        """Until nothing is being written; then drop what is old."""
        if self._pending is None:
            return
        self._pending.result()
        self._pending = None
        if dist.get_rank() == 0:
            for _, path in found(self.folder)[: -self.keep]:
                shutil.rmtree(path, ignore_errors=True)

    def resume(self, wanted: str, scale: LossScale) -> int:
        """Read the newest checkpoint (``auto``), the one named, or none (``never``); the step to go on with.

        Raises:
            TrainError: when the named one is not complete or does not fit the model.
        """
        step = [self._choose(wanted) if dist.get_rank() == 0 else 0]
        dist.broadcast_object_list(step, group=self._group)
        if step[0] < 0:
            return 0
        numbers = {"run.step": torch.tensor(0), "run.scale": torch.zeros(2, dtype=torch.float64)}
        path = self.folder / f"step-{step[0]}"
        tensors = state(self.parts, self.optimizers, self.optimizer) | numbers
        try:
            load(tensors, checkpoint_id=path, process_group=self._group)
        except Exception as error:
            raise TrainError(
                f"{path} does not fit this model: {str(error).splitlines()[0][:300]}"
            ) from None
        scale.value, scale.good = float(numbers["run.scale"][0]), int(numbers["run.scale"][1])
        return int(numbers["run.step"])

    def _choose(self, wanted: str) -> int:
        known = [step for step, _ in found(self.folder)]
        if wanted == "never" or (wanted == "auto" and not known):
            return -1
        return known[-1] if wanted == "auto" else int(wanted)
