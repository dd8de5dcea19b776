"""Choices that a reader keeps side by side: each a name and the request of one split.

They do not belong to a plan, so that models, devices, loads and formats can differ, and nothing
computed is kept. In a link they are one parameter, ``kept``: packed pairs of a name and the query
of a link to that request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.texts import flaw_of_name
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.request.describe import model_name, workload_name
from recipe_core.request.link import from_query, to_query
from recipe_core.request.packed import pack_values, unpack_values
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import candidate_key, split_short_name

MAX_KEPT = 8
MAX_NAME = 80
# Characters of a name.
MAX_PART = 32
_PARAMETER = "kept"


@dataclass(frozen=True)
class Kept:
    """A choice: what a reader calls it, and the request of one layout."""

    name: str
    request: PlanRequest

    @cached_property
    def query(self) -> dict[str, str]:
        return {name: text for name, text in to_query(self.request).items() if name != "v"}


Shelf = tuple[Kept, ...]


# --- changes ---


def keep_choice(shelf: Shelf, request: PlanRequest, name: str = "") -> Shelf:
    """The shelf with one more choice; as it is where that is kept already.

    ``name``: by default what tells the split from others.

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
    candidate_names = [name] if name else list(_default_names(request))
    return (*shelf, Kept(_free_name(shelf, candidate_names), request))


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
    return (*shelf[:place], *shelf[place + 1 :])


def _default_names(request: PlanRequest) -> Iterator[str]:
    """Names that say more and more of a choice, for those that differ in less than their split."""
    split = request.candidate.model_dump() if request.candidate else {}
    parts = [
        model_name(request),
        chip_title(device_profile(request.hardware.device)),
        split_short_name(split),
    ]
    formats = split.get("precision") or split.get("weight_dtype") or ""
    more = ["", formats, str(split.get("engine") or ""), workload_name(request.workload)]
    for n in range(len(more)):
        shown = [_shorten_part(part) for part in (*parts, *more[1 : n + 1]) if part]
        text = "".join(sign if sign.isprintable() else " " for sign in " · ".join(shown))
        yield text[:MAX_NAME].strip()


def _shorten_part(part: str) -> str:
    """A part of a name, without its last pieces where it is long."""
    while len(part) > MAX_PART and " · " in part:
        part = part.rpartition(" · ")[0]
    return part[:MAX_PART]


def _free_name(shelf: Shelf, candidate_names: Sequence[str]) -> str:
    """The first of some names that is free; else the last one with a number."""
    names = {choice.name for choice in shelf}
    checked = [_checked_name(name) for name in candidate_names]
    stem = checked[-1][: MAX_NAME - 4]
    numbered = (f"{stem} ({n})" for n in range(2, MAX_KEPT + 2))
    return next(name for name in chain(checked, numbered) if name not in names)


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
    return {_PARAMETER: pack_values([[choice.name, choice.query] for choice in shelf])}


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
