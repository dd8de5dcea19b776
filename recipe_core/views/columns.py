"""Tables of an answer: one list of columns, which terminal, pages, reports and files read.

An answer states its columns once, as ``Column`` objects over its rows. ``cell_texts`` and
``terminal`` write them as text, ``column_frame`` and ``styled`` as a table that sorts by values,
``csv_bytes`` and ``parquet_bytes`` as files.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler


Row = TypeVar("Row")
Align = Literal["left", "right"]
# Text of a cell whose value is None or NaN.
UNKNOWN = "–"
# Between two columns; half of it, rounded down, before the first and behind the last.
BETWEEN = "   "
# Characters that a table may use in a narrower terminal too: folded cells are worse to read.
MIN_WIDTH = 100
# Beginnings of texts that a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        title: heads the column, with the unit where ``show`` writes none.
        source: the value in a row: a number by which tables sort, or a text; None where unknown.
            A function of the row, or the path of a field, such as ``load.mean``; a key that a
            mapping lacks is unknown.
        show: the text of a known value.
        align: where texts of a terminal end.
        help: explains the title, on pages.
        mark: text behind that of a row's value, such as the sign of a doubtful price.
        name: of the column in a frame; the title by default.
    """

    title: str
    source: Callable[[Row], Any] | str
    show: Callable[[Any], str] = str
    align: Align = "right"
    help: str = ""
    mark: Callable[[Row], str] | None = None
    name: str = ""

    @property
    def key(self) -> str:
        return self.name or self.title

    def get(self, row: Row) -> Any:
        if callable(self.source):
            return self.source(row)
        value: Any = row
        for name in self.source.split("."):
            if value is None:
                break
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
        return value

    def text(self, row: Row) -> str:
        value = self.get(row)
        if _is_unknown(value):
            return UNKNOWN
        return self.show(value) + (self.mark(row) if self.mark else "")


def _is_unknown(value: Any) -> bool:
    return value is None or value != value  # NaN is no number, itself included


def cell_texts(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> list[list[str]]:
    return [[column.text(row) for column in columns] for row in rows]


def known_columns(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> list[Column[Row]]:
    return [column for column in columns if not all(_is_unknown(column.get(row)) for row in rows)]


def terminal(
    rows: Sequence[Row], columns: Sequence[Column[Row]], *, width: int | None = None
) -> str:
    """Heads, a rule and the rows, aligned; cells are folded where they exceed the terminal.

    Units stand below their heads, which are longer than most numbers.

    ``width``: characters a line may have; the terminal's by default.
    """
    cells = cell_texts(rows, columns)
    heads = [_head_lines(column.title) for column in columns]
    if width is None:
        width = max(shutil.get_terminal_size((160, 40)).columns, MIN_WIDTH)
    head_rows = [row for row in zip(*heads, strict=True) if any(row)]
    widths = [max(map(len, column)) for column in zip(*head_rows, *cells, strict=True)]
    inside = sum(widths) + len(BETWEEN) * (len(heads) - 1)
    if inside + 2 > width:
        return _fold(columns, cells, width)

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(size) if column.align == "left" else cell.rjust(size)
            for column, cell, size in zip(columns, row, widths, strict=True)
        )
        return f" {BETWEEN.join(padded)} "

    blank = " " * (inside + 2)
    rule = f" {'─' * inside} "
    return "\n".join([blank, *map(line, head_rows), rule, *map(line, cells), blank])


def _head_lines(title: str) -> tuple[str, str]:
    """A title above its unit, ``("Memory", "(GiB)")``, or beside the others' units."""
    name, bracket, unit = title.partition(" (")
    return (name, f"({unit}") if bracket else ("", title)


def _fold(columns: Sequence[Column[Any]], cells: Sequence[Sequence[str]], width: int) -> str:
    # imported here: rich takes longer than most plans, and only wide tables need it
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column("\n".join(filter(None, _head_lines(column.title))), justify=column.align)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def column_frame(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> pd.DataFrame:
    """The values of a table, by the columns' names."""
    import pandas as pd

    return pd.DataFrame({column.key: [column.get(row) for row in rows] for column in columns})


def styled(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> Styler:
    """A table for a page: it sorts by values, and cells read as in the terminal."""
    import pandas as pd

    style = column_frame(rows, columns).style
    for column in columns:
        style = style.format(column.show, subset=[column.key], na_rep=UNKNOWN)
        marks = [column.mark(row) for row in rows] if column.mark else []
        for mark in filter(None, dict.fromkeys(marks)):
            marked = [n for n, text in enumerate(marks) if text == mark]

            def show(value: Any, column: Column[Row] = column, mark: str = mark) -> str:
                return f"{column.show(value)}{mark}"

            cells = pd.IndexSlice[marked, [column.key]]
            style = style.format(show, subset=cells, na_rep=UNKNOWN)
    return style


def csv_bytes(table: pd.DataFrame) -> bytes:
    """A table as CSV that a spreadsheet opens as UTF-8, without taking a text for a formula.

    Texts that begin like a formula get an apostrophe: names come from whoever made the link
    (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    safe = table.copy()
    for name in table.select_dtypes(exclude="number").columns:
        safe[name] = [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in table[name]
        ]
    return safe.to_csv(index=False, lineterminator="\n").encode("utf-8-sig")


def parquet_bytes(table: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    table.to_parquet(file, index=False)
    return file.getvalue()
