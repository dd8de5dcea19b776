import _address as address
import _common as common
import _model_pick as picker
import _session as session
import streamlit as st

from recipe_core.request.presets import Example, examples

CASES = 6
"""Cases that the start page shows."""
DOORS = {
    "serving": ("Serve a model", ":material/dns:"),
    "training": ("Train or fine-tune", ":material/model_training:"),
}
"""Ways in by what is asked, each with its title and icon."""


def open_door(kind: str) -> None:
    if session.asked().workload.kind != kind:
        session.apply_changes(session.turn_kind(kind) or {})
    st.session_state["goto"] = "model.py"


def draw_doors() -> None:
    """The three ways in: a model to serve, one to train, a command that one has."""
    with st.grid(3, min_column_width=220):
        for kind, (title, icon) in DOORS.items():
            st.button(
                title,
                key=f"door-{kind}",
                icon=icon,
                on_click=open_door,
                args=(kind,),
                width="stretch",
            )
        if st.button(
            "I have a command", key="door-check", icon=":material/terminal:", width="stretch"
        ):
            st.switch_page("check.py", query_params=address.screen_link_query())


WHOLE_CARD = """<style>
[class*="st-key-case-"] {position: relative}
[class*="st-key-case-"] a::after {content: ""; position: absolute; inset: 0}
[class*="st-key-case-"]:hover {border-color: currentColor}
</style>"""
"""Makes the link of a card reach over all of it; no setting of the library does."""


def draw_cases() -> None:
    st.header("Cases with their answers", anchor=False)
    st.html(WHOLE_CARD)
    with st.grid(3, min_column_width=300):
        for name, example in list(examples().items())[:CASES]:
            with st.container(border=True, height="stretch", gap="xsmall", key=f"case-{name}"):
                draw_case(example)


def draw_case(example: Example) -> None:
    """A case, all of it a link: what runs where, what one wants to know, and the answer."""
    st.page_link(
        "plan.py",
        label=f"**{common.escape(example.title)}**",
        icon=":material/arrow_forward:",
        icon_position="right",
        query_params=address.query_of(example.asked),
    )
    st.caption(f"{common.escape(example.text)} {common.escape(example.question)}")
    if example.answer:
        st.markdown(f"**{common.escape(example.answer)}**")


if picker.picked_model("home"):
    st.switch_page("plan.py", query_params=address.screen_link_query())
if page := st.session_state.pop("goto", None):
    st.switch_page(page, query_params=address.screen_link_query())

st.title("Recipe Builder", anchor=False)
st.markdown("Plan, price and ship an LLM deployment.")
picker.draw_model_search("home")
draw_doors()
draw_cases()
