"""The 80 % band around an expected loss, from figures predicted without their own sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from recipe_core.accuracy.fit import (
    LIMITS,
    STEPS,
    Band,
    Data,
    Entries,
    Fit,
    Known,
    Levels,
    Noise,
    expected_loss,
    figure_entries,
    fit_effects,
    fitted_model,
    level_effects,
    loss_centre,
    publication_scope,
    question_group,
    question_measure,
)
from recipe_core.accuracy.nearest import count_by_technique, exact_figures, figure_question
from recipe_core.accuracy.published import Figure
from recipe_core.accuracy.question import Question, build_question, question_terms
from recipe_core.base.arrays import Bool, Float, Int


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


# Of the counted figures that a band holds, for it to hold 80 % of those of other models.
SHARE = 0.82
# Cells at which a group's own band counts as much as that of all tasks or all texts.
WEIGHT = 8.0
FOLDS = 8


@dataclass(frozen=True, slots=True)
class Losses:
    """Left-out losses and their expectations, as arrays over figures.

    off: losses less their expectations, in scatters. weight: less where many figures share a
    cell, which is a source and a model.
    """

    off: Float
    expected: Float
    scatter: Float
    weight: Float
    cell: Int
    group: Sequence[str]
    measure: Sequence[str]

    @classmethod
    def of(cls, prepared: Prepared, predicted: LeftOut) -> Self:
        """Those of all figures; expectations are multiplied by the centre."""
        questions = prepared.user_questions
        expected = predicted.expected * np.array([loss_centre(question) for question in questions])
        both = zip(questions, expected, predicted.variance, strict=True)
        scatter = np.array([loss_scatter(*case) for case in both])
        cells = [f"{row.source}|{row.model}" for row in prepared.rows]
        return cls(
            (prepared.data.loss - expected) / scatter,
            expected,
            scatter,
            1 / np.sqrt(prepared.data.crowd),
            np.unique(cells, return_inverse=True)[1],
            [question_group(question) for question in questions],
            [question_measure(question) for question in questions],
        )


def count_bands(losses: Losses, among: Bool) -> dict[str, Band]:
    """Bands of all tasks, all texts and each group, counted among some of the figures.

    Those of groups are drawn towards those of all their tasks or texts, the more the fewer cells
    they have.
    """
    bands = {}
    measures, groups = np.array(losses.measure), np.array(losses.group)
    for measure in sorted(set(losses.measure)):
        overall = bands[measure] = _weighted_band(losses, among & (measures == measure))
        for group in sorted(set(groups[among & (measures == measure)])):
            group_band = _weighted_band(losses, among & (groups == group))
            share = group_band.cells / (group_band.cells + WEIGHT)
            bands[str(group)] = Band(
                low=round(share * group_band.low + (1 - share) * overall.low, 3),
                high=round(share * group_band.high + (1 - share) * overall.high, 3),
                cells=group_band.cells,
            )
    return bands


def _weighted_band(losses: Losses, among: Bool) -> Band:
    """Quantiles of weighted figures."""
    off, weight = losses.off[among], losses.weight[among]
    order = np.argsort(off)
    total = np.cumsum(weight[order])
    middle = (total - weight[order] / 2) / total[-1]
    low, high = np.interp([(1 - SHARE) / 2, (1 + SHARE) / 2], middle, off[order])
    cells = len(set(losses.cell[among]))
    return Band(low=round(float(low), 3), high=round(float(high), 3), cells=cells)


def losses_in_bands(losses: Losses, bands: dict[str, Band]) -> Bool:
    """Mark losses within the bands of their groups, or of their measures where those lack."""
    names = zip(losses.group, losses.measure, strict=True)
    group_bands = [bands.get(group) or bands[measure] for group, measure in names]
    low, high = np.array([(band.low, band.high) for band in group_bands]).T
    return np.asarray((low <= losses.off) & (losses.off <= high), np.bool_)


def losses_in_bands_of_others(
    losses: Losses, judged: Losses, keys: Sequence[str], among: Bool
) -> Bool:
    """Return which of the judged losses lie in bands that were counted on figures of other keys.

    Keys are dealt into folds of about as many figures. The bands of a fold are counted on
    ``losses`` of the other folds, ``among`` these figures.
    """
    fold = _folds(keys)
    inside = np.zeros(len(fold), np.bool_)
    for number in range(FOLDS):
        in_fold = fold == number
        inside[in_fold] = losses_in_bands(judged, count_bands(losses, among & ~in_fold))[in_fold]
    return inside


def _folds(keys: Sequence[str]) -> Int:
    names, key, counts = np.unique(keys, return_inverse=True, return_counts=True)
    size = np.zeros(FOLDS)
    fold = np.zeros(len(names), np.int64)
    for number in np.argsort(-counts, kind="stable"):
        fold[number] = size.argmin()
        size[fold[number]] += counts[number]
    return np.asarray(fold[key], np.int64)
