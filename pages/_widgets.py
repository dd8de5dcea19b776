"""Widgets that all pages draw: question, request in one line, notices."""

from __future__ import annotations

import _common as common
import _session as session
import streamlit as st

from recipe_core.request.describe import asked_summary


def show_notice() -> None:
    if ignored := st.session_state.pop("ignored", None):
        lines = [common.escape(line) for line in ignored]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
        st.warning(f"**Parts of the link were ignored.**\n\n{text}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(common.escape(refused), icon=":material/block:")


def draw_page_head(title: str) -> None:
    """The title of a page, and the request in one line."""
    st.title(title, anchor=False)
    st.caption(
        common.escape(asked_summary(session.asked(), hardware=not session.hardware_is_open()))
    )


def draw_serving_only(reason: str, key: str) -> None:
    """Say that a lens is not about training, and offer to serve the model."""
    st.info(reason, icon=":material/info:")
    serving = {"workload.kind": "serving"}
    common.edit_button("Serve this model", key, serving, ":material/dns:")


def code(text: str) -> None:
    """Text to copy, in one colour: syntax colours are too pale for some readers."""
    st.code(text, language=None, wrap_lines=True)
