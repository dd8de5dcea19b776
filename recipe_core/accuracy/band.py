"""The 80 % band around an expected loss, and what figures of the very question add."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recipe_core.accuracy.effects import (
    Known,
    expected_loss,
    fitted_model,
    level_effects,
    publication_scope,
    question_group,
    question_measure,
)
from recipe_core.accuracy.nearest import count_by_technique, exact_figures
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


def posterior_belief(question: Question) -> Belief:
    """The expectation, moved towards figures of the very question as far as these are sure."""
    guess = expected_loss(question)
    loss, scatter = guess.loss, loss_scatter(question, guess.loss, guess.variance)
    exact = exact_figures(question)
    if exact:
        published_loss = sum(-math.log(row.retained) for row in exact) / len(exact)
        off = (published_loss - loss) ** 2
        noise = _measurement_noise(question, loss) / len(exact)
        # Where a figure is off by more than its noise, the model is what is wrong.
        share = (scatter**2 + off) / (scatter**2 + off + noise)
        loss += share * (published_loss - loss)
        scatter *= math.sqrt(max(1 - share, LEAST_LEFT))
    low, high = _band_ends(question, publication_scope(question), loss, scatter)
    method = level_effects().get(("method", question.method))
    return Belief(
        value=math.exp(-loss),
        low=low,
        high=high,
        of_technique=count_by_technique().get(question.technique, 0),
        of_method=0 if method is None else method.figures,
        exact=len(exact),
    )


def band_of_variance(
    question: Question, scope: Known, loss: float, variance: float
) -> tuple[float, float]:
    return _band_ends(question, scope, loss, loss_scatter(question, loss, variance))


def _band_ends(
    question: Question, scope: Known, loss: float, scatter: float
) -> tuple[float, float]:
    bands = fitted_model().bands.by_known[scope]
    band = bands.get(question_group(question)) or bands[question_measure(question)]
    return math.exp(-loss - band.high * scatter), math.exp(-loss - band.low * scatter)


# Share of the variance that stays where the very question is published: others who measure it use
# other harnesses, prompts and groups.
LEAST_LEFT = 0.25


def _measurement_noise(question: Question, loss: float) -> float:
    """Variance of a figure that another measurement of the same would not share."""
    noise = fitted_model().scatter.noise()
    return noise.floor**2 + (noise.shared * benchmark_binomial_noise(question, loss)) ** 2


def benchmark_binomial_noise(question: Question, loss: float) -> float:
    """Noise of a loss by the number of items, at the base's usual share of right answers.

    Two independent scores of share p: ``sqrt(2 (1 - p) / (p · items))``; a score that is smaller
    by the loss is noisier, by half of it. What the base really reaches is no part of a question.
    """
    benchmark, scatter = question.benchmark, fitted_model().scatter
    if benchmark.likelihood:
        return 0.0
    if benchmark.items is None:
        return scatter.unstated
    usual = scatter.base_share
    return math.sqrt(2 * (1 - usual) / (usual * benchmark.items)) * math.exp(min(loss, 2.0) / 2)


def loss_scatter(question: Question, loss: float, variance: float) -> float:
    """Scatter of a loss around its expectation, in which the band is counted.

    ``loss`` is the expectation ``m``, ``variance`` that of ``f = ln m`` by its terms.
    """
    scale = fitted_model().scale
    spread = scale.relative**2 + scale.variance * variance
    return math.sqrt(_measurement_noise(question, loss) + loss**2 * spread)
