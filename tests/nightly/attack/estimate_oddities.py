"""What looks odd when two estimates that differ in one thing are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.nightly.attack.estimate_draws import Request
from tests.nightly.attack.estimate_properties import Answer

SHORT = 64
"""Below so many tokens, one more is a considerable share of them."""


@dataclass(frozen=True)
class Case:
    """A request with its answer."""

    request: Request
    answer: Answer

    @property
    def workload(self) -> dict[str, Any]:
        return self.request["workload"]

    @property
    def memory(self) -> dict[str, Any]:
        return self.answer["memory"]

    def says(self, words: str) -> bool:
        """Whether a note has these words."""
        return any(words in note for note in self.answer["notes"])

    def figure(self, name: str) -> float:
        figures = self.answer.get("serving") or self.answer["training"]
        return float(figures[name])

    @cached_property
    def estimates(self) -> Any:
        """The estimate as columns of length one, with its setting and cases."""
        plan, row = plan_candidate(PlanRequest.parse(self.request))
        estimates, place = plan.blocks[0].detail(row)
        assert place == 0
        return estimates


class Pair(NamedTuple):
    """Two cases: ``after`` differs from ``before`` in one thing."""

    before: Case
    after: Case

    def change(self, figure: str) -> float:
        """By what share a figure grows."""
        before, after = (max(case.figure(figure), 1e-300) for case in self)
        return after / before - 1

    def memory_change(self, part: str = "total_bytes") -> float:
        return float(self.after.memory[part] / max(self.before.memory[part], 1e-300) - 1)


@dataclass(frozen=True)
class Oddity:
    """``seen``: whether a pair is odd; ``compares`` the answers of two names of a draw."""

    name: str
    kind: str
    compares: tuple[str, str]
    seen: Callable[[Pair], bool]

    def applies(self, request: Request) -> bool:
        return request["workload"]["kind"] == self.kind


def _jumps(field: str) -> Callable[[Pair], bool]:
    """One token more of ``field`` changes a time by over a fifth, or by much over its share."""

    def seen(pair: Pair) -> bool:
        tokens = pair.before.workload[field]
        most = 0.2 if tokens >= SHORT else 0.2 + 1.5 / tokens
        figures = ("ttft_s", "tpot_s", "request_latency_s")
        return any(abs(np.log1p(pair.change(figure))) > np.log1p(most) for figure in figures)

    return seen


def _falls(figure: str, share: float) -> Callable[[Pair], bool]:
    return lambda pair: pair.change(figure) < -share


def _rises(pair: Pair) -> bool:
    return pair.memory_change() > 1e-9


def _longer(share: float) -> Callable[[Pair], bool]:
    return lambda pair: pair.change("step_s") > share


RATE = "output_tokens_per_s"
FP8 = ("bf16", "fp8")
SERVING: dict[str, tuple[tuple[str, str] | str, Callable[[Pair], bool]]] = {
    "one prompt token more: a time jumps by over 20 %": ("input + 1", _jumps("input_tokens")),
    "one output token more: a time jumps by over 20 %": ("output + 1", _jumps("output_tokens")),
    "load doubled: time to first token falls by over 1 %": ("load doubled", _falls("ttft_s", 0.01)),
    "load doubled: throughput falls by over 5 %": ("load doubled", _falls(RATE, 0.05)),
    "dp doubled: throughput falls by over 2 %": ("dp doubled", _falls(RATE, 0.02)),
    "tp doubled: throughput halves or worse": (
        "tp doubled",
        lambda pair: pair.change(RATE) <= -0.5,
    ),
    "tp doubled: memory rises": ("tp doubled", _rises),
    "fp8 weights: throughput over 5 % below bf16": (FP8, _falls(RATE, 0.05)),
    "fp8 weights: larger than bf16": (FP8, lambda pair: pair.memory_change("weights_bytes") > 0),
}
TRAINING: dict[str, tuple[tuple[str, str] | str, Callable[[Pair], bool]]] = {
    "training, one token more: a step jumps by over 20 %": (
        "sequence + 1",
        lambda pair: abs(pair.change("step_s")) > 0.2,
    ),
    "training, batch doubled: tokens per second fall by over 2 %": (
        "batch doubled",
        _falls("tokens_per_s", 0.02),
    ),
    "training, dp doubled: a step takes over 2 % longer": ("dp doubled", _longer(0.02)),
    "training, tp doubled: memory rises": ("tp doubled", _rises),
    "training in fp8: a step takes over 5 % longer": ("fp8", _longer(0.05)),
    "training, all recomputed: memory rises": ("all recomputed", _rises),
    "training, all recomputed: a step takes less time": ("all recomputed", _falls("step_s", 1e-9)),
    "training, states divided (ZeRO 3): memory rises": ("all divided", _rises),
}
"""By what each is called: the neighbour that the base is compared with, or both; what is odd."""
ODDITIES = [
    Oddity(name, kind, ("base", other) if isinstance(other, str) else other, seen)
    for kind, of in (("serving", SERVING), ("training", TRAINING))
    for name, (other, seen) in of.items()
]

OVER = "memory needed exceeds what may be used"


def over(case: Case) -> bool:
    """More memory is needed than the engine may use, and yet the split can run."""
    return bool(case.memory["total_bytes"] > case.memory["usable_bytes"])
