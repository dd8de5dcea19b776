"""Measurements that bundles made of their checkpoints: ``run/compression.json``."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.accuracy.published import Published, Retained
from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.base.types import Text
from recipe_core.base.units import share_text

NAME = "compression.json"
FIELD = "measured"
_HINT = "Give a bundle's folder, or its run/compression.json."
Short = Annotated[str, Field(max_length=4096)]
Share = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]


class _Retained(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    perplexity: Share
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None


class _Verification(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    retained: _Retained
    tokens: Annotated[int, Field(ge=1)]
    passed: bool


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Text
    created: datetime.datetime
    source: Text
    technique: Text
    method: Short = ""
    verification: _Verification
    tool: Short = ""
    text: Short = ""
    recipe_digest: Short | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCompression:
    """One result beside its base.

    retained: perplexity of the base over that of the result, on ``tokens`` of ``text`` ("": that of
    the bundle); agreement: of greedy answers, None where none were made. tool: what made it.
    bundle_digest: of the recipe whose bundle measured it. It speaks for this technique on this
    model alone, until it expires.
    """

    model: str
    technique: str
    method: str
    retained: float
    agreement: float | None
    tokens: int
    date: datetime.date
    tool: str = ""
    text: str = ""
    bundle_digest: str = ""

    @property
    def expires(self) -> datetime.date:
        """The last day on which it counts."""
        return self.date + datetime.timedelta(days=VALID_DAYS)

    def expired(self, today: datetime.date) -> bool:
        return today > self.expires

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"date": self.date.isoformat()}


def read_compression(path: Path) -> MeasuredCompression | None:
    """Read what a bundle measured of its checkpoint; None for a folder without a measurement.

    Args:
        path: a bundle's folder, or its ``run/compression.json``.

    Raises:
        InputError: for a file that is no such measurement.
    """
    if path.is_dir():
        path = path / "run" / NAME
        if not path.is_file():
            return None
    return parse_compression(parse_json(read_text(path, field=FIELD), str(path)), str(path))


def parse_compression(value: Any, name: str = NAME) -> MeasuredCompression:
    """A measurement from plain values.

    Raises:
        InputError: naming the first field that is wrong.
    """
    try:
        document = _Document.model_validate(value)
    except ValidationError as error:
        problem = first_problem(error)
        message = f"{name}: {problem.field}: {problem.message}."
        raise InputError(message, field=FIELD, hint=_HINT) from None
    if document.kind != "compression":
        raise InputError(f"{name} is of {document.kind}.", field=FIELD, hint=_HINT)
    figures = document.verification
    return MeasuredCompression(
        model=document.source.partition("@")[0],
        technique=document.technique,
        method=document.method,
        retained=figures.retained.perplexity,
        agreement=figures.retained.agreement,
        tokens=figures.tokens,
        date=document.created.date(),
        tool=document.tool,
        text=document.text,
        bundle_digest=document.recipe_digest or "",
    )


def own_figure(
    runs: Iterable[MeasuredCompression],
    model: str | Sequence[str],
    technique: str,
    method: str = "",
) -> MeasuredCompression | None:
    """The newest measurement of a technique on a model, of this method where one is named.

    ``model``: its name, or all names that it has.
    """
    names = {name.casefold() for name in ((model,) if isinstance(model, str) else model)}
    same: Sequence[MeasuredCompression] = [
        run
        for run in runs
        if run.model.casefold() in names
        and run.technique == technique
        and method.casefold() in ("", run.method.casefold())
    ]
    return max(same, key=lambda run: run.date, default=None)


OF_TEXT = "perplexity of the bundled text"
OF_OWN_TEXT = "perplexity of a text of one's own"
# The kind of benchmark that a measurement answers itself.
PERPLEXITY = "perplexity"
SOURCE = "measured here"
# Spread of a perplexity's ratio between texts, as a share of what is lost: two texts agree within
# about half of the loss. An assumption; docs/method/compression.md says so.
_SPREAD = 0.5
# Half of the band where hardly anything is lost.
_LEAST = 0.002


def with_own_figure(
    expected: Retained,
    runs: Iterable[MeasuredCompression],
    model: str | Sequence[str],
    technique: str,
    method: str = "",
    *,
    benchmark: str = "",
) -> Retained:
    """An expectation moved by a measurement on this very model; unchanged without one.

    What was measured is perplexity, which falls at least as far as accuracy where little is lost
    (docs/method/compression.md): it is a floor of accuracy, not its value. So the expectation is
    raised to it where it was lower, its lower end comes as near as the measurement's band, and the
    measured figure stands first among the nearest. Where nothing was known, the measurement is the
    answer, as it is to a question about perplexity (``benchmark``). ``model``: its name, or all its
    names.
    """
    run = own_figure(runs, model, technique, method)
    if run is None:
        return expected
    half = max(_LEAST, _SPREAD * abs(1 - run.retained))
    low, high = run.retained - half, run.retained + half
    figure = Published(
        model=run.model,
        technique=run.technique,
        method=run.method,
        benchmark=OF_OWN_TEXT if run.text else OF_TEXT,
        base_value=1.0,
        value=run.retained,
        retained=run.retained,
        noise=half,
        source=SOURCE,
        date=run.date.isoformat(),
    )
    basis = (
        f"{SOURCE} on {run.date}: {share_text(run.retained, 2)} of the perplexity retained on "
        f"{run.tokens:,} tokens"
    )
    nearest = (figure, *expected.nearest)
    if benchmark.strip().casefold() == PERPLEXITY:
        return Retained(run.retained, low, high, basis, nearest)
    if not expected.is_known or math.isnan(expected.value):
        return Retained(run.retained, low, high, f"{basis}, which is all that is known", nearest)
    value = max(expected.value, run.retained)
    return replace(
        expected,
        value=value,
        low=min(max(expected.low, low), value),
        high=max(expected.high, value),
        basis=f"{basis}, a floor of accuracy; {expected.basis}",
        nearest=nearest,
    )
