"""A tour of one minute: a note at the top of each page says what to look at, on a real example."""

from __future__ import annotations

from dataclasses import dataclass

import _common as common
import streamlit as st

from recipe_core.request.link import DEFAULT
from recipe_core.request.presets import examples

EXAMPLE = "chat-70b"
"""The case of the gallery that the tour walks through."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A page of the tour, what it is called on a button, and what is to be seen there."""

    page: str
    name: str
    title: str
    text: str


STOPS = (
    Stop(
        "model.py",
        "model",
        "What runs",
        "The example serves Llama 3.1 70B to 64 people. Any part of a name finds a model; the "
        "figures come from its config.json, and nothing is downloaded.",
    ),
    Stop(
        "objective.py",
        "traffic",
        "Traffic and goals",
        "How long prompts and answers are, how many come at once, and what must hold. Here every "
        "token may take 40 ms, and of the splits that keep this the cheapest is wanted.",
    ),
    Stop(
        "hardware.py",
        "hardware",
        "Where it runs",
        "Eight H100 in one node, at a dated price. Each figure below names its source. If you do "
        "not know the hardware yet, let it be found for you.",
    ),
    Stop(
        "compare.py",
        "compare",
        "Every way to split it",
        "Each mark is one split of the model over the devices. The figures on top are those of the "
        "best. Click a mark to pin it, then look below where its memory and its time go.",
    ),
    Stop(
        "recipe.py",
        "recipe",
        "One of them, ready to run",
        "The bundle starts exactly what was estimated. The tabs show it for Docker, Kubernetes or "
        "Slurm, why each option has its value, and what to do when devices are missing.",
    ),
    Stop(
        "check.py",
        "check a command",
        "A command that you have",
        "Paste it and it is judged in the same way. Two more pages choose hardware (Size) and hold "
        "predictions against your runs (Measured); the glossary below each page explains words.",
    ),
)
PAGES = [stop.page for stop in STOPS]


def start_tour() -> None:
    """Begin the tour, with the example as the request."""
    request = examples()[EXAMPLE].asked
    st.session_state.update({"tour": True, "request": request, "pins": [], "edited": True})


def end_tour() -> None:
    """End the tour; the request stays."""
    st.session_state.pop("tour", None)


def leave_tour() -> None:
    """End the tour and go back to the request of an empty link."""
    end_tour()
    common.start_over()


def draw_tour_offer() -> None:
    """A button that begins the tour, for who comes without a request of their own."""
    if "tour" not in st.session_state and common.request() == DEFAULT and not common.pins():
        st.button(
            "Take the tour (one minute)",
            key="tour-start",
            icon=":material/explore:",
            on_click=start_tour,
        )


def draw_tour_note() -> None:
    page = st.session_state["page"]
    with st.container(key="tour-note"):  # one place in every state: what follows stays in its own
        if "tour" not in st.session_state:
            return
        with st.container(border=True):
            if page in PAGES:
                at_stop(PAGES.index(page))
            else:
                elsewhere()


def at_stop(number: int) -> None:
    """The stop of this page, announced to screen readers, and the ways on."""
    stop = STOPS[number]
    st.info(
        f"**Tour, stop {number + 1} of {len(STOPS)}: {stop.title}.** {common.escape(stop.text)}",
        icon=":material/explore:",
    )
    with st.container(horizontal=True):
        if number + 1 < len(STOPS):
            following = STOPS[number + 1]
            if st.button(
                f"Next stop: {following.name}",
                key="tour-next",
                type=common.main_button(),
                icon=":material/arrow_forward:",
            ):
                st.switch_page(following.page, query_params=common.screen_link_query())
        elif st.button(
            "Start with my own model",
            key="tour-own",
            type=common.main_button(),
            icon=":material/restart_alt:",
        ):
            leave_tour()
            st.switch_page("model.py", query_params=common.screen_link_query())
        end_button()


def elsewhere() -> None:
    """That the tour goes on at another page."""
    st.markdown("The tour does not stop here.")
    with st.container(horizontal=True):
        common.page_link(PAGES[0], "Back to its first stop", ":material/explore:")
        end_button()


def end_button() -> None:
    st.button(
        "End tour", key="tour-end", icon=":material/close:", type="tertiary", on_click=end_tour
    )
