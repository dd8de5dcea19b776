"""With which probability cases keep the limits of an objective, if they were measured.

A limit on a figure whose estimates are uncertain is a normal score: that of the limit in the
calibrated intervals around the estimate. Several limits hold together with the probability of a
normal distribution whose correlations are those of the figures' errors (a Gaussian copula): a
device that is slower than estimated misses the limit on latency and the one on cost together.
Limits on what is certain (devices, an hour's price) hold or do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.intervals import NORMAL, scores_below, scores_between
from recipe_core.base.units import chance_text
from recipe_core.estimates.bands import Stretch, Uncertain
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.plans.evaluation import EvaluatedCases, differs_by_case
from recipe_core.plans.limits import LIMITS, bounded_codes, bounded_values
from recipe_core.request.objective import SURE as SURE
from recipe_core.request.objective import Limits, Objective

Cases = EvaluatedCases[Any, Any, Any]

# Normal score from which a probability is 0 or 1 in floating point.
CERTAIN = 37.0
# Normal score beyond which the least likely of several limits decides alone.
TAIL = 4.0
# Nodes of the Gauss-Legendre rule for two limits.
NODES = 24
# The figure whose error says whether a server keeps up with what arrives, which it does from a
# rate on.
CAPACITY = ("output_tokens_per_s", -1)
# Points of a Halton sequence for three limits and more: errors of about 0.1 %.
DRAWS = 4096
# Cases that are held against them together: their bits stay in the processor's cache.
AT_ONCE = 32


def confidence(cases: Cases, limits: Limits) -> Float:
    """The probability that each case keeps every limit of its request; NaN where it cannot run."""
    return limit_chances(cases, limits) if cases.chances is None else cases.chances


def limit_chances(cases: Cases, limits: Limits) -> Float:
    """As ``confidence``, with limits that need not be those of the request."""
    rows = np.flatnonzero(cases.runs)
    chance = np.full(len(cases), np.nan)
    chance[rows] = moved_confidence(cases, limits, rows, {})[0][:, 0]
    return chance


def refuse_unsure(cases: Cases, objective: Objective) -> Cases:
    """With the rule that refuses what keeps the limits with less than the objective's confidence.

    Of cases that keep them by the estimate: the others are refused already. No rule where the
    estimates themselves are asked for, or nothing is limited.
    """
    target = objective.required_confidence
    if objective.judges_by_estimate or not bounded_codes(objective.limits):
        return cases
    chance = confidence(cases, objective.limits)

    def say(i: int) -> str:
        return (
            f"holds the limits with a probability of {below_text(float(chance[i]), target)}; "
            f"{chance_text(target)} is asked for"
        )

    rule = Refusal("confidence", cases.feasible & (chance < target), say)
    return replace(cases, limits=(*cases.limits, rule), chances=chance)


def below_text(chance: float, threshold: float) -> str:
    """A probability below another, with as many digits as tell them apart."""
    text = chance_text(chance)
    return f"{chance * 100:.1f} %" if text == chance_text(threshold) else text


def moved_confidence(
    cases: Cases, limits: Limits, rows: Int, moved: Mapping[str, Float]
) -> tuple[Float, Bool]:
    """As ``confidence``, of some cases, with limits times factors.

    Args:
        cases: of one setting.
        limits: as stated.
        rows: of the cases; each must run.
        moved: factors of limits by the names of their fields, as many of each.

    Returns:
        Probabilities, and whether the estimates keep the limits: rows × factors.
    """
    keeps_certain, keeps_all, by = _score_limits(cases, limits, rows, moved)
    chance = np.where(keeps_certain, 1.0, 0.0)
    if by and len(rows):
        correlation = signed_correlation(list(by), cases.physics.correlations())
        flat = np.stack(
            [np.broadcast_to(score, keeps_certain.shape).ravel() for score in by.values()]
        )
        chance = chance * joint_probability(flat, correlation).reshape(keeps_certain.shape)
    return chance, keeps_all


def _score_limits(
    cases: Cases, limits: Limits, rows: Int, moved: Mapping[str, Float]
) -> tuple[Bool, Bool, dict[tuple[str, int], Float]]:
    """Judge cases against limits: the certain ones, all by estimate, and scores of the others.

    Cases × factors of the limits that are ``moved``. Limits that follow the same figure in the same
    direction are the tighter of them.
    """
    factors = max((len(values) for values in moved.values()), default=1)
    keeps_certain = np.ones((len(rows), factors), dtype=np.bool_)
    keeps_all = keeps_certain.copy()
    by: dict[tuple[str, int], Float] = {}
    stretches: Mapping[str, Stretch] = {}
    if len(rows) and differs_by_case(cases.setting):
        estimates, places = cases.details(rows)
        stretches = cases.physics.stretches(estimates)
        stretches = {name: stretch.take(places) for name, stretch in stretches.items()}
        if cases.setting.mode == "open" and cases.physics.keeping_up is not None:
            keeping_up = cases.physics.keeping_up(estimates)[places]
            by[CAPACITY] = np.broadcast_to(
                np.clip(keeping_up, -CERTAIN, CERTAIN)[:, None], keeps_certain.shape
            )
    for rule in LIMITS.values():
        bound = rule.bound(limits)
        if bound is None:
            continue
        value = bounded_values(rule, cases, limits.percentile)[rows][:, None]
        bounds = bound * moved.get(rule.name, np.ones(1))[None, :]
        inside = (value >= bounds) if rule.at_least else (value <= bounds)
        keeps_all &= inside
        errors = cases.physics.uncertain(cases.setting, rule.column)
        if errors is None:
            keeps_certain &= inside
            continue
        ratio = bounds / value
        score = _error_scores(ratio, errors, stretches.get(errors.metric))
        if rule.at_least:
            score = -score
        score = np.clip(np.where(np.isfinite(value), score, -CERTAIN), -CERTAIN, CERTAIN)
        key = errors.metric, -errors.sign if rule.at_least else errors.sign
        by[key] = np.minimum(by[key], score) if key in by else score
    return keeps_certain, keeps_all, by


def _error_scores(ratio: Float, errors: Uncertain, stretch: Stretch | None) -> Float:
    """Normal scores of measured values of at most ``ratio`` (cases × …) times the estimates.

    The intervals are the same for all cases, but where own runs or a queue ``stretch`` them.
    """
    if stretch is None:
        return scores_below(errors.factors, ratio)
    return scores_between(*errors.ends(stretch), ratio)


def joint_probability(scores: Float, correlation: Float) -> Float:
    """The probability that normal variables are all below their scores, one per case.

    Args:
        scores: variables × cases.
        correlation: of the variables.
    """
    if len(scores) == 1:
        return _cdf(scores[0])
    if len(scores) == 2:
        return _both(scores[0], scores[1], float(correlation[0, 1]))
    drawn = _correlation_root(correlation) @ _draws(len(scores)).T
    lowest = scores.min(axis=0)
    out = _cdf(lowest)  # what the least likely of them allows
    open_question = np.flatnonzero((lowest > -TAIL) & (lowest < TAIL))
    for some in np.array_split(open_question, -(-len(open_question) // AT_ONCE) or 1):
        below = np.ones((len(some), DRAWS), dtype=np.bool_)
        for points, score in zip(drawn, scores[:, some], strict=True):
            below &= points <= score[:, None]
        out[some] = np.minimum(out[some], np.count_nonzero(below, axis=1) / DRAWS)
    return out


def _cdf(scores: Float) -> Float:
    tails = map(math.erfc, (-scores / math.sqrt(2)).tolist())
    return np.asarray(0.5 * np.fromiter(tails, dtype=float, count=len(scores)))


def _both(first: Float, second: Float, correlation: float) -> Float:
    """The bivariate normal distribution function.

    By its derivative in the correlation (Plackett 1954), integrated over the arc sine of it
    (Drezner and Wesolowsky 1990).
    """
    nodes, weights = _legendre()
    end = math.asin(max(min(correlation, 1.0), -1.0))
    angle = (nodes + 1) / 2 * end
    a, b = first[:, None], second[:, None]
    cos2 = np.maximum(np.cos(angle) ** 2, 1e-12)
    # exp(-(a·a - 2·a·b·sin + b·b) / (2·cos²)), in place: there are hundreds of thousands
    density = 2 * a * b * np.sin(angle)
    np.subtract(a * a, density, out=density)
    density += b * b
    np.negative(density, out=density)
    density /= 2 * cos2
    np.exp(density, out=density)
    added = (density @ weights) * end / 2 / (2 * math.pi)
    return np.asarray(np.clip(_cdf(first) * _cdf(second) + added, 0.0, 1.0))


@cache
def _legendre() -> tuple[Float, Float]:
    return np.polynomial.legendre.leggauss(NODES)


@cache
def _draws(variables: int) -> Float:
    """Independent standard normal points that fill the space evenly: points × variables."""
    primes = (2, 3, 5, 7, 11, 13)[:variables]
    columns = [[_radical_inverse(n, prime) for n in range(1, DRAWS + 1)] for prime in primes]
    return np.array([[NORMAL.inv_cdf(share) for share in column] for column in columns]).T


def _radical_inverse(n: int, base: int) -> float:
    """The digits of ``n`` in a base, mirrored at the point (van der Corput)."""
    value, scale = 0.0, 1.0
    while n:
        scale /= base
        n, digit = divmod(n, base)
        value += digit * scale
    return value


def _correlation_root(correlation: Float) -> Float:
    """A matrix whose square is the correlation, or the nearest one that is a correlation's."""
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(root / np.linalg.norm(root, axis=1, keepdims=True))


def signed_correlation(
    signed: Sequence[tuple[str, int]], correlations: Mapping[str, Mapping[str, float]]
) -> Float:
    """Correlations of errors of figures, some counted the other way round."""
    size = len(signed)
    out = np.eye(size)
    for i, (a, sign) in enumerate(signed):
        for j, (b, sign_b) in enumerate(signed[:i]):
            of = (
                1.0
                if a == b
                else correlations.get(a, {}).get(b, correlations.get(b, {}).get(a, 0.0))
            )
            out[i, j] = out[j, i] = sign * sign_b * of
    return out
