"""The loss to expect of a question: fitted effects, the nearest published figures, an 80 % band.

``scripts/fit_compression.py`` writes the effects (docs/method/compression.md).
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from pydantic import Field

from recipe_core.accuracy.names import (
    NamedBenchmark,
    named_model,
    published_benchmark,
    published_series,
)
from recipe_core.accuracy.published import Figure, Published, published_figures
from recipe_core.accuracy.question import (
    Question,
    Term,
    question_outcome,
    question_terms,
    scale_group_size,
)
from recipe_core.accuracy.technique import techniques
from recipe_core.base.arrays import Float, Int
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Sourced, Status
from recipe_core.base.resources import PACKAGE

# ``f`` of a question without any term: a loss of 3 %.
START = math.log(0.03)
# Range of ``f``: losses below 0.03 % and above 97 % are not told apart.
LIMITS = (-8.0, 1.3)
FILE = DataFile(PACKAGE / "accuracy" / "accuracy.yaml", "technique")
EFFECTS = PACKAGE / "accuracy" / "effects.csv"


class Known(StrEnum):
    """The scope of published figures: the model, others of its series, or neither."""

    MODEL = "model"
    SERIES = "series"
    NOTHING = "nothing"


class Scatter(DataRow):
    """The scatter of figures around their expectation ``m``.

    Variance of a loss: ``floor² + (relative · m)² + (share · binomial)²``, where the share of the
    binomial noise that two models do not have in common is ``shared`` where answers are chosen,
    ``generated`` where they are generated. latent: scatter of ``f`` that belongs to one figure.
    tails: degrees of freedom of Student's t. crowding: power of the number of figures of a source
    and model by which each counts less. unstated: binomial noise of tasks with test sets of unknown
    size.
    """

    source: str
    status: Status
    floor: float
    relative: float
    shared: float
    generated: float
    latent: float
    tails: float
    crowding: float
    unstated: float
    base_share: float = Field(description="right answers of a usual base, for the noise of a band")


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


# What is removed does not follow from bits: a technique needs figures of so many models at least.
REMOVALS = ("pruning", "sparsity", "low rank", "distillation")
FEWEST_MODELS = 2
# A cache of fewer bits is known only of kinds of benchmarks that were measured at so few.
USUAL_CACHE_BITS = 4.0


@cache
def _figures_measured() -> tuple[dict[tuple[str, str], set[str]], dict[str, float]]:
    """Models by technique and what is measured, and the fewest bits of a cache by kind."""
    models: dict[tuple[str, str], set[str]] = defaultdict(set)
    bits: dict[str, float] = {}
    for question in map(figure_question, published_figures()):
        models[question.technique, question_measure(question)].add(question.model.name)
        kind = question.benchmark.kind
        if question.treatment == "kv cache":
            bits[kind] = min(bits.get(kind, USUAL_CACHE_BITS), question.of.kv_bits)
    return dict(models), bits


def missing_figures(question: Question) -> str | None:
    """Say which figures an expectation lacks that would be a guess without them; None for none."""
    models, fewest_bits = _figures_measured()
    kind, measure = question.benchmark.kind, question_measure(question)
    if question.treatment == "kv cache":
        bits = question.of.kv_bits
        lacks = bits < fewest_bits.get(kind, USUAL_CACHE_BITS)
        return f"no figure of {kind} with a cache of {bits:g} bits is published" if lacks else None
    names = models.get((question.technique, measure), set())
    is_enough = len(names) >= FEWEST_MODELS or question.model.name in names
    if question.treatment not in REMOVALS or is_enough:
        return None
    few = f"one model alone, {min(names)}" if names else "no model"
    return f"figures of {question.of.title} on {measure} are published of {few}"


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
    low, high = retained_ends(question, publication_scope(question), loss, scatter)
    method = level_effects().get(("method", question.method))
    return Belief(
        value=math.exp(-loss),
        low=low,
        high=high,
        of_technique=count_by_technique().get(question.technique, 0),
        of_method=0 if method is None else method.figures,
        exact=len(exact),
    )


def retained_ends(
    question: Question, scope: Known, loss: float, scatter: float
) -> tuple[float, float]:
    """The low and the high end of the share retained."""
    bands = fitted_model().bands.by_known[scope]
    band = bands.get(question_group(question)) or bands[question_measure(question)]
    return math.exp(-loss - band.high * scatter), math.exp(-loss - band.low * scatter)


# Share of the variance that stays where the very question is published: others who measure it use
# other harnesses, prompts and groups.
LEAST_LEFT = 0.25


def noise_share(benchmark: NamedBenchmark, scatter: Scatter) -> float:
    """Return the share of a benchmark's binomial noise that two models do not have in common."""
    return scatter.generated if benchmark.generated else scatter.shared


def _measurement_noise(question: Question, loss: float) -> float:
    """Variance of a figure that another measurement of the same would not share."""
    scatter = fitted_model().scatter
    share = noise_share(question.benchmark, scatter)
    return scatter.floor**2 + (share * _binomial_noise(question, loss)) ** 2


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
