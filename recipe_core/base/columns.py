"""A small table as lines of text."""

from __future__ import annotations

from collections.abc import Container, Sequence

BETWEEN = "   "
"""Between two columns; half of it, rounded down, before the first and behind the last."""


def aligned(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, left: Container[str], width: int
) -> str:
    """A header, a rule and the rows; columns named in ``left`` start, all others end together.

    What does not fit ``width`` is folded.
    """
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    inside = sum(widths) + len(BETWEEN) * (len(names) - 1)
    if inside + 2 > width:
        return _folded(names, rows, left, width)

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(n) if name in left else cell.rjust(n)
            for name, cell, n in zip(names, cells, widths, strict=True)
        )
        return f" {BETWEEN.join(padded)} "

    blank = " " * (inside + 2)
    return "\n".join([blank, line(names), f" {'─' * inside} ", *map(line, rows), blank])


def _folded(
    names: Sequence[str], rows: Sequence[Sequence[str]], left: Container[str], width: int
) -> str:
    """The same with cells over several lines.

    Importing rich takes longer than most plans, so only wide tables do.
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
