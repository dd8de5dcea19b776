"""Changes of a fleet that are tried: chips, what each changes, and taking it or putting it away."""

from __future__ import annotations

from collections.abc import Mapping

import _columns as columns_of
import _common as common
import _fleet_answer as answers
import _fleet_document as documents
import streamlit as st

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.what_if import FleetChanges, compare_answers
from recipe_core.views import fleet_changes as view
from recipe_core.views.columns import Column
from recipe_core.views.fleets import PHRASES, unmet_lines

CHIPS = "fleet-what-if"
DIFFERENCES = (
    Column("Figure", "title", align="left"),
    Column("Now", "now"),
    Column("Then", "then"),
)
MOST_MOVES = 6
"""Lines of moves that a card shows before it says how many more there are."""


def tried_questions() -> dict[str, answers.Question]:
    """The questions of changes that are tried, by their labels; nobody moves there from today."""
    fleet, month = documents.current_fleet(), documents.current_month()
    return {
        label: answers.fleet_question(
            changes.apply(fleet).model_copy(update={"today": ()}), month + changes.months
        )
        for label, changes in documents.tried_changes().items()
    }


def draw_what_if(answer: FleetAnswer) -> None:
    """Chips of what may happen; each that is on has a card with what it changes."""
    st.header("What if", anchor=False)
    tried = documents.tried_changes()
    offered = view.suggest_changes(answer) | tried
    common.seed(CHIPS, list(tried))
    st.pills(
        "What if",
        list(offered),
        selection_mode="multi",
        key=CHIPS,
        on_change=try_chips,
        args=(offered,),
        label_visibility="collapsed",
    )
    questions = tried_questions()
    if not questions:
        st.caption("Turn one on to see what it costs, who moves, and what is no longer served.")
        return
    with st.grid(2, min_column_width=330):
        for label, question in questions.items():
            with st.container(border=True, gap="small"):
                draw_card(answer, label, question)


def try_chips(offered: Mapping[str, FleetChanges]) -> None:
    chosen_labels = st.session_state[CHIPS] or []
    st.session_state[documents.TRIED] = {label: offered[label] for label in chosen_labels}


def take_change(label: str) -> None:
    """Make a change that was tried, in the document; growth moves the month ahead."""
    changes = documents.tried_changes()[label]
    values = view.changed_document(documents.current_values(), changes)
    documents.take_values(values, label, documents.current_month() + changes.months)


def draw_card(answer: FleetAnswer, label: str, question: answers.Question) -> None:
    st.markdown(f"**{common.escape(label)}**")
    changed = answers.find_answer(question)
    if changed is not None:
        draw_differences(answer, changed.answer)
    else:
        draw_missing(question, label)
    st.button(
        "Take it",
        key=f"fleet-take-{label}",
        icon=":material/check:",
        on_click=take_change,
        args=(label,),
        disabled=changed is None,
        help="Makes this change in the fleet; it can be taken back",
    )


def draw_differences(answer: FleetAnswer, changed: FleetAnswer) -> None:
    differences = compare_answers(answer, changed)
    sentence = common.escape(PHRASES.sentence("more", differences["usd_per_hour"]))
    if changed.complete:
        st.markdown(f"{sentence}.")
    else:
        lines = "\n".join(f"- {common.escape(line)}" for line in unmet_lines(changed))
        st.error(
            f"**Not all of it can be served.** {sentence}.\n\n{lines}", icon=":material/block:"
        )
    rows = view.difference_rows(answer, changed)
    columns_of.draw_columns(rows, DIFFERENCES, "Figures now and with the change")
    moves = [*PHRASES.lines("replicas", differences)]
    lines = [f"- {common.escape(line)}" for line in moves[:MOST_MOVES]]
    if len(moves) > MOST_MOVES:
        lines.append(f"- and {len(moves) - MOST_MOVES} more")
    st.markdown("\n".join(["Who moves:\n", *lines]) if moves else "Nobody moves.")


def draw_missing(question: answers.Question, label: str = "") -> None:
    """Say that a change is placed, or why it is not; progress stands above the page's answer."""
    ended = answers.ended_questions()
    if question not in ended:
        st.caption("Being placed …")
        return
    if (error := ended[question]) is not None:
        st.error(common.escape(error), icon=":material/error:")
    st.button(
        "Place it",
        key=f"fleet-again-{label}",
        icon=":material/play_arrow:",
        on_click=answers.place_again,
        args=(question,),
    )
