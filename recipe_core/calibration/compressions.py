"""Measured checkpoints beside what published figures let expect of them."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.accuracy.accuracy import estimate_retained
from recipe_core.accuracy.checkpoints import PERPLEXITY, MeasuredCompression, Share, with_own_figure
from recipe_core.accuracy.published import Retained
from recipe_core.base.documents import to_json
from recipe_core.base.errors import RecipeError
from recipe_core.base.types import Text

_Short = Annotated[str, Field(max_length=4096)]


class StoredCompression(BaseModel):
    """A measured checkpoint as a file of calibrations holds it; days as YYYY-MM-DD."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    """Digest of what was measured: one that is added twice is stored once."""
    source: _Short
    """The file it came from."""
    added: datetime.datetime
    """When it was added."""
    model: Text
    """The base: an id of the hub, or a folder."""
    technique: Text
    """What was done to it, by the names of ``recipe_core/accuracy/techniques.yaml``."""
    method: _Short = ""
    """The algorithm."""
    tool: _Short = ""
    """The program that did it, with its version."""
    retained: Share
    """Perplexity of the base over that of the result: 1 where nothing is lost."""
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of equal tokens in greedy answers."""
    tokens: Annotated[int, Field(ge=1)]
    """Tokens of the text."""
    text: _Short = ""
    """File of the text; empty for the bundle's own."""
    date: datetime.date
    """Day of the measurement."""
    bundle_digest: _Short = ""
    """Digest of the recipe whose bundle measured it."""

    @property
    def name(self) -> str:
        return f"{self.model} {self.technique}"

    def measured(self) -> MeasuredCompression:
        return MeasuredCompression(
            **{name: getattr(self, name) for name in MeasuredCompression.__slots__}
        )

    @classmethod
    def of(cls, run: MeasuredCompression, source: str, now: datetime.datetime) -> Self:
        """A measurement that is added now."""
        values = run.to_json()
        digest = hashlib.sha256(to_json(values, indent=None).encode()).hexdigest()[:12]
        return cls.model_validate({**values, "id": digest, "source": source, "added": now})


@dataclass(frozen=True, slots=True)
class KeptCompression:
    """A measured checkpoint of a calibration, and whether it counts today.

    ``source``: the file it came from. ``expires``: its last day.
    """

    id: str
    measured: MeasuredCompression
    source: str
    added: datetime.datetime
    expires: datetime.date
    counts: bool

    @staticmethod
    def of(stored: StoredCompression, today: datetime.date) -> KeptCompression:
        """An entry as of a day."""
        run = stored.measured()
        expired = run.expired(today)
        return KeptCompression(
            stored.id, run, stored.source, stored.added, run.expires, not expired
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; days as YYYY-MM-DD."""
        return {
            "id": self.id,
            **self.measured.to_json(),
            "source": self.source,
            "added": self.added.isoformat(),
            "expires": self.expires.isoformat(),
            "counts": self.counts,
        }


@dataclass(frozen=True, slots=True)
class ComparedCompression:
    """A measured checkpoint beside its predictions, all as shares of the base.

    perplexity: what was predicted of the figure that was measured. tasks: what is expected of the
    mean over accuracy tasks by published figures alone; tasks_now: with the measurement.
    """

    run: MeasuredCompression
    perplexity: Retained
    tasks: Retained
    tasks_now: Retained

    @property
    def in_band(self) -> bool | None:
        """Whether the measured figure lies in the predicted 80 % band; None where there is none."""
        if not self.perplexity.known:
            return None
        return self.perplexity.low <= self.run.retained <= self.perplexity.high

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where nothing is expected."""
        return {
            "perplexity": _retained_values(self.perplexity),
            "in_band": self.in_band,
            "accuracy": _retained_values(self.tasks),
            "accuracy_with_it": _retained_values(self.tasks_now),
        }


def _retained_values(retention: Retained) -> dict[str, float] | None:
    return dict(retention.to_json()["retained"]) if retention.known else None


def compare_compressions(runs: Iterable[MeasuredCompression]) -> list[ComparedCompression]:
    """Each measured checkpoint beside what was expected of it, in order."""
    return [_compare_compression(run) for run in runs]


def _compare_compression(run: MeasuredCompression) -> ComparedCompression:
    tasks = _published_expectation(run, "")
    moved = with_own_figure(tasks, [run], run.model, run.technique)
    return ComparedCompression(run, _published_expectation(run, PERPLEXITY), tasks, moved)


def _published_expectation(run: MeasuredCompression, benchmark: str) -> Retained:
    """By published figures; unknown for a technique that this version does not know."""
    try:
        return estimate_retained(
            run.model, run.technique, method=run.method, benchmark=benchmark, nearest=1
        )
    except RecipeError as error:
        return Retained(math.nan, math.nan, math.nan, error.message, known=False)
