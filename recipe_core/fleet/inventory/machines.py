"""Machines of an inventory as pools of a fleet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from recipe_core.base.errors import InputError
from recipe_core.fleet.request import Pool, Term
from recipe_core.hardware.cluster import device_profile
from recipe_core.request.first_error import validate_plain
from recipe_core.targets.deployments.deployment import device_called
from recipe_core.targets.names import DeviceNames

FIELD = "inventory"
Kind = Literal["kubernetes", "slurm", "skypilot", "csv", "kueue", "opencost"]
# Machines, rows and allocations that one inventory may have.
MAX_ENTRIES = 20_000
# Names that a note lists.
_LISTED = 6
# Error correction in GDDR takes a sixteenth; a larger deviation is another card.
_MEMORY_TOLERANCE = 0.08
_MIB = 2**20


class Remarks:
    """Sentences on what was left out or assumed, each with the machines that it is about."""

    def __init__(self) -> None:
        self._names: dict[str, Counter[str]] = {}

    def add(self, text: str, name: str = "", count: int = 1) -> None:
        self._names.setdefault(text, Counter())[name[:80]] += count

    def lines(self) -> tuple[str, ...]:
        out = []
        for text, names in self._names.items():
            listed = [name for name in names if name]
            more = f" and {len(listed) - _LISTED:,} more" if len(listed) > _LISTED else ""
            where = f": {', '.join(listed[:_LISTED])}{more}" if listed else ""
            out.append(f"{text}{where}.")
        return tuple(out)


@dataclass(frozen=True, slots=True)
class Machine:
    """Machines that are alike, with ``per_node`` devices of one profile each.

    ``group``: what its source calls them together, such as a partition or a node pool.
    """

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
    """The cost of a team today, by OpenCost."""

    team: str
    usd_per_hour: float
    usd_per_month: float
    device_hours_per_hour: float
    """Devices that it has, on average."""


@dataclass(frozen=True)
class Inventory:
    """What an inventory says of a fleet."""

    kind: Kind
    name: str
    pools: tuple[Mapping[str, Any], ...] = ()
    """Pools, as ``fleet.yaml`` has them."""
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
    sharers = [
        profile
        for profile, word in (names.names if names else {}).items()
        if word.casefold() == name.casefold()
    ]
    device = device_called(name, names.names if names else None)
    if device is None:
        remarks.add(f"{name[:80]!r} is no known device; add its profile to the pool", machine_name)
        return None
    if memory_mib is not None and not _has_memory(device, memory_mib):
        sharers = [profile for profile in sharers if _has_memory(profile, memory_mib)]
        if not sharers:
            text = f"{name[:80]!r} is {device}, but has {memory_mib:,.0f} MiB"
            remarks.add(f"{text}; add the profile of that variant to the pool", machine_name)
            return None
        device = sharers[0]
    if len(sharers) > 1:
        listed = ", ".join(sharers)
        remarks.add(f"{name[:80]!r} may be {listed}; read as {device}: set device", machine_name)
    return device


def _has_memory(device: str, memory_mib: float) -> bool:
    profile = device_profile(device)
    sizes = (profile.memory_bytes.value, profile.usable_memory_bytes)
    return any(abs(memory_mib * _MIB / size - 1) <= _MEMORY_TOLERANCE for size in sizes)


def group_machines(machines: Iterable[Machine], remarks: Remarks) -> tuple[dict[str, Any], ...]:
    """Machines as pools: alike in device, number, region, term, price, cut and group.

    Racks are counted by their names; zones stand in for them where machines name none.

    Raises:
        InputError: for values that no pool may have.
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
    name = _free_name("-".join(filter(None, parts)), names)
    racks, by_zone = Counter[str](), Counter[str]()
    for machine in alike:
        place = "/".join(filter(None, (machine.zone, machine.rack)))
        by_zone[machine.zone or ""] += machine.count
        if machine.rack:
            racks[place] += machine.count
    nodes = sum(machine.count for machine in alike)
    if racks and racks.total() < nodes:
        remarks.add("some machines name no rack; they are taken to stand in those named", name)
    if not racks and len(by_zone) > 1:
        racks = by_zone
        remarks.add("no racks are named; each zone counts as one", name)
    if racks and max(racks.values()) - min(racks.values()) > 1:
        remarks.add(
            f"racks have {min(racks.values())} to {max(racks.values())} machines; "
            "a pool takes them as even",
            name,
        )
    labels = set.intersection(*(set(machine.labels) for machine in alike))
    pool = {
        "name": name,
        "device": first.device,
        "nodes": nodes,
        "per_node": first.per_node,
        "racks": len(racks) or None,
        "region": first.region,
        "term": first.term,
        "usd_per_device_hour": first.usd_per_device_hour,
        "slices": list(first.slices),
        "sharing": list(first.sharing),
        "labels": dict(sorted(labels)),
    }
    return check_pool({key: value for key, value in pool.items() if value not in (None, [], {})})


def check_pool(values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a pool, checked; raises InputError for the first wrong one."""
    try:
        validate_plain(values, Pool, "docs/guide/fleet.md")
    except InputError as error:
        field_name = f"pools.{values.get('name')}.{error.field}"
        raise InputError(error.message, field=field_name, hint=error.hint) from None
    return dict(values)


def _free_name(text: str, names: set[str]) -> str:
    """A label that no other pool has."""
    base = make_label(text) or "pool"
    name, number = base, 1
    while name in names:
        number += 1
        name = f"{base[: 40 - len(str(number)) - 1].strip('-')}-{number}"
    names.add(name)
    return name


def check_entries(entries: Any, name: str) -> list[Mapping[str, Any]]:
    """The objects of a list, which may not be too long; what is no object is left out.

    Raises:
        InputError: for no list, or more than ``MAX_ENTRIES``.
    """
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


def read_number(value: Any) -> float | None:
    """A number that is not negative and below a billion, or a text of one with k or M after it."""
    factor = 1.0
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?[kM]?", value):
        factor = {"k": 1e3, "M": 1e6}.get(value[-1], 1.0)
        value = float(value.rstrip("kM"))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * factor if is_number and 0 <= value * factor < 1e9 else None


def read_whole(value: Any) -> int:
    """A whole number as above; 0 for anything else."""
    return int(read_number(value) or 0)
