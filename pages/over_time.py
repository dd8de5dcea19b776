import _common as common
import _over_time_answer as simulating
import _over_time_goal as goal
import _over_time_load as loads
import _over_time_result as result
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import request_summary
from recipe_core.request.scaling import POLICIES
from recipe_core.views.over_time import policy_title


def serving_only() -> None:
    """What to do with a request for training."""
    st.info(
        "This page is about serving: requests come over time, and replicas follow them. A training "
        "run has no such load.",
        icon=":material/info:",
    )
    st.button(
        "Serve this model",
        key="over-time-serve",
        icon=":material/dns:",
        on_click=common.apply,
        args=({"workload.kind": "serving"},),
    )


def form() -> None:
    """Load and limits, beside each other where there is room; then what a start finds."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.header("Load", anchor=False)
        loads.draw()
    with right:
        st.header("Limits", anchor=False)
        goal.limits()
    st.header("Start of a replica", anchor=False)
    goal.start()


def compared() -> list[str]:
    """The policies to compare; none named are all."""
    chosen: list[str] = st.pills(
        "Policies to compare",
        POLICIES,
        selection_mode="multi",
        key="over-time-compared",
        format_func=policy_title,
        persist_state="session",
        help="None chosen compares all. Each is searched for the cheapest parameters that keep "
        "the limits",
    )
    return chosen or []


def answer(policies: list[str]) -> None:
    """A button that simulates, and what came of it."""
    question = simulating.question_of(common.request(), loads.current(), policies)
    key = simulating.key_of(question)
    found = simulating.known(key)
    st.button(
        "Simulate",
        key="over-time-simulate",
        type=common.main_button(),
        icon=":material/play_arrow:",
        disabled=not goal.stated(),
        on_click=simulating.begin,
        help=None if goal.stated() else "Needs a limit on time",
    )
    with st.container(key="over-time-running"):
        if simulating.running(key) and found is None:
            found = simulating.simulated(key, question)
    if found is not None:
        result.draw(found)
    elif goal.stated():
        st.caption("Every policy is searched; a week takes some seconds to a minute.")


st.title("How many replicas, and when?", anchor=False)
st.caption(common.escape(request_summary(common.request())))
if common.training():
    serving_only()
else:
    form()
    try:
        answer(compared())
    except RecipeError as error:
        simulating.cancel()
        st.error(common.escape(error), icon=":material/error:")
