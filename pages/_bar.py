"""The bar at the foot of the walk's screens: the answer so far in one line, and the ways on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _address as address
import _common as common
import _verdict as verdicts
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.views.plan_words import unpriced_note
from recipe_core.views.verdict import Verdict

ICONS = {
    "holds": ":green[:material/check_circle:]",
    "queues": ":orange[:material/hourglass_top:]",
    "uncertain": ":orange[:material/contact_support:]",
    "nothing": ":red[:material/block:]",
    "doubtful": ":orange[:material/warning:]",
    "error": ":red[:material/error:]",
    "open": ":material/travel_explore:",
}
NO_KEYS_ON_A_PHONE = "<style>@media (width < 480px) {.st-key-bar kbd {display: none}}</style>"
"""The hint of a shortcut would push a button of the bar into a second row."""
MOST_OF_AN_ERROR = 160
"""Characters of an error that the bar shows; its details show all."""


class Bar:
    """The bar of one of the walk's steps: drawn before the page, its details filled after it."""

    def __init__(self, steps: Sequence[Any], number: int, answer_page: Any) -> None:
        st.html(NO_KEYS_ON_A_PHONE)
        with st.bottom, st.container(horizontal=True, vertical_alignment="center", key="bar"):
            self.text = st.container(width="stretch", gap=None)
            with st.container(
                horizontal=True, width="content", vertical_alignment="center", gap="xsmall"
            ):
                self.details = st.container(width="content")
                draw_back_step(steps, number)
                draw_forward_step(steps, number)
                draw_answer_step(answer_page)
        with self.text:
            self.answer = verdicts.current_answer()
            draw_answer(self.answer)

    def finish(self) -> None:
        """Fill the details of what is wrong or in doubt, after the page."""
        if explains(self.answer):
            with self.details, st.popover("Why?", key="details"):
                verdicts.draw_explanation(self.answer)


def explains(answer: verdicts.Answer) -> bool:
    """Return whether an answer needs more words than the line: it is refused, or in doubt."""
    if answer is None or isinstance(answer, RecipeError):
        return answer is not None
    plan, verdict = answer
    return verdict.state != "holds" or verdict.doubtful or bool(unpriced_note(plan))


def turn_page(page: Any) -> None:
    """Open another page, unless a box was refused: what is typed in it is not lost unseen."""
    if "refused" not in st.session_state and not st.session_state.get("refused_in"):
        st.switch_page(page, query_params=address.screen_link_query())


def draw_back_step(steps: Sequence[Any], number: int) -> None:
    if number == 0:
        st.empty()
    elif st.button("Back", key="back"):
        turn_page(steps[number - 1])


def draw_forward_step(steps: Sequence[Any], number: int) -> None:
    """The button to the next step; after the last one comes the answer, which has its own."""
    if number + 1 == len(steps):
        st.empty()
    elif st.button("Next", key="next"):
        turn_page(steps[number + 1])


def draw_answer_step(page: Any) -> None:
    if st.button("Show the answer", type="primary", key="answer-next", shortcut="Ctrl+Enter"):
        turn_page(page)


def draw_answer(answer: verdicts.Answer) -> None:
    if isinstance(answer, RecipeError):
        text = str(answer)
        short = text if len(text) <= MOST_OF_AN_ERROR else f"{text[:MOST_OF_AN_ERROR]} …"
        two_lines(ICONS["error"], "The request cannot be planned", "", short)
    elif answer is None:
        two_lines(
            ICONS["open"], "Hardware: found for you", "", "the cheapest that holds the limits"
        )
    else:
        verdict = answer[1]
        lead = "" if verdict.best else "Chosen: "
        two_lines(
            verdict_icon(verdict), f"{lead}{verdict.subject}", verdict.line, verdict.short_counts
        )


def verdict_icon(verdict: Verdict) -> str:
    return ICONS["doubtful" if verdict.doubtful and verdict.state == "holds" else verdict.state]


def two_lines(mark: str, subject: str, rest: str, second: str) -> None:
    """Show what matters, and below it how it stands; on a phone the first may take two lines."""
    joint = ": " if rest and subject.startswith("Nearest") else " · "
    first = f"**{common.escape(subject)}**{joint if rest else ''}{common.escape(rest)}"
    st.markdown(f":small[{mark} {first}]\\\n:small[{common.escape(second)}]", anchors=False)
