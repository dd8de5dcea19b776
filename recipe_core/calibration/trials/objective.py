"""What a search on the real machine optimises: a score of measured figures, and the limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, get_args

from recipe_core.base.errors import InputError, unknown
from recipe_core.recipe import Recipe
from recipe_core.request.metrics import Goal
from recipe_core.request.schema import PlanRequest

# One-sided 95 % quantiles of Student's t at 1, 2 … degrees of freedom (any statistical table).
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
MOST_REPEATS = len(T_95) + 1


@dataclass(frozen=True, slots=True)
class Gain:
    """Pairs of scores (logarithms, lower is better) of the recommended point and the best one.

    ``mean``, ``low`` and ``high`` are ratios: 1.10 is 10 % better. Between ``low`` and ``high`` the
    mean gain lies with 90 % confidence, by Student's t over the pairs, which share what the machine
    did meanwhile. ``noise``: the standard deviation of the recommended point's own scores, as a
    share.
    """

    pairs: int
    mean: float
    low: float
    high: float
    noise: float

    @property
    def proven(self) -> bool:
        """Whether the best point is better with 95 % confidence."""
        return self.low > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "mean_ratio": round(self.mean, 4),
            "low_ratio": round(self.low, 4),
            "high_ratio": round(self.high, 4),
            "noise_share": round(self.noise, 4),
            "proven": self.proven,
        }


def gain_of(base: Sequence[float], best: Sequence[float]) -> Gain:
    """The gain over at least two pairs of scores."""
    gaps = [a - b for a, b in zip(base, best, strict=True)]
    mean = fmean(gaps)
    half = T_95[len(gaps) - 2] * stdev(gaps) / math.sqrt(len(gaps))
    return Gain(
        pairs=len(gaps),
        mean=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        noise=math.expm1(stdev(base)),
    )


def alternating_order(repeats: int) -> list[str]:
    """Who is measured when: base, best, best, base …, so that a slow drift favours neither."""
    pairs = [("base", "best"), ("best", "base")]
    return [name for n in range(repeats) for name in pairs[n % 2]]


def median_measurement(
    measurements: Sequence[Mapping[str, Any]], scores: Sequence[float]
) -> Mapping[str, Any]:
    """The measurement of the median score: the one that a claim repeats."""
    ranked = sorted(range(len(scores)), key=scores.__getitem__)
    return measurements[ranked[(len(ranked) - 1) // 2]]


LOWER_IS_BETTER: dict[str, str] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "latency": "request_latency_s",
}
THROUGHPUT = "output_tokens_per_s"
COST, GPUS = "cost", "gpus"
# Goals that a measurement, the devices used and their price tell.
MEASURED: tuple[str, ...] = (*LOWER_IS_BETTER, "throughput", COST, GPUS)

# Limits on times: the measured mean, median and 95th percentile; the measurement has no other.
_LIMITS = {
    "ttft_ms": ("ttft_s", "ttft_p50_s", "ttft_p95_s"),
    "tpot_ms": ("tpot_s", None, "tpot_p95_s"),
    "request_latency_ms": ("request_latency_s", None, None),
}


@dataclass(frozen=True, slots=True)
class Aim:
    """Goals with their weights, and the limits of the request's objective.

    ``unchecked``: limits that a measurement does not tell, with the reason.
    """

    goals: Mapping[str, float]
    limits: Mapping[str, float]
    percentile: float | None
    unchecked: Mapping[str, str]

    @property
    def title(self) -> str:
        return " and ".join(self.goals)

    def score(self, metrics: Mapping[str, Any], recipe: Recipe) -> float:
        """The weighted sum of logarithms, lower is better: -0.01 is 1 % better.

        The same function of quantities as a plan ranks by, of what was measured.

        Raises:
            InputError: where the measurement lacks a figure.
        """
        return sum(
            weight * math.log(_measured_goal(goal, metrics, recipe))
            for goal, weight in self.goals.items()
        )

    def broken(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """By limit, the logarithm of measured over allowed: above 0 it is missed."""
        out = {}
        for name, bound in self.limits.items():
            figure, at_least = self._figure(name)
            value = metrics.get(figure)
            if isinstance(value, int | float) and value > 0:
                excess = math.log(value / bound)
                out[name] = -excess if at_least else excess
        return out

    def _figure(self, name: str) -> tuple[str, bool]:
        if name == "output_tokens_per_s_at_least":
            return THROUGHPUT, True
        return str(_figure_of(name, self.percentile)), False


def _figure_of(limit: str, percentile: float | None) -> str | None:
    """The measured figure that a limit on times bounds; None where there is none."""
    mean, median, high = _LIMITS[limit]
    if percentile is None:
        return mean
    return {50.0: median, 95.0: high}.get(percentile)


def search_aim(request: PlanRequest, goal: str | None = None) -> Aim:
    """The aim of a request's objective, or one goal in place of its own; limits stay.

    Raises:
        InputError: for a goal that is unknown, or that no measurement tells.
    """
    request_goals = {str(name): weight for name, weight in request.objective.goals.items()}
    goals = request_goals if goal is None else {goal: 1.0}
    for name in goals:
        if name not in get_args(Goal):
            message, hint = unknown("objective", name, get_args(Goal))
            raise InputError(message, field="objective", hint=hint)
        if name not in MEASURED:
            raise InputError(
                f"{name} is not measured by a bundle.",
                field="objective",
                hint=f"State another: --objective {MEASURED[1]}.",
            )
    limits, unchecked = _measurable_limits(request)
    return Aim(goals, limits, request.objective.limits.percentile, unchecked)


def _measurable_limits(request: PlanRequest) -> tuple[dict[str, float], dict[str, str]]:
    """Limits in the unit of their figures, and those that no measurement tells."""
    request_limits = request.objective.limits.model_dump(exclude_none=True)
    percentile = request_limits.pop("percentile", None)
    limits, unchecked = {}, {}
    for name, bound in request_limits.items():
        if name == "output_tokens_per_s_at_least":
            limits[name] = float(bound)
        elif name not in _LIMITS:
            unchecked[name] = "the estimate judges it"
        elif _figure_of(name, percentile):
            limits[name] = float(bound) / 1000
        else:
            unchecked[name] = f"a measurement does not tell its percentile {percentile:g}"
    return limits, unchecked


def _measured_goal(goal: str, metrics: Mapping[str, Any], recipe: Recipe) -> float:
    if goal == GPUS:
        return float(recipe.device.count)
    figure = LOWER_IS_BETTER.get(goal, THROUGHPUT)
    value = metrics.get(figure)
    if not isinstance(value, int | float) or not value > 0:
        raise InputError(f"the measurement has no {figure}.", field="objective")
    if goal in LOWER_IS_BETTER:
        return float(value)
    cost = recipe.estimate.get("cost") or {}
    per_hour = cost.get("usd_per_hour") if goal == COST else 1.0
    # Without a price, cost is per device.
    return float(per_hour or recipe.device.count) / float(value)
