"""An inventory by its content, and its pools in a ``fleet.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recipe_core.base.documents import parse_json, parse_yaml
from recipe_core.base.errors import InputError
from recipe_core.fleet.inventory.costs import read_costs
from recipe_core.fleet.inventory.kubernetes import read_nodes
from recipe_core.fleet.inventory.machines import (
    FIELD,
    Inventory,
    Remarks,
    check_entries,
    check_pool,
    group_machines,
)
from recipe_core.fleet.inventory.queues import quota_machines, read_queues
from recipe_core.fleet.inventory.skypilot import (
    is_sky_document,
    is_sky_table,
    read_sky_document,
    read_sky_tables,
)
from recipe_core.fleet.inventory.slurm import (
    SINFO,
    is_sinfo_table,
    read_sinfo_json,
    read_sinfo_table,
)
from recipe_core.fleet.inventory.table import is_csv, read_csv_machines
from recipe_core.fleet.request import FleetRequest
from recipe_core.hardware.cluster import device_profile

_KINDS = (
    "`kubectl get nodes -o json`, `kubectl get clusterqueues,resourceflavors -o json`, "
    f"`{SINFO}`, `sinfo --json`, `sky gpus list`, `sky status`, a CSV with a column device, "
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
    remarks = Remarks()
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start in ("{", "["):
        try:
            document = parse_json(text, name)
        except InputError as error:
            hint = error.hint or _SMALLER
            raise InputError(error.message, field=FIELD, hint=hint) from None
        return _read_document(document, name, remarks)
    if is_sinfo_table(text):
        machines = read_sinfo_table(text, name, remarks)
        return Inventory("slurm", name, group_machines(machines, remarks), notes=remarks.lines())
    if is_sky_table(text):
        machines = read_sky_tables(text, remarks)
        return Inventory("skypilot", name, group_machines(machines, remarks), notes=remarks.lines())
    if is_csv(text):
        machines = read_csv_machines(text, name, remarks)
        return Inventory("csv", name, group_machines(machines, remarks), notes=remarks.lines())
    return _read_document(parse_yaml(text, name), name, remarks)


def _read_document(document: Any, name: str, remarks: Remarks) -> Inventory:
    if not isinstance(document, Mapping):
        raise _unknown_kind(name)
    if "data" in document and "code" in document:
        payments, prices = read_costs(document, name, remarks)
        return Inventory(
            "opencost", name, (), (), payments, usd_per_device_hour=prices, notes=remarks.lines()
        )
    if "sinfo" in document or ("nodes" in document and "meta" in document):
        machines = read_sinfo_json(document, name, remarks)
        return Inventory("slurm", name, group_machines(machines, remarks), notes=remarks.lines())
    if str(document.get("apiVersion") or "") and "kind" in document:
        items = document.get("items", [document])
        return _read_objects(check_entries(items, name), name, remarks)
    if is_sky_document(document):
        machines = read_sky_document(document, remarks)
        return Inventory("skypilot", name, group_machines(machines, remarks), notes=remarks.lines())
    raise _unknown_kind(name)


def _unknown_kind(name: str) -> InputError:
    return InputError(f"{name} is no inventory that is known.", field=FIELD, hint=f"Give {_KINDS}.")


def _read_objects(items: list[Mapping[str, Any]], name: str, remarks: Remarks) -> Inventory:
    """Objects of Kubernetes: nodes, or Kueue's queues and flavours."""
    kinds = {str(item.get("kind")) for item in items}
    nodes = [item for item in items if item.get("kind") == "Node"]
    if other_kinds := kinds - {"Node", "ClusterQueue", "ResourceFlavor"}:
        remarks.add("objects of these kinds are not read", ", ".join(sorted(other_kinds)))
    if nodes:
        machines = list(read_nodes(nodes, remarks))
        quotas = read_queues(items, remarks)
    elif "ClusterQueue" in kinds:
        quotas = read_queues(items, remarks)
        machines = quota_machines(quotas, remarks)
    else:
        raise InputError(
            f"{name} has no nodes and no ClusterQueues.",
            field=FIELD,
            hint="Export `kubectl get nodes -o json`.",
        )
    pools = group_machines(machines, remarks)
    return Inventory("kubernetes" if nodes else "kueue", name, pools, quotas, notes=remarks.lines())


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
    document = dict(fleet)
    pools = document.get("pools", [])
    if not isinstance(pools, list) or not all(isinstance(pool, Mapping) for pool in pools):
        raise InputError(
            "is no list of pools.", field="pools", hint="List pools with their fields."
        )
    merged = [dict(pool) for pool in pools]
    remarks = Remarks()
    for inventory in inventories:
        if inventory.kind == "kueue" and merged:
            _bound_by_quotas(merged, inventory, remarks)
        else:
            _merge_pools(merged, inventory, remarks)
        for pool in merged:
            price = inventory.usd_per_device_hour.get(str(pool.get("device")))
            if price is not None and "usd_per_device_hour" not in pool:
                pool["usd_per_device_hour"] = round(price, 6)
                remarks.add(f"priced at what {inventory.name} says is paid", str(pool.get("name")))
    document["pools"] = [check_pool(pool) for pool in merged]
    _add_regions(document, remarks)
    if "models" in document:
        FleetRequest.parse(document)
    return document, remarks.lines()


def _merge_pools(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    matched: set[str] = set()
    earlier = list(merged)
    for pool in inventory.pools:
        same = [old for old in earlier if old.get("name") == pool["name"]]
        place = (pool["device"], pool.get("region"))
        alike = [old for old in earlier if (old.get("device"), old.get("region")) == place]
        rows = [candidate for candidate in inventory.pools if candidate is not pool]
        is_only = not any((row["device"], row.get("region")) == place for row in rows)
        old = next(iter(same or (alike if is_only and len(alike) == 1 else [])), None)
        if old is None:
            merged.append(dict(pool))
            remarks.add(f"added from {inventory.name}", pool["name"])
            continue
        matched.add(str(old.get("name")))
        if old.get("nodes") != pool["nodes"]:
            text = f"{old.get('nodes')} machines are now {pool['nodes']}, by {inventory.name}"
            remarks.add(text, str(old.get("name")))
        old.update({key: pool[key] for key in _OF_MACHINES if key in pool})
    if inventory.pools:
        for old in earlier:
            if str(old.get("name")) not in matched:
                remarks.add(f"kept, though not in {inventory.name}", str(old.get("name")))


def _bound_by_quotas(merged: list[dict[str, Any]], inventory: Inventory, remarks: Remarks) -> None:
    """Take no more machines of a device than queues grant; the last pools lose first."""
    for device in {quota.device for quota in inventory.quotas if quota.device}:
        granted = sum(quota.devices for quota in inventory.quotas if quota.device == device)
        for pool in (pool for pool in merged if pool.get("device") == device):
            per_node = int(pool.get("per_node") or device_profile(device).node.devices)
            nodes = min(int(pool["nodes"]), granted // per_node)
            granted -= nodes * per_node
            if nodes < pool["nodes"]:
                text = f"{pool['nodes']} machines are {nodes} by the quotas of {inventory.name}"
                remarks.add(text, str(pool.get("name")))
                pool["nodes"] = nodes


def _add_regions(document: dict[str, Any], remarks: Remarks) -> None:
    """Regions of pools that a document with regions does not list."""
    regions = document.get("regions")
    if not isinstance(regions, list) or not regions:
        return
    names = {region.get("name") for region in regions if isinstance(region, Mapping)}
    for pool in document["pools"]:
        if pool.get("region") and pool["region"] not in names:
            names.add(pool["region"])
            document["regions"] = [*document["regions"], {"name": pool["region"]}]
            remarks.add("regions are added; state their round-trip times", pool["region"])
