"""Limits of the objective as rules: of quantities by their means, and of times by a percentile that is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import duration, significant, usd
from recipe_core.physics.serving.simulate import MOST, requests_each
from recipe_core.request.schema import Limits
from recipe_core.search.evaluated import EvaluatedCases
from recipe_core.space.refusal import Refusal


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit of the objective: its name there, the column it bounds, the limit's units in one of the column's, and how to say it.

    ``least``: the column must not be less, instead of not more.
    """

    name: str
    column: str
    factor: float
    label: str
    show: Callable[[float], str]
    least: bool = False

    @property
    def timed(self) -> bool:
        """Whether the limit is on something that every request has, so that a percentile can be asked of it."""
        return self.factor == 1e3

    def bound(self, limits: Limits) -> float | None:
        """The limit in the column's unit, None when none is stated."""
        stated = getattr(limits, self.name)
        return None if stated is None else float(stated) / self.factor

    def value(self, block: EvaluatedCases, percentile: float | None) -> Float:
        """What the limit bounds: the percentile where one is asked for and simulated, else the mean (or the only value)."""
        mean = np.asarray(block.columns[self.column], dtype=np.float64)
        if percentile is None or not self.timed or block.simulation is None:
            return mean
        simulated = block.simulation.percentiles_s[self.column][percentile]
        return np.where(np.isfinite(simulated), simulated, mean)


LIMITS = {
    "limit-ttft": LimitRule("ttft_ms", "ttft_s", 1e3, "time to first token", duration),
    "limit-tpot": LimitRule("tpot_ms", "tpot_s", 1e3, "time per output token", duration),
    "limit-latency": LimitRule(
        "request_latency_ms", "request_latency_s", 1e3, "request latency", duration
    ),
    "limit-usd": LimitRule("usd_per_hour", "usd_per_hour", 1.0, "cost per hour", usd),
    "limit-usd-tokens": LimitRule(
        "usd_per_million_output_tokens",
        "usd_per_million_output_tokens",
        1.0,
        "cost per million output tokens",
        usd,
    ),
    "limit-energy": LimitRule(
        "joules_per_token",
        "joules_per_token",
        1.0,
        "energy per output token",
        lambda n: f"{significant(n)} J",
    ),
    "limit-watts": LimitRule("watts", "watts", 1.0, "power", lambda n: f"{n:,.0f} W"),
    "limit-gpus": LimitRule("gpus", "gpus", 1.0, "device count", lambda n: f"{n:,.0f}"),
    "limit-throughput": LimitRule(
        "output_tokens_per_s_at_least",
        "output_tokens_per_s",
        1.0,
        "output tokens per second",
        lambda n: f"{n:,.0f}",
        least=True,
    ),
}


def limited(block: EvaluatedCases, limits: Limits, *, timed: bool | None = None) -> EvaluatedCases:
    """With one rule more a stated limit, for candidates that can run at all; ``timed`` keeps to limits on times, or to the others."""
    chosen = [(code, rule) for code, rule in LIMITS.items() if timed is None or rule.timed == timed]
    rules = [
        _rule(code, rule, bound, block, limits.percentile)
        for code, rule in chosen
        if (bound := rule.bound(limits)) is not None
    ]
    return replace(block, limits=(*block.limits, *rules))


def _rule(
    code: str, rule: LimitRule, bound: float, block: EvaluatedCases, percentile: float | None
) -> Refusal:
    value, mean = rule.value(block, percentile), block.columns[rule.column]

    def say(i: int) -> str:
        if rule.least:
            return f"{rule.label} {rule.show(value[i])} is under the least that is asked for, {rule.show(bound)}"
        if percentile is None or not rule.timed:
            return f"{rule.label} {rule.show(value[i])} exceeds the limit of {rule.show(bound)}"
        what = f"p{percentile:g} of {rule.label}, {rule.show(value[i])},"
        return f"{what} exceeds the limit of {rule.show(bound)}; the mean is {rule.show(mean[i])}"

    return Refusal(code, block.feasible & (value < bound if rule.least else value > bound), say)


def time_bounds(limits: Limits) -> dict[str, float]:
    """The stated limits on what every request has, in seconds by column."""
    return {
        rule.column: bound
        for rule in LIMITS.values()
        if rule.timed and (bound := rule.bound(limits)) is not None
    }


def mean_excess(block: EvaluatedCases, limits: Limits) -> Float:
    """How many times its limit the mean of a time is, at the worst of the stated limits; zero without any."""
    excess = np.zeros(len(block))
    for column, bound in time_bounds(limits).items():
        excess = np.maximum(excess, block.columns[column] / bound)
    return excess


def unsimulated(block: EvaluatedCases, limits: Limits) -> EvaluatedCases:
    """With the rule that a candidate whose percentile is not known cannot be taken, where times have limits."""
    excess = mean_excess(block, limits)
    if not (excess > 0).any():
        return block
    requests = requests_each(block.setting, block.cases)
    known = np.zeros(len(block), dtype=np.bool_)
    if block.simulation is not None:
        known = np.isfinite(block.simulation.output_tokens_per_s)

    def say(i: int) -> str:
        why = (
            "its means break the limits already"
            if excess[i] > 1
            else "others rank before it by their means"
        )
        if requests[i] > MOST:
            why = f"it takes {requests[i]:,} requests per replica, and at most {MOST:,} are"
        return f"p{limits.percentile:g} is not simulated: {why}"

    return replace(
        block, limits=(*block.limits, Refusal("unsimulated", block.feasible & ~known, say))
    )
