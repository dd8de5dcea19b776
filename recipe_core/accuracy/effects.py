"""The fitted effects on accuracy and their sum: the loss to expect (docs/method/compression.md).

``scripts/fit_compression.py`` writes them.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from pydantic import Field

from recipe_core.accuracy.names import published_series
from recipe_core.accuracy.question import Question, Term, question_outcome, question_terms
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
    """The scatter of figures around their expectation (``Noise`` of ``scripts/fit``)."""

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
