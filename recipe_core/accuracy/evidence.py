"""The published figures nearest to a question, and the 80 % band around its expected loss."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np

from recipe_core.accuracy.effects import (
    Known,
    expected_loss,
    fitted_model,
    level_effects,
    publication_scope,
    question_group,
    question_measure,
)
from recipe_core.accuracy.names import named_model, published_benchmark
from recipe_core.accuracy.published import Figure, Published, published_figures
from recipe_core.accuracy.question import Question, question_terms, scale_group_size
from recipe_core.accuracy.technique import techniques
from recipe_core.base.arrays import Float, Int


def figure_question(row: Figure) -> Question:
    return Question(
        named_model(row.model),
        row.technique,
        techniques()[row.technique],
        row.method,
        published_benchmark(row.benchmark),
        row.weight_bits,
        row.removed,
        scale_group_size(row.group),
    )


@cache
def _level_index() -> dict[tuple[str, str], tuple[Int, Float]]:
    """Rows of each level, and their multipliers."""
    index: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row, question in enumerate(map(figure_question, published_figures())):
        for term, level, multiplier in question_terms(question):
            index[term, level].append((row, multiplier))
    return {
        key: (np.array([row for row, _ in pairs]), np.array([value for _, value in pairs]))
        for key, pairs in index.items()
    }


@cache
def _prior_deviations() -> Float:
    """Standard deviation of each row's ``f`` before anything was fitted."""
    variance = np.zeros(len(published_figures()))
    for (term, _), (rows, value) in _level_index().items():
        variance[rows] += fitted_model().spreads.by_term.get(term, 0.0) ** 2 * value**2
    return np.sqrt(variance)


def nearest_figures(question: Question, count: int) -> tuple[Published, ...]:
    """The figures with the largest correlation with the answer, as the fit has it."""
    if count <= 0:
        return ()
    shared = np.zeros(len(published_figures()))
    spreads = fitted_model().spreads.by_term
    for term, level, multiplier in question_terms(question):
        rows = _level_index().get((term, level))
        if rows is not None:
            shared[rows[0]] += spreads.get(term, 0.0) ** 2 * multiplier * rows[1]
    order = np.argsort(-shared / _prior_deviations(), kind="stable")[:count]
    return tuple(published_figures()[row].as_published() for row in order)


@cache
def _figures_by_question() -> dict[tuple[str, str, str, str], tuple[Figure, ...]]:
    rows: dict[tuple[str, str, str, str], list[Figure]] = defaultdict(list)
    for row in published_figures():
        rows[row.model, row.technique, row.method, row.benchmark].append(row)
    return {key: tuple(value) for key, value in rows.items()}


def exact_figures(question: Question) -> tuple[Figure, ...]:
    """Figures of this very model, technique, method and benchmark."""
    key = (question.model.name, question.technique, question.method, question.benchmark.name)
    return _figures_by_question().get(key, ())


@cache
def count_by_technique() -> dict[str, int]:
    """Figures by technique."""
    number: dict[str, int] = defaultdict(int)
    for row in published_figures():
        number[row.technique] += 1
    return dict(number)


@dataclass(frozen=True, slots=True)
class Belief:
    """The share retained, its band, and what both rest on.

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
    low, high = band_ends(question, publication_scope(question), loss, scatter)
    method = level_effects().get(("method", question.method))
    return Belief(
        value=math.exp(-loss),
        low=low,
        high=high,
        of_technique=count_by_technique().get(question.technique, 0),
        of_method=0 if method is None else method.figures,
        exact=len(exact),
    )


def band_ends(question: Question, scope: Known, loss: float, scatter: float) -> tuple[float, float]:
    """The low and the high end of the share retained."""
    bands = fitted_model().bands.by_known[scope]
    band = bands.get(question_group(question)) or bands[question_measure(question)]
    return math.exp(-loss - band.high * scatter), math.exp(-loss - band.low * scatter)


# Share of the variance that stays where the very question is published: others who measure it use
# other harnesses, prompts and groups.
LEAST_LEFT = 0.25


def _measurement_noise(question: Question, loss: float) -> float:
    """Variance of a figure that another measurement of the same would not share."""
    scatter = fitted_model().scatter
    return scatter.floor**2 + (scatter.shared * _binomial_noise(question, loss)) ** 2


def _binomial_noise(question: Question, loss: float) -> float:
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
