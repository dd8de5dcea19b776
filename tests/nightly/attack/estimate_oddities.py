"""What looks odd when two estimates that differ in one thing are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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


@dataclass(frozen=True)
class Pair:
    """Two cases: ``after`` differs from ``before`` in one thing."""

    before: Case
    after: Case

    def change(self, figure: str) -> float:
        """By what share a figure grows."""
        return self.after.figure(figure) / max(self.before.figure(figure), 1e-300) - 1

    def memory_change(self, part: str = "total_bytes") -> float:
        return float(self.after.memory[part] / max(self.before.memory[part], 1e-300) - 1)


@dataclass(frozen=True)
class Oddity:
    """``seen``: whether a pair is odd; ``compares`` the answers of two names of a draw."""

    name: str
    compares: tuple[str, str]
    kind: str
    seen: Callable[[Pair], bool]
    modes: tuple[str, ...] = ("closed", "open", "static", "offline")

    def applies(self, request: Request) -> bool:
        workload = request["workload"]
        return workload["kind"] == self.kind and workload.get("mode") in (*self.modes, None)


def _jumps(field: str, *figures: str) -> Callable[[Pair], bool]:
    """One token more of ``field`` changes a figure by over a fifth, or by much over its share."""

    def seen(pair: Pair) -> bool:
        tokens = pair.before.workload[field]
        most = 0.2 if tokens >= SHORT else 0.2 + 1.5 / tokens
        return any(abs(np.log1p(pair.change(figure))) > np.log1p(most) for figure in figures)

    return seen


_SERVED = ("ttft_s", "tpot_s", "request_latency_s")

ODDITIES = (
    Oddity(
        "one prompt token more: a time jumps by over 20 %",
        ("base", "input + 1"),
        "serving",
        _jumps("input_tokens", *_SERVED),
    ),
    Oddity(
        "one output token more: a time jumps by over 20 %",
        ("base", "output + 1"),
        "serving",
        _jumps("output_tokens", *_SERVED),
    ),
    Oddity(
        "load doubled: time to first token falls by over 1 %",
        ("base", "load doubled"),
        "serving",
        lambda pair: pair.change("ttft_s") < -0.01,
    ),
    Oddity(
        "load doubled: throughput falls by over 5 %",
        ("base", "load doubled"),
        "serving",
        lambda pair: pair.change("output_tokens_per_s") < -0.05,
    ),
    Oddity(
        "dp doubled: throughput falls by over 2 %",
        ("base", "dp doubled"),
        "serving",
        lambda pair: pair.change("output_tokens_per_s") < -0.02,
    ),
    Oddity(
        "tp doubled: throughput halves or worse",
        ("base", "tp doubled"),
        "serving",
        lambda pair: pair.change("output_tokens_per_s") <= -0.5,
    ),
    Oddity(
        "tp doubled: memory rises",
        ("base", "tp doubled"),
        "serving",
        lambda pair: pair.memory_change() > 1e-9,
    ),
    Oddity(
        "fp8 weights: throughput over 5 % below bf16",
        ("bf16", "fp8"),
        "serving",
        lambda pair: pair.change("output_tokens_per_s") < -0.05,
    ),
    Oddity(
        "fp8 weights: larger than bf16",
        ("bf16", "fp8"),
        "serving",
        lambda pair: pair.memory_change("weights_bytes") > 0,
    ),
    Oddity(
        "training, one token more: a step jumps by over 20 %",
        ("base", "sequence + 1"),
        "training",
        lambda pair: abs(pair.change("step_s")) > 0.2,
    ),
    Oddity(
        "training, batch doubled: tokens per second fall by over 2 %",
        ("base", "batch doubled"),
        "training",
        lambda pair: pair.change("tokens_per_s") < -0.02,
    ),
    Oddity(
        "training, dp doubled: a step takes over 2 % longer",
        ("base", "dp doubled"),
        "training",
        lambda pair: pair.change("step_s") > 0.02,
    ),
    Oddity(
        "training, tp doubled: memory rises",
        ("base", "tp doubled"),
        "training",
        lambda pair: pair.memory_change() > 1e-9,
    ),
    Oddity(
        "training in fp8: a step takes over 5 % longer",
        ("base", "fp8"),
        "training",
        lambda pair: pair.change("step_s") > 0.05,
    ),
    Oddity(
        "training, all recomputed: memory rises",
        ("base", "all recomputed"),
        "training",
        lambda pair: pair.memory_change() > 1e-9,
    ),
    Oddity(
        "training, all recomputed: a step takes less time",
        ("base", "all recomputed"),
        "training",
        lambda pair: pair.change("step_s") < -1e-9,
    ),
    Oddity(
        "training, states divided (ZeRO 3): memory rises",
        ("base", "all divided"),
        "training",
        lambda pair: pair.memory_change() > 1e-9,
    ),
)

OVER = "memory needed exceeds what may be used"


def over(case: Case) -> bool:
    """More memory is needed than the engine may use, and yet the split can run."""
    return bool(case.memory["total_bytes"] > case.memory["usable_bytes"])
