"""Machines of an inventory as pools of a fleet, and the quotas and costs beside them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeVar

from recipe_core.base.errors import InputError
from recipe_core.fleets.request import Pool
from recipe_core.hardware.slices import split_slice
from recipe_core.request.first_error import validate_plain
from recipe_core.targets.deployments.deployment import device_called

Value = TypeVar("Value")
# Machines that are alike: the fields of a pool as ``fleet.yaml`` has them, but ``name`` is of their
# partition or node pool, and ``rack`` and ``hosts`` say which they are. None is for not stated.
Machines = dict[str, Any]
Kind = Literal["kubernetes", "slurm", "skypilot", "csv", "kueue", "opencost"]
FIELD = "inventory"
# Machines, rows and allocations that one inventory may have.
MAX_ENTRIES = 20_000
_KINDS: dict[Any, str] = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
_MAX_POOLS = 256
_MAX_NOTES = 200
_LISTED = 6  # names in a note
_LONGEST_HOSTS = 250  # characters of a label
_APART = dict.fromkeys(("nodes", "rack", "hosts", "labels"))


class Remarks:
    """Sentences on what was left out or assumed, each with the machines that it is about."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = defaultdict(dict)

    def add(self, text: str, name: str) -> None:
        self._names[text][name[:80]] = None

    def lines(self) -> tuple[str, ...]:
        lines = []
        for text, names in self._names.items():
            rest = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
            lines.append(f"{text}: {', '.join([*names][:_LISTED])}{rest}.")
        rest = f"{len(lines) - _MAX_NOTES:,} more notes."
        return (*lines[:_MAX_NOTES], rest) if len(lines) > _MAX_NOTES else tuple(lines)


@dataclass(frozen=True, slots=True)
class Quota:
    """Devices that a queue of Kueue, or a cohort of queues, grants of one flavour."""

    queue: str
    cohort: str
    flavor: str
    device: str
    devices: int


@dataclass(frozen=True)
class Inventory:
    """Pools (as ``fleet.yaml`` has them), quotas, and US dollars an hour by team and by device."""

    kind: Kind
    name: str
    pools: tuple[dict[str, Any], ...] = ()
    quotas: tuple[Quota, ...] = ()
    payments: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def make_label(text: str) -> str:
    """A text as a name of ``fleet.yaml``: lower-case letters, digits and dashes."""
    slug = re.sub(r"[^a-z0-9]+", "-", text[:200].casefold().encode("ascii", "ignore").decode())
    return slug.strip("-")[:40].strip("-")


def match_device(
    name: str, where: str, remarks: Remarks, tool_names: Mapping[str, str] | None = None
) -> str | None:
    """The profile of a device by any name, also of its tool; None, with a remark, for no device."""
    device = device_called(name, tool_names)
    if device is None or split_slice(device):
        text = "is a slice; state the pool of its device" if device else "is no known device"
        remarks.add(f"{name[:80]!r} {text}", where)
        return None
    alike = [key for key, word in (tool_names or {}).items() if word.casefold() == name.casefold()]
    if len(alike) > 1:
        remarks.add(f"{name!r} may be {', '.join(alike)}, and is read as {device}", where)
    return device


def group_machines(rows: Iterable[Machines], remarks: Remarks) -> tuple[dict[str, Any], ...]:
    """Machines as pools; raises InputError for too many, or values that no pool may have."""
    groups: dict[str, list[Machines]] = defaultdict(list)
    for row in rows:
        groups[repr(sorted((row | _APART).items()))].append(row)
    if len(groups) > _MAX_POOLS:
        message = f"its machines make {len(groups):,} pools; a fleet has at most {_MAX_POOLS}."
        raise InputError(message, field=FIELD, hint="Leave out what tells machines apart.")
    pools: dict[str, dict[str, Any]] = {}
    for alike in groups.values():
        values = {"term": "owned", **alike[0]}
        words = (values.get(field) for field in ("device", "region", "name", "term"))
        base = name = make_label("-".join(word for word in words if word and word != "owned"))
        numbers = count(2)
        while name in pools:
            name = f"{base[:35]}-{next(numbers)}"
        racks = Counter[str]()
        for row in alike:
            racks[row.get("rack") or ""] += row.get("nodes", 1)
        if max(racks.values()) - min(racks.values()) > 1:
            remarks.add("machines are not even over racks (or zones), as a pool takes them", name)
        labels = dict(set.intersection(*({*row.get("labels", {}).items()} for row in alike)))
        hosts = ",".join(row["hosts"] for row in alike if "hosts" in row)
        if 0 < len(hosts) <= _LONGEST_HOSTS:
            labels["nodes"] = hosts
        values |= {"name": name, "nodes": racks.total(), "labels": dict(sorted(labels.items()))}
        values["racks"] = len(racks) if len(racks) > 1 else None
        fields = {field: values.get(field) for field in Pool.model_fields}
        pools[name] = check_pool({k: v for k, v in fields.items() if v not in (None, "", [], {})})
    return tuple(pools.values())


def check_pool(values: Any) -> dict[str, Any]:
    """The plain values of a pool, checked; raises InputError for the first wrong one."""
    try:
        for flaw, message, hint in validate_plain(values, Pool, "docs/guide/fleet.md").flaws():
            raise InputError(message, field=flaw, hint=hint)
    except InputError as error:
        name = values.get("name") if isinstance(values, Mapping) else None
        place = f"pools.{name}.{error.field}"
        raise InputError(error.message, field=place, hint=error.hint) from None
    return dict(values)


def dig(value: Any, path: str, kind: type[Value]) -> Value:
    """Return the value at a path of keys, or an empty value; raises InputError for another kind."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    value = float(value) if kind is float and type(value) is int else value
    if value is not None and not isinstance(value, kind):
        hint = f"It is {_KINDS.get(kind, 'a number')} there; export the inventory anew."
        raise InputError(f"{path} is {value!r:.80}.", field=FIELD, hint=hint)
    return kind() if value is None else value


def list_rows(value: Any, path: str) -> list[dict[str, Any]]:
    """The objects of a list at a path of keys; raises InputError for more than MAX_ENTRIES."""
    rows = dig(value, path, list)
    if len(rows) > MAX_ENTRIES:
        message = f"{path} has {len(rows):,} entries; the limit is {MAX_ENTRIES:,}."
        raise InputError(message, field=FIELD, hint="Divide it, and merge the parts.")
    return [row for row in rows if isinstance(row, dict)]


def read_count(value: Any) -> int:
    """A whole number below a billion, also as text with k or M after it; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,9})([kM]?)", str(value))
    return int(match[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[match[2]] if match else 0
