"""Limits of the objective as rules.

Of quantities by their means, of times also by a simulated percentile.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.estimates.rules.refusal import RULE_TITLES, Refusal
from recipe_core.estimates.serving.accuracy import COLUMN as ACCURACY
from recipe_core.estimates.serving.accuracy import accuracy_of, titles_of
from recipe_core.estimates.serving.simulate import MOST, requests_each
from recipe_core.plans.evaluation import EvaluatedCases
from recipe_core.request.metrics import Limit, limit_rules
from recipe_core.request.objective import Limits
from recipe_core.request.schema import PlanRequest

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

Cases = EvaluatedCases[Any, Any, Any]

# Every limit by the code of its rule; the order is that in which remedies are offered.
LIMITS = limit_rules()


def rule_title(code: str) -> str:
    return LIMITS[code].refusal_title if code in LIMITS else RULE_TITLES.get(code, code)


def bounded_values(rule: Limit, cases: Cases, percentile: float | None) -> Float:
    """The values that a limit bounds (cases), SI.

    The percentile where one is asked for and simulated, else the mean.
    """
    mean = np.asarray(cases.columns[rule.column], dtype=np.float64)
    if percentile is None or not rule.timed or cases.simulation is None:
        return mean
    simulated = cases.simulation.percentiles_s[rule.column][percentile]
    return np.where(np.isfinite(simulated), simulated, mean)


def bounded_figures(plan: Plan, code: str) -> Float:
    """The figure of every row that a limit bounds: a mean, or the percentile of the limits."""
    rule, percentile = LIMITS[code], plan.request.objective.limits.percentile
    return np.concatenate([bounded_values(rule, block, percentile) for block in plan.blocks])


def limit_excess(rule: Limit, values: Float, limits: Limits) -> Float:
    """Return how many times its stated limit each value (SI) is; above one it is not kept."""
    ratio = values * rule.factor / float(getattr(limits, rule.name))
    return 1 / np.maximum(ratio, 1e-12) if rule.at_least else ratio


def stated_limits(plan: Plan) -> list[str]:
    """Codes of the limits that the objective of a plan states."""
    return bounded_codes(plan.request.objective.limits)


def bounded_codes(limits: Limits) -> list[str]:
    """Codes of the limits that are stated."""
    return [code for code, rule in LIMITS.items() if rule.bound(limits) is not None]


def limit_texts(limits: Limits) -> list[str]:
    """The stated limits in words: ``p95 of time per output token at most 40.0 ms``."""
    out = []
    for rule in LIMITS.values():
        bound = rule.bound(limits)
        if bound is None:
            continue
        percentile = f"p{limits.percentile:g} of " if rule.timed and limits.percentile else ""
        out.append(f"{percentile}{rule.label} {rule.direction} {rule.show(bound)}")
    return out


# Limits that a phrase names one by one.
NAMED = 2


def limits_phrase(plan: Plan) -> str:
    """The limits of a plan in few words: ``40 ms per token and 800 ms to first token``.

    ``40 ms per token at p95`` where they are of a percentile; ``all 3 limits`` of more than two.
    """
    limits = plan.request.objective.limits
    rules = [LIMITS[code] for code in stated_limits(plan)]
    if len(rules) > NAMED:
        return f"all {len(rules)} limits"
    texts = [
        f"{_TRAILING.sub('', rule.show(rule.bound(limits) or 0.0))} {rule.metric.per}".rstrip()
        for rule in rules
    ]
    timed = limits.percentile is not None and any(rule.timed for rule in rules)
    return " and ".join(texts) + (f" at p{limits.percentile:g}" if timed else "")


# Zeros that a round limit needs not: ``40.0 ms``.
_TRAILING = re.compile(r"(?<!\$)(?<=\d)\.0+(?= |$)")


def add_limit_rules(cases: Cases, limits: Limits, *, timed: bool | None = None) -> Cases:
    """With one more rule for each stated limit, on cases that can run at all.

    ``timed`` restricts it to limits on times, or to the others.
    """
    rules = [
        _limit_refusal(code, rule, cases, limits)
        for code, rule in LIMITS.items()
        if rule.bound(limits) is not None and timed in (None, rule.timed)
    ]
    return replace(cases, limits=(*cases.limits, *rules))


def breaks_limit(rule: Limit, cases: Cases, limits: Limits) -> Bool:
    """Cases that a stated limit refuses: what nobody knows keeps none."""
    values, bound = bounded_values(rule, cases, limits.percentile), rule.bound(limits) or 0.0
    with np.errstate(invalid="ignore"):
        beyond = values < bound if rule.at_least else values > bound
    if rule.priced and cases.setting.cluster.usd_per_device_hour is None:
        return np.ones(len(values), dtype=np.bool_)
    return np.asarray(beyond | np.isnan(values) if rule.column == ACCURACY else beyond)


def _limit_refusal(code: str, rule: Limit, cases: Cases, limits: Limits) -> Refusal:
    percentile, bound = limits.percentile, rule.bound(limits) or 0.0
    values, means = bounded_values(rule, cases, percentile), cases.columns[rule.column]
    limit, setting = rule.show(bound), cases.setting

    def say(i: int) -> str:
        if rule.priced and setting.cluster.usd_per_device_hour is None:
            amount = f"${bound:,.2f}".removesuffix(".00")
            return (
                f"no price of {setting.cluster.device.title} is known, so the limit of {amount} "
                f"{rule.priced} cannot be judged; state hardware.usd_per_device_hour"
            )
        if rule.column == ACCURACY and np.isnan(values[i]):
            return (
                f"what {titles_of(setting)} keep of the accuracy is unknown: "
                f"{accuracy_of(setting).basis} The limit of {limit} cannot be judged"
            )
        shown = rule.show(values[i])
        if rule.at_least:
            cause = f" ({titles_of(setting)})" if rule.column == ACCURACY else ""
            return f"{rule.label} {shown}{cause} is below the required {limit}"
        if percentile is None or not rule.timed:
            return f"{rule.label} {shown} exceeds the limit of {limit}"
        return (
            f"p{percentile:g} of {rule.label}, {shown}, exceeds the limit of {limit}; "
            f"the mean is {rule.show(means[i])}"
        )

    return Refusal(code, cases.feasible & breaks_limit(rule, cases, limits), say)


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
    """Return how many times its limit the mean of a time is, at the worst of the stated limits.

    Zero without any.
    """
    excess = np.zeros(len(cases))
    for column, bound in time_bounds(limits).items():
        excess = np.maximum(excess, cases.columns[column] / bound)
    return excess


def refuse_unsimulated(cases: Cases, limits: Limits) -> Cases:
    """With the rule that refuses cases of unknown percentile, where times have limits."""
    excess = mean_excess(cases, limits)
    if not (excess > 0).any():
        return cases
    requests = requests_each(cases.setting, cases.cases)
    is_simulated = np.zeros(len(cases), dtype=np.bool_)
    if cases.simulation is not None:
        is_simulated = np.isfinite(cases.simulation.output_tokens_per_s)

    def say(i: int) -> str:
        why = "others rank before it by their means"
        if excess[i] > 1:
            why = "its means exceed the limits already"
        if requests[i] > MOST:
            why = f"it takes {requests[i]:,} requests per replica; at most {MOST:,} are simulated"
        return f"p{limits.percentile:g} is not simulated: {why}"

    rule = Refusal("unsimulated", cases.feasible & ~is_simulated, say)
    return replace(cases, limits=(*cases.limits, rule))
