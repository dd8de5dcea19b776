"""``published.csv``: figures of compressed models beside their bases, as others published them."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.accuracy.technique import technique
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Source, Sourced
from recipe_core.base.resources import PACKAGE


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure of a compressed model beside its base.

    retained: value over base, upside down where less is better; 1: nothing lost. noise: standard
    error of ``retained`` by the number of the benchmark's items; None where that is not known.
    """

    model: str
    technique: str
    method: str
    benchmark: str
    base_value: float
    value: float
    retained: float
    noise: float | None
    source: str
    date: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Retained:
    """Expected accuracy of a compressed model over that of its base; 1: nothing lost.

    low to high: the band that 80 % of measurements lie in. basis: what the expectation rests on, in
    one sentence. known: whether published figures are near enough to speak of; where not, the
    figures are NaN and ``basis`` says what is missing. nearest: published figures, the nearest
    first.
    """

    value: float
    low: float
    high: float
    basis: str
    nearest: tuple[Published, ...] = ()
    is_known: bool = True

    def to_json(self) -> dict[str, Any]:
        """The contract of ``recipe compress``: ``retained`` is null where nothing near is known."""
        figures = {"value": self.value, "low": self.low, "high": self.high}
        return {
            "retained": figures if self.is_known else None,
            "basis": self.basis,
            "nearest": [figure.to_json() for figure in self.nearest],
        }


FILE = DataFile(PACKAGE / "accuracy" / "published.yaml", "technique")
FIGURES = PACKAGE / "accuracy" / "published.csv"

Kind = Literal[
    "knowledge",
    "math",
    "code",
    "commonsense",
    "reasoning",
    "instruction",
    "long-context",
    "multimodal",
    "composite",
    "perplexity",
    "divergence",
]
# Kinds that are no tasks: how probable a text is.
LIKELIHOODS: frozenset[str] = frozenset({"perplexity", "divergence"})


class PublishedModel(DataRow):
    """Size of a model in billions of parameters; active_b: used for a token, where fewer."""

    parameters_b: Annotated[float, Field(gt=0)]
    active_b: Annotated[float, Field(gt=0)] | None = None


class Benchmark(DataRow):
    """A benchmark: what it asks for, its number of items, and which way its values are better."""

    kind: Kind
    items: Annotated[int, Field(gt=0)] | None = None
    better: Literal["higher", "lower"] = "higher"


class PublishedKeys(Sourced):
    """The keys that rows refer to."""

    sources: dict[str, Source]  # more than files by hand may have
    models: dict[str, PublishedModel]
    benchmarks: dict[str, Benchmark]


@dataclass(frozen=True, slots=True)
class Figure:
    """A row, with the bits and the group of its technique where it states none itself."""

    model: str
    technique: str
    method: str
    weight_bits: float
    removed: float
    group: str
    retrained: bool
    benchmark: str
    base_value: float
    value: float
    quality: str
    source: str

    @property
    def retained(self) -> float:
        """Value over base, turned so that smaller is worse; of a divergence D: exp(-D).

        exp(-D) is what is retained of perplexity on text that the base itself writes.
        """
        if self.base_value == 0:
            return math.exp(-self.value)
        if published_keys().benchmarks[self.benchmark].better == "lower":
            return self.base_value / self.value
        return self.value / self.base_value

    @property
    def noise(self) -> float | None:
        """Standard error of ``retained``: both scores are shares of independent right answers.

        Where both answer the same items it is smaller, as many answers are the same.
        """
        items = published_keys().benchmarks[self.benchmark].items
        scale = 1 if self.base_value <= 1 and self.value <= 1 else 100
        share = self.base_value / scale
        if items is None or not 0 < share < 1:
            return None
        return math.sqrt(2 * (1 - share) / (share * items)) * self.retained

    def as_published(self) -> Published:
        """The row as an answer shows it."""
        source = published_keys().sources[self.source]
        return Published(
            model=self.model,
            technique=self.technique,
            method=self.method,
            benchmark=self.benchmark,
            base_value=self.base_value,
            value=self.value,
            retained=self.retained,
            noise=self.noise,
            source=source.url or source.title,
            date=source.date or "",
        )


@cache
def published_keys() -> PublishedKeys:
    return FILE.read_as(PublishedKeys)


@cache
def published_figures() -> tuple[Figure, ...]:
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return tuple(_parse_published_row(row) for row in csv.DictReader(file))


def _parse_published_row(row: dict[str, str]) -> Figure:
    spec = technique(row["technique"])
    return Figure(
        model=row["model"],
        technique=row["technique"],
        method=row["method"],
        weight_bits=float(row["weight_bits"] or spec.weight_bits),
        removed=float(row["removed"] or spec.removed),
        group=row["group"] or spec.group or "",
        retrained=row["retrained"] == "yes",
        benchmark=row["benchmark"],
        base_value=float(row["base_value"]),
        value=float(row["value"]),
        quality=row["quality"],
        source=row["source"],
    )
