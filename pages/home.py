import _address as address
import _common as common
import _model_pick as picker
import streamlit as st

from recipe_core.request.describe import model_name
from recipe_core.request.link import DEFAULT
from recipe_core.request.presets import Example, examples

CASES = 6
"""Cases that the start page shows."""


def open_door(kind: str) -> None:
    if common.asked().workload.kind != kind:
        common.apply_changes(common.turn_kind(kind) or {})
    st.session_state["goto"] = "model.py"


def draw_doors() -> None:
    """The three ways in: a model to serve, one to train, a command that one has."""
    with st.grid(3, min_column_width=220):
        st.button(
            "Serve a model",
            key="door-serve",
            icon=":material/dns:",
            on_click=open_door,
            args=("serving",),
            width="stretch",
        )
        st.button(
            "Train or fine-tune",
            key="door-train",
            icon=":material/model_training:",
            on_click=open_door,
            args=("training",),
            width="stretch",
        )
        if st.button(
            "I have a command", key="door-check", icon=":material/terminal:", width="stretch"
        ):
            st.switch_page("check.py", query_params=address.screen_link_query())


def draw_current() -> None:
    """The way back to the request that the link or this session has already."""
    request = common.asked()
    if request in (DEFAULT, common.by_cost(DEFAULT), common.new_request()):
        return
    address.page_link(
        "plan.py", f"Continue with {common.escape(model_name(request))}", ":material/arrow_forward:"
    )


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
picker.draw_model_search("home", with_upload=False)
draw_doors()
draw_current()
draw_cases()
