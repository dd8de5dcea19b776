"""Clusters of Kubernetes: machines of nodes, quotas of Kueue, payments and prices of OpenCost."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.machines import (
    FIELD,
    Machines,
    Quota,
    Remarks,
    dig,
    list_rows,
    make_label,
    match_device,
    read_count,
)
from recipe_core.hardware.prices import price_month
from recipe_core.hardware.slices import list_geometries
from recipe_core.targets.deployments.deployment import (
    device_called,
    device_labels,
    device_resources,
)
from recipe_core.targets.names import cluster_names

Usd = dict[str, float]
_LABELS = Path(__file__).with_name("labels.yaml")
_read_labels = cache(read_shipped)
_CUT = re.compile(r"nvidia\.com/mig-(\dg\.\d{1,3}gb)|amd\.com/([a-z]px_nps\d)")
_TEAM_LABELS = ("team", "owner", "cost-center", "cost_center", "costcenter", "department")
_MACHINE_COSTS = [f"{of}Cost{end}" for of in ("gpu", "cpu", "ram") for end in ("", "Adjustment")]


def read_nodes(items: Iterable[Mapping[str, Any]], remarks: Remarks) -> Iterator[Machines]:
    """Machines of nodes that may run pods; the others are remarked on."""
    for node in items:
        name = dig(node, "metadata.name", str)
        labels = _texts_at(node, "metadata.labels")
        states = {str(row.get("type")): row for row in list_rows(node, "status.conditions")}
        word = find_device_label(labels)
        counts = _count_by_slice(node, word, labels)
        is_ready = dig(states, "Ready.status", str) in ("", "True")
        if dig(node, "spec.unschedulable", bool) or not is_ready:
            remarks.add("nodes that are cordoned or not ready are left out", name)
        elif not counts:
            remarks.add("nodes that offer no devices are left out", name)
        elif not word:
            remarks.add("nodes offer devices, but no label names the device", name)
        elif device := match_device(word.partition("-MIG-")[0], name, remarks):
            for taint in list_rows(node, "spec.taints"):
                key = dig(taint, "key", str)
                if key not in device_resources() and ".kubernetes.io/" not in key:
                    remarks.add(f"pods may need a toleration of the taint {key[:120]}", name)
            if any(counts):
                remarks.add("devices are cut today; slices: [any] lets a plan cut them anew", name)
            yield _read_node(device, counts, labels) | {"term": _read_term(node, labels)}


def _read_node(device: str, counts: Mapping[str, int], labels: Mapping[str, str]) -> Machines:
    cuts = [geometry.counts for geometry in list_geometries(device)]
    # What is cut is counted in slices, and what is shared as often as it may be.
    slices_each = {name: max((cut.get(name, 0) for cut in cuts), default=0) or 1 for name in counts}
    total = math.ceil(sum(count / slices_each[name] for name, count in counts.items()) - 1e-9)
    strategy = labels.get("nvidia.com/gpu.sharing-strategy")
    is_shared = strategy in ("mps", "time-slicing")
    return {
        "device": device,
        "per_node": (read_count(labels.get("nvidia.com/gpu.count")) if is_shared else 0) or total,
        "slices": sorted(filter(None, counts)),
        "sharing": [strategy] if is_shared else [],
        "labels": {key: labels[key] for key in device_labels() & labels.keys()},
        "region": make_label(_first_label("regions", labels)),
        "rack": f"{_first_label('zones', labels)}/{_first_label('racks', labels)}",
        "name": make_label(_first_label("groups", labels)),
    }


def _texts_at(value: Any, path: str) -> dict[str, str]:
    return {str(key): str(text) for key, text in dig(value, path, dict).items()}


def _count_by_slice(node: Mapping[str, Any], word: str, labels: Mapping[str, str]) -> Counter[str]:
    """Devices of a node by the slices that labels (cut alike) or resources name; "": whole ones."""
    mode = word.partition("-MIG-")[2] or labels.get("amd.com/gpu.compute-memory-partition", "")
    counts = Counter[str]()
    for resource, count in _texts_at(node, "status.allocatable").items():
        match = _CUT.match(resource)
        if match or resource.removesuffix(".shared") in device_resources():
            cut = (match[1] or match[2]) if match else mode.removesuffix("-SHARED").casefold()
            counts["" if cut.startswith("spx") else cut.replace("_", "-")] += read_count(count)
    return +counts


def find_device_label(labels: Mapping[str, str]) -> str:
    """The label that names a device, a known one and its maker's own first; empty for none."""
    keys = device_labels() & labels.keys()
    by_maker = sorted(keys, key=lambda key: ("gpu.product" not in key, "instance" in key, key))
    words = [labels[key] for key in by_maker]
    return next(filter(device_called, words), next(iter(words), ""))


def _first_label(kind: str, labels: Mapping[str, str]) -> str:
    keys = _read_labels(_LABELS)["labels"][kind]
    return next((labels[key] for key in keys if labels.get(key)), "")


def _read_term(node: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return how a node is paid: by its labels, else by whose machine it is."""
    if any(labels.get(spot.label) == spot.value for spot in cluster_names().spot.values()):
        return "spot"
    term = _first_label("terms", labels).casefold()
    if term in ("spot", "reserved", "on-demand"):
        return term
    provider = dig(node, "spec.providerID", str).partition("://")[0]
    return "on-demand" if provider in _read_labels(_LABELS)["rented"] else "owned"


def read_queues(items: Iterable[Mapping[str, Any]], remarks: Remarks) -> Iterator[Quota]:
    """Quotas of devices in ClusterQueues and Cohorts, with the devices that flavours name."""
    devices: dict[str, str | None] = {}
    for item in items:
        if item.get("kind") == "ResourceFlavor":
            flavor = dig(item, "metadata.name", str)
            word = find_device_label(_texts_at(item, "spec.nodeLabels"))
            devices[flavor] = match_device(word or flavor, f"flavour {flavor}", remarks)
    for item in items:
        queue = dig(item, "metadata.name", str)
        if item.get("kind") not in ("ClusterQueue", "Cohort"):
            continue
        if dig(item, "spec.stopPolicy", str) not in ("", "None"):
            remarks.add("queues that are stopped are left out", queue)
            continue
        cohort = dig(item, "spec.cohortName", str) or dig(item, "spec.cohort", str)
        groups = list_rows(item, "spec.resourceGroups")
        for row in (row for group in groups for row in list_rows(group, "flavors")):
            flavor = dig(row, "name", str)
            parts = list_rows(row, "resources")
            for part in (row for row in parts if dig(row, "name", str) in device_resources()):
                if device := devices.get(flavor):
                    count = read_count(part.get("nominalQuota"))
                    yield Quota(queue, cohort, flavor, device, count)
                else:
                    remarks.add("quotas of flavours without a device do not count", flavor)


def read_costs(document: Mapping[str, Any], name: str, remarks: Remarks) -> tuple[Usd, Usd]:
    """Payments of teams in US dollars an hour, and prices of devices per device-hour.

    A team is a label such as ``team``, else the namespace, else the allocation's name; costs of
    nobody (``__idle__``) are called so. A device-hour has the processors and memory of what ran on
    the device. Fields: core/pkg/opencost/allocation_json.go of https://github.com/opencost/opencost.
    Raises InputError where no allocation or no time is stated.
    """
    pairs = [pair for step in list_rows(document, "data") for pair in step.items()]
    rows = [(str(key), row) for key, row in pairs if isinstance(row, Mapping)]
    hours = _window_hours([row for _, row in rows], name)
    payments, usd, used_hours = (defaultdict[str, float](float) for _ in range(3))
    for key, row in rows:
        payments[_team_of(key, row)] += dig(row, "totalCost", float) / hours
        row_hours, model = dig(row, "gpuHours", float), dig(row, "gpuAllocation.gpuModel", str)
        if row_hours > 0 and not model:
            remarks.add("allocations that name no device set no price", key)
        elif row_hours > 0 and (device := match_device(model, key, remarks)):
            usd[device] += sum(dig(row, cost, float) for cost in _MACHINE_COSTS)
            used_hours[device] += row_hours
    for team in sorted(payments, key=lambda team: -payments[team]):
        remarks.add("paid in a month", f"{team} ${price_month(payments[team]):,.0f}")
    return payments, {device: cost / used_hours[device] for device, cost in usd.items() if cost > 0}


def _window_hours(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """Hours from the first start of a window to the last end."""
    try:
        ends = [dig(row, f"window.{end}", str) for row in rows for end in ("start", "end")]
        times = [datetime.fromisoformat(end) for end in ends]
        hours = (max(times) - min(times)).total_seconds() / 3600
    except (ValueError, TypeError):  # no allocation, no time, or some times without a zone
        hours = 0.0
    if hours <= 0:
        message = f"{name} has no allocation with a window of time."
        hint = "Ask OpenCost's /allocation with window=7d and aggregate=namespace or label:team."
        raise InputError(message, field=FIELD, hint=hint)
    return hours


def _team_of(key: str, row: Mapping[str, Any]) -> str:
    if key.startswith("__"):
        return key.strip("_")
    properties = dig(row, "properties", dict)
    labels = dig(properties, "namespaceLabels", dict) | dig(properties, "labels", dict)
    words = (*(labels.get(label) for label in _TEAM_LABELS), properties.get("namespace"), key)
    return str(next(filter(None, words), "nobody"))[:120]
