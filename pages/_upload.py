"""A model by its own config.json: uploaded or pasted, named, with the place of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _common as common
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import count_text
from recipe_core.models.uploaded import LONGEST_NAME, MAX_BYTES, rename_config, uploaded_config
from recipe_core.request.describe import model_name
from recipe_core.request.link import DEFAULT

NAME, PLACE = "_upload-name", "_upload-weights"


def config_of_request() -> Mapping[str, Any] | None:
    """The request's own config; None where its model is named."""
    model = session.request().model
    return None if isinstance(model, str) else model


def draw_upload(
    label: str,
    kinds: list[str],
    keys: tuple[str, str],
    take: Callable[[bytes, str], Mapping[str, Any]],
    pasted: str,
    note: str,
    **area: Any,
) -> Any:
    """Draw places for a file and for its text beside it; return the column of the file.

    ``take`` reads bytes of a name as changes of the request; ``pasted`` is the name of the text.
    """

    def apply(data: bytes, name: str) -> None:
        try:
            session.apply_changes(take(data, name))
        except RecipeError as error:
            st.session_state["refused"] = str(error)

    def take_file() -> None:
        if (file := st.session_state[keys[0]]) is not None:
            apply(file.getvalue(), file.name)

    def take_text() -> None:
        text = st.session_state[keys[1]]
        if text and text.strip():
            apply(text.encode(), pasted)

    upload_column, paste_column = st.columns(2)
    settings: dict[str, Any] = {"type": kinds, "on_change": take_file, "max_upload_size": 1}
    upload_column.file_uploader(label, key=keys[0], **settings)
    upload_column.caption(note)
    paste_column.text_area("Or paste it", key=keys[1], on_change=take_text, **area)
    return upload_column


def take_config_fields() -> None:
    model = config_of_request()
    if model is None:
        return
    try:
        name, place = st.session_state[NAME] or "", st.session_state[PLACE] or ""
        session.apply_changes({"model": rename_config(model, name, place)})
    except RecipeError as error:
        st.session_state["refused"] = error.plain


def remove_config() -> None:
    session.apply_changes({"model": DEFAULT.model})


def draw_config_upload() -> None:
    """Places for a config.json: a file, or its text."""
    draw_upload(
        "Your config.json",
        ["json"],
        ("upload", "paste"),
        lambda data, name: {"model": uploaded_config(data, name)},
        "the pasted config.json",
        f"At most {MAX_BYTES >> 20} MiB of JSON. Only its numbers are read, never weights or code.",
        height=150,
        placeholder='{"model_type": "llama", "hidden_size": 4096, …',
    )


def draw_current_config() -> None:
    """Show the config.json that is the request's model, with its name and its weights' place."""
    model = config_of_request()
    if model is None:
        return
    try:
        spec = session.model()
    except RecipeError:
        place_now, model_text = (
            str(model.get("weights") or ""),
            "cannot be read",
        )  # the verdict says why
    else:
        place_now = spec.weights or ""
        model_text = f"{len(spec.layers)} layers, {count_text(spec.parameters)} parameters"
    st.session_state[NAME] = model_name(session.request())
    st.session_state[PLACE] = place_now
    with st.container(border=True):
        st.markdown(
            f"**Your config.json:** {common.escape(model_name(session.request()))}, {model_text}"
        )
        name, place = st.columns(2)
        name.text_input(
            "Name",
            key=NAME,
            on_change=take_config_fields,
            max_chars=LONGEST_NAME,
            help="Names the model in links, files and requests to the server",
        )
        place.text_input(
            "Where its weights are",
            key=PLACE,
            on_change=take_config_fields,
            max_chars=512,
            placeholder="owner/name on the Hub, or /path/on/the/machine",
            help="What the engine loads when it starts: an id of the Hugging Face Hub, or an "
            "absolute path on the machine that runs it. Nothing is read from there now.",
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(
                "Remove", key="remove-upload", icon=":material/close:", on_click=remove_config
            )
            if not place_now:
                st.caption("Left open, the start command asks for the weights.")
