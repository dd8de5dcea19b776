"""What would make a device the best: another price, another limit, another load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import significant
from recipe_core.search.limits import LIMITS
from recipe_core.sizing.sized import SizedDevice

FARTHEST = 8.0
"""How many times a limit, or the load, is moved at most."""
STEPS = 61
"""Values of a limit that are tried, on each side of which half."""


def winning_limits(devices: Sequence[SizedDevice]) -> list[dict[str, float]]:
    """For each device the limits, each moved alone, at which it is the best: the nearest values.

    By the field of the objective's limits, in its unit. Others stay, and so does the confidence
    asked for. Empty where no value within eight times the limit makes it win.
    """
    out: list[dict[str, float]] = [{} for _ in devices]
    if not devices:
        return out
    limits = devices[0].plan.request.objective.limits
    for code, rule in LIMITS.items():
        bound = rule.bound(limits)
        if bound is None or rule.column == "gpus":
            continue
        factors = np.geomspace(1 / FARTHEST, FARTHEST, STEPS)
        scores = np.stack([_scores(one, code, bound, factors) for one in devices])
        for k, values in enumerate(_winning(scores, factors)):
            if values is not None:
                stated = float(getattr(limits, rule.name)) * values
                out[k][rule.name] = float(significant(stated, 3).replace(",", ""))
    return out


def _scores(one: SizedDevice, code: str, bound: float, factors: Float) -> Float:
    """The best score of a device by the value of one limit; infinite where nothing holds."""
    rule, plan = LIMITS[code], one.plan
    others = np.zeros(len(plan), dtype=np.bool_)
    for name, broken in plan.rules().items():
        if name in LIMITS and name != code:
            others |= broken
    rows = np.flatnonzero(one.allowed & ~others)
    figure = (plan.bound(code) * _margins(one, code))[rows]
    score = plan.score[rows]
    known = np.isfinite(figure) & np.isfinite(score)
    figure, score = figure[known], score[known]
    sign = -1.0 if rule.at_least else 1.0
    order = np.argsort(sign * figure)
    best = np.minimum.accumulate(score[order]) if len(order) else np.zeros(0)
    place = np.searchsorted(sign * figure[order], sign * bound * factors, side="right")
    return np.where(place > 0, np.r_[np.inf, best][place], np.inf)


def _margins(one: SizedDevice, code: str) -> Float:
    """How many times its figure a limit must be to hold, by row: the same within a setting."""
    sizes = [len(block) for block in one.plan.blocks]
    first = np.cumsum([0, *sizes])[:-1].tolist()
    return np.repeat([one.plan.margin(code, row) for row in first], sizes)


def _winning(scores: Float, factors: Float) -> list[float | None]:
    """For each device the factor nearest to 1 at which its score is the least."""
    out: list[float | None] = []
    for k, own in enumerate(scores):
        rest = np.delete(scores, k, axis=0)
        wins = np.isfinite(own) & (own < (rest.min(axis=0) if len(rest) else np.inf))
        if not wins.any():
            out.append(None)
            continue
        away = np.abs(np.log(factors))
        out.append(float(factors[wins][np.argmin(away[wins])]))
    return out


def winning_loads(
    ladders: Mapping[str, tuple[Float, Float]], now: float
) -> dict[str, float | None]:
    """For each device the load nearest to ``now`` at which its rungs cost the least an hour.

    ``ladders``: by device the loads that its rungs carry, rising, and their prices an hour.
    """
    loads = now * np.geomspace(1 / FARTHEST, FARTHEST, STEPS)
    names = list(ladders)
    costs = np.full((len(names), STEPS), np.inf)
    for k, name in enumerate(names):
        capacity, usd_per_hour = ladders[name]
        for j, load in enumerate(loads):
            carrying = usd_per_hour[capacity >= load]
            costs[k, j] = carrying.min() if len(carrying) else np.inf
    found = _winning(costs, loads / now) if names else []
    return {
        name: None if factor is None else float(significant(now * factor, 3).replace(",", ""))
        for name, factor in zip(names, found, strict=True)
    }
