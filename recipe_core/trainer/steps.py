"""One optimizer step's forward and backward passes, with or without a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from .mesh import World
from .model import Part
from .optimizer import LossScale
from .parallel import micro_batch_mode
from .settings import Settings

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Passes:
    """Runs micro-batches and leaves gradients that are means over the replica's tokens.

    With tensor parallelism, logits and loss stay cut by vocabulary.
    """

    def __init__(
        self, parts: list[Part], settings: Settings, world: World, scale: LossScale
    ) -> None:
        self.parts, self.settings, self.world, self.scale = parts, settings, world, scale
        self.micro_batches = world.degrees.micro_batches
        self.schedule = self._schedule() if settings.split.pp > 1 else None

    def run(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The replica's mean loss; zero on pipeline ranks without the last layer."""
        device = self.world.device
        moved = [(inputs.to(device), targets.to(device)) for inputs, targets in batches]
        with self._loss_context():
            return self._pipeline(moved) if self.schedule else self._accumulate(moved)

    def _accumulate(self, batches: Batches) -> torch.Tensor:
        (part,) = self.parts
        total = torch.zeros((), device=self.world.device)
        for number, (inputs, targets) in enumerate(batches):
            micro_batch_mode(part, self.settings, last=number == len(batches) - 1)
            loss = self._loss(part(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            total += _plain(loss.detach())
        return total / self.scale.value

    def _pipeline(self, batches: Batches) -> torch.Tensor:
        inputs, targets = (torch.cat([pair[which] for pair in batches]) for which in (0, 1))
        first = (inputs,) if any(part.first for part in self.parts) else ()
        losses: list[torch.Tensor] = []
        last: dict[str, Any] = {}
        if any(part.last for part in self.parts):
            last = {"target": targets, "losses": losses}
        assert self.schedule is not None  # noqa: S101 - only called with one
        self.schedule.step(*first, **last, return_outputs=False)
        zero = torch.zeros((), device=self.world.device)
        total = sum((_plain(loss.detach()) for loss in losses), zero)
        return total / self.scale.value

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of one micro-batch, as its share of the step's mean."""
        loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return loss * (self.scale.value / self.micro_batches)

    def _loss_context(self) -> AbstractContextManager[Any]:
        return loss_parallel() if self.settings.split.tp > 1 else nullcontext()

    def _schedule(self) -> Any:
        """The schedule of the pipeline; stages are numbered over ranks, then over chunks."""
        split, world = self.settings.split, self.world
        pipeline = world.mesh["pp"]
        stages: list[Any] = [
            PipelineStage(
                part,
                chunk * split.pp + world.pp_rank,
                split.pp * split.virtual_stages,
                world.device,
                group=pipeline.get_group(),
            )
            for chunk, part in enumerate(self.parts)
        ]
        if split.virtual_stages > 1:
            return ScheduleInterleaved1F1B(
                stages,
                self.micro_batches,
                loss_fn=self._loss,
                scale_grads=False,
            )
        kind = ScheduleGPipe if split.schedule == "gpipe" else Schedule1F1B
        return kind(stages[0], self.micro_batches, loss_fn=self._loss, scale_grads=False)


def _plain(loss: torch.Tensor) -> torch.Tensor:
    """The loss as a plain tensor: over cut logits it is the same on every rank."""
    full = getattr(loss, "full_tensor", None)
    return loss if full is None else full()
