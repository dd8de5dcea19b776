"""An inventory by its content, and its pools in a ``fleet.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recipe_core.base.documents import MAX_DOCUMENT_BYTES, parse_json, parse_yaml
from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.costs import read_costs
from recipe_core.fleets.inventory.kubernetes import quota_machines, read_nodes, read_queues
from recipe_core.fleets.inventory.machines import (
    FIELD,
    Inventory,
    Kind,
    Machine,
    Quota,
    Remarks,
    check_entries,
    check_pool,
    group_machines,
)
from recipe_core.fleets.inventory.skypilot import (
    is_sky_document,
    is_sky_table,
    read_sky_document,
    read_sky_tables,
)
from recipe_core.fleets.inventory.slurm import (
    SINFO,
    is_sinfo_table,
    read_sinfo_json,
    read_sinfo_table,
)
from recipe_core.fleets.inventory.table import is_csv, read_csv_machines
from recipe_core.fleets.request import FleetRequest
from recipe_core.hardware.cluster import device_profile

_KINDS = (
    "`kubectl get nodes -o json`, `kubectl get clusterqueues,resourceflavors -o json`, "
    f"`{SINFO}`, `sinfo --json`, `sky gpus list`, a CSV with a column device, "
    "or OpenCost's /allocation"
)
_SMALLER = "Leave images out: jq 'del(.items[].status.images)'."
# Fields of a pool that its machines decide; people state the others.
_OF_MACHINES = ("nodes", "per_node", "racks", "region", "labels")


def read_inventory(text: str, name: str = "the inventory") -> Inventory:
    """Read an inventory, whatever program or person wrote it.

    Args:
        text: its content.
        name: how errors and notes call it.

    Raises:
        InputError: for a kind that is not known, a malformed or too large document, and a wrong
            value; names the field and the fix.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        message = f"{name} has {len(text):,} characters; the limit is {MAX_DOCUMENT_BYTES:,}."
        raise InputError(message, field=FIELD, hint=_SMALLER)
    remarks = Remarks()
    if is_sinfo_table(text):
        return _pooled("slurm", name, read_sinfo_table(text, name, remarks), remarks)
    if is_sky_table(text):
        return _pooled("skypilot", name, read_sky_tables(text, remarks), remarks)
    if is_csv(text):
        return _pooled("csv", name, read_csv_machines(text, name, remarks), remarks)
    is_json = text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")
    try:
        document = parse_json(text, name) if is_json else parse_yaml(text, name)
    except InputError as error:
        raise InputError(error.message, field=FIELD, hint=error.hint or _SMALLER) from None
    return _read_document(document, name, remarks)


def _pooled(
    kind: Kind, name: str, machines: Iterable[Machine], remarks: Remarks, *quotas: Quota
) -> Inventory:
    pools = group_machines(machines, remarks)
    return Inventory(kind, name, pools, quotas, notes=remarks.lines())


def _read_document(value: Any, name: str, remarks: Remarks) -> Inventory:
    document = value if isinstance(value, Mapping) else {}
    if "data" in document and "code" in document:
        paid, prices = read_costs(document, name, remarks)
        notes = remarks.lines()
        return Inventory("opencost", name, payments=paid, usd_per_device_hour=prices, notes=notes)
    if "sinfo" in document or ("nodes" in document and "meta" in document):
        return _pooled("slurm", name, read_sinfo_json(document, name, remarks), remarks)
    if "apiVersion" in document and "kind" in document:
        items = check_entries(document.get("items", [document]), name)
        nodes = [item for item in items if item.get("kind") == "Node"]
        quotas = tuple(read_queues(items, remarks))
        if nodes:
            return _pooled("kubernetes", name, read_nodes(nodes, remarks), remarks, *quotas)
        if any(item.get("kind") == "ClusterQueue" for item in items):
            return _pooled("kueue", name, quota_machines(quotas, remarks), remarks, *quotas)
    elif is_sky_document(document):
        return _pooled("skypilot", name, read_sky_document(document, remarks), remarks)
    raise InputError(f"{name} is no inventory that is known.", field=FIELD, hint=f"Give {_KINDS}.")


def merge_inventories(
    fleet: Mapping[str, Any], inventories: Iterable[Inventory]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A ``fleet.yaml`` with the pools of inventories, and what to know of it.

    A pool of the fleet keeps what its owner stated (price, term, slices, names); its machines are
    counted anew. Quotas bound the machines of a device; prices fill pools that state none.

    Args:
        fleet: the document as plain values; may be empty.
        inventories: in the order in which they are merged.

    Raises:
        InputError: for a document that is no fleet once pools are merged; names the field.
    """
    check_entries(fleet.get("pools", []), "the fleet's pools")
    merged = [check_pool(pool) for pool in fleet.get("pools", [])]
    remarks = Remarks()
    for inventory in inventories:
        if inventory.pools and not (inventory.kind == "kueue" and merged):
            _merge_pools(merged, inventory, remarks)
        _bound_by_quotas(merged, inventory, remarks)
        for pool in merged:
            price = inventory.usd_per_device_hour.get(str(pool["device"]))
            if price is not None and "usd_per_device_hour" not in pool:
                pool["usd_per_device_hour"] = round(price, 6)
                remarks.add(f"priced at what {inventory.name} says is paid", pool["name"])
    regions = check_entries(fleet.get("regions", []), "the fleet's regions")
    for region in dict.fromkeys(pool["region"] for pool in merged if pool.get("region")):
        if regions and not any(old.get("name") == region for old in regions):
            regions.append({"name": region})
            remarks.add("regions are added without their round-trip times", region)
    document = {**fleet, "pools": merged} | ({"regions": regions} if regions else {})
    if "models" in document:
        FleetRequest.parse(document)
    return document, remarks.lines()


def _merge_pools(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    """Count the machines of pools anew, by name, else by device and region if only one has them."""
    earlier, matched = list(merged), list[str]()
    places = [(pool["device"], pool.get("region")) for pool in inventory.pools]
    for pool, place in zip(inventory.pools, places, strict=True):
        old = [row for row in earlier if row["name"] == pool["name"]]
        if not old and places.count(place) == 1:
            old = [row for row in earlier if (row["device"], row.get("region")) == place]
        if len(old) != 1:
            merged.append(dict(pool))
            remarks.add(f"added from {inventory.name}", pool["name"])
            continue
        matched.append(old[0]["name"])
        if old[0]["nodes"] != pool["nodes"]:
            text = f"{old[0]['nodes']} machines are now {pool['nodes']}, by {inventory.name}"
            remarks.add(text, old[0]["name"])
        old[0].update({key: pool[key] for key in _OF_MACHINES if key in pool})
    for row in earlier:
        if row["name"] not in matched:
            remarks.add(f"kept, though not in {inventory.name}", row["name"])


def _bound_by_quotas(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    """Take no more machines of a device than queues grant; the last pools lose first."""
    for device in {quota.device for quota in inventory.quotas if quota.device}:
        granted = sum(quota.devices for quota in inventory.quotas if quota.device == device)
        for pool in (pool for pool in merged if pool["device"] == device):
            per_node = int(pool.get("per_node") or device_profile(device).node.devices)
            nodes = min(int(pool["nodes"]), granted // per_node)
            granted -= nodes * per_node
            if nodes < pool["nodes"]:
                text = f"{pool['nodes']} machines are {nodes} by the quotas of {inventory.name}"
                remarks.add(text, pool["name"])
                pool["nodes"] = nodes
