"""The reader's place: parameters and addresses that differ between places. They are kept in the session, not in the link."""

from __future__ import annotations

import common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle
from recipe_core.recipe.parameters import read_parameters
from recipe_core.recipe.place import Parameters
from recipe_core.targets import form
from recipe_core.targets.by_hand import read_addresses


def typed() -> dict[str, str]:
    """What was typed into the form, by parameter."""
    found: dict[str, str] = st.session_state.setdefault("place", {})
    return found


def parameters() -> Parameters:
    """The parameters as they were last typed without a mistake."""
    found: Parameters = st.session_state.get("parameters", Parameters())
    return found


def take_over() -> None:
    """Take over what was typed; a mistake is said at the form, and what was read before stays."""
    values = {
        name: text
        for name in Parameters.model_fields
        if (text := st.session_state.get(f"place-{name}", typed().get(name, "")).strip())
    }
    st.session_state["place"] = values
    try:
        st.session_state["parameters"] = read_parameters(values)
        st.session_state["misplaced"] = None
    except RecipeError as error:
        st.session_state["misplaced"] = str(error)


def addresses(bundle: Bundle) -> tuple[str, ...]:
    """Addresses of the nodes, as typed; names that stand for them where that cannot be read."""
    try:
        return read_addresses(st.session_state.get("addresses", ""), bundle.context.nodes)
    except RecipeError:
        return read_addresses("", bundle.context.nodes)


def fill_in(bundle: Bundle) -> None:
    """The form with what differs between places; everything below follows it."""
    with st.expander(
        "Your place: namespace, port, image, partition …", icon=":material/edit_location_alt:"
    ):
        st.caption(
            "Commands and files below follow at once. Kept in this session, not in links: another reader's place is another."
        )
        for group, asked in form.groups(bundle.context, bundle.targets).items():
            st.markdown(f"**{group}**")
            with st.grid(4, min_column_width=140):
                for each in asked:
                    st.session_state[f"place-{each.name}"] = typed().get(each.name, "")
                    default = form.default(each.name, bundle.context)
                    st.text_input(
                        each.title,
                        key=f"place-{each.name}",
                        on_change=take_over,
                        placeholder=default,
                        help=each.help,
                        max_chars=512,
                    )
        if typed():
            st.button("Clear", key="clear-place", icon=":material/backspace:", on_click=clear)
    if typed():
        st.caption(
            common.escape(
                f"Filled in: {', '.join(f'{name} {text}' for name, text in typed().items())}."
            )
        )
    if wrong := st.session_state.get("misplaced"):
        st.error(
            f"{common.escape(wrong)} Until then the values before it hold.", icon=":material/error:"
        )


def clear() -> None:
    """Every parameter as it is by default."""
    st.session_state.update({"place": {}, "parameters": Parameters(), "misplaced": None})
