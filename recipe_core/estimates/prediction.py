"""The parts that estimates are made of.

Parts that write themselves as JSON, and single figures with their bands.

A part is a plain dataclass, since a plan lists a thousand estimates; fields are described by the
string under each. Pydantic derives the JSON Schema from them, and reads a written estimate back
(``TypeAdapter(Estimate)``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from recipe_core.base.arrays import Float
from recipe_core.base.documented import prose
from recipe_core.base.intervals import BAND, LEVELS, Level, probability_below

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Null where it is unknown.
Known = Amount | None
Seconds = dict[str, Amount]
# By figure and level (50, 80 and 95 %), lower and upper end in the figure's unit.
IntervalsByFigure = dict[str, dict[Level, tuple[float, float]]]

SCHEMA_VERSION: Literal[1] = 1
# Figures of cost and energy that have intervals: those of the throughput, the other way round.
FOLLOWING = ("usd_per_million_output_tokens", "usd_per_million_tokens", "joules_per_token")


def document_part(schema: dict[str, Any], part: type[Any]) -> None:
    """Every description as one line, those of inherited fields too.

    Pydantic reads one class's source.
    """
    from pydantic import TypeAdapter

    properties = schema["properties"]
    for base in part.__mro__[1:]:
        if is_dataclass(base):
            for name, inherited in TypeAdapter(base).json_schema()["properties"].items():
                if "description" in inherited:
                    properties[name].setdefault("description", inherited["description"])
    for described in (schema, *properties.values()):
        if "description" in described:
            described["description"] = prose(described["description"])


# For parts whose fields have a string under each.
DOCUMENTED = ConfigDict(
    extra="forbid", use_attribute_docstrings=True, json_schema_extra=document_part
)


class Part:
    """A part of an estimate.

    What is None is left out where None is the default, else written as null.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = DOCUMENTED

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields."""
        part: Any = type(self)
        names, values_of, special = _layout(part)
        out = dict(zip(names, values_of(self), strict=True))
        for name, write, optional in special:
            value = out[name]
            if value is None:
                if optional:
                    del out[name]
            elif write is not None:
                out[name] = write(value)
        return out

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Pydantic writes a part as ``to_json`` does, and reads that back."""
        return core_schema.no_info_before_validator_function(
            cls._nested,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_json),
        )

    @classmethod
    def _nested(cls, value: Any) -> Any:
        return value


AnyPart = TypeVar("AnyPart", bound=Part)


def require_part(part: AnyPart | None) -> AnyPart:
    """A part of an estimate that every split that runs has.

    Raises:
        ValueError: for a split that cannot run.
    """
    if part is None:
        raise ValueError("a layout that cannot run has no such figures")
    return part


def build_parts(kind: type[AnyPart], *tables: Any, **columns: Any) -> list[AnyPart]:
    """One part a row: of every field the column that is given, else that of the table that has it.

    Arrays become what the field holds: whole numbers, or None where a number is unknown. A field
    without a column has its default.
    """
    part: Any = kind
    of_fields: dict[str, Any] = {}
    for name, listed in _listers(part):
        column = columns.get(name)
        if column is None:
            column = next((getattr(table, name) for table in tables if hasattr(table, name)), None)
        if column is not None:
            of_fields[name] = listed(column) if isinstance(column, np.ndarray) else column
    rows = zip(*of_fields.values(), strict=True)
    return [part(**dict(zip(of_fields, values, strict=True))) for values in rows]


def build_estimates(
    kind: type[AnyPart],
    reasons: Iterable[list[str]],
    notes: Iterable[list[str]],
    memory: Iterable[Part | None],
    running: Iterator[dict[str, Any]],
) -> list[AnyPart]:
    """One estimate a case; what is ``running``, those without reasons, has other fields too."""
    part: Any = kind
    return [
        part(
            schema_version=SCHEMA_VERSION,
            feasible=not sentences,
            reasons=sentences,
            notes=of_notes,
            memory=of_memory,
            **({} if sentences else next(running)),
        )
        for sentences, of_notes, of_memory in zip(reasons, notes, memory, strict=True)
    ]


def named_rows(columns: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each row has, by the names of the columns."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def number_rows(columns: Mapping[str, Float], count: int) -> list[dict[str, float]]:
    """The same of arrays, of which there may be none."""
    lists = {name: column.tolist() for name, column in columns.items()}
    return [*named_rows(lists)] if columns else [{} for _ in range(count)]


def positive_rows(columns: Mapping[str, Float], count: int) -> list[dict[str, float]]:
    """The same, of numbers above zero."""
    return [
        {name: number for name, number in row.items() if number > 0}
        for row in number_rows(columns, count)
    ]


def all_figures(figures: Part, *parts: Part | None) -> dict[str, Any]:
    """A kind's own figures by name, and those of cost and energy that have intervals."""
    following = {
        name: getattr(part, name) for name in FOLLOWING for part in parts if hasattr(part, name)
    }
    return {**figures.to_json(), **following}


@cache
def _listers(part: Any) -> tuple[tuple[str, Callable[[Any], list[Any]]], ...]:
    """The fields of a part, and how an array becomes a list of what each holds."""
    hints = get_type_hints(part)
    return tuple((field.name, _lister(hints[field.name])) for field in fields(part))


def _lister(kind: Any) -> Callable[[Any], list[Any]]:
    if kind is int:
        return lambda column: column.astype(np.int64).tolist()
    if NoneType in get_args(kind):
        return lambda column: [x if math.isfinite(x) else None for x in column.tolist()]
    return lambda column: np.asarray(column, dtype=np.float64).tolist()


Writer = Callable[[Any], Any]


@cache
def _layout(
    part: Any,
) -> tuple[tuple[str, ...], Writer, tuple[tuple[str, Writer | None, bool], ...]]:
    """The fields of a part, how all are read at once, and those that are not written as they are.

    Of these: how each is written, and whether None is left out.
    """
    hints, names = get_type_hints(part), tuple(field.name for field in fields(part))
    writers = ((f.name, _json_writer(hints[f.name]), f.default is None) for f in fields(part))
    special = tuple((name, write, out) for name, write, out in writers if write or out)
    return names, attrgetter(*names) if len(names) > 1 else _attribute_writer(names[0]), special


def _attribute_writer(name: str) -> Writer:
    return lambda part: (getattr(part, name),)


def _json_writer(kind: Any) -> Writer | None:
    """Return how a value of a type becomes JSON; None where it is that already."""
    if isinstance(kind, type) and issubclass(kind, Part):
        return kind.to_json
    inner_types, origin = (
        [inner_type for inner_type in get_args(kind) if inner_type is not NoneType],
        get_origin(kind),
    )
    if origin in (Union, UnionType):
        return _json_writer(inner_types[0])
    inner = _json_writer(inner_types[-1]) if inner_types and origin is not Literal else None
    if origin is dict:
        return dict if inner is None else lambda values: {k: inner(v) for k, v in values.items()}
    if origin in (list, tuple):
        return list if inner is None else lambda values: [inner(value) for value in values]
    return None


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure of an estimate, in the unit of its name."""

    value: float
    """The estimate."""
    low: float
    """Lower end of the band in which eight of ten measured runs are expected."""
    high: float
    """Upper end of that band."""
    basis: str
    """What the figure rests on: ``computed``, or how measurements support it."""
    intervals: Mapping[Level, tuple[float, float]] | None = None
    """By level, the ends of the interval in which that share of measured runs is expected; None in
    estimates of versions that wrote the band alone."""

    def interval(self, level: int | str = BAND) -> tuple[float, float]:
        """Lower and upper end of the 50, 80 or 95 % interval, in the figure's unit.

        Raises:
            ValueError: for another level, or one that an older estimate does not have.
        """
        by_level = self.intervals or {BAND: (self.low, self.high)}
        if str(level) not in by_level:
            raise ValueError(f"level must be {', '.join(by_level)} here (got {level})")
        return by_level[str(level)]  # type: ignore[index]  # it is one of them

    def probability_below(self, limit: float) -> float:
        """The probability that a measured run is at most ``limit``, in the figure's unit.

        Raises:
            ValueError: ``limit`` is not above 0, or the estimate is of a version without intervals.
        """
        if self.intervals is None:
            raise ValueError(f"this estimate has no intervals at {', '.join(LEVELS)} %")
        return probability_below(self.intervals, limit)


class EstimateBase(Part):
    """The part that estimates of both kinds have in common.

    ``estimate.tpot_s`` is a figure with its band.
    """

    __slots__ = ()
    feasible: bool
    bands: dict[str, tuple[float, float]] | None
    intervals: IntervalsByFigure | None
    basis: dict[str, str] | None

    def figures(self) -> Mapping[str, Any]:
        """The kind's own figures by name, as JSON values; none where the split cannot run."""
        raise NotImplementedError

    def predictions(self) -> dict[str, Prediction]:
        """Every figure that has a band; none where the split cannot run."""
        figures, basis, intervals = self.figures(), self.basis or {}, self.intervals or {}
        return {
            name: Prediction(figures[name], low, high, basis[name], intervals.get(name))
            for name, (low, high) in (self.bands or {}).items()
        }

    def __getattr__(self, name: str) -> Prediction:
        """A figure with its band; only asked for names that are no fields."""
        # every kind of estimate is a dataclass
        if name.startswith("_") or name in {f.name for f in fields(type(self))}:  # type: ignore[arg-type]
            raise AttributeError(name)
        predictions = self.predictions()
        if name in predictions:
            return predictions[name]
        names = ", ".join(predictions) or "none, as the layout cannot run"
        raise AttributeError(f"{type(self).__name__} has no figure {name!r}; known: {names}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.predictions()]
