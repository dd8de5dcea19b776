"""An OpenCost allocation: what teams pay today, and for a device-hour.

Fields: https://github.com/opencost/opencost, core/pkg/opencost/allocation_json.go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleet.inventory.kubernetes import device_word
from recipe_core.fleet.inventory.machines import (
    FIELD,
    MAX_ENTRIES,
    Payment,
    Remarks,
    dig,
    match_device,
)

_HOURS_PER_MONTH = 730.0
_TEAM_LABELS = ("team", "owner", "cost-center", "cost_center", "costcenter", "department")
_MACHINE_COSTS = ("gpuCost", "cpuCost", "ramCost")
# What OpenCost calls costs of nobody, and what they are called here.
_NOBODY = {
    "__idle__": "idle",
    "__unallocated__": "unallocated",
    "__unmounted__": "unmounted",
    "__shared__": "shared",
}


def read_costs(
    document: Mapping[str, Any], name: str, remarks: Remarks
) -> tuple[tuple[Payment, ...], dict[str, float]]:
    """Payments of teams, and prices of devices in US dollars per device-hour.

    A team is a label such as ``team``, else the namespace, else the name of the allocation.

    Raises:
        InputError: where no allocation or no time is stated.
    """
    rows = list(_read_allocations(document, name))
    hours = _window_hours([row for _, row in rows], name)
    costs: dict[str, float] = defaultdict(float)
    device_hours: dict[str, float] = defaultdict(float)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, row in rows:
        team = _team_of(key, row)
        costs[team] += _amount(row, "totalCost")
        used_hours = _amount(row, "gpuHours")
        device_hours[team] += used_hours
        device = _device_of(row, key, remarks) if used_hours > 0 else None
        if device:
            price = sum(_amount(row, c) + _amount(row, f"{c}Adjustment") for c in _MACHINE_COSTS)
            spent[device][0] += price
            spent[device][1] += used_hours
        elif used_hours > 0:
            remarks.add("allocations that name no device set no price", key)
    if spent:
        remarks.add("a device-hour has the processors and memory of what ran on it")
    payments = tuple(
        Payment(team, cost / hours, cost / hours * _HOURS_PER_MONTH, device_hours[team] / hours)
        for team, cost in sorted(costs.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    return payments, {device: usd / used for device, (usd, used) in spent.items() if usd > 0}


def _read_allocations(
    document: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every allocation of every step with its name."""
    sets = document.get("data")
    rows = [
        (str(key), row)
        for part in (sets if isinstance(sets, list) else [sets])
        if isinstance(part, Mapping)
        for key, row in part.items()
        if isinstance(row, Mapping)
    ]
    if not rows:
        hint = "Ask /allocation with window=7d and aggregate=namespace or label:team."
        raise InputError(f"{name} has no allocation.", field=FIELD, hint=hint)
    if len(rows) > MAX_ENTRIES:
        message = f"{name} has {len(rows):,} allocations; the limit is {MAX_ENTRIES:,}."
        raise InputError(message, field=FIELD, hint="Aggregate by namespace or label.")
    yield from rows


def _window_hours(rows: list[Mapping[str, Any]], name: str) -> float:
    """Hours from the first start of a window to the last end."""
    starts, ends = [], []
    for row in rows:
        window = dig(row, "window") or row
        starts.append(_read_time(window.get("start")))
        ends.append(_read_time(window.get("end")))
    first = min((start for start in starts if start), default=None)
    last = max((end for end in ends if end), default=None)
    if first is None or last is None or not (hours := (last - first).total_seconds() / 3600) > 0:
        hint = "Export /allocation as OpenCost answers it."
        raise InputError(f"{name} states no window of time.", field=FIELD, hint=hint)
    return hours


def _read_time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(value[:40]) if isinstance(value, str) else None
    except ValueError:
        return None
    return time.astimezone() if time else None


def _amount(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e12 else 0.0  # type: ignore[arg-type]


def _team_of(key: str, row: Mapping[str, Any]) -> str:
    if key in _NOBODY:
        return _NOBODY[key]
    properties = dig(row, "properties")
    labels = {**dig(properties, "namespaceLabels"), **dig(properties, "labels")}
    for label in _TEAM_LABELS:
        if isinstance(labels.get(label), str) and labels[label]:
            return str(labels[label])[:120]
    namespace = properties.get("namespace")
    return (namespace if isinstance(namespace, str) and namespace else key)[:120]


def _device_of(row: Mapping[str, Any], key: str, remarks: Remarks) -> str | None:
    gpu = dig(row, "gpuAllocation")
    labels = {k: v for k, v in dig(row, "properties", "labels").items() if isinstance(v, str)}
    words = (gpu.get("gpuModel"), gpu.get("gpuDevice"), device_word(labels))
    word = next((word for word in words if isinstance(word, str) and word), None)
    return match_device(word, key, remarks) if word else None
