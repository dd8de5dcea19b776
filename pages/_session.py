"""The session's state: the request, what is kept beside it, and edits of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec
from recipe_core.request.edit import change, select_split, shared_candidate
from recipe_core.request.link import DEFAULT
from recipe_core.request.open_hardware import changed_market
from recipe_core.request.presets import preset_changes
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import Shelf, keep_choice
from recipe_core.request.size import Market
from recipe_core.request.split_key import candidate_key

MAX_PINS = 4
LENSES = {
    "layouts": "Layouts",
    "hardware": "Hardware",
    "formats": "Formats",
    "over-time": "Over time",
    "why": "Why",
}
"""Views of the plan on its page, by their names in a link: the first is open where none is."""


def asked() -> PlanRequest:
    """Return what the reader asked; its hardware means nothing while that is to be found."""
    current: PlanRequest = st.session_state["request"]
    return current


def request() -> PlanRequest:
    """Return what is asked, on the hardware that was found for it where that is open."""
    on_found: PlanRequest | None = st.session_state.get("found")
    return on_found if on_found is not None and hardware_is_open() else asked()


def asks_for_training() -> bool:
    return request().is_training


def pins() -> list[str]:
    keys: list[str] = st.session_state["pins"]
    return keys


def current_market() -> Market:
    """The hardware to choose from, where it is not decided yet."""
    current: Market = st.session_state.get("market", Market())
    return current


def shelf() -> Shelf:
    """The choices that are kept side by side; they survive a change of the request."""
    choices: Shelf = st.session_state.get("kept", ())
    return choices


def selected_key() -> str | None:
    """The key of the split that the request states, None while the ranking decides."""
    candidate = request().candidate
    return candidate_key(candidate.model_dump()) if candidate else None


def states_hardware(names: Iterable[str]) -> bool:
    """Return whether parameters of a link say which hardware it is."""
    return any(name.startswith(("hardware.", "options.hardware")) for name in names)


def current_lens() -> str:
    lens = st.session_state.get("lens")
    return lens if lens in LENSES else next(iter(LENSES))


def change_to(changes: Mapping[str, Any]) -> None:
    """Change the request.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    takes_hardware = hardware_is_open() and any(map(_is_of_hardware, changes.items()))
    changed = change(request() if takes_hardware else asked(), changes)
    # a layout is one on the hardware that was found: from here that is chosen
    replace_request(changed, hardware_open=hardware_is_open() and not takes_hardware)


def _is_of_hardware(changed: tuple[str, Any]) -> bool:
    """Return whether a changed field is hardware, or a layout on it."""
    field, value = changed
    of_layout = field.startswith("candidate") and value is not None and field != "candidate.engine"
    return of_layout or states_hardware([field])


def apply_changes(changes: Mapping[str, Any], undo: str = "") -> None:
    """Change the request; an edit that makes it invalid is refused, and the next run says why.

    ``undo``: what the edit did, where it changes more than the reader typed: the page then offers
    to take it back.
    """
    before, was_open = asked(), hardware_is_open()
    try:
        change_to(changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)
        return
    if undo and asked() != before:
        st.session_state["undoable"] = (undo, before, was_open, asked())


def undo_title() -> str | None:
    """Say what the last edit did that can be taken back; None after any other edit."""
    title, _, _, after = st.session_state.get("undoable", (None, None, None, None))
    return title if asked() == after else None


def take_back() -> None:
    """Take the last edit back that changed more than was typed."""
    if undo_title() is None:
        return
    _, before, was_open, _ = st.session_state.pop("undoable")
    replace_request(before, hardware_open=was_open)


def narrow_to(changes: Mapping[str, Any]) -> None:
    """Change the market to choose from.

    Raises:
        RecipeError: where that makes it invalid; it stays as it was.
    """
    st.session_state["edited"] = True
    st.session_state["market"] = changed_market(current_market(), changes)
    st.session_state.pop("found", None)


def narrow_market(changes: Mapping[str, Any]) -> None:
    """Change the market to choose from; an edit that makes it invalid is refused."""
    try:
        narrow_to(changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def turn_kind(kind: str) -> Mapping[str, Any] | None:
    """Turn the request to serving or training, as it was when it last was that.

    Not with a layout while the hardware is to be found: it was chosen on other hardware.
    """
    former: dict[str, PlanRequest] = st.session_state.setdefault("kinds", {})
    former[asked().workload.kind] = asked()
    former_request = former.get(kind)
    if former_request is None:
        return {"workload.kind": kind}
    parts: dict[str, Any] = {"model": asked().model, "hardware": asked().hardware}
    candidate = former_request.candidate
    if hardware_is_open() and candidate is not None and candidate_key(candidate.model_dump()):
        parts["candidate"] = shared_candidate(former_request)
    turned = former_request.model_copy(update=parts)
    replace_request(turned, hardware_open=hardware_is_open())
    return None


def toggle_pin(key: str) -> None:
    """Pin a split, or remove its pin; the oldest pin makes room."""
    rest = [pin for pin in pins() if pin != key]
    st.session_state["pins"] = rest if key in pins() else [*pins(), key][-MAX_PINS:]
    st.session_state["edited"] = True


def keep_split(split_request: PlanRequest) -> None:
    try:
        put_on_shelf(keep_choice(shelf(), split_request))
        st.toast(f"Kept. Compare has {len(shelf())} of them side by side.")
    except RecipeError as error:
        st.session_state["edited"] = True
        st.session_state["refused"] = str(error)


def put_on_shelf(choices: Shelf) -> None:
    st.session_state.update({"kept": choices, "edited": True})


def select(key: str) -> None:
    """Make a split the request's own."""
    apply_changes(select_split(request(), key))


def hardware_is_open() -> bool:
    """Return whether the hardware is to be found: nobody chose it, by an edit or in a link."""
    return bool(st.session_state.get("hardware-open"))


def by_cost(open_request: PlanRequest) -> PlanRequest:
    """Return a request whose hardware is open with cost as what counts.

    Throughput, the usual aim, says nothing of hardware: more of it always gives more.
    """
    return change(open_request, {"objective.optimize": "cost"})


def new_request() -> PlanRequest:
    """Return what a new plan starts from: usual chats, on hardware to be found."""
    return by_cost(change(DEFAULT, preset_changes(DEFAULT, "chat")))


def choose_hardware() -> None:
    """Take the hardware that is shown as chosen; engines and layout stay as they were asked."""
    on_shown = asked().model_copy(update={"hardware": request().hardware})
    replace_request(on_shown, hardware_open=False)


def open_hardware() -> None:
    """Leave the hardware to be found again, and with it the layout."""
    open_request = asked().model_copy(update={"candidate": shared_candidate(asked())})
    replace_request(open_request, hardware_open=True)


def follow_edit() -> None:
    """Run the whole page anew after an edit in a fragment; to be called first in each."""
    if st.session_state.get("edited"):  # a whole run has taken the mark away before it comes here
        st.rerun()


def replace_request(new_request: PlanRequest, *, hardware_open: bool = False) -> None:
    """Make another request the session's; hardware that was found is that of the one before.

    ``hardware_open``: whether its hardware is to be found.
    """
    state = st.session_state
    state.update({"request": new_request, "hardware-open": hardware_open, "edited": True})
    state.pop("found", None)


def start_over() -> None:
    """Back to a new plan; what is kept stays."""
    st.session_state.update({"pins": [], "market": Market(), "lens": None})
    replace_request(new_request(), hardware_open=True)


def shared_fields() -> dict[str, Any] | None:
    """The candidate that leaves the split to the ranking: what all training splits share."""
    shared = shared_candidate(request())
    return shared.model_dump(exclude_none=True) if shared else None


def model() -> ModelSpec:
    """The model of the request.

    Raises:
        RecipeError: where it cannot be read.
    """
    model = load_model_spec(request().model, folders=folders_allowed())
    st.session_state["known_model"] = request().model  # where an unknown name may go back to
    return model


def inputs_digest() -> str:
    """Say what tells answers apart beside the request: files of model and calibration, the day.

    Prices age by the day, and another may then be counted with.

    Raises:
        RecipeError: where the model cannot be read.
    """
    from recipe_core.calibration.place import calibration_stamp

    return f"{model().digest}{calibration_stamp()}{current_day()}"
