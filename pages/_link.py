"""The link to what is on the screen, to copy from any page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import _address as address
import _common as common
import _session as session
import streamlit as st

from recipe_core.request.link import link_omissions

LONG = 4000
"""Characters from which some programs cut a link."""


def whole_link() -> str:
    """The whole link, as another browser opens it."""
    base = (st.context.url or "http://127.0.0.1:8501/").split("?")[0]
    return f"{base}?{urlencode(address.screen_link_query())}"


def fill_link_menu(place: Any) -> None:
    """Show the link, what it holds and what it omits."""
    text = whole_link()
    with place:
        st.markdown("**Link to this page**")
        st.caption("Restores the request, its pins and what is kept side by side.")
        st.code(text, language=None, wrap_lines=True)
        if sentence := link_omissions(session.request()):
            st.caption(common.escape(sentence))
        if len(text) > LONG:
            st.caption(f"It has {len(text):,} characters: some programs cut links so long.")
