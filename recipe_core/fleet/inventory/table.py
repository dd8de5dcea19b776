"""A table of one's own as machines: a CSV with a line for machines that are alike."""

from __future__ import annotations

from typing import get_args

from recipe_core.base.errors import InputError, unknown
from recipe_core.fleet.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Machine,
    Remarks,
    make_label,
    match_device,
    read_number,
    read_whole,
)
from recipe_core.fleet.request import Term
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.offer_tables import read_csv_rows

COLUMNS = (
    "name",
    "device",
    "nodes",
    "count",
    "per_node",
    "region",
    "zone",
    "rack",
    "term",
    "price",
    "usd_per_device_hour",
)
_ALIASES = {"price": "usd_per_device_hour"}
_NUMBERS = ("nodes", "count", "per_node")


def is_csv(text: str) -> bool:
    """Return whether the first line has a column ``device`` among others."""
    first = next(iter(text.removeprefix("\ufeff").splitlines()), "")
    return "device" in [cell.strip() for cell in first.split(",")] and "," in first


def read_csv_machines(text: str, name: str, remarks: Remarks) -> list[Machine]:
    """Machines of a table: ``nodes`` of ``per_node`` devices each, or ``count`` devices in all.

    Raises:
        InputError: names line, column, value and fix.
    """
    machines = []
    for line, row in read_csv_rows(text, name, COLUMNS, ("device",), FIELD, MAX_ENTRIES):
        where = f"{name}, line {line}"
        cells = {_ALIASES.get(column, column): cell for column, cell in row.items()}
        numbers = {column: _read_cell(cells, column, where) for column in _NUMBERS}
        price = cells.get("usd_per_device_hour")
        if price is not None and read_number(price) is None:
            raise _cell_error(where, "price", price, "Give dollars per hour of one device.")
        term = cells.get("term", "owned")
        if term not in get_args(Term):
            message, hint = unknown("term", term, get_args(Term))
            raise InputError(f"{where}: {message}", field=FIELD, hint=hint)
        device = match_device(cells.get("device", ""), f"line {line}", remarks)
        if device is None:
            continue
        per_node = numbers["per_node"] or device_profile(device).node.devices
        nodes, count = numbers["nodes"], numbers["count"]
        if nodes and count and nodes * per_node != count:
            text = f"{count} (nodes × per_node is {nodes * per_node})"
            raise _cell_error(where, "count", text, "Leave one of the columns out.")
        if nodes is None and count is not None:
            per_node = min(per_node, count)
            nodes = count // per_node
            if count % per_node:
                text = f"devices are no whole machines of {per_node}; the rest is left out"
                remarks.add(text, f"line {line}")
        machines.append(
            Machine(
                device,
                per_node,
                nodes or 1,
                region=make_label(cells.get("region", "")),
                zone=cells.get("zone"),
                rack=cells.get("rack"),
                term=term,  # type: ignore[arg-type]  # checked above
                usd_per_device_hour=read_number(price),
                group=make_label(cells.get("name", "")),
            )
        )
    return machines


def _read_cell(cells: dict[str, str], column: str, where: str) -> int | None:
    """A cell as a whole number; None where it is empty."""
    cell = cells.get(column)
    if cell is None:
        return None
    if not (cell.isascii() and cell.isdecimal() and 0 < read_whole(cell) <= 65_536):
        raise _cell_error(where, column, cell, "Give a whole number from 1 to 65,536.")
    return read_whole(cell)


def _cell_error(where: str, column: str, cell: str, hint: str) -> InputError:
    return InputError(f"{where}, {column}: {cell!r:.80} does not fit.", field=FIELD, hint=hint)
