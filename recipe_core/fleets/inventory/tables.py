"""Lists of machines: Slurm's ``sinfo``, SkyPilot's tables and tasks, and a CSV of one's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Machines,
    Remarks,
    dig,
    list_rows,
    make_label,
    match_device,
    read_count,
)
from recipe_core.hardware.offer_tables import read_csv_rows
from recipe_core.targets.names import cluster_names

SINFO = 'sinfo -N -o "%N|%P|%G|%t"'
# States of nodes that run nothing (sinfo(1), node state codes); * is for no response. One that is
# powered down is started as a job needs it.
_AWAY = re.compile(r"(?i)down|drain|drng|fail|maint|inval|unk|fut|error|reboot|not_resp|\*$")
_POWER = re.compile(r"(?i)power(ed|ing)_(down|up)")
_GRES = re.compile(r"(?:^|,)gpu(?::([a-z][\w.+-]{0,60}))?(?::(\d{1,5}))?(?=[,(]|$)", re.A | re.I)
_USE = re.compile(r"\d{1,6} of (\d{1,6}) free")
_NUMBERS = {"nodes": r"\d{1,9}", "per_node": r"\d{1,9}", "price": r"\d{1,9}(\.\d{0,9})?"}
_COLUMNS = ("name", "device", "region", "rack", "term", *_NUMBERS)


def _read_rows(text: str, needed: set[str], gap: str, remarks: Remarks) -> list[dict[str, str]]:
    """Rows below each line with the needed headings, up to an empty line; ``gap``: of columns."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    for line in map(str.strip, text.splitlines()):
        cells = re.split(gap, line)
        if not line or needed <= {*cells}:
            columns = cells if line else []
        elif len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
        elif columns:
            remarks.add("lines with other columns than the headings are left out", line)
    return list_rows({"the table": rows}, "the table")


def read_sinfo_table(text: str, name: str, remarks: Remarks) -> Iterator[Machines]:
    """Machines of a table with a line for each node in each partition, ``|`` or spaces between.

    Raises InputError for a table without devices (GRES), of groups of nodes, or of too many lines.
    """
    rows = _read_rows(text, {"PARTITION", "STATE"}, r"\s*\|\s*|\s+", remarks)
    if any("[" in row.get("NODELIST", "[") or "GRES" not in row for row in rows):
        message = f"{name} does not list each node with its devices (GRES)."
        raise InputError(message, field=FIELD, hint=f"Export it by {SINFO}.")
    counted: set[str] = set()
    for row in rows:
        host, partition = row["NODELIST"], row["PARTITION"].rstrip("*~#!%$@^-")
        counts = Counter[str]()
        for word, number in _GRES.findall(row["GRES"]):
            counts[word or "a gpu without a type"] += int(number or 1)
        if host in counted:
            remarks.add("nodes of several partitions count for the first", host)
        elif _AWAY.search(_POWER.sub("", row["STATE"])):
            remarks.add("nodes that are down, drained or in maintenance are left out", host)
        elif not counts:
            remarks.add("nodes that offer no devices are left out", host)
        else:
            labels = {"scheduler": "slurm", "partition": partition}
            for word, count in counts.items():
                if device := match_device(word, host, remarks, cluster_names().slurm.names):
                    node = {"device": device, "per_node": count, "hosts": host}
                    yield node | {"name": make_label(partition), "labels": labels}
        counted.add(host)


def read_sky_tables(text: str, _name: str, remarks: Remarks) -> Iterator[Machines]:
    """Machines of the tables of ``sky gpus list`` in SkyPilot 0.14 (https://docs.skypilot.co).

    Nodes come before totals of the same devices, whose machines are as large as a request may be.
    """
    rows = _read_rows(text, {"GPU"}, r"\s{2,}", remarks)
    for row in [row for row in rows if "NODE" in row] or rows:
        use = _USE.search(row.get("GPU UTILIZATION") or row.get("UTILIZATION", ""))
        where, total = row.get("NODE", row["GPU"]), int(use[1]) if use else 0
        sizes = map(read_count, row.get("REQUESTABLE_QTY_PER_NODE", "").split(", "))
        per_node = min(max(sizes), total) or total
        if not total or re.search(r"NotReady|Cordoned", row.get("NODE STATUS", "")):
            remarks.add("nodes without devices, cordoned or not ready, are left out", where)
        elif device := match_device(row["GPU"], where, remarks, cluster_names().sky.names):
            nodes = total // per_node
            if "NODE" not in row:
                remarks.add(f"{total} devices are counted as {nodes} machines of {per_node}", where)
            name = make_label(row.get("NODE_POOL") or row.get("CONTEXT", ""))
            yield {"device": device, "per_node": per_node, "nodes": nodes, "name": name}


def read_sky_task(task: Mapping[str, Any], remarks: Remarks) -> Iterator[Machines]:
    """Machines that a task of SkyPilot asks for; each alternative is a pool."""
    stated_resources = dig(task, "resources", dict)
    choices = list_rows(stated_resources, "any_of") or list_rows(stated_resources, "ordered")
    for resources in (stated_resources | choice for choice in choices or [{}]):
        words = resources.get("accelerators")
        if isinstance(words, Mapping):
            words = [f"{word}:{number}" for word, number in words.items()]
        region = "".join(dig(resources, "infra", str).split("/")[1:2])
        machines: Machines = {
            "nodes": read_count(task.get("num_nodes")) or 1,
            "region": make_label(dig(resources, "region", str) or region),
            "term": "spot" if resources.get("use_spot") is True else "on-demand",
        }
        for text in words if isinstance(words, list) else [words]:
            word, _, number = str(text).partition(":")
            if device := match_device(word, "resources", remarks, cluster_names().sky.names):
                yield {**machines, "device": device, "per_node": read_count(number) or 1}


def read_csv_machines(text: str, name: str, remarks: Remarks) -> Iterator[Machines]:
    """Machines of a table with a line for ``nodes`` that are alike, of ``per_node`` devices each.

    ``price`` is in US dollars per device-hour. Raises InputError, which names line and column.
    """
    for line, row in read_csv_rows(text, name, _COLUMNS, ("device",), FIELD, MAX_ENTRIES):
        machines: Machines = {**row, "region": make_label(row.get("region", ""))}
        for column in filter(row.__contains__, _NUMBERS):
            if not re.fullmatch(_NUMBERS[column], row[column]):
                message = f"{name}, line {line}, {column}: {row[column]!r:.80} is no such number."
                raise InputError(message, field=FIELD, hint="Give 8, or of a price 2.49.")
            machines[column] = float(row[column]) if column == "price" else int(row[column])
        if device := match_device(row.get("device", ""), f"line {line}", remarks):
            yield machines | {"device": device, "usd_per_device_hour": machines.get("price")}
