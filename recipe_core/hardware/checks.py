"""Checks of a shipped device's profile beyond its schema, each with what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from pydantic import BaseModel

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Quantity
from recipe_core.hardware.profile import Device, DtypeFile, Fabric, Roofline

# A field, what is wrong with it, and the fix.
Flaw = tuple[str, str, str]


def check_device(
    profile: Device,
    file: DataFile,
    fabric: Callable[[str], Fabric],
    fabrics: Callable[[], list[str]],
    dtypes: Callable[[], DtypeFile],
) -> None:
    """Raise HardwareError for the first thing that a device's file lacks.

    ``fabric`` and ``dtypes`` find a link by name and the formats by architecture, ``fabrics`` the
    names of all links.
    """
    rules = (
        _name_flaws(profile, file),
        link_flaws(profile, fabric, fabrics, "{hint} Or add hw_profiles/fabrics/{name}.yaml."),
        _format_flaws(profile, dtypes()),
        _fit_flaws(profile),
    )
    for where, text, hint in chain.from_iterable(rules):
        raise file.problem(where, text, hint)


def _name_flaws(profile: Device, file: DataFile) -> Iterator[Flaw]:
    if profile.name != file.path.stem:
        hint = f"Rename the file to {profile.name}.yaml, or set `name: {file.path.stem}`."
        yield "name", f"{profile.name!r} is not the name of the file", hint


def link_flaws(
    profile: Device,
    fabric: Callable[[str], Fabric],
    fabrics: Callable[[], list[str]],
    hint: str,
) -> Iterator[Flaw]:
    """Yield links that are unknown or in the wrong place; ``hint`` is the fix of an unknown one."""
    node = profile.node
    inside = [("fabric", node.fabric), *(("alternatives", name) for name in node.alternatives)]
    links = [(field, name, "scale-up") for field, name in inside]
    for field, name, kind in (*links, ("network", node.network, "scale-out")):
        try:
            link = fabric(name)
        except HardwareError as error:
            fix = hint.format(hint=error.hint, name=name)
            yield f"node.{field}", f"{name!r} is not a link that is known", fix
            continue
        if link.kind != kind:
            fitting = ", ".join(other for other in fabrics() if fabric(other).kind == kind)
            yield f"node.{field}", f"{name!r} is a {link.kind} link", f"Available: {fitting}."


def _format_flaws(profile: Device, formats: DtypeFile) -> Iterator[Flaw]:
    """Yield which formats an architecture runs is said once, in rows that its devices share.

    Of one that is announced nobody knows what engines run: the vendor's word counts.
    """
    if profile.announced:
        return
    rows = [row for row in formats.support if profile.architecture in row.architectures]
    runs = {row.dtype for row in rows if set(row.engines.values()) != {"none"}}
    native = {row.dtype for row in rows if row.silicon == "native"}
    for field, verb, dtypes, supported in (
        ("weight_dtypes", "runs", profile.weight_dtypes, runs),
        ("peak_flops_per_s", "multiplies", profile.peak_flops_per_s, native),
    ):
        for dtype in dtypes:
            if dtype not in supported:
                architecture = profile.architecture
                fix = f"add {architecture} to its row of hw_profiles/dtypes.yaml"
                text = f"{dtype} is not a format that {architecture} {verb}"
                yield field, text, f"Leave it out, or {fix}."


def _fit_flaws(profile: Device) -> Iterator[Flaw]:
    """A fitted figure can be fitted again: its source says by which command."""
    for where, figure in _profile_figures(profile, ""):
        if figure.status == "fitted" and profile.sources[figure.source].command is None:
            hint = "Give the command that fits it, or another status."
            yield f"sources.{figure.source}", f"has no command, and {where} is fitted", hint


def _profile_figures(value: object, where: str) -> Iterator[tuple[str, Quantity | Roofline]]:
    if isinstance(value, Quantity | Roofline):
        yield where, value
    elif isinstance(value, BaseModel | dict):
        items = value.items() if isinstance(value, dict) else iter(value)
        for name, item in items:
            yield from _profile_figures(item, f"{where}.{name}" if where else str(name))
