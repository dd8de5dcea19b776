"""SkyPilot's inventories: tables of ``sky gpus list``, SSH node pools, tasks.

Formats: SkyPilot 0.14 (https://docs.skypilot.co).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.fleets.inventory.machines import (
    Machine,
    Remarks,
    check_entries,
    make_label,
    match_device,
    read_whole,
)
from recipe_core.fleets.request import Term
from recipe_core.targets.names import cluster_names

_USE = re.compile(r"(\d{1,6}) of (\d{1,6}) free")


def is_sky_table(text: str) -> bool:
    """Return whether a text has a table of SkyPilot."""
    return any(_is_heading(line) for line in text.splitlines()[:200])


def _is_heading(line: str) -> bool:
    words = {*_split_cells(line)}
    return "GPU" in words and bool(words & {"UTILIZATION", "GPU UTILIZATION"})


def _split_cells(line: str) -> list[str]:
    """Cells of a line; two spaces or more stand between them."""
    return re.split(r"\s{2,}", line.strip())


def read_sky_tables(text: str, remarks: Remarks) -> list[Machine]:
    """Machines of every table in a text; nodes by name come before totals of the same devices."""
    nodes: list[Machine] = []
    totals: list[Machine] = []
    columns: list[str] = []
    for line in check_entries([{"": line} for line in text.splitlines()], "the table"):
        cells = _split_cells(line[""])
        if _is_heading(line[""]) or not line[""].strip():
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=False))
        if columns and len(cells) != len(columns):
            remarks.add("lines with other columns than the headings are left out", line[""].strip())
        elif "NODE" in row:
            nodes += _read_node_row(row, remarks)
        elif "UTILIZATION" in row:
            totals += _read_total_row(row, remarks)
    return nodes or totals


def _match_sky(name: str, where: str, remarks: Remarks) -> str | None:
    return match_device(name, where, remarks, names=cluster_names().sky)


def _read_node_row(row: Mapping[str, str], remarks: Remarks) -> Iterator[Machine]:
    use = _USE.search(row.get("GPU UTILIZATION", ""))
    if re.search(r"NotReady|Cordoned", row.get("NODE STATUS", "")):
        remarks.add("nodes that are cordoned or not ready are left out", row["NODE"])
    elif use is None or not int(use[2]):
        remarks.add("nodes that offer no devices are left out", row["NODE"])
    elif device := _match_sky(row.get("GPU", ""), row["NODE"], remarks):
        group = make_label(row.get("NODE_POOL") or row.get("CONTEXT") or "")
        yield Machine(device, int(use[2]), group=group)


def _read_total_row(row: Mapping[str, str], remarks: Remarks) -> Iterator[Machine]:
    """Machines of a line that has only totals: each as large as the largest request."""
    use, word = _USE.search(row["UTILIZATION"]), row.get("GPU", "")
    sizes = row.get("REQUESTABLE_QTY_PER_NODE", "").split(",")
    per_node = max(read_whole(size.strip()) for size in sizes)
    if not use or not 0 < per_node <= int(use[2]):
        remarks.add("lines that name no machines and their sizes are left out", word)
    elif device := _match_sky(word, word, remarks):
        nodes = int(use[2]) // per_node
        remarks.add(f"{use[2]} devices are counted as {nodes} machines of {per_node}", word)
        yield Machine(device, per_node, nodes)


def is_sky_document(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a task with resources, or a file of SSH node pools."""
    pools = [value for value in document.values() if isinstance(value, Mapping)]
    return isinstance(document.get("resources"), Mapping) or any("hosts" in pool for pool in pools)


def read_sky_document(document: Mapping[str, Any], remarks: Remarks) -> Iterator[Machine]:
    """Machines of a task's ``resources``; hosts of ``ssh_node_pools.yaml`` are remarked on."""
    for name, pool in document.items():
        if isinstance(pool, Mapping) and isinstance(pool.get("hosts"), list):
            text = "SSH node pools do not name their devices; add what sky gpus list prints"
            remarks.add(text, f"{name} ({len(pool['hosts']):,} hosts)")
    resources = document.get("resources")
    if isinstance(resources, Mapping):
        choices = check_entries(resources.get("any_of") or resources.get("ordered") or [{}], "it")
        if len(choices) > 1:
            remarks.add("each alternative is a pool", "resources")
        for choice in choices:
            nodes = read_whole(document.get("num_nodes", 1)) or 1
            yield from _read_resources({**resources, **choice}, nodes, remarks)


def _read_resources(
    resources: Mapping[str, Any], nodes: int, remarks: Remarks
) -> Iterator[Machine]:
    accelerators = resources.get("accelerators")
    if isinstance(accelerators, Mapping):
        accelerators = [f"{word}:{count}" for word, count in accelerators.items()]
    infra = [part for part in str(resources.get("infra") or "").split("/") if part != "*"]
    region = resources.get("region") or (infra[1] if len(infra) > 1 else "")
    term: Term = "spot" if resources.get("use_spot") is True else "on-demand"
    texts = accelerators if isinstance(accelerators, list) else [accelerators]
    for text in filter(None, texts):
        word, _, count = str(text).partition(":")
        if device := _match_sky(word.strip(), "resources", remarks):
            per_node = read_whole(count.strip()) or 1
            yield Machine(device, per_node, nodes, region=make_label(str(region)), term=term)
