"""The frame around every page: state from the link, navigation, progress, the page, Back and Next, state to the link.

It lies inside ``pages/`` because Streamlit would otherwise find that folder beside its main script and take it over.
"""

import sys
from pathlib import Path

import streamlit as st

from recipe_core.doors.serve import load_pages

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # an ASGI server adds the folder of app.py, not this one
    sys.path.insert(0, str(HERE))

load_pages()  # or wait until they are
import common  # noqa: E402
import parts  # noqa: E402

st.set_page_config(page_title="Recipe builder", page_icon=str(HERE / "icon.png"), layout="wide")
common.read_url()
st.logo(HERE / "icon.png", size="large")
STEPS = {
    "model.py": st.Page("model.py", title="Model", icon=":material/neurology:", default=True),
    "hardware.py": st.Page("hardware.py", title="Hardware", icon=":material/memory:"),
    "objective.py": st.Page("objective.py", title="Objective", icon=":material/target:"),
    "compare.py": st.Page("compare.py", title="Compare", icon=":material/scatter_plot:"),
    "recipe.py": st.Page("recipe.py", title="Recipe", icon=":material/inventory_2:"),
}
BESIDE = {"check.py": st.Page("check.py", title="Check a command", icon=":material/terminal:")}
"""Pages that are no step of the wizard; a library of recipes and fleets would stand here."""

page = st.navigation([*STEPS.values(), *BESIDE.values()], position="top")
files, steps = [*STEPS, *BESIDE], list(STEPS.values())
st.session_state["page"] = files[[*steps, *BESIDE.values()].index(page)]
here = steps.index(page) if page in steps else None


def step_buttons(number: int) -> None:
    """Back and Next, each in a place of its own: neither moves into the other's on another page."""
    alignment = "distribute" if number > 0 else "right"
    with st.container(horizontal=True, horizontal_alignment=alignment):
        if number == 0:
            st.empty()
        elif st.button(
            "Back", icon=":material/arrow_back:", key="back", shortcut="Ctrl+Shift+Enter"
        ):
            st.switch_page(steps[number - 1], query_params=common.link())
        if number + 1 == len(steps):
            st.empty()
        elif st.button(
            f"Next: {steps[number + 1].title.lower()}",
            type=common.main_button(),
            key="next",
            shortcut="Ctrl+Enter",
        ):
            st.switch_page(steps[number + 1], query_params=common.link())


# Streamlit replaces what stands on the screen place by place, and takes away what is left only when
# a run has ended; one that a step cuts short never does. So the frame takes the same three places on
# every page and in every state, and fills them before the page, which may take long: else buttons of
# an earlier run stand beside the new ones.
if here is None:
    st.empty()
else:
    st.progress((here + 1) / len(steps), text=f"Step {here + 1} of {len(steps)}: {page.title}")
body = st.container()
if here is None:
    st.empty()
else:
    step_buttons(here)
with body:
    parts.show_notice()
    page.run()
common.write_url()
