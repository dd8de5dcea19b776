"""One optimizer step's forward and backward passes, with or without a pipeline.

The loss is the mean over all tokens that the step learns, wherever they are, or over its pairs.
"""

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

from .data import IGNORED, Item, positions
from .mesh import World
from .model import Part
from .optimizer import LossScale
from .parallel import micro_batch_mode
from .preferences import Reference, loss_of, margins, to_plain_tensor
from .settings import Settings


class Passes:
    """Runs micro-batches and leaves gradients that replicas average to those of the step's mean.

    With tensor parallelism, logits and loss stay cut by vocabulary. With a ``reference`` the loss
    is that of preferences, and ``rewards`` are then its mean margin, and how often it is positive.
    """

    def __init__(
        self,
        parts: list[Part],
        settings: Settings,
        world: World,
        scale: LossScale,
        reference: Reference | None = None,
    ) -> None:
        self.parts, self.settings, self.world, self.scale = parts, settings, world, scale
        self.micro_batches = world.degrees.micro_batches
        self.schedule = self._schedule() if settings.split.pp > 1 else None
        self.reference = reference
        self.count = 1.0
        self.rewards = torch.zeros(2, device=world.device)

    def run(self, batches: Iterable[Item], learned: int) -> torch.Tensor:
        """The replica's share of the mean loss; zero on pipeline ranks without the last layer.

        ``learned``: tokens, or pairs, that the step learns from on all replicas.
        """
        self.count = learned / self.world.degrees.dp
        self.rewards.zero_()
        moved = [_move_item(item, self.world.device) for item in batches]
        with self._loss_context():
            return self._pipeline(moved) if self.schedule else self._accumulate(moved)

    def _accumulate(self, batches: list[Item]) -> torch.Tensor:
        (part,) = self.parts
        total = torch.zeros((), device=self.world.device)
        for number, item in enumerate(batches):
            reference_scores = None if self.reference is None else self.reference(item)
            micro_batch_mode(part, self.settings, last=number == len(batches) - 1)
            logits = part(item.inputs, item.positions)
            if reference_scores is None:
                loss = self._loss(logits, item.targets)
            else:
                loss = self._preferred(logits, item, reference_scores)
            loss.backward()  # type: ignore[no-untyped-call]
            total += to_plain_tensor(loss.detach())
        return total / self.scale.value

    def _pipeline(self, batches: list[Item]) -> torch.Tensor:
        inputs = torch.cat([item.inputs for item in batches])
        targets = torch.cat([item.targets for item in batches])
        first = (inputs,) if any(part.first for part in self.parts) else ()
        more: dict[str, Any] = {}
        if batches[0].positions is not None:
            more["positions"] = torch.cat(list(positions(batches)))
        losses: list[torch.Tensor] = []
        if any(part.last for part in self.parts):
            more |= {"target": targets, "losses": losses}
        assert self.schedule is not None  # noqa: S101 - only called with one
        self.schedule.step(*first, **more, return_outputs=False)
        zero = torch.zeros((), device=self.world.device)
        total = sum((to_plain_tensor(loss.detach()) for loss in losses), zero)
        return total / self.scale.value

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of one micro-batch, as its share of the step's mean."""
        loss = cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), reduction="sum", ignore_index=IGNORED
        )
        return loss * (self.scale.value / self.count)

    def _preferred(
        self, logits: torch.Tensor, item: Item, reference_scores: torch.Tensor
    ) -> torch.Tensor:
        """The same of pairs."""
        margin = margins(logits, item, reference_scores, self.settings.dpo_beta)
        with torch.no_grad():
            positive = (margin > 0).float()
            self.rewards += torch.stack([margin.sum(), positive.sum()]) / self.count
        return loss_of(margin) * (self.scale.value / self.count)

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


def _move_item(item: Item, device: torch.device) -> Item:
    places = None if item.positions is None else item.positions.to(device)
    return Item(item.inputs.to(device), item.targets.to(device), places)
