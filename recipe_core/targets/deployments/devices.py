"""Names that files have for devices, as shipped profiles: labels, machines, SkyPilot, Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Sourced
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.targets.deployments.deployed import Place
from recipe_core.targets.names import cluster_names

FILE = DataFile(Path(__file__).with_name("devices.yaml"), "deployments")
# Alternatives of one engine that are looked up.
MAX_NAMES = 64
_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|instinct|intel|quadro")
_SHARED = re.compile(r"(?i)-(SHARED|MIG-.*)$")


class _Values(DataRow):
    source: str
    names: dict[str, str]


class _Devices(Sourced):
    """The content of ``devices.yaml``."""

    labels: dict[str, str]
    values: _Values
    families: dict[str, dict[str, str]]


@cache
def _device_data() -> _Devices:
    return FILE.read_as(_Devices)


def device_labels() -> frozenset[str]:
    return frozenset(_device_data().labels)


@cache
def device_resources() -> frozenset[str]:
    """What pods ask for to get devices."""
    vendors = cluster_names().vendors.values()
    return frozenset(vendor.resource for vendor in vendors if vendor.resource)


def device_called(name: str, tool_names: Mapping[str, str] | None = None) -> str | None:
    """The profile of a device or of a machine with it; None for an unknown name.

    ``tool_names``: names by profile that a tool has for devices; the first of several counts.
    """
    text = name.strip().strip("'\"")[:128]
    for profile, tool_name in (tool_names or {}).items():
        if tool_name.casefold() == text.casefold():
            return profile
    word_profile = _profiles_by_word().get(_find_device_word(_device_data().values.names, text))
    return (
        word_profile
        or _device_of_machine(text.casefold())
        or _shipped_profile(_SHARED.sub("", text))
    )


def _find_device_word(words: Mapping[str, str], text: str) -> str:
    return next((word for word in words if word.casefold() == text.casefold()), "")


@cache
def _profiles_by_word() -> dict[str, str]:
    return dict(_device_data().values.names)


def _device_of_machine(kind: str) -> str | None:
    """The device in a cloud's machine, by its family; ``g5`` alone is a family too."""
    for families in _device_data().families.values():
        for family, profile in families.items():
            start, star, end = family.partition("*")
            if kind.startswith(start) and (not star or kind.endswith(end)):
                return profile
            if f"{kind}." == family:
                return profile
    return None


def _shipped_profile(text: str) -> str | None:
    """A shipped device by its name or an alias, whatever stands between letters and digits."""
    try:
        return device_profile(text).name
    except HardwareError:
        pass
    return _plain_names().get(_plain_device_name(text))


@cache
def _plain_names() -> dict[str, str]:
    profiles: dict[str, str] = {}
    for name in device_names():
        for alias in (name, *device_profile(name).aliases):
            profiles.setdefault(_plain_device_name(alias), name)
    return profiles


def _plain_device_name(text: str) -> str:
    return _MAKERS.sub("", re.sub(r"[^a-z0-9]", "", text.casefold()))


def choose_device_place(
    alternatives: Iterable[tuple[str, int | None]],
    tool_names: Mapping[str, str] | None = None,
    *,
    nodes: int | None = None,
) -> Place:
    """The place of an engine that may run on any of some devices, by name with their number.

    Of several it is the one with the least memory in all, on which an engine must run as well.
    """
    requests = list(dict.fromkeys(alternatives))[:MAX_NAMES]
    profiles = [
        (device_called(name, tool_names) if name else None, number) for name, number in requests
    ]
    notes = [
        f"{name!r:.80} is no known device."
        for (name, _), (profile, _) in zip(requests, profiles, strict=True)
        if name and not profile
    ]
    usable = [(profile, number) for profile, number in profiles if profile]
    if not usable:
        return Place(None, next((number for _, number in profiles), None), nodes, tuple(notes))
    profile, number = min(usable, key=_place_memory_bytes)
    profile_names = list(dict.fromkeys(name for name, _ in usable))
    if len(profile_names) > 1:
        message = (
            f"the file allows {', '.join(profile_names)}; judged on {profile}, with least memory."
        )
        notes.append(message)
    return Place(profile, number, nodes, tuple(notes))


def _place_memory_bytes(profile_count: tuple[str, int | None]) -> float:
    profile, number = profile_count
    return device_profile(profile).memory_bytes.value * (number or 1)
