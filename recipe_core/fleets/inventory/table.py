"""A table of one's own as machines: a CSV with a line for machines that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Machine,
    Remarks,
    make_label,
    match_device,
    read_quantity,
)
from recipe_core.fleets.request import Term
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.offer_tables import read_csv_rows

_TEXTS = ("name", "device", "region", "zone", "rack", "term")
_NUMBERS = ("nodes", "count", "per_node", "price")


def is_csv(text: str) -> bool:
    """Return whether the first line has a column ``device`` among others."""
    first = text[:4096].removeprefix("\ufeff").partition("\n")[0]
    return "," in first and "device" in [cell.strip() for cell in first.split(",")]


def read_csv_machines(text: str, name: str, remarks: Remarks) -> Iterator[Machine]:
    """Machines of a table: ``nodes`` of ``per_node`` devices each, or ``count`` devices in all.

    ``price`` is in US dollars per device-hour. Raises InputError, which names line and column.
    """
    columns = (*_TEXTS, *_NUMBERS)
    for line, row in read_csv_rows(text, name, columns, ("device",), FIELD, MAX_ENTRIES):
        numbers = {column: _read_cell(row, column, f"{name}, line {line}") for column in _NUMBERS}
        device = match_device(row.get("device", ""), f"line {line}", remarks)
        if device is None:
            continue
        count = int(numbers["count"] or 0)
        per_node = int(numbers["per_node"] or device_profile(device).node.devices)
        per_node = min(per_node, count) if count else per_node
        nodes = int(numbers["nodes"] or count // per_node or 1)
        if count and count != nodes * per_node:
            text = f"{count} devices are counted as {nodes} machines of {per_node}"
            remarks.add(text, f"line {line}")
        yield Machine(
            device,
            per_node,
            nodes,
            region=make_label(row.get("region", "")),
            zone=row.get("zone"),
            rack=row.get("rack"),
            term=cast(Term, row.get("term", "owned")),  # a pool checks it
            usd_per_device_hour=numbers["price"],
            group=make_label(row.get("name", "")),
        )


def _read_cell(row: Mapping[str, str], column: str, where: str) -> float | None:
    """A cell as a number, whole unless it is a price; None where it is empty."""
    cell = row.get(column)
    value = read_quantity(cell)
    if cell is not None and (value is None or (column != "price" and not 1 <= value == value // 1)):
        message = f"{where}, {column}: {cell!r:.80} is no such number."
        raise InputError(message, field=FIELD, hint="Give 8, or of a price 2.49.")
    return value
