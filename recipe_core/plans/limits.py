"""Limits of the objective as rules.

Of quantities by their means, of times also by a simulated percentile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import duration, significant, usd
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.serving.accuracy import accuracy_of, titles_of
from recipe_core.estimates.serving.simulate import MOST, requests_each
from recipe_core.plans.evaluated import EvaluatedCases
from recipe_core.plans.measures import HOUR_S, days
from recipe_core.request.objective import Limits
from recipe_core.request.schema import PlanRequest

Cases = EvaluatedCases[Any, Any, Any]

BOTH = frozenset({"serving", "training"})
SERVING = frozenset({"serving"})
FINITE = frozenset({"training", "offline"})
"""What has an end: a run, and a queue of requests that is worked off."""


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit of the objective.

    ``name`` is its field there, ``column`` what it bounds, ``factor`` the field's unit in one of
    the column's, ``kinds`` the kinds of workload, or modes of serving, it holds for.
    ``at_least``: the column must not be less, instead of not more. ``counted``: only whole numbers.
    ``timed``: it bounds a time of every request, which has percentiles. ``money``: what the amount
    is for, where it needs a price.
    ``cause``: what of a setting the figure is of; ``unknown``: why a figure that is not known is
    not, where such a row does not keep the limit.
    """

    name: str
    column: str
    factor: float
    label: str
    show: Callable[[float], str]
    kinds: frozenset[str] = SERVING
    at_least: bool = False
    counted: bool = False
    timed: bool = False
    money: str | None = None
    cause: Callable[[Any], str] | None = None
    unknown: Callable[[Any], str] | None = None

    def bound(self, limits: Limits) -> float | None:
        """The limit in the column's unit, None when none is stated."""
        stated = getattr(limits, self.name)
        return None if stated is None else float(stated) / self.factor

    def value(self, cases: Cases, percentile: float | None) -> Float:
        """What it bounds, one per case.

        The percentile where one is asked for and simulated, else the mean.
        """
        mean = np.asarray(cases.columns[self.column], dtype=np.float64)
        if percentile is None or not self.timed or cases.simulation is None:
            return mean
        simulated = cases.simulation.percentiles_s[self.column][percentile]
        return np.where(np.isfinite(simulated), simulated, mean)

    def excess(self, value: Float, limits: Limits) -> Float:
        """How many times its limit each value is; above one it is not kept."""
        ratio = value * self.factor / float(getattr(limits, self.name))
        return 1 / np.maximum(ratio, 1e-12) if self.at_least else ratio

    def loosened(self, value: float) -> float | int:
        """The limit that ``value`` just keeps.

        Three significant digits in the field's unit, rounded its way.
        """
        value *= self.factor
        step = 10.0 ** (math.floor(math.log10(value)) - 2)
        to = math.floor if self.at_least else math.ceil
        # rounding first keeps a value that is a multiple of the step but for its last bits
        rounded = to(round(value / step, 6)) * step
        return int(rounded) if self.counted else float(f"{rounded:.10g}")


def _joules(value: float) -> str:
    return f"{significant(value)} J"


def _watts(value: float) -> str:
    return f"{value:,.0f} W"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    """A share with as many digits as tell it from a limit."""
    return f"{value * 100:.4g}%"


def _no_accuracy(setting: Setting) -> str:
    """Why nothing is known of what a setting's formats keep."""
    return (
        f"what {titles_of(setting)} keep of the accuracy is unknown: {accuracy_of(setting).basis}"
    )


LIMITS = {
    "limit-ttft": LimitRule("ttft_ms", "ttft_s", 1e3, "time to first token", duration, timed=True),
    "limit-tpot": LimitRule(
        "tpot_ms", "tpot_s", 1e3, "time per output token", duration, timed=True
    ),
    "limit-latency": LimitRule(
        "request_latency_ms", "request_latency_s", 1e3, "request latency", duration, timed=True
    ),
    "limit-wall": LimitRule("wall_hours", "wall_s", 1 / HOUR_S, "time to finish", days, FINITE),
    "limit-usd-run": LimitRule(
        "usd", "usd", 1.0, "cost of the run", usd, FINITE, money="for the run"
    ),
    "limit-usd": LimitRule(
        "usd_per_hour", "usd_per_hour", 1.0, "cost per hour", usd, BOTH, money="an hour"
    ),
    "limit-usd-tokens": LimitRule(
        "usd_per_million_output_tokens",
        "usd_per_million_output_tokens",
        1.0,
        "cost per million output tokens",
        usd,
        money="per million output tokens",
    ),
    "limit-energy": LimitRule(
        "joules_per_token", "joules_per_token", 1.0, "energy per token", _joules, BOTH
    ),
    "limit-watts": LimitRule("watts", "watts", 1.0, "power", _watts, BOTH),
    "limit-gpus": LimitRule("gpus", "gpus", 1.0, "device count", _count, BOTH, counted=True),
    "limit-throughput": LimitRule(
        "output_tokens_per_s_at_least",
        "output_tokens_per_s",
        1.0,
        "output tokens per second",
        _count,
        at_least=True,
    ),
    "limit-accuracy": LimitRule(
        "accuracy_recovery",
        "accuracy",
        1.0,
        "accuracy kept",
        _share,
        at_least=True,
        cause=titles_of,
        unknown=_no_accuracy,
    ),
}
"""Every limit by the code of its rule; the order is that in which remedies are offered."""


def stated(limits: Limits) -> list[str]:
    """Every limit that is stated, in words: ``p95 of time per output token at most 40.0 ms``."""
    out = []
    for rule in LIMITS.values():
        bound = rule.bound(limits)
        if bound is None:
            continue
        percentile = f"p{limits.percentile:g} of " if rule.timed and limits.percentile else ""
        way = "at least" if rule.at_least else "at most"
        out.append(f"{percentile}{rule.label} {way} {rule.show(bound)}")
    return out


def limited(cases: Cases, limits: Limits, *, timed: bool | None = None) -> Cases:
    """With one more rule for each stated limit, on cases that can run at all.

    ``timed`` restricts it to limits on times, or to the others.
    """
    rules = []
    for code, rule in LIMITS.items():
        bound = rule.bound(limits)
        if bound is not None and timed in (None, rule.timed):
            rules.append(_refusal(code, rule, bound, cases, limits.percentile))
    return replace(cases, limits=(*cases.limits, *rules))


def _refusal(
    code: str, rule: LimitRule, bound: float, cases: Cases, percentile: float | None
) -> Refusal:
    value, mean = rule.value(cases, percentile), cases.columns[rule.column]
    limit = rule.show(bound)
    lacks = np.isnan(value) if rule.unknown else np.zeros(len(value), dtype=np.bool_)
    place = cases.setting.cluster
    if rule.money and place.usd_per_device_hour is None:
        amount = f"${bound:,.2f}".removesuffix(".00")
        unknown = (
            f"no price of {place.device.title} is known, so the limit of {amount} {rule.money} "
            "cannot be judged; state hardware.usd_per_device_hour"
        )
        return Refusal(code, cases.feasible, lambda _: unknown)

    def say(i: int) -> str:
        if lacks[i] and rule.unknown is not None:
            return f"{rule.unknown(cases.setting)} The limit of {limit} cannot be judged"
        shown = rule.show(value[i])
        if rule.at_least:
            of = f" ({rule.cause(cases.setting)})" if rule.cause else ""
            return f"{rule.label} {shown}{of} is below the required {limit}"
        if percentile is None or not rule.timed:
            return f"{rule.label} {shown} exceeds the limit of {limit}"
        average = rule.show(mean[i])
        return (
            f"p{percentile:g} of {rule.label}, {shown}, exceeds the limit of {limit}; "
            f"the mean is {average}"
        )

    beyond = value < bound if rule.at_least else value > bound
    return Refusal(code, cases.feasible & (beyond | lacks), say)


def without_percentile(request: PlanRequest) -> PlanRequest:
    """The request with its limits on means, above which percentiles lie but for some medians."""
    objective = request.objective
    limits = objective.limits.model_copy(update={"percentile": None})
    return request.model_copy(update={"objective": objective.model_copy(update={"limits": limits})})


def time_bounds(limits: Limits) -> dict[str, float]:
    """The stated limits on what every request has, in seconds by column."""
    bounds = {rule.column: rule.bound(limits) for rule in LIMITS.values() if rule.timed}
    return {column: bound for column, bound in bounds.items() if bound is not None}


def mean_excess(cases: Cases, limits: Limits) -> Float:
    """How many times its limit the mean of a time is, at the worst of the stated limits.

    Zero without any.
    """
    excess = np.zeros(len(cases))
    for column, bound in time_bounds(limits).items():
        excess = np.maximum(excess, cases.columns[column] / bound)
    return excess


def unsimulated(cases: Cases, limits: Limits) -> Cases:
    """With the rule that refuses cases of unknown percentile, where times have limits."""
    excess = mean_excess(cases, limits)
    if not (excess > 0).any():
        return cases
    requests = requests_each(cases.setting, cases.cases)
    known = np.zeros(len(cases), dtype=np.bool_)
    if cases.simulation is not None:
        known = np.isfinite(cases.simulation.output_tokens_per_s)

    def say(i: int) -> str:
        why = "others rank before it by their means"
        if excess[i] > 1:
            why = "its means exceed the limits already"
        if requests[i] > MOST:
            why = f"it takes {requests[i]:,} requests per replica; at most {MOST:,} are simulated"
        return f"p{limits.percentile:g} is not simulated: {why}"

    rule = Refusal("unsimulated", cases.feasible & ~known, say)
    return replace(cases, limits=(*cases.limits, rule))
