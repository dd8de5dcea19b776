"""The inputs of the plan as chips: each opens what it asks, and decisions of lenses come off."""

from __future__ import annotations

from collections.abc import Callable

import _address as address
import _common as common
import _model_pick as picker
import _panels as panels
import _session as session
import streamlit as st

from recipe_core.request.describe import limits_summary, model_name, workload_name
from recipe_core.views.chips import device_text, request_chips


def draw_rail() -> None:
    """Model, traffic, limits and hardware, each to be changed in its place."""
    request = session.asked()
    where = "find it for me" if session.hardware_is_open() else device_text(request)
    draw_chip("Model", model_name(request), draw_model)
    draw_chip("Traffic", workload_name(request.workload), draw_traffic)
    draw_chip("Limits", limits_summary(request), draw_limits)
    draw_chip("Hardware", where, draw_hardware)
    draw_chips()


def draw_chip(part: str, now: str, draw: Callable[[], None]) -> None:
    """A part of the request, which opens what it asks, and below it what it is now."""
    with st.container(gap="xxsmall", key=f"part-{part.lower()}"):
        common.draw_opened(f"**{part}**", f"chip-{part.lower()}", draw, st.expander)
        st.caption(common.escape(now))


def draw_model() -> None:
    common.draw_kind()
    picker.draw_model_search("rail")
    address.page_link("model.py", "More about the model", ":material/tune:")


def draw_traffic() -> None:
    panels.draw_traffic()
    address.page_link("traffic.py", "More about the traffic", ":material/tune:")


def draw_limits() -> None:
    panels.draw_goals()
    address.page_link("traffic.py", "More limits", ":material/tune:")


def draw_hardware() -> None:
    panels.draw_hardware_choice()
    address.page_link("hardware.py", "Price, links, other clusters", ":material/tune:")


def draw_chips() -> None:
    """Draw what was decided beyond the four, each with a cross that takes it back."""
    with st.container(horizontal=True, key="chips", gap="xsmall"):
        for n, chip in enumerate(request_chips(session.asked())):
            common.edit_button(
                common.escape(chip.label),
                f"chip-{n}",
                chip.changes,
                ":material/close:",
                help="Take this back",
            )
