"""Direct preference optimisation (Rafailov et al., arXiv:2305.18290).

The loss of a pair is -log sigmoid(margin). An answer's reward is beta times by how much more
probable it is (in logarithms) than by a frozen reference, and the margin that of the chosen answer
less that of the rejected one. The reference is the model that the run starts from: a frozen copy,
divided like the model; with adapters the model itself with its adapters off, so that nothing is
stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import cross_entropy, logsigmoid

from .data import IGNORED, Item
from .lora import Adapted
from .model import Part

# The reference's log-probabilities of the answers of a micro-batch.
Reference = Callable[[Item], torch.Tensor]


def to_plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """As a plain tensor: over cut logits it is the same on every rank."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else full()


def log_probabilities(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of each sequence's learned tokens together, in nats."""
    losses = cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return -to_plain_tensor(losses).view(targets.shape).sum(1)


def margins(logits: torch.Tensor, item: Item, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """Of each pair: the reward of the chosen answer less that of the rejected one."""
    rewards = beta * (log_probabilities(logits, item.targets) - reference)
    return rewards[0::2] - rewards[1::2]


def loss_of(margin: torch.Tensor) -> torch.Tensor:
    return -logsigmoid(margin).sum()


def reference_of(part: Part, frozen: Part | None) -> Reference:
    """The log-probabilities of a frozen copy, or of the part without its adapters."""

    def ask(item: Item) -> torch.Tensor:
        with torch.no_grad(), without_adapters(part):
            logits = (frozen or part)(item.inputs)
            return log_probabilities(logits, item.targets)

    return ask


@contextmanager
def without_adapters(part: Part) -> Iterator[None]:
    """The part as it was before it was trained, where it has adapters."""
    adapted = [module for module in part.modules() if isinstance(module, Adapted)]
    scales = [module.scale for module in adapted]
    for module in adapted:
        module.scale = 0.0
    try:
        yield
    finally:
        for module, scale in zip(adapted, scales, strict=True):
            module.scale = scale
