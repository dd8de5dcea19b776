"""The published figures nearest to a question: those that vary most with its answer."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np

from recipe_core.accuracy.benchmark_name import published_benchmark
from recipe_core.accuracy.effects import fitted
from recipe_core.accuracy.model_name import named_model
from recipe_core.accuracy.published import Figure, figures
from recipe_core.accuracy.question import Question, group_size, terms
from recipe_core.accuracy.retained import Published
from recipe_core.accuracy.technique import techniques
from recipe_core.base.arrays import Float, Int


@cache
def questions() -> tuple[Question, ...]:
    return tuple(question_of(row) for row in figures())


def question_of(row: Figure) -> Question:
    return Question(
        named_model(row.model),
        row.technique,
        techniques()[row.technique],
        row.method,
        published_benchmark(row.benchmark),
        row.weight_bits,
        row.removed,
        group_size(row.group),
    )


@cache
def _index() -> dict[tuple[str, str], tuple[Int, Float]]:
    """Rows of each level, and their multipliers."""
    index: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row, question in enumerate(questions()):
        for term, level, multiplier in terms(question):
            index[term, level].append((row, multiplier))
    return {
        key: (np.array([row for row, _ in pairs]), np.array([value for _, value in pairs]))
        for key, pairs in index.items()
    }


@cache
def _own() -> Float:
    """Standard deviation of each row's ``f`` before anything was fitted."""
    variance = np.zeros(len(figures()))
    for (term, _), (rows, value) in _index().items():
        variance[rows] += fitted().spreads.by_term.get(term, 0.0) ** 2 * value**2
    return np.sqrt(variance)


def nearest_figures(asked: Question, count: int) -> tuple[Published, ...]:
    """The figures with the largest correlation with the answer, as the fit has it."""
    if count <= 0:
        return ()
    shared = np.zeros(len(figures()))
    spreads = fitted().spreads.by_term
    for term, level, multiplier in terms(asked):
        rows = _index().get((term, level))
        if rows is not None:
            shared[rows[0]] += spreads.get(term, 0.0) ** 2 * multiplier * rows[1]
    order = np.argsort(-shared / _own(), kind="stable")[:count]
    return tuple(figures()[row].as_published() for row in order)


@cache
def _exact() -> dict[tuple[str, str, str, str], tuple[Figure, ...]]:
    rows: dict[tuple[str, str, str, str], list[Figure]] = defaultdict(list)
    for row in figures():
        rows[row.model, row.technique, row.method, row.benchmark].append(row)
    return {key: tuple(value) for key, value in rows.items()}


def exact_figures(asked: Question) -> tuple[Figure, ...]:
    """Figures of this very model, technique, method and benchmark."""
    key = (asked.model.name, asked.technique, asked.method, asked.benchmark.name)
    return _exact().get(key, ())


@cache
def counts() -> dict[str, int]:
    """Figures by technique."""
    number: dict[str, int] = defaultdict(int)
    for row in figures():
        number[row.technique] += 1
    return dict(number)
