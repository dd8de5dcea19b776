"""A device that the package does not ship: a profile of the user's own, as a file or as plain values in a request.

It has the fields of a file of ``hw_profiles/``, whole, or ``based_on`` a shipped device with only what differs. Figures and lists go
before the base's as they are; ``peak_flops_per_s``, ``node`` and ``sources`` are merged by their keys, ``roofline`` by family and dtype
(a family that gives ``any`` replaces the base's: it speaks for every dtype).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import isclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from recipe_core.base.documents import parse_yaml, read_text
from recipe_core.base.errors import HardwareError
from recipe_core.hardware.profile import Device

FIELD = "hardware.device"
MAX_BYTES = 24 << 10
"""The largest profile that is read: shipped ones have up to 7,000 bytes, and a link has to hold it."""
SUFFIXES = (".yaml", ".yml")
BASE = "based_on"
_BY_KEY = ("peak_flops_per_s", "node", "sources")

_PLAUSIBLE = {
    "memory_bytes": (2.0**28, 2.0**50, "bytes"),
    "memory_bandwidth_bytes_per_s": (1e9, 1e15, "bytes per second"),
    "peak_flops_per_s": (1e9, 1e18, "operations per second"),
    "tdp_watts": (1.0, 1e5, "watts"),
}
"""What figures lie between, in their unit: a mistake in a unit is off by more."""


# --- reading ----------------------------------------------------------------------------------------------------------------------


def is_path(device: object) -> bool:
    """Whether what a request calls its device is the path of a profile."""
    return isinstance(device, str) and device.casefold().endswith(SUFFIXES)


def read_profile(path: str) -> dict[str, Any]:
    """The profile in a file, as plain values; raises HardwareError or InputError when there is none."""
    return plain_profile(read_text(Path(path).expanduser(), field=FIELD, limit=MAX_BYTES), path)


def plain_profile(text: str, name: str) -> dict[str, Any]:
    """The profile in a YAML text, as values that JSON has too; not yet held against the schema.

    Raises:
        InputError: when it is not YAML, or not an object.
    """
    value = parse_yaml(text, name)
    if not isinstance(value, Mapping):
        raise HardwareError(
            f"{name} holds {type(value).__name__}, not a profile.",
            field=FIELD,
            hint="Start from `recipe hardware NAME --template`.",
        )
    plain: dict[str, Any] = json.loads(canonical(value))
    return plain


def canonical(given: Mapping[str, Any]) -> str:
    """A profile's plain values as one text: what tells profiles apart. A date that YAML reads as one is its text again.

    Raises:
        HardwareError: when it is too large or nested too deeply.
    """
    try:
        text = json.dumps(given, default=str, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise HardwareError(f"is no profile: {error}.", field=FIELD) from None
    if len(text) > MAX_BYTES:
        hint = "Leave out what estimates do not need, or use based_on."
        raise HardwareError(
            f"has {len(text):,} characters; a profile has at most {MAX_BYTES:,}.",
            field=FIELD,
            hint=hint,
        )
    return text


def with_profiles(value: Any) -> Any:
    """A request's plain values with paths of profiles replaced by what the files hold: the request is complete then."""
    if not isinstance(value, Mapping):
        return value
    out = dict(value)
    if isinstance(out.get("hardware"), Mapping):
        out["hardware"] = _read(out["hardware"])
    options = out.get("options")
    if isinstance(options, Mapping) and isinstance(options.get("hardware"), list | tuple):
        out["options"] = {**options, "hardware": [_read(each) for each in options["hardware"]]}
    return out


def _read(hardware: Any) -> Any:
    if isinstance(hardware, Mapping) and is_path(hardware.get("device")):
        return {**hardware, "device": read_profile(hardware["device"])}
    return hardware


# --- completing and checking ----------------------------------------------------------------------------------------------------------


def merged(base: Device, given: Mapping[str, Any]) -> dict[str, Any]:
    """A profile that is based on a shipped one, complete.

    Raises:
        HardwareError: for a source under a name that the base's figures cite for another.
    """
    whole = base.model_dump(mode="json", exclude_none=True)
    own = {name: value for name, value in given.items() if name != BASE}
    sources = own.get("sources")
    for name, source in sources.items() if isinstance(sources, Mapping) else ():
        if name in whole["sources"] and source != whole["sources"][name]:
            message = f"is a source of {base.name} too, which its own figures cite."
            raise HardwareError(
                message, field=f"{FIELD}.sources.{name}", hint="Give yours another name."
            )
    out = whole | {"title": f"{base.title}, own figures", "known_as": base.name} | own
    for field in _BY_KEY:
        if isinstance(own.get(field), Mapping):
            out[field] = whole[field] | own[field]
    if isinstance(own.get("roofline"), Mapping):
        out["roofline"] = whole["roofline"] | {
            family: cells
            if not isinstance(cells, Mapping) or "any" in cells
            else whole["roofline"].get(family, {}) | cells
            for family, cells in own["roofline"].items()
        }
    return out


def validated(whole: Mapping[str, Any]) -> Device:
    """A complete profile as a Device; raises HardwareError naming the first field that is wrong, what it holds, and the fix."""
    _check_units(whole)
    try:
        return Device.model_validate(whole)
    except ValidationError as error:
        raise _problem(error) from None


def _check_units(whole: Mapping[str, Any]) -> None:
    """Raise for a figure that no device has in its unit."""
    for field, (least, most, unit) in _PLAUSIBLE.items():
        stated = whole.get(field)
        figures = (
            stated if field == "peak_flops_per_s" and isinstance(stated, Mapping) else {"": stated}
        )
        for name, figure in figures.items():
            value = figure.get("value") if isinstance(figure, Mapping) else None
            if isinstance(value, int | float) and not least <= value <= most:
                where = ".".join(step for step in (FIELD, field, str(name), "value") if step)
                hint = f"Give {unit}, between {least:.3g} and {most:.3g}."
                raise HardwareError(
                    f"{value:.6g} is no plausible number of {unit}.", field=where, hint=hint
                )


_HINTS = {
    "name": "Use small letters, digits, dots and dashes, as in my-h100.",
    "title": "One line of text, without < > { } and `.",
    "aliases": "One line of text each, without < > { } and `.",
    "url": "Give an http or https address, or leave it out.",
    "source": "Name an entry of sources.",
}


def _problem(error: ValidationError) -> HardwareError:
    details = error.errors(include_url=False)
    first = next((each for each in details if each["type"] == "extra_forbidden"), details[0])
    path = [
        step
        for step in map(str, first["loc"])
        if step != "[key]" and not step.startswith("literal[")
    ]
    field, said = ".".join([FIELD, *path]), first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return HardwareError(
            "is missing.",
            field=field,
            hint="Add it, or say based_on: a shipped device that has it.",
        )
    if first["type"] == "extra_forbidden":
        return HardwareError(
            "is not a known field.",
            field=field,
            hint=f"Known here: {', '.join(_known(path[:-1]))}.",
        )
    hint = next(
        (_HINTS[step] for step in reversed(path) if step in _HINTS),
        "docs/hardware.md describes the fields.",
    )
    given = first.get("input")
    if first["type"] == "model_type" and not isinstance(given, Mapping):
        hint = "Write {value: …, source: …, status: measured}, with the source under sources."
    if first["type"] == "string_pattern_mismatch":
        said = "is not of the form that is read here"
    shown = "" if isinstance(given, Mapping | list | tuple | BaseModel) else f" (got {given!r:.80})"
    return HardwareError(f"{said[0].lower()}{said[1:]}{shown}.", field=field, hint=hint)


def _known(path: list[str]) -> list[str]:
    """The fields that a profile has at a place."""
    at: Any = Device
    for step in path:
        if _is_schema(at):
            field = at.model_fields.get(step)
            at = field.annotation if field else None
        elif get_origin(at) is dict:
            at = get_args(at)[1]
        if get_origin(at) is not dict:
            at = next(filter(_is_schema, get_args(at)), at)
    return [*at.model_fields, *([] if path else [BASE])] if _is_schema(at) else []


def _is_schema(annotation: Any) -> bool:
    return isclass(annotation) and issubclass(annotation, BaseModel)
