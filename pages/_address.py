"""The address of a page: a link to what is on the screen, and what a link says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import _session as session
import streamlit as st

from recipe_core.request.edit import shared_candidate
from recipe_core.request.link import from_query, link_query
from recipe_core.request.open_hardware import market_of, market_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import shelf_of, shelf_query
from recipe_core.request.split_key import read_pins

AIMS = ("objective.optimize", "objective.orientation", "objective.weights.")
"""Parameters that say what counts."""


@dataclass(frozen=True, slots=True)
class Outside:
    """The session's part that the plan does not hold: pins, and the split stated."""

    pins: frozenset[str] = frozenset()
    split: str = ""


def screen_link_query() -> dict[str, str]:
    """The query of a link to what is on the screen.

    Pins of other plans and a split that no longer fits mean nothing to whoever opens it, so they
    stay in the session alone.
    """
    outside = st.session_state.get("outside", Outside())
    current = session.asked()
    if outside.split and outside.split == session.selected_key():
        current = current.model_copy(update={"candidate": shared_candidate(current)})
    inside = [pin for pin in session.pins() if pin not in outside.pins]
    if session.hardware_is_open():
        query = link_query(current, inside)
        query = {name: text for name, text in query.items() if not session.states_hardware([name])}
    else:
        query = query_of(current, inside)
    query |= market_query(session.current_market())
    lens, first = session.current_lens(), next(iter(session.LENSES))
    return {**query, **({} if lens == first else {"lens": lens}), **shelf_query(session.shelf())}


def query_of(request: PlanRequest, keys: Sequence[str] = ()) -> dict[str, str]:
    """The query of a link to a request on its hardware, with pinned splits.

    It names the device, where the codec leaves the usual one out: a link without hardware asks to
    find it.
    """
    query = link_query(request, list(keys))
    if not session.states_hardware(query):
        query["hardware.device"] = request.hardware.device_name
    return query


def states_request(names: Iterable[str]) -> bool:
    """Return whether parameters of a link say something of a request."""
    return bool(set(names) - {"v", "kept", "lens"})


def read_url() -> None:
    """Take request, pins and what is kept from a link that says what this session did not write."""
    state, query = st.session_state, st.query_params.to_dict()
    state.pop("later", None)  # of a run that was cut short
    edited = state.pop("edited", False)
    if "request" in state and (edited or not query or query == state.get("written")):
        return  # ours, a click in the navigation, or an edit the address does not show yet
    state["request"], ignored = from_query(query)
    if not states_request(query):
        state["request"] = session.new_request()
    state["pins"], bad_pins = read_pins(query.get("pins", ""), session.MAX_PINS)
    state["market"], bad_market = market_of(query)
    state["kept"], bad_kept = shelf_of(query)
    state["ignored"] = [*ignored, *bad_pins, *bad_market, *bad_kept]
    state["lens"] = query.get("lens")
    for name in ("outside", "looked", "found", "undoable"):
        state.pop(name, None)
    state["hardware-open"] = not session.states_hardware(query)
    if session.hardware_is_open() and not any(name.startswith(AIMS) for name in query):
        state["request"] = session.by_cost(state["request"])


def write_url() -> None:
    """Make the address a link to what is on the screen."""
    st.session_state["written"] = screen_link_query()
    if st.query_params.to_dict() != screen_link_query():
        st.query_params.from_dict(screen_link_query())


def page_link(page: str, label: str, icon: str) -> None:
    st.page_link(page, label=label, icon=icon, query_params=screen_link_query())
