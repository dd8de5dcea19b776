"""The 80 % band around an expected loss, and what figures of the very question add."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recipe_core.accuracy.effects import (
    Known,
    effects,
    expected,
    fitted,
    group_of,
    known_of,
    measure_of,
)
from recipe_core.accuracy.nearest import counts, exact_figures
from recipe_core.accuracy.question import Question


@dataclass(frozen=True, slots=True)
class Belief:
    """What is retained, its band, and what that rests on.

    of_technique and of_method: published figures of either; exact: those of this very model,
    technique, method and benchmark.
    """

    value: float
    low: float
    high: float
    of_technique: int
    of_method: int
    exact: int


def belief(asked: Question) -> Belief:
    """The expectation, moved towards figures of the very question as far as these are sure."""
    guess = expected(asked)
    loss, scatter = guess.loss, scale_of(asked, guess.loss, guess.variance)
    exact = exact_figures(asked)
    if exact:
        seen = sum(-math.log(row.retained) for row in exact) / len(exact)
        off = (seen - loss) ** 2
        noise = _noise(asked, loss) / len(exact)
        # Where a figure is off by more than its noise, the model is what is wrong.
        share = (scatter**2 + off) / (scatter**2 + off + noise)
        loss += share * (seen - loss)
        scatter *= math.sqrt(max(1 - share, LEAST_LEFT))
    low, high = _ends(asked, known_of(asked), loss, scatter)
    method = effects().get(("method", asked.method))
    return Belief(
        value=math.exp(-loss),
        low=low,
        high=high,
        of_technique=counts().get(asked.technique, 0),
        of_method=0 if method is None else method.figures,
        exact=len(exact),
    )


def ends_of(asked: Question, known: Known, loss: float, variance: float) -> tuple[float, float]:
    return _ends(asked, known, loss, scale_of(asked, loss, variance))


def _ends(asked: Question, known: Known, loss: float, scatter: float) -> tuple[float, float]:
    bands = fitted().bands.by_known[known]
    band = bands.get(group_of(asked)) or bands[measure_of(asked)]
    return math.exp(-loss - band.high * scatter), math.exp(-loss - band.low * scatter)


# Share of the variance that stays where the very question is published: others who measure it use
# other harnesses, prompts and groups.
LEAST_LEFT = 0.25


def _noise(asked: Question, loss: float) -> float:
    """Variance of a figure that another measurement of the same would not share."""
    noise = fitted().scatter.noise()
    return noise.floor**2 + (noise.shared * binomial(asked, loss)) ** 2


def binomial(asked: Question, loss: float) -> float:
    """Noise of a loss by the number of items, at the base's usual share of right answers.

    Two independent scores of share p: ``sqrt(2 (1 - p) / (p · items))``; a score that is smaller
    by the loss is noisier, by half of it. What the base really reaches is no part of a question.
    """
    benchmark, scatter = asked.benchmark, fitted().scatter
    if benchmark.likelihood:
        return 0.0
    if benchmark.items is None:
        return scatter.unstated
    usual = scatter.base_share
    return math.sqrt(2 * (1 - usual) / (usual * benchmark.items)) * math.exp(min(loss, 2.0) / 2)


def scale_of(asked: Question, loss: float, variance: float) -> float:
    """Scatter of a loss around its expectation, in which the band is counted.

    ``loss`` is the expectation ``m``, ``variance`` that of ``f = ln m`` by its terms.
    """
    scale = fitted().scale
    spread = scale.relative**2 + scale.variance * variance
    return math.sqrt(_noise(asked, loss) + loss**2 * spread)
