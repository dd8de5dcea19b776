"""Machines of an inventory as pools of a fleet."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from recipe_core.base.errors import InputError
from recipe_core.fleets.request import Pool, Term
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.slices import split_slice
from recipe_core.request.first_error import validate_plain
from recipe_core.targets.deployments.deployment import device_called
from recipe_core.targets.names import DeviceNames

FIELD = "inventory"
Kind = Literal["kubernetes", "slurm", "skypilot", "csv", "kueue", "opencost"]
# Machines, rows and allocations that one inventory may have.
MAX_ENTRIES = 20_000
MAX_NOTES = 200
_LISTED = 6  # names in a note
# Error correction in GDDR takes a sixteenth; a larger deviation is another card.
_MEMORY_TOLERANCE = 0.08


class Remarks:
    """Sentences on what was left out or assumed, each with the machines that it is about."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = defaultdict(dict)

    def add(self, text: str, name: str) -> None:
        self._names[text][name[:80]] = None

    def lines(self) -> tuple[str, ...]:
        lines = [f"{text}: {_list_names([*names])}." for text, names in self._names.items()]
        more = [f"{len(lines) - MAX_NOTES:,} more notes."] if len(lines) > MAX_NOTES else []
        return (*lines[:MAX_NOTES], *more)


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


@dataclass(frozen=True, slots=True)
class Machine:
    """Machines that are alike; ``group``: a partition or a node pool that they are called by."""

    device: str
    per_node: int
    count: int = 1
    region: str | None = None
    zone: str | None = None
    rack: str | None = None
    term: Term = "owned"
    usd_per_device_hour: float | None = None
    slices: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()
    group: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """Devices that a queue of Kueue grants of one flavour."""

    queue: str
    cohort: str | None
    flavor: str
    resource: str
    device: str | None
    devices: int
    borrows: int | None = None
    """Devices that it may borrow of its cohort; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class Payment:
    """The cost of a team today, and the devices that it has on average."""

    team: str
    usd_per_hour: float
    usd_per_month: float
    devices: float


@dataclass(frozen=True)
class Inventory:
    """Pools, quotas, payments and prices of one inventory."""

    kind: Kind
    name: str
    pools: tuple[Mapping[str, Any], ...] = ()
    """As ``fleet.yaml`` has them."""
    quotas: tuple[Quota, ...] = ()
    payments: tuple[Payment, ...] = ()
    usd_per_device_hour: Mapping[str, float] = field(default_factory=dict)
    """Prices that are paid today, by device."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def make_label(text: str) -> str | None:
    """A text as a name of ``fleet.yaml``: lower-case letters, digits and dashes; None for none."""
    slug = re.sub(r"[^a-z0-9]+", "-", text[:200].casefold().encode("ascii", "ignore").decode())
    return slug.strip("-")[:40].strip("-") or None


def match_device(
    name: str,
    machine_name: str,
    remarks: Remarks,
    *,
    names: DeviceNames | None = None,
    memory_mib: float | None = None,
) -> str | None:
    """The profile of a device by any of its names; None, with a remark, where none fits.

    ``names``: those that the inventory's tool has for devices; ``memory_mib``: of one device.
    """
    by_tool = names.names if names else {}
    device = device_called(name, by_tool)
    if device is None:
        remarks.add(f"{name[:80]!r} is no known device, so state its profile", machine_name)
        return None
    if split_slice(device):
        remarks.add(f"{name[:80]!r} is a slice; state the pool of its device", machine_name)
        return None
    profile_mib = device_profile(device).memory_bytes.value / 2**20
    if memory_mib and abs(memory_mib / profile_mib - 1) > _MEMORY_TOLERANCE:
        text = f"{name[:80]!r} is {device}, but has {memory_mib:,.0f} MiB, so state its profile"
        remarks.add(text, machine_name)
        return None
    alike = [key for key, word in by_tool.items() if word.casefold() == name.casefold()]
    if len(alike) > 1:
        text = f"{name[:80]!r} may be {', '.join(alike)}, and is read as {device}"
        remarks.add(text, machine_name)
    return device


def group_machines(machines: Iterable[Machine], remarks: Remarks) -> tuple[dict[str, Any], ...]:
    """Machines as pools: alike in device, number, region, term, price, cut and group.

    Zones stand in for racks where machines name none. Raises InputError for values that no pool
    may have.
    """
    groups: dict[Machine, list[Machine]] = {}
    for machine in machines:
        alike = replace(machine, count=1, zone=None, rack=None, labels=())
        groups.setdefault(alike, []).append(machine)
    names: set[str] = set()
    return tuple(_make_pool(alike, names, remarks) for alike in groups.values())


def _make_pool(alike: list[Machine], names: set[str], remarks: Remarks) -> dict[str, Any]:
    first = alike[0]
    term = None if first.term == "owned" else first.term
    parts = (first.device, first.region, first.group, term)
    name = _unused_pool_name("-".join(filter(None, parts)), names)
    racks, zones = Counter[str](), Counter[str]()
    for machine in alike:
        zones[machine.zone or ""] += machine.count
        if machine.rack:
            racks[f"{machine.zone}/{machine.rack}"] += machine.count
    if not racks and len(zones) > 1:
        racks = zones
        remarks.add("no racks are named, so each zone counts as one", name)
    nodes = zones.total()
    if racks and (racks.total() < nodes or max(racks.values()) - min(racks.values()) > 1):
        remarks.add("machines are not even over racks, as a pool takes them", name)
    labels = set.intersection(*(set(machine.labels) for machine in alike))
    pool = asdict(replace(first, labels=())) | {
        "name": name,
        "nodes": nodes,
        "racks": len(racks) or None,
        "slices": list(first.slices),
        "sharing": list(first.sharing),
        "labels": dict(sorted(labels)),
    }
    pool = {key: pool[key] for key in Pool.model_fields if pool.get(key) not in (None, [], {})}
    return check_pool(pool)


def check_pool(values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a pool, checked; raises InputError for the first wrong one."""
    name = values.get("name") if isinstance(values, Mapping) else None
    try:
        for flaw, message, hint in validate_plain(values, Pool, "docs/guide/fleet.md").flaws():
            raise InputError(message, field=flaw, hint=hint)
    except InputError as error:
        field_name = f"pools.{name}.{error.field}"
        raise InputError(error.message, field=field_name, hint=error.hint) from None
    return dict(values)


def _unused_pool_name(text: str, names: set[str]) -> str:
    """A label that no other pool has."""
    base = make_label(text) or "pool"
    numbered = (f"{base[:35].strip('-')}-{number}" for number in range(2, MAX_ENTRIES + 2))
    name = next(name for name in chain([base], numbered) if name not in names)
    names.add(name)
    return name


def check_entries(entries: Any, name: str) -> list[Mapping[str, Any]]:
    """The objects of a list; raises InputError for no list, or more than ``MAX_ENTRIES``."""
    if not isinstance(entries, list):
        raise InputError(f"{name} has no list of entries.", field=FIELD, hint="Export it anew.")
    if len(entries) > MAX_ENTRIES:
        message = f"{name} has {len(entries):,} entries; the limit is {MAX_ENTRIES:,}."
        raise InputError(message, field=FIELD, hint="Divide it, and merge the parts.")
    return [entry for entry in entries if isinstance(entry, Mapping)]


def dig(value: Any, *path: str) -> Mapping[str, Any]:
    """Return the mapping at a path of keys; an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def read_quantity(value: Any) -> float | None:
    """A number that is not negative and below a billion, or a text of one with k or M after it."""
    factor = 1.0
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?[kM]?", value):
        factor = {"k": 1e3, "M": 1e6}.get(value[-1], 1.0)
        value = float(value.rstrip("kM"))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * factor if is_number and 0 <= value * factor < 1e9 else None


def read_whole(value: Any) -> int:
    """A whole number as above; 0 for anything else."""
    return int(read_quantity(value) or 0)
