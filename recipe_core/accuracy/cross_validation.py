"""Published figures predicted without the figures of their model, family or source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.accuracy.fit import (
    LIMITS,
    STEPS,
    Data,
    Entries,
    Fit,
    Known,
    Levels,
    Noise,
    figure_entries,
    fit_effects,
)
from recipe_core.accuracy.nearest import figure_question
from recipe_core.accuracy.published import Figure
from recipe_core.accuracy.question import Question, build_question, question_terms
from recipe_core.base.arrays import Float, Int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Figures as the fit takes them, and as the questions that they would answer."""

    rows: Sequence[Figure]
    figure_questions: Sequence[Question]
    user_questions: Sequence[Question]
    levels: Levels
    entries: Entries
    questions: Entries
    data: Data

    @classmethod
    def of(cls, rows: Sequence[Figure], noise: Noise) -> Prepared:
        """Those of these figures; a question does not name its source."""
        figure_questions = [figure_question(row) for row in rows]
        user_questions = [
            build_question(question.model, question.technique, question.method, question.benchmark)
            for question in figure_questions
        ]
        levels, entries = figure_entries(rows, figure_questions)
        questions = levels.entries(
            [list(question_terms(question)) for question in user_questions], new=False
        )
        texts = [question.benchmark.likelihood for question in figure_questions]
        data = Data.of(rows, texts, noise.unstated)
        return cls(rows, figure_questions, user_questions, levels, entries, questions, data)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """For each figure: the loss that the others make expected, and the variance of its log.

    scopes: what the others are published of.
    """

    expected: Float
    variance: Float
    scopes: tuple[Known, ...]


def rows_by_key(keys: Sequence[str]) -> list[Int]:
    """Rows that share a key."""
    column = np.array(keys)
    return [np.flatnonzero(column == key) for key in sorted(set(keys))]


def predict_left_out(
    prepared: Prepared,
    spreads: Mapping[str, float],
    noise: Noise,
    keys: Sequence[str],
    *,
    steps: int = STEPS,
) -> LeftOut:
    """Every figure predicted by a fit without the figures that share its key."""
    parts = rows_by_key(keys)
    variances = prepared.levels.spreads(spreads) ** 2
    fit = fit_effects(
        prepared.data, prepared.entries, variances, noise, left_out=parts, steps=steps
    )
    posterior = posterior_variances(fit)
    f, variance = np.empty(len(prepared.rows)), np.empty(len(prepared.rows))
    uses = np.bincount(prepared.entries.level, minlength=len(variances))
    for rows in parts:
        inside = np.isin(prepared.entries.row, rows)
        uses_inside = np.bincount(prepared.entries.level[inside], minlength=len(variances))
        of_level = np.where(uses_inside == uses, variances, posterior)
        f[rows] = prepared.questions.sums(fit.effects_without(rows))[rows]
        variance[rows] = prepared.questions.variances(of_level)[rows]
    return LeftOut(np.exp(np.clip(f, *LIMITS)), variance, _scopes_without_key(prepared, keys))


def _scopes_without_key(prepared: Prepared, keys: Sequence[str]) -> tuple[Known, ...]:
    """Of each figure: what those without its key are published of."""
    models: dict[str, set[str]] = {}
    series: dict[str, set[str]] = {}
    for question, key in zip(prepared.user_questions, keys, strict=True):
        models.setdefault(question.model.name, set()).add(key)
        series.setdefault(question.model.series, set()).add(key)
    scopes = []
    for question in prepared.user_questions:
        if len(models[question.model.name]) > 1:
            scopes.append(Known.MODEL)
        else:
            has_relatives = len(series[question.model.series]) > 1
            scopes.append(Known.SERIES if has_relatives else Known.NOTHING)
    return tuple(scopes)


# Share of the figures above which a line is left out by its series: without it, hardly anything
# would be known of techniques and methods, which is not so for a new line.
LARGEST_LINE = 1 / 3


def relative_lines(prepared: Prepared) -> list[str]:
    """Of each figure: its line, or of the largest line its series."""
    lines = [question.model.line for question in prepared.user_questions]
    limit = LARGEST_LINE * len(lines)
    return [
        question.model.series if lines.count(question.model.line) > limit else question.model.line
        for question in prepared.user_questions
    ]


def as_strangers(prepared: Prepared) -> Prepared:
    """The same figures, asked as if nobody knew the lines of their models."""
    strangers = [
        replace(question, model=replace(question.model, line=""))
        for question in prepared.user_questions
    ]
    questions = prepared.levels.entries(
        [list(question_terms(question)) for question in strangers], new=False
    )
    return replace(prepared, user_questions=strangers, questions=questions)


def left_out_by_known(
    prepared: Prepared, spreads: Mapping[str, float], noise: Noise, *, steps: int = STEPS
) -> dict[Known, LeftOut]:
    """Figures predicted without those of their model and technique, model, and relatives.

    So questions about models of which more or less is known are asked of every figure.
    """
    models = [row.model for row in prepared.rows]
    pairs = [f"{row.model}|{row.technique}" for row in prepared.rows]
    strangers = as_strangers(prepared)
    return {
        Known.MODEL: predict_left_out(prepared, spreads, noise, pairs, steps=steps),
        Known.SERIES: predict_left_out(prepared, spreads, noise, models, steps=steps),
        Known.NOTHING: predict_left_out(
            strangers, spreads, noise, relative_lines(prepared), steps=steps
        ),
    }


def posterior_variances(fit: Fit) -> Float:
    """Variance that is left of each level's effect."""
    entries, variances = fit.entries, fit.variances.copy()
    for rows, level, value in entries.by_level():
        explained = value @ fit.inverse[np.ix_(rows, rows)] @ value
        variances[level] -= fit.variances[level] ** 2 * explained
    return np.maximum(variances, 0)
