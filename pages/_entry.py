"""The frame around every page: state from the link, the header, the page, the bar of the walk.

It lies inside ``pages/``: Streamlit takes over such a folder beside its main script.
"""

import os
import sys
from pathlib import Path

import streamlit as st

from recipe_core.doors.serve import first_page_sent, load_first_page, load_pages

HERE = Path(__file__).parent
# An ASGI server adds the folder of app.py, not this one. Streamlit adds this one to a run and takes
# it out when that ends, under the runs that go on; this spelling it does not find.
MODULES = f"{HERE}{os.sep}"
if MODULES not in sys.path:
    sys.path.insert(0, MODULES)

st.set_page_config(page_title="Recipe Builder", page_icon=str(HERE / "icon.png"), layout="wide")
PAGES = {
    name: st.Page(name, title=title, default=name == "home.py")
    for name, title in {
        "home.py": "Recipe Builder",
        "model.py": "Model",
        "traffic.py": "Traffic and limits",
        "hardware.py": "Hardware",
        "plan.py": "Plan",
        "ship.py": "Ship",
        "side.py": "Compare",
        "fleet.py": "Fleet",
        "check.py": "Check",
        "evidence.py": "Evidence",
    }.items()
}
WALK = [PAGES[name] for name in ("model.py", "traffic.py", "hardware.py")]

page = st.navigation(list(PAGES.values()), position="hidden")
opening = page is PAGES["home.py"] and not st.query_params and "request" not in st.session_state
(load_first_page if opening else load_pages)()  # or wait until another thread has done so
import _address as address  # noqa: E402
import _bar as bar  # noqa: E402
import _header as header  # noqa: E402
import _widgets as widgets  # noqa: E402
import _work as work  # noqa: E402

linked = "request" not in st.session_state and address.states_request(st.query_params)
address.read_url()
name = next(name for name, listed_page in PAGES.items() if listed_page is page)
turns = st.session_state.setdefault("turns", 0)
if st.session_state.get("page") not in (None, name):
    st.session_state["turns"] = turns + 1
st.session_state["page"] = name
if linked and name == "home.py":  # a link of the time when the first page asked for the model
    st.session_state["edited"] = True  # the link is read, and what it says wrong is not yet shown
    st.switch_page(PAGES["model.py"], query_params=address.screen_link_query())

# Streamlit replaces what is on the screen slot by slot, and removes leftovers only when a run ends;
# a run that a step cuts short never does. So the frame fills the same slots on every page and in
# every state, and does so before the page, which may take long. Otherwise buttons of an earlier run
# stay beside the new ones.
top = header.Header(PAGES)
foot = bar.Bar(WALK, WALK.index(page), PAGES["plan.py"]) if page in WALK else None
try:
    with st.container(gap=None):  # a notice that says nothing takes no room
        with st.container(key="notice"):
            widgets.show_notice()
        with st.container(key="body"):
            page.run()
            if foot is None:
                header.draw_page_foot()
        if turns != st.session_state["turns"]:
            header.focus_title(turns)
finally:  # also where the page fails: the details say what is wrong with the request, if it is that
    if foot is not None:
        foot.finish()
address.write_url()
top.finish()
work.draw_later()
first_page_sent.set()
