"""The search box of models: Enter takes the best match, and what else it may mean stands below.

A select box would filter in the browser, by the letters of labels: there "70b" finds Llama 2 first,
and "llama70b" nothing. Here the core ranks (``search_models``).
"""

from __future__ import annotations

import _common as common
import _names as names
import _session as session
import _upload as upload
import streamlit as st

from recipe_core.doors.serve import folders_allowed
from recipe_core.models.search import FoundModel, model_facts, search_models

POPULAR = 12
"""Models that are offered to those who type nothing."""
LIST_TITLE = "Popular models, or your own config.json"
OTHERS = 5
"""Further models that a text may mean."""


def draw_model_search(key: str, *, with_list: bool = False) -> None:
    """Draw the box, and after a search what else it may mean.

    A choice changes the request's model. ``key`` tells several boxes apart: letters, digits and
    hyphens. ``with_list``: whether the most wanted models, and a place for a config.json, can be
    opened below the box.
    """
    st.text_input(
        "Model",
        key=f"{key}-text",
        type="search",
        on_change=take_text,
        args=(key,),
        placeholder="llama 3.3 70b, deepseek r1, owner/name of the Hub …",
    )
    if text := (st.session_state[f"{key}-text"] or "").strip():
        _draw_others(key, text)
    names.draw_unmatched_name(with_upload=with_list)
    if with_list:
        # a key with a rerun lets a choice close it
        with st.expander(LIST_TITLE, key=f"{key}-list", on_change="rerun", icon=":material/list:"):
            _draw_popular(key)
            upload.draw_config_upload()
        upload.draw_current_config()


def picked_model(key: str) -> str | None:
    """The model that was just taken in a box, once: for a page that then leads on."""
    picked: str | None = st.session_state.pop(f"{key}-picked", None)
    return picked


def take_text(key: str) -> None:
    """Take the model that a text means best: as it stands where it is an id, a folder or sizes."""
    text = (st.session_state[f"{key}-text"] or "").strip()
    models = search_models(text, 1) if text else []
    if models and not _says_which(text, models[0]):
        _take(key, models[0].id)
    elif text:
        take_as_typed(key, text)


def _says_which(text: str, best: FoundModel) -> bool:
    """Return whether a text is an id, a folder or sizes of another model than the best match."""
    return text.casefold() != best.id.casefold() and ("/" in text or "[" in text)


def take_as_typed(key: str, text: str) -> None:
    """Take what was typed: of the Hub, a folder, or sizes; what is none is said to be none."""
    if changes := names.model_change(text):
        _take(key, str(changes["model"]))


def _take(key: str, name: str) -> None:
    st.session_state[f"{key}-picked"] = name
    names.take_model_name(name)


def _draw_popular(key: str) -> None:
    with st.container(key=f"{key}-popular", gap=None):
        for n, model in enumerate(search_models("", POPULAR)):
            st.button(
                f"**{common.escape(model.title)}** · {common.escape(model.description)}",
                key=f"{key}-popular-{n}",
                type="tertiary",
                on_click=_take_listed,
                args=(key, model.id),
            )


def _take_listed(key: str, name: str) -> None:
    """Take a model of the list, which closes."""
    st.session_state[f"{key}-list"] = False
    _take(key, name)


def _draw_others(key: str, text: str) -> None:
    """Draw what was taken, what else the text may mean, and the text as it stands."""
    current = session.request().model
    if isinstance(current, str) and current in model_facts():
        now = FoundModel(model_facts()[current])
        st.markdown(f":material/check_circle: **{common.escape(now.title)}** is taken.")
    further = [model for model in search_models(text, OTHERS + 1) if model.id != current][:OTHERS]
    with st.container(key=f"{key}-others", gap=None):
        for n, model in enumerate(further):
            st.button(
                f"**{common.escape(model.title)}** · {common.escape(model.description)}",
                key=f"{key}-other-{n}",
                type="tertiary",
                icon=":material/neurology:",
                on_click=_take,
                args=(key, model.id),
            )
        if text != current and (folders_allowed() or "/" in text):
            source = "from the Hub or a folder" if folders_allowed() else "by its name"
            st.button(
                f"Use “{common.escape(text[:80])}” {source}",
                key=f"{key}-as-typed",
                type="tertiary",
                icon=":material/cloud_download:",
                on_click=take_as_typed,
                args=(key, text),
            )
