"""Names that no model has: the nearest that one has, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _common as common
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.serve import folders_allowed
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.search import search_models

NAMES = 5
"""Names that are offered in place of one that no model has."""


def similar_models(name: str) -> list[str]:
    return [model.id for model in search_models(name, NAMES)] if name.strip() else []


def model_change(name: str) -> Mapping[str, Any]:
    """The change that makes a name the request's model; of a name without a model, none.

    Such a name is kept aside, for ``draw_unmatched_name`` to say so.
    """
    st.session_state.pop("unmatched", None)
    try:
        load_model_spec(name, folders=folders_allowed())
    except RecipeError as error:
        st.session_state["unmatched"] = (name, error)
        return {}
    return {"model": name}


def take_model_name(name: str) -> None:
    st.session_state.pop("unmatched", None)
    session.apply_changes({"model": name})


def draw_unmatched_name(*, with_upload: bool = True) -> None:
    """Say that what was typed names no model, and offer those with names like it.

    ``with_upload``: whether a config.json can be given below.
    """
    if "unmatched" not in st.session_state:
        return
    name, error = st.session_state["unmatched"]
    similar_names = similar_models(name)
    reason = f"No model is called “{name[:80]}”."
    if not error.message.startswith("unknown model"):  # a folder, the hub: they say why
        reason = str(error).removeprefix("model: ")
    where = "in the list below" if with_upload else "on the screen Model"
    then = "Did you mean one of these?" if similar_names else "Nothing in the catalog is like it."
    st.warning(
        f"{common.escape(reason)} **{common.escape(current_model_name())}** stays. {then} "
        f"A model that is not listed can be given by its config.json {where}.",
        icon=":material/search_off:",
    )
    with st.container(horizontal=True):
        draw_name_buttons(similar_names, "page")


def draw_name_buttons(names: list[str], place: str) -> None:
    for n, name in enumerate(names):
        st.button(
            common.escape(name),
            key=f"{place}-near-{n}",
            icon=":material/neurology:",
            on_click=take_model_name,
            args=(name,),
        )


def draw_model_ways_out(error: RecipeError, place: str) -> None:
    """Beside an error of the model: names like it, and the model before it.

    ``place`` names the buttons: an error may be shown twice on a page.
    """
    model = session.request().model
    if error.field != "model":
        return
    if isinstance(model, str):
        draw_name_buttons(similar_models(model), place)
    former = st.session_state.get("known_model")
    if former is not None and former != model:
        title = former.rpartition("/")[2] if isinstance(former, str) else "the former model"
        common.edit_button(
            common.escape(f"Back to {title}"),
            f"{place}-former-model",
            {"model": former},
            ":material/undo:",
        )


def current_model_name() -> str:
    """The request's model, for a sentence."""
    model = session.request().model
    return model if isinstance(model, str) else "The model of the link"
