"""The fit of the model of accuracy to published figures, and predictions without some of them.

The loss of a figure is ``l = -ln(retained)``; its expectation is ``exp(f)``, and ``f`` is a sum of
terms (``question_terms``), each with an effect that is drawn around 0 with the spread of its
term: effects of levels with few figures stay small. Found by Gauss-Newton steps; figures that lie
far off count less (Student's t), and so do the many figures of one model in one source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from recipe_core.accuracy.effects import (
    LIMITS,
    START,
    Band,
    Known,
    Scatter,
    figure_question,
    loss_centre,
    loss_scatter,
    noise_share,
    question_group,
    question_measure,
)
from recipe_core.accuracy.published import Figure
from recipe_core.accuracy.question import Question, Term, build_question, question_terms
from recipe_core.base.arrays import Bool, Float, Int

SMALLEST = 1e-4
STEPS = 8
# Steps before figures that lie far off count less: at first everything does.
LEVEL_STEPS = 2
FIRST_STEP, STEP = 3.0, 10.0


def loss_variance(noise: Scatter, expected: Float, sampling: Float) -> Float:
    """Variance of losses around their expectation, by the sampling noise of their benchmarks."""
    return noise.floor**2 + (noise.relative * expected) ** 2 + sampling**2


@dataclass(slots=True)
class Levels:
    """Every (term, level), numbered in the order of their first use."""

    number: dict[tuple[str, str], int] = field(default_factory=dict)

    def entries(self, rows: Sequence[Sequence[Term]], *, new: bool) -> Entries:
        """The terms of rows; levels that are not known yet are added or left out."""
        row, level, multiplier = [], [], []
        for index, row_terms in enumerate(rows):
            for term, name, value in row_terms:
                key = (term, name)
                number = self.number.setdefault(key, len(self.number)) if new else None
                number = self.number.get(key) if number is None else number
                if number is not None:
                    row.append(index)
                    level.append(number)
                    multiplier.append(value)
        return Entries(np.array(row), np.array(level), np.array(multiplier, float), len(rows))

    def spreads(self, spread: Mapping[str, float]) -> Float:
        return np.array([spread.get(term, 0.0) for term, _ in self.number])


@dataclass(frozen=True, slots=True)
class Entries:
    """Terms of rows as a sparse matrix of rows by levels."""

    row: Int
    level: Int
    multiplier: Float
    rows: int

    def sums(self, effects: Float) -> Float:
        """``f`` of each row."""
        parts = self.multiplier * effects[self.level]
        return np.asarray(START + np.bincount(self.row, parts, minlength=self.rows), np.float64)

    def effects(self, weights: Float, variances: Float) -> Float:
        """Effects of the levels by the weights of the rows."""
        parts = self.multiplier * weights[self.row]
        return variances * np.bincount(self.level, parts, minlength=len(variances))

    def covariance(self, variances: Float) -> Float:
        """Covariance of ``f`` between rows."""
        matrix = np.zeros((self.rows, self.rows))
        for rows, level, value in self.by_level():
            if variances[level] > 0:
                matrix[np.ix_(rows, rows)] += variances[level] * np.outer(value, value)
        return matrix

    def variances(self, of_level: Float) -> Float:
        """Variance of ``f`` of each row, as if effects were independent of each other."""
        parts = self.multiplier**2 * of_level[self.level]
        return np.asarray(np.bincount(self.row, parts, minlength=self.rows), np.float64)

    def by_level(self) -> Iterator[tuple[Int, int, Float]]:
        """For each level its rows, its number and its multipliers."""
        order = np.argsort(self.level, kind="stable")
        starts = np.flatnonzero(np.diff(self.level[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            yield self.row[members], int(self.level[members[0]]), self.multiplier[members]


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit: weights of rows, and what is needed to leave some of them out."""

    entries: Entries
    variances: Float
    weights: Float
    inverse: Float
    f: Float

    def effects(self) -> Float:
        return self.entries.effects(self.weights, self.variances)

    def effects_without(self, rows: Int) -> Float:
        """Effects as if these rows had not been there, at the same linearisation."""
        block = self.inverse[np.ix_(rows, rows)]
        weights = self.weights - self.inverse[:, rows] @ np.linalg.solve(block, self.weights[rows])
        weights[rows] = 0
        return self.entries.effects(weights, self.variances)


def _figure_binomial_noise(row: Figure, unstated: float) -> float:
    """Noise of a figure's loss by the items of its benchmark; ``unstated`` where unknown."""
    return unstated if row.noise is None else row.noise / max(row.retained, 0.05)


@dataclass(frozen=True, slots=True)
class Data:
    """Figures as arrays: losses, their sampling noise, how many share source and model."""

    loss: Float
    sampling: Float
    crowd: Float

    @classmethod
    def of(cls, rows: Sequence[Figure], questions: Sequence[Question], noise: Scatter) -> Data:
        retained = np.array([row.retained for row in rows])
        pairs = [(row.source, row.model) for row in rows]
        count = {pair: pairs.count(pair) for pair in set(pairs)}
        binomial = np.array([_figure_binomial_noise(row, noise.unstated) for row in rows])
        share = np.array([noise_share(question.benchmark, noise) for question in questions])
        share[[question.benchmark.likelihood for question in questions]] = 0.0
        crowd = np.array([count[pair] for pair in pairs], float)
        return cls(-np.log(retained), share * binomial, crowd)


def fit_effects(
    data: Data,
    entries: Entries,
    variances: Float,
    noise: Scatter,
    *,
    left_out: Sequence[Int] = (),
    start: Float | None = None,
    steps: int = STEPS,
) -> Fit:
    """The fit to figures.

    ``left_out`` are blocks of rows that are to be predicted without themselves: steps are then
    taken around these predictions, so that no block has a say in how much its rows count.
    ``start`` is ``f`` of an earlier fit; ``variances`` are those of the levels' effects.
    """
    covariance = entries.covariance(variances)
    crowding = (data.crowd / np.median(data.crowd)) ** noise.crowding
    f = np.full(entries.rows, START) if start is None else start
    for step in range(steps):
        expected = np.maximum(np.exp(f), SMALLEST)
        variance = loss_variance(noise, expected, data.sampling)
        off = data.loss - expected
        trust = (noise.tails + 1) / (noise.tails + off**2 / variance)
        if start is None and step < LEVEL_STEPS:
            trust = np.ones_like(trust)
        scatter = variance * crowding / (trust * expected**2) + noise.latent**2
        largest = FIRST_STEP if step < 2 else STEP
        target = f + np.clip(off / expected, -largest, largest)
        inverse = np.linalg.inv(covariance + np.diag(scatter))
        weights = inverse @ (target - START)
        f = START + covariance @ weights
        for rows in left_out:
            block = np.linalg.inv(inverse[np.ix_(rows, rows)])
            f[rows] = target[rows] - block @ weights[rows]
        f = np.clip(f, *LIMITS)
    return Fit(entries, variances, weights, np.asarray(inverse, np.float64), f)


def nuisance_term(row: Figure) -> Term:
    return "source × model", f"{row.source}|{row.model}", 1.0


def figure_entries(rows: Sequence[Figure], questions: Sequence[Question]) -> tuple[Levels, Entries]:
    """The terms of figures."""
    levels = Levels()
    both = zip(rows, questions, strict=True)
    return levels, levels.entries(
        [[*question_terms(question), nuisance_term(row)] for row, question in both], new=True
    )


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
    def of(cls, rows: Sequence[Figure], noise: Scatter) -> Prepared:
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
        data = Data.of(rows, figure_questions, noise)
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
    noise: Scatter,
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
    prepared: Prepared, spreads: Mapping[str, float], noise: Scatter, *, steps: int = STEPS
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
