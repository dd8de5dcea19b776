"""The fit of the model of accuracy to published figures (docs/method/compression.md).

The loss of a figure is ``l = -ln(retained)``; its expectation is ``exp(f)``, and ``f`` is a sum of
terms (``question_terms``), each with an effect that is drawn around 0 with the spread of its
term: effects of levels with few figures stay small. Found by Gauss-Newton steps; figures that lie
far off count less (Student's t), and so do the many figures of one model in one source.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import numpy as np
from pydantic import Field

from recipe_core.accuracy.names import published_series
from recipe_core.accuracy.published import Figure
from recipe_core.accuracy.question import Question, Term, question_outcome, question_terms
from recipe_core.base.arrays import Float, Int
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Sourced, Status
from recipe_core.base.resources import PACKAGE

# ``f`` of a question without any term: a loss of 3 %.
START = float(np.log(0.03))
# Range of ``f``: losses below 0.03 % and above 97 % are not told apart.
LIMITS = (-8.0, 1.3)
SMALLEST = 1e-4
STEPS = 8
# Steps before figures that lie far off count less: at first everything does.
LEVEL_STEPS = 2
FIRST_STEP, STEP = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class Noise:
    """The scatter of figures around their expectation ``m``.

    Variance of a loss: ``floor² + (relative · m)² + (shared · binomial)²``. latent: scatter of
    ``f`` that belongs to one figure. tails: degrees of freedom of Student's t. crowding: power of
    the number of figures of a source and model by which each counts less. unstated: binomial noise
    of tasks with test sets of unknown size.
    """

    floor: float
    relative: float
    shared: float
    latent: float
    tails: float
    crowding: float
    unstated: float

    def variance(self, expected: Float, binomial: Float) -> Float:
        return self.floor**2 + (self.relative * expected) ** 2 + (self.shared * binomial) ** 2


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
    """Figures as arrays: losses, binomial noises of losses, how many share source and model."""

    loss: Float
    binomial: Float
    crowd: Float

    @classmethod
    def of(cls, rows: Sequence[Figure], likelihood: Sequence[bool], unstated: float) -> Data:
        retained = np.array([row.retained for row in rows])
        pairs = [(row.source, row.model) for row in rows]
        count = {pair: pairs.count(pair) for pair in set(pairs)}
        binomial = np.array([_figure_binomial_noise(row, unstated) for row in rows])
        binomial[np.array(likelihood, np.bool_)] = 0.0
        crowd = np.array([count[pair] for pair in pairs], float)
        return cls(-np.log(retained), binomial, crowd)


def fit_effects(
    data: Data,
    entries: Entries,
    variances: Float,
    noise: Noise,
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
        variance = noise.variance(expected, data.binomial)
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


FILE = DataFile(PACKAGE / "accuracy" / "accuracy.yaml", "technique")
EFFECTS = PACKAGE / "accuracy" / "effects.csv"


class Known(StrEnum):
    """The scope of published figures: the model, others of its series, or neither."""

    MODEL = "model"
    SERIES = "series"
    NOTHING = "nothing"


class Scatter(DataRow):
    """See ``fit.Noise``."""

    source: str
    status: Status
    floor: float
    relative: float
    shared: float
    latent: float
    tails: float
    crowding: float
    unstated: float
    base_share: float = Field(description="right answers of a usual base, for the noise of a band")

    def noise(self) -> Noise:
        return Noise(**self.model_dump(exclude={"source", "status", "base_share"}))


class Spreads(DataRow):
    """Spread of the effects of each term; those of ``assumed`` have too few levels for a fit."""

    source: str
    status: Status
    assumed: tuple[str, ...]
    by_term: dict[str, float]


class Band(DataRow):
    """The band that holds 80 % of losses, in units of their scatter around the expectation."""

    low: float
    high: float
    cells: int = Field(description="pairs of source and model that it was counted on")


class Scale(DataRow):
    """The units that bands are counted in."""

    source: str
    status: Status
    variance: float = Field(
        description="share of the variance of f that counts: effects that are "
        "found together balance each other"
    )
    relative: float = Field(description="scatter of a loss that is proportional to it")


class Bands(DataRow):
    """Bands by what is known of the model (``Known``), then by group."""

    source: str
    status: Status
    by_known: dict[Known, dict[str, Band]]


class Centre(DataRow):
    """Median loss over the fitted one, of tasks and of texts.

    The fit is nearer to a mean: few large losses weigh more than many small ones.
    """

    source: str
    status: Status
    tasks: float
    texts: float


class Fitted(Sourced):
    """All of ``accuracy.yaml``."""

    figures: int
    models: int
    scatter: Scatter
    spreads: Spreads
    centre: Centre
    scale: Scale
    bands: Bands


@dataclass(frozen=True, slots=True)
class Effect:
    """Of one level: mean and variance, and from how many figures."""

    mean: float
    variance: float
    figures: int


@dataclass(frozen=True, slots=True)
class Expected:
    """A loss, ``exp(f)``, and the variance of ``f``."""

    loss: float
    variance: float


@cache
def fitted_model() -> Fitted:
    return FILE.read_as(Fitted)


@cache
def level_effects() -> dict[tuple[str, str], Effect]:
    with EFFECTS.open(newline="", encoding="utf-8") as file:
        return {
            (row["term"], row["level"]): Effect(
                float(row["effect"]), float(row["spread"]) ** 2, int(row["figures"])
            )
            for row in csv.DictReader(file)
        }


def expected_loss(question: Question) -> Expected:
    """The loss to expect: the exponential of the sum of its terms' effects."""
    total, variance = START, 0.0
    for term, level, multiplier in question_terms(question):
        effect = _level_effect((term, level, multiplier))
        total += multiplier * effect.mean
        variance += multiplier**2 * effect.variance
    loss = math.exp(min(max(total, LIMITS[0]), LIMITS[1]))
    return Expected(loss * loss_centre(question), variance)


def loss_centre(question: Question) -> float:
    """By what a fitted loss is multiplied to be a median."""
    centre = fitted_model().centre
    return centre.texts if question.benchmark.likelihood else centre.tasks


def _level_effect(term: Term) -> Effect:
    """Return what is known of a level; of an unknown one only the spread of its term."""
    spread = fitted_model().spreads.by_term.get(term[0], 0.0)
    return level_effects().get(term[:2]) or Effect(0.0, spread**2, 0)


def publication_scope(question: Question) -> Known:
    """Return what figures are published of."""
    if question.model.published:
        return Known.MODEL
    return Known.SERIES if question.model.series in published_series() else Known.NOTHING


def question_measure(question: Question) -> str:
    return "tasks" if question_outcome(question) == "tasks" else "texts"


def question_group(question: Question) -> str:
    return f"{question.range}, {question_measure(question)}"
