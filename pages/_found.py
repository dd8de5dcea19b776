"""The hardware that is found for what is asked, where nobody chose it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import _common as common
import _session as session
import _size_answer as sizing
import _size_later as later
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.edit import change
from recipe_core.request.open_hardware import size_request, sized_goal, take_size_row
from recipe_core.request.size import SizeRequest

Json = Mapping[str, Any]


def sized_request() -> SizeRequest:
    """Return what is asked, on any hardware of the market.

    Raises:
        RecipeError: naming the field that is wrong.
    """
    request = session.asked()
    goal = sized_goal(request)
    return size_request(request, session.current_market(), goal, **later.stated_parts())


def draw_sizing_problem(place: Any, error: RecipeError) -> None:
    """Say why nothing can be sized; what is wrong with the model itself, the page's answer says."""
    try:
        session.model()
    except RecipeError:
        place.empty()
    else:
        place.error(common.escape(error), icon=":material/error:")


def draw_progress(place: Any, part: Json) -> None:
    text = f"Sized {part['sized']} of {part['of']} devices"
    place.progress(part["sized"] / part["of"], text=text)


def find_hardware() -> Json | None:
    """Return the answer over all devices, and make the best of them the request's for this run.

    None where there is nothing to size: the page says why by the request itself.
    """
    place = st.empty()
    try:
        request = sized_request()
        answer = sizing.find_sizing(request, partial(draw_progress, place))
    except RecipeError as error:
        st.session_state["found"] = None
        draw_sizing_problem(place, error)
        return None
    place.empty()
    best, open_request = answer.get("best"), session.asked()
    st.session_state["found"] = (
        None if best is None else change(open_request, take_size_row(open_request, request, best))
    )
    return answer
