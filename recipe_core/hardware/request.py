"""The hardware that a request names: shipped devices, or a custom profile as file or values.

A custom profile has all fields of a file of ``hw_profiles/``, or only those that differ from the
shipped device it is ``based_on``. Numbers and lists replace the base's; ``peak_flops_per_s``,
``node`` and ``sources`` are merged by key, ``roofline`` by family and dtype (a family with ``any``
replaces the base's, as it holds for every dtype).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from recipe_core.base.documented import DescribedModel, models_at
from recipe_core.base.documents import parse_yaml, read_text
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Commitment, Device

FIELD = "hardware.device"
# The largest profile: shipped ones have up to 7,000 bytes, and a link has to hold it.
MAX_BYTES = 24 << 10
SUFFIXES = (".yaml", ".yml")
BASE = "based_on"
_BY_KEY = ("peak_flops_per_s", "node", "sources")

# Plausible ranges, wide enough for any device: a mistake in a unit is off by more.
_PLAUSIBLE = {
    "memory_bytes": (2.0**28, 2.0**50, "bytes"),
    "memory_bandwidth_bytes_per_s": (1e9, 1e15, "bytes per second"),
    "peak_flops_per_s": (1e9, 1e18, "operations per second"),
    "tdp_watts": (1.0, 1e5, "watts"),
}


# --- reading


def is_profile_path(device: object) -> bool:
    return isinstance(device, str) and device.casefold().endswith(SUFFIXES)


def read_profile(path: str) -> dict[str, Any]:
    """The profile in a file, as plain values.

    Raises:
        InputError: when there is none.
    """
    return plain_profile(read_text(Path(path).expanduser(), field=FIELD, limit=MAX_BYTES), path)


def plain_profile(text: str, name: str) -> dict[str, Any]:
    """The profile in a YAML text as JSON values, not yet checked against the schema.

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
    plain: dict[str, Any] = json.loads(canonical_text(value))
    return plain


def canonical_text(profile: Mapping[str, Any]) -> str:
    """A profile's plain values as one text, its identity; dates are texts.

    Raises:
        HardwareError: when it is too large or nested too deeply.
    """
    try:
        text = json.dumps(profile, default=str, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise HardwareError(f"is not a profile: {error}.", field=FIELD) from None
    if len(text) > MAX_BYTES:
        hint = "Remove what estimates do not need, or use based_on."
        raise HardwareError(
            f"has {len(text):,} characters; the limit is {MAX_BYTES:,}.",
            field=FIELD,
            hint=hint,
        )
    return text


def split_count(text: str, field: str = "hardware") -> tuple[str, int | None]:
    """``mi300x:8`` as the name and the count of a device; None without a count.

    Raises:
        InputError: for a count that is none.
    """
    name, colon, count = text.partition(":")
    if colon and not (count.isdecimal() and 0 < int(count[:9]) <= 1 << 20):
        message = f"{text!r} is not a device or device:count."
        raise InputError(message, field=field, hint="For example mi300x:8.")
    return name, int(count) if colon else None


def with_profiles(value: Any) -> Any:
    """A request's plain values with every path of a profile replaced by the profile."""
    if not isinstance(value, Mapping):
        return value
    out = dict(value)
    if "hardware" in out:
        out["hardware"] = _read_paths(out["hardware"])
    if isinstance(options := out.get("options"), Mapping) and "hardware" in options:
        out["options"] = {**options, "hardware": _read_paths(options["hardware"])}
    return out


def _read_paths(part: Any, field: str = "") -> Any:
    """Hardware, or a part of it, with the profiles of its devices and of those to choose from."""
    if isinstance(part, Mapping):
        return {name: _read_paths(item, str(name)) for name, item in part.items()}
    if isinstance(part, list | tuple):
        return [_read_paths(item, field) for item in part]
    is_path = field in ("device", "devices") and is_profile_path(part)
    return read_profile(part) if is_path else part


# --- completing and checking


def merge_profile(base: Device, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A profile that is based on a shipped one, complete.

    Raises:
        HardwareError: for a source under a name that the base cites for another.
    """
    shipped = base.model_dump(mode="json", exclude_none=True)
    changes = {name: value for name, value in changes.items() if name != BASE}
    sources = changes.get("sources")
    for name, source in sources.items() if isinstance(sources, Mapping) else ():
        if name in shipped["sources"] and source != shipped["sources"][name]:
            message = f"is already a source of {base.name}, which its own numbers cite."
            hint = "Choose another name."
            raise HardwareError(message, field=f"{FIELD}.sources.{name}", hint=hint)
    title = f"{base.title}, customised"
    out = {**shipped, "title": title, "known_as": base.name, **changes}
    for field in _BY_KEY:
        if isinstance(changes.get(field), Mapping):
            out[field] = {**shipped[field], **changes[field]}
    if isinstance(changes.get("roofline"), Mapping):
        out["roofline"] = dict(shipped["roofline"])
        for family, cells in changes["roofline"].items():
            replaces = not isinstance(cells, Mapping) or "any" in cells
            shipped_cells = {} if replaces else shipped["roofline"].get(family, {})
            out["roofline"][family] = {**shipped_cells, **cells} if shipped_cells else cells
    return out


def validate_profile(profile: Mapping[str, Any]) -> Device:
    """A complete profile as a Device.

    Raises:
        HardwareError: names the first wrong field, its value and the fix.
    """
    _check_units(profile)
    try:
        return Device.model_validate(profile)
    except ValidationError as error:
        raise _profile_problem(error) from None


def _check_units(profile: Mapping[str, Any]) -> None:
    for field, (low, high, unit) in _PLAUSIBLE.items():
        quantities = profile.get(field)
        if field != "peak_flops_per_s" or not isinstance(quantities, Mapping):
            quantities = {"": quantities}
        for name, quantity in quantities.items():
            value = quantity.get("value") if isinstance(quantity, Mapping) else None
            if isinstance(value, int | float) and not low <= value <= high:
                path = ".".join(step for step in (FIELD, field, str(name), "value") if step)
                message = f"{value:.6g} is not a plausible number of {unit}."
                hint = f"Set it in {unit}, between {low:.3g} and {high:.3g}."
                raise HardwareError(message, field=path, hint=hint)


_HINTS = {
    "name": "Use lowercase letters, digits, dots and dashes, as in my-h100.",
    "title": "One line of text, without < > { } and `.",
    "aliases": "One line of text each, without < > { } and `.",
    "url": "Set an http or https address, or leave it out.",
    "source": "Set it to an entry of sources.",
}


def _profile_problem(error: ValidationError) -> HardwareError:
    problem = first_problem(error)
    path = [s for s in problem.path if s != "[key]" and not s.startswith("literal[")]
    else_hint = "See docs/reference/hardware.md."
    hint, text = next((_HINTS[s] for s in reversed(path) if s in _HINTS), else_hint), problem.text
    match problem.kind:
        case "missing":
            hint = "Add it, or set based_on to a shipped device that has it."
        case "extra_forbidden":
            models = models_at(Device, path[:-1])
            names = [name for model in models for name in model.model_fields]
            hint = f"Available: {', '.join(names if path[:-1] else [*names, BASE])}."
        case "model_type" if not isinstance(problem.value, Mapping):
            hint = "Write {value: …, source: …, status: measured}, with the source under sources."
        case "string_pattern_mismatch":
            text = f"has the wrong form (got {problem.value!r:.80})"
    return HardwareError(f"{text}.", field=".".join([FIELD, *path]), hint=hint)


class HardwareRequest(DescribedModel):
    """The devices on offer: one kind, in nodes of equal size."""

    device: Text | dict[str, Any]
    """Device: the name of a profile, or a whole profile of your own; on the command line also the
    path of one."""

    per_node: Count = 8
    """Devices in a node; of a rack (GB200, GB300 NVL72) at most those of one tray, 4."""

    nodes: Count = 1
    """Nodes in the cluster."""

    fabric: Text | None = None
    """Link between the devices of a node, by name (``nvlink4``); left out, the one in the device's
    profile."""

    network: Text | None = None
    """Link between nodes, by name (``ib-ndr-400``); left out, the one in the device's profile."""

    offer: Text | None = None
    """Price offer to count with, by name; left out, the cheapest that fits ``commitment``: of those
    that are verified, 90 days old at most and of no market place, if any, and of a machine that
    holds a node. Give either an offer or ``usd_per_device_hour``."""

    usd_per_device_hour: Positive | None = None
    """Your own price of one device, in US dollars per hour; left out, an offer's."""

    commitment: Commitment | None = None
    """What the price commits you to: ``on-demand`` by the hour, ``spot`` until the provider takes
    the device back, ``reserved`` for a term, used or not. Selects the cheapest such offer (left
    out: on-demand), or says what your own price is for. A cluster of ``options.hardware`` that
    states no price has that of ``hardware``."""

    term_months: Annotated[int, Field(ge=1, le=120)] | None = None
    """Length of a reservation in months, only with ``commitment: reserved``; left out, any."""

    @model_validator(mode="after")
    def _term(self) -> Self:
        if self.term_months is not None and self.commitment != "reserved":
            raise ValueError("term_months needs commitment: reserved")
        return self

    @property
    def states_price(self) -> bool:
        """Return whether it says anything of its price."""
        price_fields = (self.offer, self.usd_per_device_hour, self.commitment)
        return any(value is not None for value in price_fields)

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes

    @property
    def device_name(self) -> str:
        """The name of the device, shipped or custom."""
        if isinstance(self.device, str):
            return self.device
        return str(self.device.get("name", "own device"))
