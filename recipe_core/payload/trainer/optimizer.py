"""The optimizer step: rate, gradient norm over all devices, clipping, fp16's loss scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .model import Part
from .settings import Optimizer

_GROWTH_STEPS = 1000
_FIRST_SCALE = 2.0**16  # where torch's GradScaler starts
# The states that an optimizer keeps per parameter, by torch's names.
STATES = {"adamw": ("step", "exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


def learning_rate(o: Optimizer, step: int, steps: int) -> float:
    """The rate of a step, counted from 0: linear warm-up, then a cosine to its least share."""
    if step < o.warmup_steps:
        return o.learning_rate * (step + 1) / o.warmup_steps
    progress = (step - o.warmup_steps) / max(steps - o.warmup_steps, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return o.learning_rate * (o.least_rate_share + (1 - o.least_rate_share) * cosine)


def make_optimizer(o: Optimizer, part: Part) -> torch.optim.Optimizer:
    """An optimizer under which matrices decay, norms and biases do not.

    Its states exist from the start, so that a checkpoint can be read into them.
    """
    parameters = [parameter for _, parameter in part.learning()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": o.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer: torch.optim.Optimizer
    if o.name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=o.learning_rate, momentum=o.beta1)
    else:
        betas = (o.beta1, o.beta2)
        optimizer = torch.optim.AdamW(groups, lr=o.learning_rate, betas=betas, eps=o.epsilon)
    for parameter in parameters:
        for name in STATES[o.name]:
            zero = torch.tensor(0.0) if name == "step" else torch.zeros_like(parameter)
            optimizer.state[parameter][name] = zero
    return optimizer


def gradient_norm(parameters: Sequence[nn.Parameter], pipeline: DeviceMesh) -> torch.Tensor:
    """Euclidean norm of all gradients of the model, on every rank.

    Squares are summed over the mesh dimensions that divide a gradient (copies count once), then
    over pipeline stages.
    """
    groups: dict[tuple[DeviceMesh, tuple[int, ...]] | None, list[torch.Tensor]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            placements = enumerate(gradient.placements)
            divided = tuple(dim for dim, placement in placements if not placement.is_replicate())
            groups[gradient.device_mesh, divided].append(gradient.to_local())
        elif gradient is not None:
            groups[None].append(gradient)
    total = torch.zeros((), device=parameters[0].device)
    for cut, gradients in groups.items():
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        if cut is not None:
            mesh, dims = cut
            for dim in dims:
                dist.all_reduce(square, group=mesh.get_group(dim))
        total += square
    dist.all_reduce(total, group=pipeline.get_group())
    return total.sqrt()


class LossScale:
    """A scale for the loss, as fp16 loses small gradients.

    Halved after an overflow, doubled after many steps without one.
    """

    def __init__(self, *, used: bool) -> None:
        self.used = used
        self.value = _FIRST_SCALE if used else 1.0
        self.good = 0

    def update(self, *, finite: bool) -> None:
        """Adapt the scale after a step."""
        if not self.used:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, 1.0)
        elif self.good >= _GROWTH_STEPS:
            self.value, self.good = self.value * 2, 0


def update(
    optimizers: list[torch.optim.Optimizer],
    o: Optimizer,
    rate: float,
    scale: LossScale,
    pipeline: DeviceMesh,
) -> tuple[float, bool]:
    """One step of all optimizers: the gradients' norm, and whether they were finite.

    Nothing changes where they are not.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"]]
    norm = gradient_norm(parameters, pipeline) / scale.value
    finite = bool(torch.isfinite(norm))
    if finite:
        factor = min(1.0, o.clip_norm / (float(norm) + 1e-6)) / scale.value
        gradients = [p.grad for p in parameters if p.grad is not None]
        local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
        torch._foreach_mul_(local, factor)
        for group in groups:
            group["lr"] = rate
        for optimizer in optimizers:
            optimizer.step()
    scale.update(finite=finite)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return float(norm), finite
