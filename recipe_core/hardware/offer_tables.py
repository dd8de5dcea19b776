"""Tables of price offers: those of ``hw_profiles/offers/``, and an operator's own.

A table is a CSV file with the fields of ``Offer`` as columns, one offer a line.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recipe_core.base.documents import read_text
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.problems import first_problem
from recipe_core.base.provenance import Source, Sourced
from recipe_core.base.resources import shipped_path
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.profile import read_profile_file

# The environment variable with the path of an operator's own table.
OWN = "RECIPE_BUILDER_OFFERS"
# The columns of a table.
COLUMNS = tuple(Offer.model_fields)
MOST_ROWS = 50_000
_NEEDED = ("provider", "device", "usd_per_device_hour", "commitment", "date")
_FIXES = {
    "usd_per_device_hour": "Give dollars per hour of one device, such as 2.49.",
    "commitment": "Give on-demand, spot or reserved; a reserved one has term_months.",
    "term_months": "Give whole months, only with commitment reserved.",
    "devices_per_node": "Give how many devices the rented machine has.",
    "most_per_node": "Give the devices of the largest machine at this price, or leave it empty.",
    "date": "Give the day of the price, such as 2026-11-20.",
    "status": "Give published, quoted or unverified.",
    "name": "Give lower-case letters, digits, dots and dashes, at most 64; or leave it empty.",
    "device": "Give the name of a device profile; `recipe hardware` lists them.",
}


class OfferSources(Sourced):
    """``hw_profiles/offers/sources.yaml``: where the shipped prices were read."""


def shipped_offers() -> tuple[Offer, ...]:
    """The offers of ``hw_profiles/offers/``."""
    return _parse_shipped_offers(shipped_path("hw_profiles") / "offers")


def shipped_offers_of(device: str) -> tuple[Offer, ...]:
    """Those of one device: a plan needs few, and looking is quicker than reading a thousand."""
    return _parse_shipped_offers(shipped_path("hw_profiles") / "offers", device)


@cache
def _parse_shipped_offers(folder: Path, device: str | None = None) -> tuple[Offer, ...]:
    offers: list[Offer] = []
    for name, head, lines in _offer_table_lines(folder):
        if device is not None:  # an offer is one line
            lines = tuple(line for line in lines if f",{device}," in line)
        if lines:
            offers += parse_table("\n".join((head, *lines)), name)
    return tuple(offers)


@cache
def _offer_table_lines(folder: Path) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Of each table its name, the line of headings and the others."""
    out = []
    for path in sorted(folder.glob("*.csv")):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        out.append((path.name, head, tuple(lines)))
    return tuple(out)


@cache
def offer_sources() -> Mapping[str, Source]:
    return read_profile_file(
        shipped_path("hw_profiles") / "offers" / "sources.yaml", OfferSources
    ).sources


def own_offers() -> tuple[Offer, ...]:
    """The offers of the table that ``RECIPE_BUILDER_OFFERS`` names; none where it is not set.

    Raises:
        InputError: for a file that cannot be read; names line, column, value and fix.
    """
    path = os.environ.get(OWN)
    if not path:
        return ()
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        name = Path(path).name
        raise InputError(
            f"cannot read {name!r:.120}.", field=OWN, hint="Set it to the path of a CSV file."
        ) from None
    return _operator_offers(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _operator_offers(path: str, _changed_ns: int, _size: int) -> tuple[Offer, ...]:
    """The operator's offers as of a state of the file: an edited one is read again."""
    # Only the name: callers of a server read the message.
    name = Path(path).name
    try:
        text = read_text(Path(path), field=OWN)
    except InputError as error:
        message = error.message.replace(path, name)
        raise InputError(message, field=OWN, hint=error.hint) from None
    offers = parse_table(text, name, field=OWN, defaults={"status": "quoted", "source": name})
    shipped_names = {offer.name for offer in shipped_offers()}
    for offer in offers:
        if offer.name in shipped_names:
            raise InputError(
                f"{name}: name: {offer.name!r} is the name of a shipped offer.",
                field=OWN,
                hint=f"Choose another, such as my-{offer.name:.61}, or leave the column empty.",
            )
    return offers


def parse_table(
    text: str,
    name: str,
    *,
    field: str = "hardware.offer",
    defaults: Mapping[str, str] | None = None,
) -> tuple[Offer, ...]:
    """The offers of a table; an empty ``name`` is made of the others' columns.

    Args:
        text: the CSV.
        name: how errors name it.
        field: the field of errors.
        defaults: values of columns that are left out or empty.

    Raises:
        InputError: names line, column, value and fix.
    """
    names: set[str] = set()
    offers: list[Offer] = []
    for line, row in read_csv_rows(text, name, COLUMNS, _NEEDED, field):
        values = {**(defaults or {}), **row}
        if "name" not in values:
            values["name"] = offer_name(values, names)
        where = f"{name}, line {line}"
        if values["name"] in names:
            message = f"{where}, name: {values['name']!r:.80} is there twice."
            raise InputError(message, field=field, hint="Rename one, or leave the column empty.")
        offers.append(offer_of(values, where, field))
        names.add(values["name"])
    return tuple(offers)


def read_csv_rows(
    text: str,
    name: str,
    columns: Iterable[str] | None,
    needed: Iterable[str],
    field: str,
    max_rows: int = MOST_ROWS,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines of a CSV with their numbers: the cells that are not empty, by column.

    Args:
        text: the CSV, with a line of headings.
        name: how errors name it.
        columns: the headings it may have; None: any.
        needed: the headings it must have.
        field: the field of errors.
        max_rows: lines that it may have.

    Raises:
        InputError: for other or missing headings, a cell too many, or too many lines.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        headings = [heading.strip() for heading in next(reader, [])]
        _check_headings(headings, name, columns, needed, field)
        for cells in reader:
            if reader.line_num > max_rows:
                raise InputError(f"{name} has more than {max_rows:,} lines.", field=field)
            if len(cells) > len(headings):
                raise InputError(
                    f"{name}, line {reader.line_num}: {len(cells)} cells under {len(headings)} "
                    f"headings, {cells[len(headings)]!r:.80} first.",
                    field=field,
                    hint="Put a text with commas in double quotes.",
                )
            row = {
                key: cell.strip()
                for key, cell in zip(headings, cells, strict=False)
                if cell.strip()
            }
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        message = f"{name}, line {reader.line_num}: is not CSV: {error}."
        raise InputError(message, field=field, hint="Correct that line.") from None


def _check_headings(
    headings: list[str],
    name: str,
    columns: Iterable[str] | None,
    needed: Iterable[str],
    field: str,
) -> None:
    allowed = list(columns) if columns is not None else headings
    for heading in headings:
        if heading not in allowed:
            message, hint = unknown("column", heading, allowed)
            raise InputError(f"{name}, line 1: {message}", field=field, hint=hint)
        if headings.count(heading) > 1:
            message = f"{name}, line 1: the column {heading!r:.80} is there twice."
            raise InputError(message, field=field, hint="Leave one out.")
    for heading in needed:
        if heading not in headings:
            message = f"{name}, line 1: the column {heading!r} is missing."
            raise InputError(message, field=field, hint=f"Columns: {', '.join(allowed)}.")


def offer_of(values: Mapping[str, Any], where: str, field: str) -> Offer:
    """An offer of plain values; ``where`` names its line in errors.

    Raises:
        InputError: for the first column that does not fit.
    """
    try:
        return Offer.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error)
        column = problem.field or "term_months or most_per_node"
        hint = _FIXES.get(column, "Give one line of plain text, without any of < > { } `.")
        text = "is empty" if problem.kind == "missing" else problem.text
        raise InputError(f"{where}, {column}: {text}.", field=field, hint=hint) from None


def offer_name(values: Mapping[str, Any], names: set[str]) -> str:
    """A name for an offer that has none, numbered if taken: ``verda-h100-sxm-fin-03-spot``."""
    term = f"{values['term_months']}m" if values.get("term_months") else ""
    parts = [values.get(key, "") for key in ("provider", "instance", "device", "region")]
    commitment = values.get("commitment", "on-demand")
    words = [slug(str(part)) for part in parts]
    if words[2] in words[1]:
        words[2] = ""
    if commitment != "on-demand":
        words += [slug(str(commitment)), slug(term)]
    base_name = "-".join(filter(None, words))[:60].strip("-.") or "offer"
    name, count = base_name, 1
    while name in names:
        count += 1
        name = f"{base_name[: 63 - len(str(count))]}-{count}"
    return name


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def to_table(offers: Iterable[Offer]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(offer.model_dump(exclude_none=True) for offer in offers)
    return out.getvalue()
