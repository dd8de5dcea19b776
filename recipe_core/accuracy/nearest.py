"""The published figures nearest to a question: those that vary most with its answer."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np

from recipe_core.accuracy.fit import fitted_model
from recipe_core.accuracy.names import named_model, published_benchmark
from recipe_core.accuracy.published import Figure, Published, published_figures
from recipe_core.accuracy.question import Question, question_terms, scale_group_size
from recipe_core.accuracy.technique import techniques
from recipe_core.base.arrays import Float, Int


@cache
def published_questions() -> tuple[Question, ...]:
    return tuple(figure_question(row) for row in published_figures())


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
    for row, question in enumerate(published_questions()):
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
