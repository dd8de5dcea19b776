"""The lens on time: a load, policies that follow it, and what they cost."""

import _common as common
import _over_time_answer as simulating
import _over_time_goal as goal
import _over_time_load as loads
import _over_time_result as result
import _session as session
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.background import Background
from recipe_core.request.scaling import POLICIES
from recipe_core.views.over_time import policy_title


def draw_simulation_form() -> None:
    """Load and limits, beside each other where there is room; then what a start finds."""
    load_column, limits_column = st.columns([3, 2], gap="large")
    with load_column:
        st.header("Load", anchor=False)
        loads.draw_load()
    with limits_column:
        st.header("Limits", anchor=False)
        goal.draw_time_limits()
    st.header("Start of a replica", anchor=False)
    goal.draw_cold_start()


def pick_policies() -> list[str]:
    policies: list[str] = st.pills(
        "Policies to compare",
        POLICIES,
        selection_mode="multi",
        key="over-time-compared",
        format_func=policy_title,
        persist_state="session",
        help="None chosen compares all. Each is searched for the cheapest parameters that keep "
        "the limits",
    )
    return policies or []


@st.fragment(run_every=0.5)
def follow_simulation(task: Background) -> None:
    """Say how far a simulation is, with a way to end it; the page around stays usable."""
    if task.is_over or not simulating.is_simulating():
        st.rerun()
    st.progress(task.share, text="Simulating policies; the page stays usable meanwhile")
    st.button(
        "Cancel",
        key="over-time-cancel",
        icon=":material/close:",
        on_click=simulating.cancel_simulation,
    )


def draw_simulated_answer(policies: list[str]) -> None:
    question = simulating.simulation_question(session.request(), loads.current_load(), policies)
    key = simulating.simulation_key(question)
    simulated = simulating.find_simulated(key)
    st.button(
        "Simulate",
        key="over-time-simulate",
        type="primary",
        icon=":material/play_arrow:",
        disabled=not goal.has_time_limits(),
        on_click=simulating.begin_simulation,
        help=None if goal.has_time_limits() else "Needs a limit on time",
    )
    with st.container(key="over-time-running"):
        task = None if simulated is not None else simulating.running_simulation(key, question)
        if task is not None and task.is_over:
            simulated = simulating.find_simulated(key)
        elif task is not None:
            follow_simulation(task)
    if simulated is not None:
        result.draw_simulation(simulated)
    elif goal.has_time_limits():
        st.caption("Every policy is searched; a week takes some seconds to a minute.")


def draw_over_time() -> None:
    """Replicas that follow a load over time, by policy."""
    if session.asks_for_training():
        widgets.draw_serving_only(
            "This lens is about serving: requests come over time, and replicas follow them. A "
            "training run has no such load.",
            "over-time-serve",
        )
        return
    draw_simulation_form()
    try:
        draw_simulated_answer(pick_policies())
    except RecipeError as error:
        simulating.cancel_simulation()
        st.error(common.escape(error), icon=":material/error:")
