import _common as common
import _decision as decision
import _found as found
import _lens_formats as formats
import _lens_hardware as hardware
import _lens_layouts as layouts
import _lens_over_time as over_time
import _lens_why as why
import _planned as planned
import _rail as rail
import _session as session
import _verdict as verdicts
import streamlit as st

from recipe_core.plans.rank import rows_beyond_limits
from recipe_core.request.describe import model_name

LENSES = {title: name for name, title in session.LENSES.items()}


def turn_lens() -> None:
    st.session_state.update({"lens": LENSES.get(st.session_state["_lens"]), "edited": True})


def draw_lens(name: str) -> None:
    """The open view of the plan; the others are not computed."""
    if name == "hardware":
        hardware.draw_devices(sized)
    elif plan is None:
        st.caption("The request has no answer yet: what keeps it from one stands above.")
    elif name == "layouts":
        layouts.draw_layouts(plan)
    elif name == "formats":
        formats.draw_formats()
    elif name == "over-time":
        over_time.draw_over_time()
    else:
        why.look_closer(plan)


st.title(common.escape(model_name(session.asked())), anchor=False)
inputs, answer_column = st.columns([1, 3], gap="medium")
with inputs:
    rail.draw_rail()
with answer_column:
    sized = found.find_hardware() if session.hardware_is_open() else None
    searching = session.hardware_is_open() and st.session_state.get("found") is None
    plan = None if searching else planned.planned_or_none()
    row = None if plan is None else planned.selected_row(plan)
    if searching and sized is not None:
        decision.draw_nothing_found(sized)
    elif plan is None or row is None:
        verdicts.draw_explanation(verdicts.current_answer())
    if plan is not None and row is not None:
        decision.draw_decision(plan, row, sized)
        decision.draw_runners_up(plan, sized)
    if plan is not None and (row is not None or rows_beyond_limits(plan)):
        layouts.draw_frontier(plan, row)

common.seed("_lens", session.LENSES[session.current_lens()])
for tab, name in zip(
    st.tabs(list(LENSES), key="_lens", on_change=turn_lens), LENSES.values(), strict=True
):
    if tab.open:
        with tab:
            draw_lens(name)
