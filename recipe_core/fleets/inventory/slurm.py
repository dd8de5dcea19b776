"""Slurm's ``sinfo`` as machines: its tables with node names or counts, and its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Machine,
    Remarks,
    check_entries,
    dig,
    make_label,
    match_device,
    read_whole,
)
from recipe_core.targets.names import cluster_names

SINFO = 'sinfo -o "%P|%D|%G|%N|%t"'
# States of nodes that run nothing (sinfo(1), node state codes); * is for no response. One that is
# powered down is started as a job needs it.
_AWAY = re.compile(r"(?i)down|drain|drng|fail|maint|inval|unk|fut|error|reboot|not_resp|\*$")
_POWER = re.compile(r"(?i)power(ed|ing)_(down|up)")
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.+-]{0,60}))?(?::(\d{1,5}))?(?:\(.*)?$", re.ASCII)
# Parts between commas that are in no brackets.
_GRES_PARTS = re.compile(r"(?:[^,(]|\([^()]{0,200}\)|\()+")
_HOST_PARTS = re.compile(r"(?:[^,\[]|\[[\d,-]{0,2000}\]|\[)+", re.ASCII)
_RANGE = re.compile(r"([\w.-]{0,250})\[([\d,-]{1,2000})\](.{0,250})", re.ASCII)


def is_sinfo_table(text: str) -> bool:
    """Return whether a text begins as a table of ``sinfo`` does."""
    return any({"PARTITION", "STATE"} <= {*_split_columns(line)} for line in text.splitlines()[:3])


def read_sinfo_table(text: str, name: str, remarks: Remarks) -> Iterator[Machine]:
    """Machines of a table, with ``|`` or spaces between its columns.

    Raises:
        InputError: for a table without the devices (GRES), or too many lines.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(k for k, line in enumerate(lines) if "STATE" in _split_columns(line))
    headings = _split_columns(lines[start])
    if "GRES" not in headings:
        message = f"{name} has no column GRES, which says what devices nodes have."
        raise InputError(message, field=FIELD, hint=f"Export it by {SINFO}.")
    rows = []
    for line in lines[start + 1 :]:
        cells = _split_columns(line)
        if len(cells) == len(headings):
            rows.append(dict(zip(headings, cells, strict=True)))
        else:
            remarks.add("lines with other columns than the headings are left out", line.strip())
    return _read_rows(check_entries(rows, name), remarks)


def _split_columns(line: str) -> list[str]:
    return [cell.strip() for cell in (line.split("|") if "|" in line else line.split())]


def read_sinfo_json(document: Mapping[str, Any], name: str, remarks: Remarks) -> Iterator[Machine]:
    """Machines of ``sinfo --json``: of nodes (Slurm 21.08 to 22.05), or of groups of them."""
    rows = [
        {
            "PARTITION": "".join(map(str, _as_list(node.get("partitions"))[:1])),
            "GRES": node.get("gres"),
            "NODELIST": node.get("name"),
            "STATE": [*_as_list(node.get("state")), *_as_list(node.get("state_flags"))],
        }
        for node in check_entries(document.get("nodes", []), name)
    ]
    rows += [
        {
            "PARTITION": dig(group, "partition").get("name"),
            "NODES": dig(group, "nodes").get("total"),
            "GRES": dig(group, "gres").get("total"),
            "NODELIST": ",".join(map(str, _as_list(dig(group, "nodes").get("nodes")))),
            "STATE": _as_list(dig(group, "node").get("state")),
        }
        for group in check_entries(document.get("sinfo", []), name)
    ]
    return _read_rows(rows, remarks)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value or ""]


def _read_rows(rows: Iterable[Mapping[str, Any]], remarks: Remarks) -> Iterator[Machine]:
    """Machines of rows; a node that several partitions have counts for the first."""
    counted: set[str] = set()
    expanded = 0
    for row in rows:
        partition = str(row.get("PARTITION") or "").rstrip("*~#!%$@^-")
        names = str(row.get("NODELIST") or "")
        hosts = {*expand_hosts(names)}
        nodes, expanded = hosts - counted, expanded + len(hosts)
        counted |= nodes
        if expanded > 10 * MAX_ENTRIES:
            message = f"lists of hosts have more than {10 * MAX_ENTRIES:,} names."
            raise InputError(message, field=FIELD, hint="Export fewer partitions at once.")
        count, where = len(nodes) if names else read_whole(row.get("NODES")), names or partition
        if not count:
            remarks.add("nodes of several partitions count for the first", where)
        elif _AWAY.search(_POWER.sub("", "+".join(map(str, _as_list(row.get("STATE")))))):
            remarks.add("nodes that are down, drained or in maintenance are left out", where)
        else:
            label, group = (("slurm.partition", partition),), make_label(partition)
            for device, per_node in _read_gres(str(row.get("GRES") or ""), where, remarks):
                yield Machine(
                    device, per_node, count, group=group, labels=label if partition else ()
                )


def _read_gres(text: str, where: str, remarks: Remarks) -> Iterator[tuple[str, int]]:
    """Devices and how many of a node: ``gpu:h100:8(S:0-1)``."""
    matches = [_GRES.match(part.strip()) for part in _GRES_PARTS.findall(text)[:64]]
    if not any(matches):
        remarks.add("nodes that offer no devices are left out", where)
    for match in filter(None, matches):
        if match[1] is None:
            remarks.add("gres names no type of device (gpu:TYPE:COUNT)", where)
        elif re.search(r"[_-]\d+g\.\d+gb", match[1]):
            remarks.add("gres lists slices of devices, which are not counted", where)
        elif device := match_device(match[1], where, remarks, names=cluster_names().slurm):
            yield device, int(match[2] or 1)


def expand_hosts(text: str) -> Iterator[str]:
    """Names in a list of hosts, such as ``n[0-3,7],rack[1-2]n[1-4],login1``.

    Raises:
        InputError: for more names than an inventory may have.
    """
    hosts = (host for part in _HOST_PARTS.findall(text) for host in _expand_host(part))
    for number, host in enumerate(hosts):
        if number >= MAX_ENTRIES:
            message = f"a list of hosts has more than {MAX_ENTRIES:,} names: {text[:60]!r}."
            raise InputError(message, field=FIELD, hint="Export fewer partitions at once.")
        yield host


def _expand_host(text: str) -> Iterator[str]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        yield from filter(None, [text.strip()])
        return
    for piece in match[2].split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (last or first).isdigit() and len(piece) < 20:
            for number in range(int(first), int(last or first) + 1):
                for rest in _expand_host(match[3]) if match[3] else [""]:
                    yield f"{match[1]}{number:0{len(first)}d}{rest}"
