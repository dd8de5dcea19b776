"""Deployment settings: what differs between places. Kept in the session, not in the link."""

from __future__ import annotations

from collections.abc import Sequence

import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle
from recipe_core.recipe.place import Parameters, read_parameters
from recipe_core.targets import form
from recipe_core.targets.by_hand import read_addresses


def filled_fields() -> dict[str, str]:
    """Text of the form's filled fields, by parameter."""
    texts: dict[str, str] = st.session_state.setdefault("place", {})
    return texts


def parameters() -> Parameters:
    valid: Parameters = st.session_state.get("parameters", Parameters())
    return valid


def read_form() -> None:
    """Read the form; an invalid entry is reported below it, and the last valid settings stay."""
    values = {
        name: text
        for name in Parameters.model_fields
        if (text := st.session_state.get(f"place-{name}", filled_fields().get(name, "")).strip())
    }
    st.session_state["place"] = values
    try:
        st.session_state["parameters"] = read_parameters(values)
        st.session_state["misplaced"] = None
    except RecipeError as error:
        st.session_state["misplaced"] = str(error)


def addresses(bundle: Bundle) -> tuple[str, ...]:
    """Addresses of the nodes as entered; placeholders where they cannot be read."""
    try:
        return read_addresses(st.session_state.get("addresses", ""), bundle.context.nodes)
    except RecipeError:
        return read_addresses("", bundle.context.nodes)


def fill_in(bundle: Bundle, targets: Sequence[str]) -> None:
    """The form of what the targets read; commands and files below it follow."""
    with st.expander(
        "Deployment settings: namespace, port, image, partition …",
        key="deployment-settings",
        icon=":material/edit_location_alt:",
    ):
        st.caption(
            "Commands and files below update at once. "
            "Settings stay in this session and are not part of links."
        )
        for group, fields in form.form_groups(bundle.context, targets).items():
            st.markdown(f"**{group}**")
            with st.grid(4, min_column_width=140):
                for field in fields:
                    st.session_state[f"place-{field.name}"] = filled_fields().get(field.name, "")
                    st.text_input(
                        field.title,
                        key=f"place-{field.name}",
                        on_change=read_form,
                        placeholder=form.parameter_default(field.name, bundle.context),
                        help=field.help,
                        max_chars=512,
                    )
        if filled_fields():
            st.button(
                "Clear", key="clear-place", icon=":material/backspace:", on_click=clear_deployment
            )
    if filled_fields():
        settings = ", ".join(f"{name} {text}" for name, text in filled_fields().items())
        st.caption(common.escape(f"Set: {settings}."))
    if error := st.session_state.get("misplaced"):
        st.error(
            f"{common.escape(error)} The previous valid value stays in effect.",
            icon=":material/error:",
        )


def clear_deployment() -> None:
    st.session_state.update({"place": {}, "parameters": Parameters(), "misplaced": None})
