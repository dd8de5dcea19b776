"""The header and the foot of every page: name, navigation, and what is done with the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _address as address
import _common as common
import _glossary as glossary
import _link as links
import _session as session
import streamlit as st

from recipe_core.doors.page_scripts import FOCUS_TITLE

NAVIGATION = ("plan.py", "ship.py", "side.py", "check.py")
"""Pages that the header leads to; the walk's screens are reached from them and from the start."""


class Header:
    """The header: drawn before the page; its link is filled after it."""

    def __init__(self, pages: Mapping[str, Any]) -> None:
        if common.dark():
            st.html(DARK_BUTTON)
        with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key="header"):
            draw_page_link(pages, "home.py", "Recipe Builder")
            for name in NAVIGATION:
                draw_page_link(pages, name, page_title(name, pages[name].title))
            st.space("stretch")
            # its state is tracked so that what is pressed in it can close it
            self.menu = st.popover("Menu", key="menu", icon=":material/menu:", on_change="rerun")
            with self.menu:
                draw_menu()
                self.link = st.container()

    def finish(self) -> None:
        """Fill the link, after the page."""
        links.fill_link_menu(self.link)


DARK_BUTTON = """<style>
button[kind='primary'], button[kind='primary'] p {color: #0B1118}
button[kind='primary'] kbd {opacity: 1}
[data-testid='stMultiSelectTagsContainer'] > span * {color: #0B1118}
</style>"""
"""In dark the primary colour is light, as text of it must be: on it, text must be dark, that of
tags and of shortcuts too, which the library draws at 60 %; no setting of the theme gives it."""


def page_title(name: str, title: str) -> str:
    """The title of a page in the navigation; that of kept choices with their number."""
    number = len(session.shelf())
    return f"{title} ({number})" if name == "side.py" and number else title


def draw_page_link(pages: Mapping[str, Any], name: str, title: str) -> None:
    """A link to a page that keeps the request, also in a new tab; the current one is bold.

    No link where it leads nowhere: from the start page to itself, and to choices before one is
    kept.
    """
    is_current = st.session_state.get("page") == name
    if name == "home.py" and is_current:
        st.markdown(f"**{title}**", width="content")
        return
    if name == "side.py" and not is_current and not session.shelf():
        st.caption(title, width="content")
        return
    st.page_link(
        pages[name],
        label=f"**{title}**" if is_current or name == "home.py" else title,
        query_params=address.screen_link_query(),
        width="content",
    )


def draw_menu() -> None:
    """Draw what starts a request anew or takes an edit back, and what explains."""
    if st.button(
        "New",
        key="new",
        icon=":material/restart_alt:",
        on_click=leave_menu,
        args=(session.start_over,),
        help="Back to an empty request; kept choices stay",
        width="stretch",
    ):
        st.switch_page("home.py", query_params=address.screen_link_query())
    undo = session.undo_title()
    st.button(
        f"Undo: {undo}" if undo else "Undo",
        key="undo",
        icon=":material/undo:",
        on_click=leave_menu,
        args=(session.take_back,),
        disabled=undo is None,
        width="stretch",
    )
    address.page_link("fleet.py", "Fleet", ":material/dns:")
    address.page_link("home.py", "Examples", ":material/gallery_thumbnail:")
    address.page_link("evidence.py", "Evidence", ":material/rule:")
    if st.button(
        "Glossary",
        key="glossary",
        icon=":material/menu_book:",
        on_click=leave_menu,
        width="stretch",
    ):
        glossary.show_glossary()


def leave_menu(act: Callable[[], None] | None = None) -> None:
    """Close the menu, after what was pressed in it."""
    if act is not None:
        act()
    st.session_state["menu"] = False


def draw_page_foot() -> None:
    """The end of a page that has no bar: what its figures rest on."""
    with st.container(horizontal=True, vertical_alignment="center", key="foot"):
        address.page_link("evidence.py", "Evidence: how right are the numbers?", ":material/rule:")


def focus_title(turns: int) -> None:
    """Give the title the focus, once a page was turned; ``turns``: how many were before.

    The browser runs a script once, where its place was empty before: each turn takes the other of
    two places.
    """
    places = st.empty(), st.empty()
    places[turns % 2].html(f"<script>{FOCUS_TITLE}</script>", unsafe_allow_javascript=True)
