"""The glossary, opened from the menu of every page; help texts come from the same words."""

from __future__ import annotations

import _common as common
import streamlit as st

from recipe_core.views.glossary import Term, glossary


@st.dialog("Glossary", width="large")
def show_glossary() -> None:
    terms = glossary().terms
    name = st.selectbox(
        "Find a word",
        list(terms),
        index=None,
        key="glossary-word",
        format_func=lambda name: terms[name].title,
        placeholder="Any part of a word",
    )
    if name is not None:
        st.markdown(term_text(terms[name]))
        return
    for group, members in glossary().by_group().items():
        st.header(group, anchor=False)
        st.markdown("\n\n".join(term_text(term) for term in members))


def term_text(term: Term) -> str:
    """A word, what it means, and a source."""
    text = f"**{common.escape(term.title)}**\\\n{common.escape(term.text)}"
    return f"{text} [{common.escape(term.source.title)}]({term.source.url})"
