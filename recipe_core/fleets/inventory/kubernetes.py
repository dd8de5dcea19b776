"""Nodes of Kubernetes as machines, by the labels of GPU operators, and Kueue's queues as quotas."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Sourced
from recipe_core.fleets.inventory.machines import (
    FIELD,
    Machine,
    Quota,
    Remarks,
    check_entries,
    dig,
    make_label,
    match_device,
    read_quantity,
    read_whole,
)
from recipe_core.fleets.request import Term
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.slices import list_geometries
from recipe_core.targets.deployments.deployment import (
    device_called,
    device_labels,
    device_resources,
)
from recipe_core.targets.names import cluster_names

_LABELS = DataFile(Path(__file__).with_name("labels.yaml"), FIELD)
_MIG = re.compile(r"nvidia\.com/mig-(\dg\.\d{1,3}gb)")
_CUT = re.compile(r"(?i)-MIG-(\dg\.\d{1,3}gb)")
_SHARED = ("mps", "time-slicing")
_PARTITION = re.compile(r"(?:amd\.com/)?(spx|dpx|tpx|qpx|cpx)_(nps\d)")


class _Places(Sourced):
    """The content of ``labels.yaml``."""

    regions: dict[str, str]
    zones: dict[str, str]
    racks: dict[str, str]
    groups: dict[str, str]
    terms: dict[str, str]
    rented: tuple[str, ...]


@cache
def _place_labels() -> _Places:
    return _LABELS.read_as(_Places)


def read_nodes(items: list[Mapping[str, Any]], remarks: Remarks) -> Iterator[Machine]:
    """Machines of nodes that may run pods; the others are remarked on."""
    for node in items:
        name = str(dig(node, "metadata").get("name") or "a node without a name")
        if reason := _idle_reason(node):
            remarks.add(reason, name)
            continue
        labels = {k: v for k, v in dig(node, "metadata", "labels").items() if isinstance(v, str)}
        yield from _read_node(node, name, labels, remarks)


def _idle_reason(node: Mapping[str, Any]) -> str | None:
    """Say why a node is left out; None for one that may run pods."""
    if dig(node, "spec").get("unschedulable") is True:
        return "cordoned nodes are left out"
    conditions = dig(node, "status").get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        ready = isinstance(condition, Mapping) and condition.get("type") == "Ready"
        if ready and condition.get("status") != "True":
            return "nodes that are not ready are left out"
    return None


def _read_node(
    node: Mapping[str, Any], name: str, labels: Mapping[str, str], remarks: Remarks
) -> Iterator[Machine]:
    offered = dig(node, "status", "allocatable").items()
    resources = {resource: read_whole(count) for resource, count in offered}
    word = find_device_label(labels)
    counts = {
        resource: count
        for resource, count in resources.items()
        if resource.removesuffix(".shared") in device_resources()
        or _MIG.match(resource)
        or _PARTITION.match(resource)
    }
    if not sum(counts.values()):
        remarks.add("nodes that offer no devices are left out", name)
        return
    if not word:
        resource = max(counts, key=lambda key: counts[key])
        remarks.add(f"nodes offer {resource}, but no label names the device", name)
        return
    memory_mib = read_quantity(labels.get("nvidia.com/gpu.memory"))
    is_cut = _CUT.search(word) or any(_MIG.match(key) for key in counts)
    whole_word = _CUT.sub("", word)
    device = match_device(whole_word, name, remarks, memory_mib=None if is_cut else memory_mib)
    if device is None:
        return
    per_node, slices = _whole_devices(device, word, labels, counts)
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "")
    if strategy in _SHARED:
        per_node = read_whole(labels.get("nvidia.com/gpu.count")) or per_node
    if slices:
        remarks.add("devices are cut today; slices: [any] lets a plan cut them anew", name)
    _remark_taints(node, name, remarks)
    of = _place_labels()
    yield Machine(
        device=device,
        per_node=per_node,
        slices=slices,
        sharing=(strategy,) if strategy in _SHARED else (),
        labels=tuple(sorted((k, v) for k, v in labels.items() if k in device_labels())),
        term=_read_term(node, name, labels, remarks),
        region=make_label(_first_label(of.regions, labels)),
        zone=_first_label(of.zones, labels) or None,
        rack=_first_label(of.racks, labels) or None,
        group=make_label(_first_label(of.groups, labels)),
    )


def find_device_label(labels: Mapping[str, str]) -> str:
    """The label that names a node's device: a vendor's, else a cloud's, else that of the machine.

    One that names a known device comes before those that do not; empty where there is none.
    """
    vendors = [vendor.label or "" for vendor in cluster_names().vendors.values()]
    clouds = sorted(device_labels(), key=lambda key: ("instance" in key, key))
    words = [labels[key] for key in (*vendors, *clouds) if key in labels]
    return next((word for word in words if device_called(word)), next(iter(words), ""))


def _first_label(keys: Iterable[str], labels: Mapping[str, str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _read_term(
    node: Mapping[str, Any], name: str, labels: Mapping[str, str], remarks: Remarks
) -> Term:
    """Return how a node is paid: by its labels, else by whose machine it is."""
    words = {labels.get(key, "").casefold() for key in _place_labels().terms}
    spots = cluster_names().spot.values()
    if "spot" in words or any(labels.get(spot.label) == spot.value for spot in spots):
        return "spot"
    if "reserved" in words:
        return "reserved"
    provider = str(dig(node, "spec").get("providerID") or "").partition("://")[0]
    if provider in _place_labels().rented or "on-demand" in words:
        remarks.add("rented nodes are taken as on-demand", name)
        return "on-demand"
    return "owned"


def _remark_taints(node: Mapping[str, Any], name: str, remarks: Remarks) -> None:
    taints = dig(node, "spec").get("taints")
    for taint in taints if isinstance(taints, list) else ():
        key = str(taint.get("key") or "") if isinstance(taint, Mapping) else ""
        blocks = key and taint.get("effect") in ("NoSchedule", "NoExecute")
        if blocks and key not in device_resources() and ".kubernetes.io/" not in key:
            remarks.add(f"pods need a toleration of the taint {key[:120]}", name)


def _whole_devices(
    device: str, word: str, labels: Mapping[str, str], counts: Mapping[str, int]
) -> tuple[int, tuple[str, ...]]:
    """Whole devices of a node and the slices that they are cut into.

    GPU feature discovery counts slices in place of devices where all are cut alike
    (``strategy: single``), and slices beside devices where they are not.
    """
    if cut := _CUT.search(word):
        return math.ceil(max(counts.values()) / _slices_each(device, cut[1])), (cut[1],)
    mode = _PARTITION.fullmatch(labels.get("amd.com/gpu.compute-memory-partition", "").casefold())
    parts: set[str] = set()
    total = 0.0
    for resource, count in counts.items():
        mig, cell = _MIG.match(resource), _PARTITION.match(resource) or mode
        name = mig[1] if mig else f"{cell[1]}-{cell[2]}" if cell and cell[1] != "spx" else ""
        total += count / _slices_each(device, name)
        if name and count:
            parts.add(name)
    return max(math.ceil(total - 1e-9), 1), tuple(sorted(parts))


def _slices_each(device: str, name: str) -> int:
    """Slices of one kind on a device; 1 for one that the device is not known to have."""
    return max((cut.counts.get(name, 0) for cut in list_geometries(device)), default=0) or 1


def read_queues(items: list[Mapping[str, Any]], remarks: Remarks) -> Iterator[Quota]:
    """Quotas of devices in ClusterQueues, with the devices that ResourceFlavors name."""
    devices: dict[str, str | None] = {}
    for item in items:
        if item.get("kind") == "ResourceFlavor":
            name = str(dig(item, "metadata").get("name"))
            labels = dig(item, "spec", "nodeLabels").items()
            word = find_device_label(
                {key: value for key, value in labels if isinstance(value, str)}
            )
            devices[name] = match_device(word or name, f"flavour {name}", remarks)
    for item in items:
        name, spec = str(dig(item, "metadata").get("name")), dig(item, "spec")
        if spec.get("stopPolicy") in ("Hold", "HoldAndDrain"):
            remarks.add("queues that are stopped are left out", name)
        elif item.get("kind") == "ClusterQueue":
            yield from _queue_quotas(name, spec, devices, remarks)


def _queue_quotas(
    name: str, spec: Mapping[str, Any], devices: Mapping[str, str | None], remarks: Remarks
) -> Iterator[Quota]:
    cohort = spec.get("cohortName") or spec.get("cohort")
    groups = check_entries(spec.get("resourceGroups") or [], name)
    flavors = [row for group in groups for row in check_entries(group.get("flavors") or [], name)]
    for flavor in flavors:
        flavor_name = str(flavor.get("name"))
        for row in check_entries(flavor.get("resources") or [], name):
            resource = str(row.get("name"))
            if resource not in device_resources():
                continue
            if devices.get(flavor_name) is None:
                remarks.add("no label of these flavours names a device", flavor_name)
            limit = row.get("borrowingLimit")
            yield Quota(
                queue=name,
                cohort=str(cohort) if cohort else None,
                flavor=flavor_name,
                resource=resource,
                device=devices.get(flavor_name),
                devices=read_whole(row.get("nominalQuota")),
                borrows=None if cohort and read_quantity(limit) is None else read_whole(limit),
            )


def quota_machines(quotas: tuple[Quota, ...], remarks: Remarks) -> Iterator[Machine]:
    """Machines that the quotas of each flavour add up to, in nodes of the usual size."""
    totals = Counter[tuple[str, str]]()
    for quota in quotas:
        if quota.device:
            totals[quota.flavor, quota.device] += quota.devices
    for (flavor, device), total in totals.items():
        per_node = device_profile(device).node.devices
        text = f"quotas of {total:,} devices are counted as machines of {per_node}"
        remarks.add(text, flavor)
        if total >= per_node:
            yield Machine(device, per_node, total // per_node, group=flavor)
