"""Widgets that all pages draw: question, request in one line, notices."""

from __future__ import annotations

import _bar as bar
import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import request_summary


def show_notice() -> None:
    if ignored := st.session_state.pop("ignored", None):
        lines = [common.escape(line) for line in ignored]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
        st.warning(f"**Parts of the link were ignored.**\n\n{text}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(common.escape(refused), icon=":material/block:")


def draw_page_head(title: str) -> None:
    """The question of a page and the request in one line.

    On pages on which nothing is edited also what keeps the request from an answer; everywhere the
    bar at the foot gives the verdict.
    """
    st.title(title, anchor=False)
    st.caption(common.escape(request_summary(common.request())))
    with st.container(key="answer"):  # one place, whatever it says: what follows stays in its own
        if st.session_state.get("page") in bar.READ_ONLY:
            answer = bar.current_answer()
            if isinstance(answer, RecipeError) or (answer and answer[1].state == "nothing"):
                bar.draw_explanation(answer, "page")
            elif answer:
                bar.draw_left_split_note()
                bar.draw_bundle_refusal(answer[0], "page")
                bar.draw_price_note(answer[0])


def hardware_unknown() -> None:
    common.page_link("size.py", "Any hardware: find it for me", ":material/shopping_cart:")


def code(text: str) -> None:
    """Text to copy, in one colour: syntax colours are too pale for some readers."""
    st.code(text, language=None, wrap_lines=True)
