"""Changes that would make a device the best: another price, limit or load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import significant
from recipe_core.plans.confidence import moved_confidence
from recipe_core.plans.limits import LIMITS
from recipe_core.sizing.device_sizing import SizedDevice

# How many times a limit, or the load, is moved at most.
FARTHEST = 8.0
# Values of a limit that are tried, on each side of which half.
STEPS = 61


def winning_limits(devices: Sequence[SizedDevice]) -> list[dict[str, float]]:
    """For each device the limits, each moved alone, at which it is the best: the nearest values.

    By the field of the objective's limits, in its unit. Others stay, and so does the confidence
    asked for. Empty where no value within eight times the limit makes it win.
    """
    out: list[dict[str, float]] = [{} for _ in devices]
    if not devices:
        return out
    limits = devices[0].plan.request.objective.limits
    factors = np.geomspace(1 / FARTHEST, FARTHEST, STEPS)
    for rule in LIMITS.values():
        bound = rule.bound(limits)
        if bound is None or rule.column == "gpus":
            continue
        scores = np.stack([_scores_by_limit(device, rule.name, factors) for device in devices])
        tiers = [device.tier for device in devices]
        for k, factor in enumerate(_winning_factors(scores, factors, tiers)):
            if factor is not None and factor != 1.0:
                moved_limit = float(getattr(limits, rule.name)) * factor
                out[k][rule.name] = float(significant(moved_limit, 3).replace(",", ""))
    return out


def _scores_by_limit(device: SizedDevice, name: str, factors: Float) -> Float:
    """The best score of a device by the factor of one limit; infinite where nothing holds.

    Of each number of rented devices the best split and the likeliest.
    """
    plan, best = device.plan, np.full(len(factors), np.inf)
    objective = plan.request.objective
    rows = device.candidates
    ends = np.cumsum([len(block) for block in plan.blocks])
    numbers = np.searchsorted(ends, rows, side="right")
    for k in np.unique(numbers).tolist():
        inside = rows[numbers == k]
        block = plan.blocks[k]
        chance, holds = moved_confidence(
            block, objective.limits, inside - ends[k] + len(block), {name: factors}
        )
        if not objective.judges_by_estimate:
            holds = holds & (chance >= objective.required_confidence)
        score = np.where(holds, device.scores[inside][:, None], np.inf)
        best = np.minimum(best, score.min(axis=0))
    return best


def _winning_factors(
    scores: Float, factors: Float, tiers: Sequence[tuple[bool, ...]]
) -> list[float | None]:
    """For each device the factor nearest to 1 at which it is first: by its tier, then its score."""
    ranks = np.array([sorted(set(tiers)).index(tier) for tier in tiers])
    rank_of = np.where(np.isfinite(scores), ranks[:, None], len(ranks))
    first = rank_of.min(axis=0)
    out: list[float | None] = []
    for k, device_scores in enumerate(scores):
        rivals = np.where(rank_of == first, scores, np.inf)
        rivals[k] = np.inf
        wins = np.isfinite(device_scores) & (rank_of[k] == first)
        wins &= device_scores < rivals.min(axis=0)
        if not wins.any():
            out.append(None)
            continue
        away = np.abs(np.log(factors))
        out.append(float(factors[wins][np.argmin(away[wins])]))
    return out


def winning_loads(
    ladders: Mapping[str, tuple[Float, Float]], now: float, tiers: Mapping[str, tuple[bool, ...]]
) -> dict[str, float | None]:
    """For each device the load nearest to ``now`` at which its rungs cost the least an hour.

    ``ladders``: by device the loads that its rungs carry, rising, and their prices an hour.
    ``tiers``: by device what ranks before money.
    """
    loads = now * np.geomspace(1 / FARTHEST, FARTHEST, STEPS)
    names = list(ladders)
    costs = np.full((len(names), STEPS), np.inf)
    for k, name in enumerate(names):
        capacity, usd_per_hour = ladders[name]
        for j, load in enumerate(loads):
            carrying = usd_per_hour[capacity >= load]
            costs[k, j] = carrying.min() if len(carrying) else np.inf
    factors = _winning_factors(costs, loads / now, [tiers[name] for name in names]) if names else []
    return {
        name: None if factor is None else float(significant(now * factor, 3).replace(",", ""))
        for name, factor in zip(names, factors, strict=True)
    }
