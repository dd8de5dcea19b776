"""How devices of this machine reach each other, read from what the vendors' tools print."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from recipe_core.hardware.cluster import fabric, fabric_names
from recipe_core.hardware.profile import Device, Fabric

Pairs = dict[tuple[int, int], str]
_DIRECT = (
    "NV",
    "XGMI",
)  # NV18: 18 NVLinks; PIX, PXB, PHB, NODE and SYS are ever longer ways over PCIe


@dataclass(frozen=True, slots=True)
class Links:
    """The best link of most pairs. ``domain``: devices that all reach each other over it; ``fabric``: its profile, None when none fits."""

    kind: Literal["nvlink", "xgmi", "pcie"]
    domain: int
    per_pair: int | None
    fabric: str | None
    note: str


def parse_nvidia_topo(text: str) -> Pairs:
    """The matrix of ``nvidia-smi topo -m``; rows and columns of network cards are left out."""
    header: list[str] = []
    pairs: Pairs = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        cells = line.split()
        if not header and cells[:1] == ["GPU0"] and "X" not in cells:
            header = cells
        elif header and cells and re.fullmatch(r"GPU\d+", cells[0]):
            row = int(cells[0][3:])
            for name, cell in zip(header, cells[1:], strict=False):
                if re.fullmatch(r"GPU\d+", name) and (column := int(name[3:])) != row:
                    pairs[row, column] = cell
    return pairs


def parse_rocm_topo(text: str) -> Pairs:
    """``rocm-smi --showtopo --json``: one key a pair, of which only the upper triangle is printed."""
    system = json.loads(text[text.index("{") :]).get("system", {})
    pairs: Pairs = {}
    for key, value in system.items():
        if found := re.fullmatch(
            r"\(Topology\) Link type between DRM devices (\d+) and (\d+)", key, re.IGNORECASE
        ):
            one, other = int(found[1]), int(found[2])
            pairs[one, other] = pairs[other, one] = str(value).upper()
    return pairs


def parse_amd_topo(text: str) -> Pairs:
    """``amd-smi topology --json``: a list of devices with their ``links``."""
    data = json.loads(text[text.index("[") :])
    return {
        (int(item["gpu"]), int(link["gpu"])): str(link.get("link_type", "UNKNOWN")).upper()
        for item in data
        for link in item.get("links", [])
        if link["gpu"] != item["gpu"]
    }


def islands(pairs: Pairs, devices: list[int]) -> list[set[int]]:
    """Groups of devices that direct links connect, in one or several steps."""
    groups: list[set[int]] = []
    for device in devices:
        near = {
            other for other in devices if pairs.get((device, other), "").startswith(_DIRECT)
        } | {device}
        joined = [group for group in groups if group & near]
        groups = [group for group in groups if not group & near] + [near.union(*joined)]
    return groups


def links(
    pairs: Pairs, devices: list[int], profile: Device | None, pcie_generation: int | None = None
) -> Links | None:
    """What joins ``devices``; None for a single device, or when the tool's matrix lacks one of them."""
    inside = {pair: link for pair, link in pairs.items() if set(pair) <= set(devices)}
    if len(devices) < 2 or len(inside) < len(devices) * (len(devices) - 1):
        return None
    groups = islands(inside, devices)
    domain = min(map(len, groups))
    if domain == 1:
        ways = ", ".join(sorted(set(inside.values())))
        return Links(
            "pcie", len(devices), None, _pcie(profile, pcie_generation), f"over PCIe ({ways})"
        )
    direct = sorted({link for link in inside.values() if link.startswith(_DIRECT)})
    kind: Literal["nvlink", "xgmi"] = "xgmi" if direct[0] == "XGMI" else "nvlink"
    per_pair = (
        int(direct[0][2:])
        if kind == "nvlink" and len(direct) == 1 and direct[0][2:].isdigit()
        else None
    )
    whole = all(
        inside[a, b].startswith(_DIRECT) for group in groups for a in group for b in group if a != b
    )
    if not whole or len(set(map(len, groups))) > 1:
        return Links(
            kind,
            domain,
            per_pair,
            None,
            f"a partial mesh ({', '.join(direct)}), which no fabric here describes",
        )
    if domain == len(devices):
        return Links(
            kind,
            domain,
            per_pair,
            _direct(profile, domain, alone=True),
            f"all to all ({', '.join(direct)})",
        )
    return Links(
        kind,
        domain,
        per_pair,
        _direct(profile, domain, alone=False),
        f"groups of {domain} ({', '.join(direct)}), PCIe between them",
    )


def _sold_with(profile: Device | None) -> list[Fabric]:
    return (
        [fabric(name) for name in (profile.node.fabric, *profile.node.alternatives)]
        if profile
        else []
    )


def _direct(profile: Device | None, domain: int, *, alone: bool) -> str | None:
    """The device's fabric that makes such groups: a switch also in part, when no device is left outside; a bridge only whole."""
    for each in _sold_with(profile):
        if each.topology in ("mesh", "ring", "switch") and each.domain is not None:
            bridged = each.beyond is not None
            if each.domain == domain or (alone and not bridged and each.domain > domain):
                return each.name
    return None


def _pcie(profile: Device | None, generation: int | None) -> str | None:
    named = f"pcie{generation}"
    if generation is not None:
        return named if named in fabric_names() else None
    return next((each.name for each in _sold_with(profile) if each.topology == "pcie"), None)
