"""The wizard's shared state: one PlanRequest and the pinned splits, in the session and in the link.

Pages compute nothing: they edit the request by field name and draw what the core says about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import streamlit as st

from recipe_core.base import progress
from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import split_name
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.cluster import device, is_own
from recipe_core.hardware.profile import Device
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.request.edit import change, select_split, shared_candidate, value_of
from recipe_core.request.link import DEFAULT, from_query, link_query
from recipe_core.request.schema import PlanRequest, describe_field
from recipe_core.request.split_key import key_of, read_pins, split_of
from recipe_core.search import fixes
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan

MAX_PINS = 4
BY_MEANS = {"objective.limits.percentile": None}


def escape(text: object) -> str:
    """Text as it is, where Markdown is read: model names have underscores, prices dollar signs."""
    return re.sub(r"([\\`*_\[\]$<>~#|:])", r"\\\1", str(text))


def dark() -> bool:
    """Whether the page is dark."""
    return st.context.theme.type == "dark"


def main_button() -> str:
    """The type of a page's main button: filled, but in dark, where the primary colour is too light for the white text of filled buttons."""
    return "secondary" if dark() else "primary"


# --- state --------------------------------------------------------------------------------------------------------------------


def request() -> PlanRequest:
    """What the person has asked for so far."""
    found: PlanRequest = st.session_state["request"]
    return found


def training() -> bool:
    """Whether the request is about training."""
    return request().is_training


def pins() -> list[str]:
    """Keys of the pinned splits."""
    found: list[str] = st.session_state["pins"]
    return found


def link() -> dict[str, str]:
    """The query of a link to what is on the screen."""
    return link_query(request(), pins())


def read_url() -> None:
    """Take request and pins from the link when it says something this session did not write."""
    state, given = st.session_state, st.query_params.to_dict()
    edited = state.pop("edited", False)
    if "request" in state and (edited or not given or given == state.get("written")):
        return  # ours, a click in the navigation, or an edit while the address is still the old one
    state["request"], ignored = from_query(given)
    state["pins"], bad_pins = read_pins(given.get("pins", ""), MAX_PINS)
    state["ignored"] = [*ignored, *bad_pins]


def write_url() -> None:
    """Make the address a link to what is on the screen."""
    st.session_state["written"] = link()
    if st.query_params.to_dict() != link():
        st.query_params.from_dict(link())


def apply(changes: Mapping[str, Any]) -> None:
    """Change the request; an edit that makes it invalid is refused and said."""
    st.session_state["edited"] = True
    try:
        st.session_state["request"] = change(request(), changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def edit(
    widget: Callable[..., Any],
    label: str,
    field: str,
    *,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    optional: bool = False,
    **options: Any,
) -> None:
    """Draw a widget on one field of the request.

    Its help is the field's description, unless a page says more than the field does. ``optional``:
    an empty widget takes the field out, else it changes nothing.
    """
    key = f"_{field}"
    st.session_state[key] = read(
        value_of(request(), field)
    )  # seeded each run: no second source for the widget's value

    def commit() -> None:
        value = st.session_state[key]
        if optional or value not in (None, []):
            apply({field: None if value is None else write(value)})

    if optional and widget == st.number_input:
        options["value"] = None  # an emptied field stays empty instead of falling to its minimum
    widget(label, key=key, on_change=commit, **{"help": describe_field(field), **options})


def pick_device(
    widget: Callable[..., Any],
    label: str,
    names: Sequence[str],
    title: Callable[[Device], str],
    **options: Any,
) -> None:
    """Draw a widget on the device: shipped ones by name, and beside them the request's where that is a profile of one's own."""
    now = request().hardware.device
    chosen = device(now)
    edit(
        widget,
        label,
        "hardware.device",
        read=lambda _: chosen.name,
        write=lambda name: now if name == chosen.name else name,
        options=[*names, *([chosen.name] if is_own(chosen) else [])],
        format_func=lambda name: title(chosen if name == chosen.name else device(name)),
        **options,
    )


def choose(
    widget: Callable[..., Any],
    label: str,
    key: str,
    now: Any,
    changes: Callable[[Any], Mapping[str, Any]],
    **options: Any,
) -> None:
    """Draw a widget whose choice changes several fields; ``changes`` says which, for a choice that is not empty."""
    st.session_state[key] = now

    def commit() -> None:
        if (value := st.session_state[key]) is not None:
            apply(changes(value))

    widget(label, key=key, on_change=commit, **options)


def toggle_pin(key: str) -> None:
    """Pin a split, or take its pin away; the oldest pin makes room."""
    kept = [pin for pin in pins() if pin != key]
    st.session_state["pins"] = kept if key in pins() else [*pins(), key][-MAX_PINS:]
    st.session_state["edited"] = True


def take(key: str) -> None:
    """Make a split the chosen one; the recipe page shows it."""
    apply(select_split(request(), key))


def follow_edit() -> None:
    """Run the whole page anew where something was asked or pinned in a part of it that runs alone; to be called first in such a part."""
    if st.session_state.get("edited"):  # a whole run has taken the mark away before it comes here
        st.rerun()


def start_over() -> None:
    """Back to the request of an empty link."""
    st.session_state.update({"request": DEFAULT, "pins": [], "edited": True})


# --- what the core says -----------------------------------------------------------------------------------------------------------


def model() -> ModelSpec:
    """The model of the request; raises RecipeError."""
    return load_model(request().model, folders=folders_allowed())


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say what is being done; while requests are simulated for percentiles, how far that is, with a way to do without.

    The button, or any other edit, ends the work at its next step: there Streamlit stops a script that has something new to run.
    """
    place = st.empty()
    with place.container(), st.spinner(what):
        bars: list[Any] = []

        def show(done: int, steps: int) -> None:
            said = f"Requests of {done} of {steps} splits are simulated"
            if not bars:
                bars.append(st.progress(0.0))
                st.button(
                    "Judge by means instead",
                    key="no-percentile",
                    icon=":material/close:",
                    on_click=apply,
                    args=(BY_MEANS,),
                )
            bars[0].progress(done / steps, text=said)

        with progress.watched(show):
            yield
    place.empty()


@lru_cache(maxsize=32)
def _board(text: str, digest: str, may_read: bool) -> Plan:  # noqa: ARG001 - the digest tells changed folders apart
    with working("Judging every split"):
        return plan(PlanRequest.parse(json.loads(text)), folders=may_read)


@lru_cache(maxsize=64)
def _remedies(text: str, digest: str, may_read: bool) -> list[fixes.Remedy]:
    found = _board(text, digest, may_read)
    with working("Looking for a change that fits"):
        return fixes.remedies(found)


def _cache_key() -> tuple[str, str]:
    """A plan depends on everything but the split that was chosen, and on what the model's folder holds now.

    Of a training candidate stays what all splits share.
    """
    return json.dumps(
        request().model_copy(update={"candidate": shared_candidate(request())}).to_json()
    ), model().digest


def board() -> Plan:
    """The plan of the request, cached; raises RecipeError. Shared between sessions, so read only."""
    return _board(*_cache_key(), folders_allowed())


def board_or_none() -> Plan | None:
    """The plan; None where the verdict above says what is wrong, and the fix."""
    try:
        return board()
    except RecipeError:
        return None


def remedies() -> list[fixes.Remedy]:
    """Changes after which a split fits, each really planned."""
    return _remedies(*_cache_key(), folders_allowed())


def chosen_key() -> str | None:
    """The key of the split that was taken, None while the ranking chooses."""
    candidate = request().candidate
    return key_of(candidate.model_dump()) if candidate else None


def chosen(found: Plan) -> int | None:
    """The row of the chosen split while it fits, else the best row."""
    key = chosen_key()
    row = found.row(key) if key else None
    return row if row is not None and found.feasible[row] else found.best()


def chosen_is_gone(found: Plan) -> str | None:
    """The name of a chosen split that no longer fits."""
    key = chosen_key()
    row = found.row(key) if key else None
    return (
        None
        if key is None or (row is not None and found.feasible[row])
        else split_name(split_of(key) or {})
    )
