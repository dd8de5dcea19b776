"""Slurm's ``sinfo`` as machines: its tables with node names or counts, and its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleet.inventory.machines import (
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
# Headings of the fields %P, %D, %G, %N, %t and %T, and of the same of sinfo -O.
_HEADINGS = {
    "PARTITION": "partition",
    "NODES": "nodes",
    "GRES": "gres",
    "NODELIST": "names",
    "STATE": "state",
}
# States of nodes that run nothing (sinfo(1), node state codes); * is for one that does not respond.
# One that is powered down is started as a job needs it.
_AWAY = re.compile(
    r"(?i)down|drain|drng|fail|maint|inval|unk|futr|future|error|reboot|not_resp|\*$"
)
_POWER = re.compile(r"(?i)power(ed|ing)_(down|up)")
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.+-]{0,60}))?(?::(\d{1,5}))?(?:\(.*)?$", re.ASCII)
_RANGE = re.compile(r"([\w.-]{0,250})\[([\d,-]{1,2000})\](.{0,250})", re.ASCII)


def is_sinfo_table(text: str) -> bool:
    """Return whether a text begins as a table of ``sinfo`` does."""
    return any({"PARTITION", "STATE"} & {*_split(line)} for line in text.splitlines()[:3])


def read_sinfo_table(text: str, name: str, remarks: Remarks) -> list[Machine]:
    """Machines of a table, with ``|`` or spaces between its columns.

    Raises:
        InputError: for a table without the devices (GRES), or too many lines.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(k for k, line in enumerate(lines) if {"PARTITION", "STATE"} & {*_split(line)})
    headings = [_HEADINGS.get(word, word) for word in _split(lines[start])]
    if "gres" not in headings:
        message = f"{name} has no column GRES, which says what devices nodes have."
        raise InputError(message, field=FIELD, hint=f"Export it by {SINFO}.")
    if len(lines) > MAX_ENTRIES:
        raise InputError(f"{name} has more than {MAX_ENTRIES:,} lines.", field=FIELD)
    rows = []
    for line in lines[start + 1 :]:
        cells = _split(line)
        if len(cells) == len(headings):
            rows.append(dict(zip(headings, cells, strict=True)))
        else:
            remarks.add("lines with other columns than the headings are left out", line.strip())
    return list(_read_rows(rows, remarks))


def _split(line: str) -> list[str]:
    cells = line.split("|") if "|" in line else line.split()
    return [cell.strip() for cell in cells]


def read_sinfo_json(document: Mapping[str, Any], name: str, remarks: Remarks) -> list[Machine]:
    """Machines of ``sinfo --json``: of nodes (Slurm 21.08 to 22.05), or of groups of them."""
    rows: list[dict[str, Any]] = []
    for node in check_entries(document.get("nodes", []), name):
        state = node.get("state")
        words = state if isinstance(state, list) else [state]
        flags = node.get("state_flags")
        words = [*words, *(flags if isinstance(flags, list) else ())]
        partitions = node.get("partitions")
        rows.append(
            {
                "partition": partitions[0] if isinstance(partitions, list) and partitions else "",
                "nodes": 1,
                "gres": node.get("gres"),
                "names": node.get("name"),
                "state": "+".join(map(str, words)),
            }
        )
    for group in check_entries(document.get("sinfo", []), name):
        state = dig(group, "node").get("state")
        names = dig(group, "nodes").get("nodes")
        rows.append(
            {
                "partition": dig(group, "partition").get("name"),
                "nodes": dig(group, "nodes").get("total"),
                "gres": dig(group, "gres").get("total"),
                "names": ",".join(map(str, names)) if isinstance(names, list) else names,
                "state": "+".join(map(str, state)) if isinstance(state, list) else state,
            }
        )
    return list(_read_rows(rows, remarks))


def _read_rows(rows: Sequence[Mapping[str, Any]], remarks: Remarks) -> Iterator[Machine]:
    """Machines of rows; a node that several partitions have counts for the first."""
    counted: set[str] = set()
    for row in rows:
        partition = str(row.get("partition") or "").rstrip("*~#!%$@^-")
        listed = str(row.get("names") or "")
        nodes = [n for n in expand_hosts(listed) if n not in counted]
        counted.update(nodes)
        count = len(nodes) if listed else read_whole(row.get("nodes"))
        where = listed or partition
        if not count:
            if listed:
                remarks.add("nodes of several partitions count for the first", partition)
            continue
        if _AWAY.search(_POWER.sub("", str(row.get("state") or ""))):
            remarks.add("nodes that are down, drained or in maintenance are left out", where)
            continue
        devices = list(_read_gres(str(row.get("gres") or ""), where, remarks))
        if not devices:
            remarks.add("nodes without devices are left out", where)
        label = (("slurm.partition", partition),) if partition else ()
        for device, per_node in devices:
            yield Machine(device, per_node, count, group=make_label(partition or ""), labels=label)


def _read_gres(text: str, where: str, remarks: Remarks) -> Iterator[tuple[str, int]]:
    """Devices and how many of a node: ``gpu:h100:8(S:0-1)``."""
    for part in re.split(r",(?![^(]*\))", text):
        match = _GRES.match(part.strip())
        if match is None:
            continue
        if match[1] is None:
            remarks.add("gres names no type of device (gpu:TYPE:COUNT); set device", where)
            continue
        word = match[1]
        if mig := re.search(r"[_-]\d+g\.\d+gb", word):
            word = word[: mig.start()]
            remarks.add("gres lists slices of devices, which are not counted", where)
            continue
        device = match_device(word, where, remarks, names=cluster_names().slurm)
        if device:
            yield device, int(match[2] or 1)


def expand_hosts(text: str) -> list[str]:
    """Names in a list of hosts, such as ``n[0-3,7],rack[1-2]n[1-4],login1``.

    Raises:
        InputError: for more names than an inventory may have.
    """
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text[: 1 << 20]):
        for name in _expand_host(part.strip()):
            names.append(name)
            if len(names) > MAX_ENTRIES:
                message = f"a list of hosts has more than {MAX_ENTRIES:,} names: {text[:60]!r}."
                raise InputError(message, field=FIELD, hint="Export fewer partitions at once.")
    return names


def _expand_host(text: str) -> Iterator[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        if text:
            yield text
        return
    for piece in match[2].split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (last or first).isdigit():
            for number in range(int(first), int(last or first) + 1):
                for rest in [""] if not match[3] else _expand_host(match[3]):
                    yield f"{match[1]}{number:0{len(first)}d}{rest}"
