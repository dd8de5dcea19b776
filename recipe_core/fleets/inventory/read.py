"""An inventory by its content, and its pools in a ``fleet.yaml``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from recipe_core.base.documents import parse_json, parse_yaml
from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory import tables
from recipe_core.fleets.inventory.kubernetes import read_costs, read_nodes, read_queues
from recipe_core.fleets.inventory.machines import (
    FIELD,
    Inventory,
    Kind,
    Remarks,
    check_pool,
    dig,
    group_machines,
    list_rows,
)
from recipe_core.fleets.request import FleetRequest
from recipe_core.hardware.cluster import device_profile

# Kinds of tables, and the headings that tell them.
_TABLES: tuple[tuple[Kind, re.Pattern[str], Any], ...] = (
    ("slurm", re.compile(r"(?m)^(?=.*\bPARTITION\b).*\bSTATE\b"), tables.read_sinfo_table),
    ("skypilot", re.compile(r"(?m)^(?=.*\bGPU\b).*\bUTILIZATION\b"), tables.read_sky_tables),
    ("csv", re.compile(r"\A(?:.*,)?[ \t]*device[ \t]*(?:[,\r\n]|\Z)"), tables.read_csv_machines),
)
_KINDS = (
    "Give `kubectl get nodes,clusterqueues,cohorts,resourceflavors -o json` or some of it, "
    f"`{tables.SINFO}`, `sky gpus list`, a SkyPilot task, a CSV with a column "
    "device, or OpenCost's /allocation."
)
# Fields of a pool that its machines decide; people state the others.
_COUNTED = ("nodes", "per_node", "racks", "region")
_SMALLER = "Leave images out: jq 'del(.items[].status.images)'."


def read_inventory(text: str, name: str = "the inventory") -> Inventory:
    """Read an inventory, whatever wrote it; ``name`` is what errors and notes call it.

    Raises:
        InputError: for a kind that is not known, a malformed or too large document, and a wrong
            value; names the field and the fix.
    """
    text, remarks = text.removeprefix("\ufeff"), Remarks()
    is_json = text.lstrip()[:1] in ("{", "[")
    for kind, heading, read in () if is_json else _TABLES:
        if heading.search(text):
            pools = group_machines(read(text, name, remarks), remarks)
            return Inventory(kind, name, pools, notes=remarks.lines())
    try:
        document = parse_json(text, name) if is_json else parse_yaml(text, name)
    except InputError as error:
        raise InputError(error.message, field=FIELD, hint=error.hint or _SMALLER) from None
    keys = document.keys() if isinstance(document, Mapping) else set()
    if {"code", "data"} <= keys:
        paid = read_costs(document, name, remarks)
        return Inventory("opencost", name, (), (), *paid, remarks.lines())
    if "resources" in keys:
        pools = group_machines(tables.read_sky_task(document, remarks), remarks)
        return Inventory("skypilot", name, pools, notes=remarks.lines())
    items = list_rows(document if "items" in keys else {"items": [document]}, "items")
    nodes = [item for item in items if item.get("kind") == "Node"]
    quotas = tuple(read_queues(items, remarks))
    if not nodes and not any(item.get("kind") == "ClusterQueue" for item in items):
        raise InputError(f"{name} is no inventory that is known.", field=FIELD, hint=_KINDS)
    pools = group_machines(read_nodes(nodes, remarks), remarks)
    return Inventory("kubernetes" if nodes else "kueue", name, pools, quotas, notes=remarks.lines())


def merge_inventories(
    fleet: Mapping[str, Any], inventories: Iterable[Inventory]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A ``fleet.yaml`` with the pools of inventories, and what to know of it.

    A pool of the fleet keeps what its owner stated (price, term, slices, names); its machines are
    counted anew. Quotas bound the machines of a device; prices fill pools that state none.

    Raises:
        InputError: for a document that is no fleet once pools are merged; names the field.
    """
    fleet = dig({"the fleet": fleet}, "the fleet", dict)
    merged = [check_pool(pool) for pool in dig(fleet, "pools", list)]
    remarks = Remarks()
    for inventory in inventories:
        if inventory.pools:
            _merge_pools(merged, inventory, remarks)
        _bound_by_quotas(merged, inventory, remarks)
        for pool in merged:
            price = inventory.prices.get(str(pool["device"]))
            if price is not None and not {"usd_per_device_hour", "offer"} & pool.keys():
                pool["usd_per_device_hour"] = round(price, 6)
                remarks.add(f"priced at what {inventory.name} says is paid", pool["name"])
    document = {**fleet, "pools": merged}
    if regions := list_rows(fleet, "regions"):
        names = {dig(region, "name", str) for region in regions}
        for name in sorted({pool["region"] for pool in merged if "region" in pool} - names):
            document["regions"] = regions = [*regions, {"name": name}]
            remarks.add("regions are added without their round-trip times", name)
    if "models" in document:
        FleetRequest.parse(document)
    return document, remarks.lines()


def _merge_pools(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    """Count the machines of pools anew, by name, else by device and region if only one has them."""
    unmatched = list(merged)
    places = [(pool["device"], pool.get("region")) for pool in inventory.pools]
    for pool, place in zip(inventory.pools, places, strict=True):
        alike = [old for old in unmatched if old["name"] == pool["name"]]
        if not alike and places.count(place) == 1:
            alike = [old for old in unmatched if (old["device"], old.get("region")) == place]
        if len(alike) != 1:
            merged.append(dict(pool))
            remarks.add(f"added from {inventory.name}", pool["name"])
            continue
        old = unmatched.pop(unmatched.index(alike[0]))
        if old["nodes"] != pool["nodes"]:
            text = f"{old['nodes']} machines are now {pool['nodes']}, by {inventory.name}"
            remarks.add(text, old["name"])
        old.update({key: pool[key] for key in _COUNTED if key in pool})
        if "labels" in pool:
            old["labels"] = pool["labels"] | old.get("labels", {})
    for old in unmatched:
        remarks.add(f"kept, though not in {inventory.name}", old["name"])


def _bound_by_quotas(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    """Take no more machines of a device than queues grant; the last pools lose first."""
    granted = Counter[str]()
    for quota in inventory.quotas:
        granted[quota.device] += quota.devices
    for pool in (pool for pool in merged if str(pool["device"]) in granted):
        device, nodes = pool["device"], int(pool["nodes"])
        per_node = int(pool.get("per_node") or device_profile(device).node.devices)
        pool["nodes"] = min(nodes, granted[device] // per_node)
        granted[device] -= pool["nodes"] * per_node
        if pool["nodes"] < nodes:
            text = f"{nodes} machines are {pool['nodes']} by the quotas of {inventory.name}"
            remarks.add(text, pool["name"])
