"""Quantities of many cases at once: a row a case, whatever is known of it in columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Self, TypeVar

import numpy as np

from recipe_core.base.arrays import Bool

Table = TypeVar("Table")


class Columns:
    """A dataclass of arrays with a row a case, of parts by name and of other columns.

    What is none of these is the same for all cases.
    """

    __slots__ = ()

    def take(self, rows: Any) -> Self:
        """The chosen rows, in that order."""
        return map_columns(lambda column: column[rows], self)

    def scatter(self, rows: Any, count: int) -> Self:
        """Place the cases at ``rows`` of ``count``; of the others nothing is known (NaN, False)."""

        def place(column: Any) -> Any:
            out = np.full(count, False if column.dtype == np.bool_ else np.nan)
            out[rows] = column
            return out

        return map_columns(place, self)


def map_columns(change: Callable[..., Any], *tables: Table) -> Table:
    """One from several tables of the same columns, array by array."""
    first: Any = tables[0]
    if isinstance(first, np.ndarray):
        return change(*tables)  # type: ignore[no-any-return]
    several: Sequence[Any] = tables
    if isinstance(first, dict):
        columns: Any = {name: map_columns(change, *(of[name] for of in several)) for name in first}
    elif isinstance(first, tuple):
        columns = tuple(map_columns(change, *parts) for parts in zip(*several, strict=True))
    elif isinstance(first, Columns):
        kind: Any = type(first)
        of_fields = zip(*map(_values, several), strict=True)
        columns = kind(
            *(
                change(*of) if isinstance(of[0], np.ndarray) else map_columns(change, *of)
                for of in of_fields
            )
        )
    else:
        columns = first
    return columns  # type: ignore[no-any-return]


def _values(table: Any) -> list[Any]:
    return [getattr(table, field.name) for field in fields(table)]


def stack_columns(tables: Sequence[Table]) -> Table:
    """Cases one after another, as one."""
    return map_columns(lambda *columns: np.concatenate(columns), *tables)


def select_rows(where: Bool, first: Table, second: Table) -> Table:
    """``first`` in some cases, ``second`` in the rest."""
    return map_columns(lambda a, b: np.where(where, a, b), first, second)


def stretch_columns(kind: type[Table], count: int, values: dict[str, Any]) -> Table:
    """Cases from scalars and arrays, every column stretched to ``count`` rows of its type."""
    table: Any = kind
    return kind(
        **{
            column.name: np.full(
                count, values[column.name], dtype=np.int64 if column.type == "Int" else np.float64
            )
            for column in fields(table)
        }
    )
