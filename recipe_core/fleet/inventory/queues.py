"""Kueue's queues: what each may use of which flavour, and the pools that flavours stand for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.fleet.inventory.kubernetes import device_word
from recipe_core.fleet.inventory.machines import (
    Machine,
    Quota,
    Remarks,
    dig,
    match_device,
    read_number,
    read_whole,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.targets.deployments.deployment import device_called, device_resources


def read_queues(items: list[Mapping[str, Any]], remarks: Remarks) -> tuple[Quota, ...]:
    """Quotas of devices in ClusterQueues, with the devices that ResourceFlavors name."""
    flavors = {
        str(dig(item, "metadata").get("name")): dig(item, "spec", "nodeLabels")
        for item in items
        if item.get("kind") == "ResourceFlavor"
    }
    devices = {name: _flavor_device(name, labels, remarks) for name, labels in flavors.items()}
    queues = [item for item in items if item.get("kind") == "ClusterQueue"]
    return tuple(quota for queue in queues for quota in _queue_quotas(queue, devices, remarks))


def _flavor_device(name: str, labels: Mapping[str, Any], remarks: Remarks) -> str | None:
    texts = {key: value for key, value in labels.items() if isinstance(value, str)}
    if word := device_word(texts):
        return match_device(word, f"flavour {name}", remarks)
    return device_called(name)


def _queue_quotas(
    queue: Mapping[str, Any], devices: Mapping[str, str | None], remarks: Remarks
) -> Iterator[Quota]:
    spec, name = dig(queue, "spec"), str(dig(queue, "metadata").get("name"))
    if spec.get("stopPolicy") in ("Hold", "HoldAndDrain"):
        remarks.add("queues that are stopped are left out", name)
        return
    cohort = spec.get("cohortName") or spec.get("cohort")
    for group in _objects(spec.get("resourceGroups")):
        for flavor in _objects(group.get("flavors")):
            flavor_name = str(flavor.get("name"))
            for row in _objects(flavor.get("resources")):
                resource = str(row.get("name"))
                if resource not in device_resources():
                    continue
                device = devices.get(flavor_name)
                if device is None:
                    remarks.add("no label of these flavours names a device", flavor_name)
                limit = row.get("borrowingLimit")
                yield Quota(
                    queue=name,
                    cohort=str(cohort) if cohort else None,
                    flavor=flavor_name,
                    resource=resource,
                    device=device,
                    devices=read_whole(row.get("nominalQuota")),
                    borrows=None if cohort and read_number(limit) is None else read_whole(limit),
                )


def _objects(value: Any) -> list[Mapping[str, Any]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, Mapping)]


def quota_machines(quotas: tuple[Quota, ...], remarks: Remarks) -> list[Machine]:
    """Machines that the quotas of each flavour add up to, in nodes of the usual size."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for quota in quotas:
        if quota.device:
            totals[quota.flavor, quota.device] += quota.devices
    machines = []
    for (flavor, device), total in totals.items():
        per_node = device_profile(device).node.devices
        if total % per_node:
            text = f"quotas of {total:,} devices are no whole machines of {per_node}"
            remarks.add(f"{text}; the rest is left out", flavor)
        remarks.add("pools are what quotas add up to, not machines that were seen", flavor)
        if total >= per_node:
            machines.append(Machine(device, per_node, total // per_node, group=flavor))
    return machines
