"""An OpenCost allocation: what teams pay today, and for a device-hour.

Fields: https://github.com/opencost/opencost, core/pkg/opencost/allocation_json.go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.fleets.inventory.kubernetes import find_device_label
from recipe_core.fleets.inventory.machines import (
    FIELD,
    Payment,
    Remarks,
    check_entries,
    dig,
    match_device,
)

_HOURS_PER_MONTH = 730.0
_TEAM_LABELS = ("team", "owner", "cost-center", "cost_center", "costcenter", "department")
_MACHINE_COSTS = ("gpuCost", "cpuCost", "ramCost")


def read_costs(
    document: Mapping[str, Any], name: str, remarks: Remarks
) -> tuple[tuple[Payment, ...], dict[str, float]]:
    """Payments of teams, and prices of devices in US dollars per device-hour.

    A team is a label such as ``team``, else the namespace, else the allocation's name; costs of
    nobody (``__idle__``) are called so. A device-hour has the processors and memory of what ran on
    the device.

    Raises:
        InputError: where no allocation or no time is stated.
    """
    steps = document.get("data")
    parts = [steps] if isinstance(steps, Mapping) else steps
    pairs = [pair for part in check_entries(parts, name) for pair in part.items()]
    names = [str(key) for key, row in pairs if isinstance(row, Mapping)]
    rows = check_entries([row for _, row in pairs], name)
    hours = _window_hours(rows, name)
    costs: dict[str, float] = defaultdict(float)
    device_hours: dict[str, float] = defaultdict(float)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, row in zip(names, rows, strict=True):
        team, used_hours = _team_of(key, row), _cost_in(row, "gpuHours")
        costs[team] += _cost_in(row, "totalCost")
        device_hours[team] += used_hours
        device = _device_of(row, key, remarks) if used_hours > 0 else None
        if device:
            adjusted = (*_MACHINE_COSTS, *(f"{cost}Adjustment" for cost in _MACHINE_COSTS))
            spent[device][0] += sum(_cost_in(row, cost) for cost in adjusted)
            spent[device][1] += used_hours
    payments = [
        Payment(team, cost / hours, cost / hours * _HOURS_PER_MONTH, device_hours[team] / hours)
        for team, cost in sorted(costs.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return tuple(payments), {device: usd / used for device, (usd, used) in spent.items() if usd > 0}


def _window_hours(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """Hours from the first start of a window to the last end."""
    windows = [dig(row, "window") or row for row in rows]
    times = [_read_time(window.get(end)) for window in windows for end in ("start", "end")]
    stated_times = [time for time in times if time is not None]
    if not stated_times or min(stated_times) == max(stated_times):
        raise InputError(
            f"{name} has no allocation with a window of time.",
            field=FIELD,
            hint="Ask OpenCost's /allocation with window=7d and aggregate=namespace or label:team.",
        )
    return (max(stated_times) - min(stated_times)).total_seconds() / 3600


def _read_time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(value[:40]) if isinstance(value, str) else None
    except ValueError:
        return None
    return time.replace(tzinfo=time.tzinfo or UTC) if time else None


def _cost_in(row: Mapping[str, Any], key: str) -> float:
    """A number of any sign; adjustments may be negative. 0 for what is none."""
    value = row.get(key)
    return float(value) if type(value) in (int, float) and abs(value) < 1e12 else 0.0  # type: ignore[arg-type]


def _team_of(key: str, row: Mapping[str, Any]) -> str:
    if key.startswith("__"):
        return key.strip("_")
    properties = dig(row, "properties")
    labels = {**dig(properties, "namespaceLabels"), **dig(properties, "labels")}
    texts = (*(labels.get(label) for label in _TEAM_LABELS), properties.get("namespace"), key)
    return next(text for text in texts if isinstance(text, str) and text)[:120]


def _device_of(row: Mapping[str, Any], key: str, remarks: Remarks) -> str | None:
    gpu, labels = dig(row, "gpuAllocation"), dig(row, "properties", "labels").items()
    word = find_device_label({name: value for name, value in labels if isinstance(value, str)})
    words = (gpu.get("gpuModel"), gpu.get("gpuDevice"), word)
    device = next((text for text in words if isinstance(text, str) and text), None)
    if device is None:
        remarks.add("allocations that name no device set no price", key)
    return match_device(device, key, remarks) if device else None
