"""The phases of a step of reinforcement learning as arithmetic: what each is a product of."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.base.labels import REINFORCEMENT_PHASES
from recipe_core.base.units import gib, rate
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.estimates.training.reinforcement import Reinforcement, work_batches
from recipe_core.views.explanations.line import Line
from recipe_core.views.explanations.operators import plain_number, time_text

_SCORED = ("old_log_probs", "reference", "values")
_TRAINED = ("update", "critic")


def phase_lines(estimates: TrainingEstimates, loop: Reinforcement, i: int) -> Iterator[Line]:
    """A line for every phase of case ``i`` that takes time."""
    for name, label in REINFORCEMENT_PHASES.items():
        seconds = float(loop.phases[name][i]) if name in loop.phases else 0.0
        if seconds > 0:
            yield Line(label, *_terms(estimates, loop, name, i, seconds), time_text(seconds))


def _terms(
    estimates: TrainingEstimates, loop: Reinforcement, name: str, i: int, seconds: float
) -> tuple[str, str]:
    """What a phase is a product of, in words and in numbers."""
    sampling, rollouts = loop.sampling, loop.rollouts
    if name == "rollout":
        tokens = sampling.work.sequences * sampling.work.response_tokens
        tail_s, per_s = float(rollouts.tail_s[i]), float(rollouts.tokens_per_s[i])
        numbers = f"{tokens:,} ÷ {rate(per_s)} + {time_text(tail_s)}"
        return "tokens of answers ÷ rate of a full engine + the longest alone", numbers
    if name in _SCORED:
        batches = work_batches(sampling)
        numbers = f"{plain_number(batches)} × {time_text(seconds / batches)}"
        return "batches of an optimizer step · its forward pass", numbers
    if name in _TRAINED:
        numbers = f"{sampling.updates} × {time_text(seconds / sampling.updates)}"
        return "updates · an optimizer step", numbers
    if name == "weight_sync":
        return "weights in 16 bits, to every device", gib(loop.sync_bytes)
    if name == "state_moves":
        moved = seconds * estimates.setting.calibration.host_link_bytes_per_s.value
        return "states moved ÷ rate of the host's link", gib(moved)
    return "as stated, and a forward pass of a model that rewards", time_text(seconds)
