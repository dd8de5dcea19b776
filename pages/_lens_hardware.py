"""The lens on hardware: every device that holds what is asked, growth, buying and renting."""

from collections.abc import Mapping
from typing import Any

import _common as common
import _found as found
import _panels as panels
import _session as session
import _size_answer as sizing
import _size_later as later
import _size_result as result
import streamlit as st

from recipe_core.base.errors import RecipeError

Json = Mapping[str, Any]


def draw_devices(sized: Json | None) -> None:
    """Devices with their numbers, cost and certainty; ``sized``: the answer where it is there."""
    st.caption("Every device of the market for the same request; take one, and the plan is on it.")
    if not session.hardware_is_open():  # else the chip on top asks
        with st.container(horizontal=True):
            panels.draw_market_switches()
    try:
        request = found.sized_request()
        answer = sized if sized is not None else draw_sizing(request)
        result.draw_whole_sizing(answer, request)
        later.draw_later_parts(answer)
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")


def draw_sizing(request: Any) -> Json:
    """The answer over all devices, drawn part by part while it is worked out."""
    place = st.empty()

    def draw_part(part: Json) -> None:
        with place.container():
            result.draw_partial_sizing(part)

    answer = sizing.find_sizing(request, draw_part)
    place.empty()
    return answer
