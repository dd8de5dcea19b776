"""Keep a generated page readable: its long tables become CSV files beside it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

LONGEST = 7
"""Rows of a table that a page holds itself."""
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)


def move_long_tables(page: str, folder: Path) -> str:
    """The page with a link in the place of each table of more than ``LONGEST`` rows.

    A file is named after the table's heading and first column; a second one of that name is
    numbered. The folder has to be a sibling of the page.
    """
    names: list[str] = []

    def move(match: re.Match[str]) -> str:
        head, _, *rows = map(_cells, match[0].splitlines())
        if len(rows) <= LONGEST:
            return match[0]
        heading = [*_HEADING.finditer(page, 0, match.start())][-1][1]
        stem = re.sub(r"\W+", "-", f"{heading} {head[0]}".casefold()).strip("-")
        names.append(stem)
        name = f"{stem}-{names.count(stem)}.csv" if names.count(stem) > 1 else f"{stem}.csv"
        folder.mkdir(exist_ok=True)
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *rows])
        return f"[{len(rows)} rows]({folder.name}/{name}).\n"

    return _TABLE.sub(move, page)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]
