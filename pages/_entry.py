"""The frame around every page: state from the link, navigation, progress, Back and Next, the page.

It lies inside ``pages/``: Streamlit takes over such a folder beside its main script.
"""

import sys
from pathlib import Path

import streamlit as st

from recipe_core.doors.serve import first_page_sent, load_first_page, load_pages

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # an ASGI server adds the folder of app.py, not this one
    sys.path.insert(0, str(HERE))

load_pages()  # or wait until another thread has done so
import _common as common  # noqa: E402
import _glossary as glossary  # noqa: E402
import _tour as tour  # noqa: E402
import _widgets as widgets  # noqa: E402

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
BESIDE = {
    "size.py": st.Page("size.py", title="Size", icon=":material/shopping_cart:"),
    "measured.py": st.Page("measured.py", title="Measured", icon=":material/monitoring:"),
    "check.py": st.Page("check.py", title="Check a command", icon=":material/terminal:"),
}
"""Pages outside the wizard's steps."""

page = st.navigation([*STEPS.values(), *BESIDE.values()], position="top")
files, steps = [*STEPS, *BESIDE], list(STEPS.values())
st.session_state["page"] = files[[*steps, *BESIDE.values()].index(page)]
step = steps.index(page) if page in steps else None


def step_buttons(number: int) -> None:
    """Back and Next, each in its own place: neither takes the other's on another page."""
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


# Streamlit replaces what is on the screen slot by slot, and removes leftovers only when a run ends;
# a run that a step cuts short never does. So the frame fills the same three slots on every page and
# in every state, and does so before the page, which may take long. Otherwise buttons of an earlier
# run stay beside the new ones.
if step is None:
    st.empty()
else:
    st.progress((step + 1) / len(steps), text=f"Step {step + 1} of {len(steps)}: {page.title}")
body = st.container()
if step is None:
    st.empty()
else:
    step_buttons(step)
with body:
    widgets.show_notice()
    tour.note()
    page.run()
    glossary.button()
common.write_url()
