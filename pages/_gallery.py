"""The second half of the first page: real cases, each a link to its comparison."""

from __future__ import annotations

import _common as common
import streamlit as st

from recipe_core.request.link import link_query
from recipe_core.request.presets import Example, examples


def draw_gallery() -> None:
    st.header("Or start from a real case", anchor=False)
    st.caption(
        "Each opens on its comparison, planned and ready to build. Change any of it from there."
    )
    with st.grid(5, min_column_width=230):
        for example in examples().values():
            card(example)


def card(example: Example) -> None:
    """A case: its title, which opens it; what runs where; the question it answers."""
    with st.container(border=True, height="stretch", gap="xsmall"):
        st.page_link(
            "compare.py",
            label=f"**{common.escape(example.title)}**",
            icon=":material/arrow_forward:",
            icon_position="right",
            query_params=link_query(example.asked),
        )
        st.caption(common.escape(example.text))
        st.markdown(common.escape(example.question))
