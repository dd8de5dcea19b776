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
if here is not None:
    st.progress((here + 1) / len(steps), text=f"Step {here + 1} of {len(steps)}: {page.title}")
parts.show_notice()
page.run()
if here is not None:
    with st.container(horizontal=True, horizontal_alignment="distribute" if here > 0 else "right"):
        if here > 0 and st.button(
            "Back", icon=":material/arrow_back:", key="back", shortcut="Ctrl+Shift+Enter"
        ):
            st.switch_page(steps[here - 1], query_params=common.link())
        if here + 1 < len(steps):
            forward = st.button(
                f"Next: {steps[here + 1].title.lower()}",
                type=common.main_button(),
                key="next",
                shortcut="Ctrl+Enter",
            )
            if forward:
                st.switch_page(steps[here + 1], query_params=common.link())
common.write_url()
