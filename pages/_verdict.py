"""The answer in words: verdicts, what refuses everything, and what helps by click."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _address as address
import _common as common
import _names as names
import _planned as planned
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.plans.alternatives import Alternative
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text, plan_launch_note, queue_text, split_label
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.remedies import change_label
from recipe_core.plans.splits import row_reasons
from recipe_core.views.plan_words import confidence_text, figures_phrase, unpriced_note
from recipe_core.views.verdict import Verdict, plan_verdict

PAGE_OF = {
    "model": "model.py",
    "hardware": "hardware.py",
    "workload": "traffic.py",
    "objective": "traffic.py",
    "options": "traffic.py",
    "candidate": "plan.py",
}
"""The page where a part of the request is edited."""

Answer = tuple[Plan, Verdict] | RecipeError | None
"""A plan with its verdict; what is wrong with the request; None while hardware is to be found."""


def current_answer() -> Answer:
    """Return the plan that the page speaks about; none while no hardware is chosen or found."""
    try:
        if session.hardware_is_open() and st.session_state.get("found") is None:
            session.model()
            return None
        plan = planned.planned_request()
    except RecipeError as error:
        return error
    return plan, plan_verdict(plan, planned.selected_row(plan))


def draw_explanation(answer: Answer) -> None:
    """The answer in full, with what helps as one click each."""
    if isinstance(answer, RecipeError):
        draw_problem(answer)
    elif answer is None:
        st.markdown(
            "The hardware is found for you with the answer. Choose it on the Hardware screen, and "
            "layouts are judged at once."
        )
    elif answer[1].state == "nothing":
        draw_no_answer(answer[0], answer[1])
        draw_left_split_note()
    else:
        draw_verdict(*answer)
        draw_left_split_note()
        draw_bundle_refusal(answer[0])
        draw_way_to_best(answer[0])


def draw_verdict(plan: Plan, verdict: Verdict) -> None:
    row = planned.selected_row(plan)
    if row is None:
        return
    name = "Best" if verdict.best else "Chosen"
    label, figures = split_label(plan, row), figures_phrase(plan, row)
    split = f"{name}: **{common.escape(label)}**, {common.escape(figures)}."
    queue = queue_text(plan, row)
    sentences = [f"**{common.escape(verdict.counts)}.** {split}"]
    sentences += [f"It starts and queues: {common.escape(queue)}."] if queue else []
    sentences += [f"It {common.escape(doubt)}."] if (doubt := doubt_text(plan, row)) else []
    sure = confidence_text(plan, row)
    sentences += [f"{common.escape(sure)}."] if sure else []
    draw = st.warning if verdict.doubtful else st.success
    marks = {
        "queues": ":material/hourglass_top:",
        "uncertain": ":material/contact_support:",
        "holds": ":material/check_circle:",
    }
    plain = verdict.doubtful and not (queue or doubt)
    draw(" ".join(sentences), icon=":material/warning:" if plain else marks[verdict.state])
    for fact in verdict.facts:
        st.caption(common.escape(fact))
    draw_figure_notes(plan, row)


def draw_figure_notes(plan: Plan, row: int) -> None:
    common.calibration_note(plan, row)
    draw_price_note(plan)


def draw_bundle_refusal(plan: Plan) -> None:
    """Say why no bundle can be made of any split, and changes after which one can, a click each."""
    note = plan_launch_note(plan)
    if note is None:
        return
    st.warning(common.escape(note), icon=":material/block:")
    with st.container(horizontal=True):
        for n, change in enumerate(planned.buildable_edits()):
            draw_edit_button(
                change_label(change.fields),
                f"buildable-{n}",
                change.fields,
                ":material/build:",
                f"Then {change.split} fits, and has a bundle.",
            )


def draw_left_split_note() -> None:
    if lost := planned.left_split_name():
        st.caption(
            common.escape(f"{lost}, the layout that you chose, no longer fits: the link omits it.")
        )


def draw_price_note(plan: Plan) -> None:
    if note := unpriced_note(plan):
        st.caption(common.escape(f"{note} State a price on the hardware page."))


def draw_way_to_best(plan: Plan) -> None:
    """The way back from a chosen layout to the best."""
    best, row = plan.best_row, planned.selected_row(plan)
    if best is not None and row is not None and row != best:
        draw_edit_button(
            f"Back to the best: {split_label(plan, best)}",
            "best",
            {"candidate": session.shared_fields()},
            ":material/undo:",
        )


def draw_edit_button(
    label: str, key: str, fields: Mapping[str, Any], icon: str, tip: str | None = None
) -> None:
    common.edit_button(
        common.escape(label), key, fields, icon, help=common.escape(tip) if tip else None
    )


def draw_no_answer(plan: Plan, verdict: Verdict) -> None:
    """Show what refuses everything, how near the nearest split is, and changes by click."""
    row = nearest_row(plan)
    nearest = f"{verdict.subject}."
    if row is not None:
        nearest = f"Nearest is {split_label(plan, row)}: {'; '.join(row_reasons(plan, row))}."
    st.error(
        f"**{common.escape(verdict.counts)}.** {common.escape(nearest)}", icon=":material/block:"
    )
    if row is None:
        return
    with st.container(horizontal=True):
        for n, change in enumerate(planned.single_changes()):
            label = f"{change_label(change.fields)}: then {change.split} fits"
            draw_edit_button(label, f"change-{n}", change.fields, ":material/build:")


def draw_problem(error: RecipeError) -> None:
    st.error(common.escape(error), icon=":material/error:")
    page = PAGE_OF.get((error.field or "").split(".")[0])
    with st.container(horizontal=True):
        if page and st.session_state.get("page") != page:
            address.page_link(page, "Correct it", ":material/edit:")
        names.draw_model_ways_out(error, "answer")
        st.button(
            "Start over",
            key="start-over",
            icon=":material/restart_alt:",
            on_click=session.start_over,
        )


# --- alternatives --------------------------------------------------------------------------------


def reserve_alternatives() -> Callable[[], None]:
    """Reserve a place for choices beside the verdict; gives what fills it, after the page.

    A page calls ``work.later`` with it: nothing on the page waits for what is planned for them.
    """
    place = st.empty()
    with place.container(key="alternatives-wait"):
        st.skeleton(height=40)

    def fill() -> None:
        try:
            choices = [choice for choice in planned.split_alternatives() if choice.kind in MARKS]
        except RecipeError:  # the server is busy: the page does without
            choices = []
        if not choices:
            place.empty()  # a container without content would keep what it had
            return
        with place.container(key="alternatives", gap="xsmall"):
            draw_alternatives(choices)

    return fill


def draw_alternatives(choices: Sequence[Alternative]) -> None:
    """Each choice with what it changes, and a list to take one from."""
    with st.grid(3, min_column_width=280, gap="xsmall"):
        for choice in choices:
            st.markdown(f":small[{MARKS[choice.kind]} {common.escape(choice.label)}]")
    changes = {choice.label: choice.fields for choice in choices}
    common.draw_choice(
        st.selectbox,
        "Take a runner-up",
        "_runner-up",
        None,
        changes.__getitem__,
        options=list(changes),
        index=None,
        placeholder="Take one of them …",
        label_visibility="collapsed",
        width=350,
    )


MARKS = {
    "weights": ":material/compress:",
    "checkpoint": ":material/inventory:",
    "made": ":material/construction:",
    "cache": ":material/memory:",
    "fewer": ":material/remove:",
    "more": ":material/add:",
    "engine": ":material/settings:",
}
"""Marks of the kinds that are shown; what more certainty costs stands beside its control."""
