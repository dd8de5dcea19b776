"""Choices that a reader keeps side by side: each a name and the request of one split.

They do not belong to a plan, so that models, devices, loads and formats can differ, and nothing
computed is kept. In a link they are one parameter, ``kept``: packed pairs of a name, empty where
the reader gave none, and the query of a link to that request.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.texts import flaw_of_name
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.models.catalog import catalog_entry, in_catalog
from recipe_core.models.variants import base_checkpoint
from recipe_core.request.describe import (
    hardware_name,
    limits_summary,
    load_name,
    model_name,
    workload_name,
)
from recipe_core.request.link import from_query, to_query
from recipe_core.request.packed import pack_values, unpack_values
from recipe_core.request.presets import aims, request_aim
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.split_key import candidate_key, split_short_name

MAX_KEPT = 8
MAX_NAME = 80
# Characters of a part of a name that is not the reader's.
MAX_PART = 32
_PARAMETER = "kept"


@dataclass(frozen=True)
class Kept:
    """A choice: its name, the request of one layout, and whether the reader gave the name."""

    name: str
    request: PlanRequest
    is_named: bool = True

    @cached_property
    def query(self) -> dict[str, str]:
        return {name: text for name, text in to_query(self.request).items() if name != "v"}


Shelf = tuple[Kept, ...]


# --- changes ---


def keep_choice(shelf: Shelf, request: PlanRequest, name: str = "") -> Shelf:
    """The shelf with one more choice; as it is where that is kept already.

    ``name``: by default what tells it from the others, and the others from it.

    Raises:
        InputError: when the shelf is full, and for a request that states no whole split or a name
            that is not allowed.
    """
    if shelf_holds(shelf, request):
        return shelf
    if len(shelf) >= MAX_KEPT:
        raise InputError(
            f"{MAX_KEPT} choices are kept, the most that may be.",
            field=_PARAMETER,
            hint="Remove one on the page “Compare”.",
        )
    if request.candidate is None or candidate_key(request.candidate.model_dump()) is None:
        raise InputError(
            "the request does not state a whole layout.", field=_PARAMETER, hint="Choose a layout."
        )
    taken_names = {choice.name for choice in shelf if choice.is_named}
    new = Kept(
        _free_name(taken_names, _checked_name(name)) if name else "", request, is_named=bool(name)
    )
    return _name_by_difference((*shelf, new))


def shelf_holds(shelf: Shelf, request: PlanRequest) -> bool:
    """Return whether a request is on the shelf, under any name; link-less fields do not count."""
    query = Kept("", request).query
    return any(choice.query == query for choice in shelf)


def rename_on_shelf(shelf: Shelf, place: int, name: str) -> Shelf:
    """The shelf with another name for the choice at a place.

    Raises:
        InputError: for a name that is empty, too long, taken or not printable.
    """
    other_names = [choice.name for n, choice in enumerate(shelf) if n != place]
    name = _checked_name(name)
    if name in other_names:
        raise InputError(
            f"{name!r} is the name of another choice.", field="name", hint="Choose another name."
        )
    new = Kept(name, shelf[place].request)
    return (*shelf[:place], new, *shelf[place + 1 :])


def remove_from_shelf(shelf: Shelf, place: int) -> Shelf:
    return _name_by_difference((*shelf[:place], *shelf[place + 1 :]))


def _name_by_difference(shelf: Shelf) -> Shelf:
    """Name the choices that the reader did not name: shortly, by what tells them apart.

    The layout, and before it what of model, device and formats is not the same for all (a single
    choice: model and device); those that this does not tell apart say more.
    """
    parts = [_first_parts(choice.request) for choice in shelf]
    shown = [n == 3 or len(set(texts)) > 1 for n, texts in enumerate(zip(*parts, strict=True))]
    if len(shelf) == 1:
        shown = [True, True, False, True]
    names = [[text for text, on in zip(row, shown, strict=True) if on] for row in parts]
    for texts in zip(*(_further_parts(choice.request) for choice in shelf), strict=True):
        before = [tuple(name) for name in names]
        for name, now, text in zip(names, before, texts, strict=True):
            alike = {other for other, its in zip(texts, before, strict=True) if its == now}
            name += [text] if len(alike) > 1 else []
    out: Shelf = ()
    taken_names = {choice.name for choice in shelf if choice.is_named}
    for choice, name in zip(shelf, names, strict=True):
        text = " · ".join(part[:MAX_PART] for part in name if part)
        text = "".join(sign if sign.isprintable() else " " for sign in text)[:MAX_NAME].strip()
        out = (
            *out,
            choice if choice.is_named else replace(choice, name=_free_name(taken_names, text)),
        )
        taken_names.add(out[-1].name)
    return out


def _free_name(taken_names: Set[str], name: str) -> str:
    """A name; with a number where it is taken."""
    numbered = (f"{name[: MAX_NAME - 4]} ({n})" for n in range(2, MAX_KEPT + 2))
    return next(free for free in chain([name], numbered) if free not in taken_names)


def _first_parts(request: PlanRequest) -> tuple[str, str, str, str]:
    """Model, device, formats (``int8 + fp8 KV``, or the precision of a run) and layout."""
    split = request.candidate.model_dump() if request.candidate else {}
    formats, cache = split.get("precision") or split.get("weight_dtype"), split.get("kv_dtype")
    if cache not in (None, "auto", "bf16", "fp16"):
        formats = f"{formats} + {cache} KV"
    device = chip_title(device_profile(request.hardware.device))
    return base_model_name(request), device, str(formats), split_short_name(split)


def base_model_name(request: PlanRequest) -> str:
    """The model without its owner, as the catalog has it; of a quantised copy its original."""
    if not isinstance(request.model, str):
        return model_name(request)
    base = base_checkpoint(request.model) or request.model
    return (catalog_entry(base).id if in_catalog(base) else base).rpartition("/")[2]


def _further_parts(request: PlanRequest) -> tuple[str, ...]:
    """Engine, load, checkpoint, cluster, work, limits and aim: what is said further, in order."""
    workload, aim = request.workload, request_aim(request)
    runs = str(request.candidate.engine) if request.candidate else ""
    return (
        str((framework if request.is_training else engine)(runs).title),
        load_name(workload) if isinstance(workload, ServingWorkload) else "",
        model_name(request),
        hardware_name(request.hardware),
        workload_name(workload),
        limits_summary(request),
        aims(request)[aim].title if aim else "weighted goals",
    )


def _checked_name(name: str) -> str:
    name = " ".join(name.split())
    if not name or len(name) > MAX_NAME:
        raise InputError(
            f"a name has 1 to {MAX_NAME} characters, not {len(name):,}.",
            field="name",
            hint="Type a shorter one." if name else "Type a name.",
        )
    if not name.isprintable():
        flaw = flaw_of_name(name) or ("holds a character that cannot be seen", "Remove it.")
        raise InputError(f"the name {flaw[0]}.", field="name", hint=flaw[1])
    return name


# --- links ---


def shelf_query(shelf: Shelf) -> dict[str, str]:
    """Return what is kept as a parameter of a link; none where that is nothing."""
    if not shelf:
        return {}
    pairs = [[choice.name if choice.is_named else "", choice.query] for choice in shelf]
    return {_PARAMETER: pack_values(pairs)}


def shelf_of(query: Mapping[str, str]) -> tuple[Shelf, list[str]]:
    """Return what a link keeps, and a sentence for each choice that was left out; never raises.

    A choice of which any part cannot be read is left out whole: with another device or load it
    would be another choice under the same name.
    """
    text = query.get(_PARAMETER, "")
    if not text:
        return (), []
    try:
        values = unpack_values(text, _PARAMETER)
    except InputError as error:
        return (), [f"{error.message} {error.hint or ''}".strip()]
    if not isinstance(values, list):
        return (), [f"{_PARAMETER}: is not a list of choices."]
    shelf: Shelf = ()
    ignored: list[str] = []
    if len(values) > MAX_KEPT:
        count = f"{len(values):,} choices are kept; the first {MAX_KEPT} are read."
        ignored.append(f"{_PARAMETER}: {count}")
    for n, value in enumerate(values[:MAX_KEPT], 1):
        try:
            shelf = _add_linked_choice(shelf, value)
        except RecipeError as error:
            ignored.append(f"{_PARAMETER} {n}: {error.message} {error.hint or ''}".strip())
    return shelf, ignored


def _add_linked_choice(shelf: Shelf, value: Any) -> Shelf:
    """The shelf with a choice as a link writes it."""
    shape = InputError("is not a name with the fields of a request.")
    if not isinstance(value, list) or len(value) != 2:
        raise shape
    name, fields = value
    if not isinstance(name, str) or not isinstance(fields, Mapping):
        raise shape
    if not all(isinstance(text, str) for text in fields.values()):
        raise shape
    request, ignored = from_query(fields)
    if ignored:
        raise InputError(f"{name:.80} was left out: {ignored[0]}")
    return keep_choice(shelf, request, name)
