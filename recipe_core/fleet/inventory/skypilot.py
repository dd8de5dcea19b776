"""SkyPilot's inventories: tables of ``sky gpus list`` and ``sky status``, pools, tasks.

Formats: SkyPilot 0.14 (https://docs.skypilot.co), of which 0.8 calls two columns otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleet.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Machine,
    Remarks,
    make_label,
    match_device,
    read_whole,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.targets.names import cluster_names

_USE = re.compile(r"(\d{1,6}) of (\d{1,6}) free")
_CLUSTER = re.compile(r"(\d{1,5})x\s?(\[spot\])?\((?:gpus=)?([\w.-]{1,40}):(\d{1,4})\b", re.ASCII)
_NODE = ("NODE", "NODE_NAME")
_USED = ("UTILIZATION", "GPU UTILIZATION")
_EACH = ("REQUESTABLE_QTY_PER_NODE", "QTY_PER_NODE")


def is_sky_table(text: str) -> bool:
    """Return whether a text has a table of SkyPilot."""
    return any(_is_heading(line) for line in text.splitlines()[:200])


def _is_heading(line: str) -> bool:
    words = {*_split_cells(line)}
    gpus = "GPU" in words and words & {*_USED, "TOTAL_GPUS"}
    return bool(gpus or {"NAME", "RESOURCES", "STATUS"} <= words)


def _split_cells(line: str) -> list[str]:
    """Cells of a line; two spaces or more stand between them."""
    return re.split(r"\s{2,}", line.strip())


def read_sky_tables(text: str, remarks: Remarks) -> list[Machine]:
    """Machines of every table in a text; nodes by name come before totals of the same devices.

    Raises:
        InputError: for too many lines.
    """
    lines = text.splitlines()
    if len(lines) > MAX_ENTRIES:
        raise InputError(f"a table has more than {MAX_ENTRIES:,} lines.", field=FIELD)
    by_node: list[Machine] = []
    totals: list[Machine] = []
    clusters: list[Machine] = []
    columns: list[str] = []
    for line in lines:
        if _is_heading(line):
            columns = _split_cells(line)
        elif not line.strip():
            columns = []
        elif columns and len(_split_cells(line)) != len(columns):
            remarks.add("lines with other columns than the headings are left out", line.strip())
        elif columns:
            cells = dict(zip(columns, _split_cells(line), strict=True))
            if any(name in cells for name in _NODE):
                by_node += _read_node_row(cells, remarks)
            elif "RESOURCES" in cells:
                clusters += _read_cluster_row(cells, remarks)
            else:
                totals += _read_total_row(cells, remarks)
    return [*(by_node or totals), *clusters]


def _first_cell(cells: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((cells[name] for name in names if name in cells), "")


def _read_node_row(cells: Mapping[str, str], remarks: Remarks) -> Iterator[Machine]:
    node, word = _first_cell(cells, _NODE), cells.get("GPU") or cells.get("GPU_NAME") or "-"
    use = _USE.search(_first_cell(cells, _USED))
    count = int(use[2]) if use else read_whole(cells.get("TOTAL_GPUS"))
    if re.search(r"NotReady|Cordoned", cells.get("NODE STATUS", "")):
        remarks.add("nodes that are cordoned or not ready are left out", node)
    elif word in ("-", "None") or not count:
        remarks.add("nodes without devices are left out", node)
    elif device := match_device(word, node, remarks, names=cluster_names().sky):
        group = make_label(_first_cell(cells, ("CONTEXT", "NODE_POOL", "SSH NODE POOL")))
        yield Machine(device, count, group=group)


def _read_total_row(cells: Mapping[str, str], remarks: Remarks) -> Iterator[Machine]:
    """Machines of a line that has only totals: as many as the largest request takes each."""
    word, use = cells.get("GPU", ""), _USE.search(_first_cell(cells, _USED))
    total = int(use[2]) if use else read_whole(cells.get("TOTAL_GPUS"))
    sizes = [read_whole(size.strip()) for size in _first_cell(cells, _EACH).split(",")]
    device = match_device(word, word, remarks, names=cluster_names().sky) if total else None
    if device:
        per_node = min(max(sizes, default=0) or device_profile(device).node.devices, total)
        remarks.add("machines are assumed alike: the table has only totals", word)
        if total % per_node:
            text = f"{total:,} devices are no whole machines of {per_node}; the rest is left out"
            remarks.add(text, word)
        yield Machine(device, per_node, total // per_node)


def _read_cluster_row(cells: Mapping[str, str], remarks: Remarks) -> Iterator[Machine]:
    """Machines of a cluster that ``sky status`` lists: rented ones, unless they are one's own."""
    match, name = _CLUSTER.search(cells["RESOURCES"]), cells.get("NAME", "")
    infra = cells.get("INFRA", "")
    if cells.get("STATUS", "UP") not in ("UP", "INIT"):
        remarks.add("clusters that are stopped are left out", name)
    elif match is None:
        remarks.add("clusters without devices are left out", name)
    elif device := match_device(match[3], name, remarks, names=cluster_names().sky):
        place = re.search(r"\(([^)]*)\)", infra)
        own = re.match(r"(?i)kubernetes|k8s|ssh|slurm", infra)
        if own:
            remarks.add("clusters on machines of one's own are no machines beside them", name)
            return
        yield Machine(
            device,
            int(match[4]),
            int(match[1]),
            region=make_label(place[1]) if place else None,
            term="spot" if match[2] else "on-demand",
        )


def read_sky_document(document: Mapping[str, Any], remarks: Remarks) -> list[Machine]:
    """Machines of a task's ``resources``; hosts of ``ssh_node_pools.yaml`` are remarked on."""
    machines: list[Machine] = []
    if isinstance(document.get("resources"), Mapping):
        resources = document["resources"]
        choices = resources.get("any_of") or resources.get("ordered") or [{}]
        if isinstance(choices, list) and len(choices) > 1:
            remarks.add("each alternative of resources is a pool")
        for choice in choices if isinstance(choices, list) else [{}]:
            if isinstance(choice, Mapping):
                nodes = read_whole(document.get("num_nodes", 1)) or 1
                machines += _read_resources({**resources, **choice}, nodes, remarks)
        return machines
    for name, pool in document.items():
        hosts = pool.get("hosts") if isinstance(pool, Mapping) else None
        if isinstance(hosts, list):
            text = "pools of SSH hosts do not name their devices; add the table of sky gpus list"
            remarks.add(text, f"{name} ({len(hosts):,} hosts)")
    return machines


def is_sky_document(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a task with resources, or a file of SSH node pools."""
    pools = [value for value in document.values() if isinstance(value, Mapping)]
    return isinstance(document.get("resources"), Mapping) or any("hosts" in pool for pool in pools)


def _read_resources(
    resources: Mapping[str, Any], nodes: int, remarks: Remarks
) -> Iterator[Machine]:
    wanted_devices = resources.get("accelerators")
    if isinstance(wanted_devices, Mapping):
        pairs = [(str(word), read_whole(count) or 1) for word, count in wanted_devices.items()]
    else:
        words = wanted_devices if isinstance(wanted_devices, list) else [wanted_devices]
        texts = [str(word).partition(":") for word in words if word]
        pairs = [(word.strip(), read_whole(count.strip()) or 1) for word, _, count in texts]
    infra = [part for part in str(resources.get("infra") or "").split("/") if part != "*"]
    region = resources.get("region") or (infra[1] if len(infra) > 1 else None)
    for word, count in pairs:
        if device := match_device(word, "resources", remarks, names=cluster_names().sky):
            yield Machine(
                device,
                count,
                nodes,
                region=make_label(str(region)) if region else None,
                term="spot" if resources.get("use_spot") is True else "on-demand",
            )
