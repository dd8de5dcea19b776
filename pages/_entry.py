"""The frame around every page: state from the link, navigation, the page, the bar at the foot.

It lies inside ``pages/``: Streamlit takes over such a folder beside its main script.
"""

import sys
from pathlib import Path

import streamlit as st

from recipe_core.doors.serve import first_page_sent, load_first_page, load_pages

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # an ASGI server adds the folder of app.py, not this one
    sys.path.insert(0, str(HERE))

st.set_page_config(page_title="Recipe builder", page_icon=str(HERE / "icon.png"), layout="wide")
st.logo(HERE / "icon.png", size="large")
STEPS = {
    "model.py": st.Page("model.py", title="Model", icon=":material/neurology:", default=True),
    "objective.py": st.Page("objective.py", title="Traffic and goals", icon=":material/target:"),
    "hardware.py": st.Page("hardware.py", title="Hardware", icon=":material/memory:"),
    "compare.py": st.Page("compare.py", title="Compare", icon=":material/scatter_plot:"),
    "recipe.py": st.Page("recipe.py", title="Recipe", icon=":material/inventory_2:"),
}
BESIDE = {
    "size.py": st.Page("size.py", title="Size", icon=":material/shopping_cart:"),
    "formats.py": st.Page("formats.py", title="Formats", icon=":material/compress:"),
    "over_time.py": st.Page("over_time.py", title="Over time", icon=":material/schedule:"),
    "side.py": st.Page("side.py", title="Side by side", icon=":material/compare:"),
    "measured.py": st.Page("measured.py", title="Measured", icon=":material/monitoring:"),
    "check.py": st.Page("check.py", title="Check a command", icon=":material/terminal:"),
}
"""Pages outside the wizard's steps."""

page = st.navigation([*STEPS.values(), *BESIDE.values()], position="top")
opening = page is STEPS["model.py"] and not st.query_params and "request" not in st.session_state
(load_first_page if opening else load_pages)()  # or wait until another thread has done so
import _bar as bar  # noqa: E402
import _common as common  # noqa: E402
import _glossary as glossary  # noqa: E402
import _tour as tour  # noqa: E402
import _widgets as widgets  # noqa: E402

common.read_url()
files, steps = [*STEPS, *BESIDE], list(STEPS.values())
st.session_state["page"] = files[[*steps, *BESIDE.values()].index(page)]
step = steps.index(page) if page in steps else None


# Streamlit replaces what is on the screen slot by slot, and removes leftovers only when a run ends;
# a run that a step cuts short never does. So the frame fills the same slots on every page and in
# every state, and does so before the page, which may take long. Otherwise buttons of an earlier run
# stay beside the new ones.
foot = bar.Bar(steps, step)
try:
    with st.container(gap=None):  # a notice that says nothing takes no room
        with st.container(key="notice"):
            widgets.show_notice()
            tour.draw_tour_note()
        with st.container(key="body"):
            page.run()
            glossary.draw_glossary_button()
except Exception:  # the details say what is wrong with the request, if it is that
    foot.finish()
    raise
common.write_url()
foot.finish()
common.draw_later()
first_page_sent.set()
