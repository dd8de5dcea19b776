"""The bar at the foot of the window: the verdict in two short lines, its details, Back and Next.

It has the same lines whatever the answer is, so that nothing moves under a slider. What takes
longer to say, and the changes that help, stand in a popover of the bar and below the title of the
pages on which nothing is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _common as common
import _link as links
import _names as names
import _planned as planned
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.plans.alternatives import find_safer_row
from recipe_core.plans.confidence import SURE
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import doubt_text, plan_launch_note, queue_text, split_label
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.remedies import change_label
from recipe_core.plans.splits import row_key, row_reasons
from recipe_core.views.plan_words import (
    confidence_text,
    figures_phrase,
    limits_text,
    safer_text,
    unpriced_note,
)
from recipe_core.views.verdict import Verdict, may_miss, plan_verdict

PAGE_OF = {
    "model": "model.py",
    "hardware": "hardware.py",
    "workload": "objective.py",
    "objective": "objective.py",
    "options": "objective.py",
    "candidate": "compare.py",
}
"""The page where a part of the request is edited."""
READ_ONLY = ("compare.py", "recipe.py")
"""Pages that edit nothing above what they show: there a long answer may stand below the title."""
ICONS = {
    "holds": ":green[:material/check_circle:]",
    "queues": ":orange[:material/hourglass_top:]",
    "uncertain": ":orange[:material/contact_support:]",
    "nothing": ":red[:material/block:]",
    "doubtful": ":orange[:material/warning:]",
    "error": ":red[:material/error:]",
    "open": ":material/pending:",
}
NEXT_PX = 120
"""Width of the button to the next step."""
MOST_OF_AN_ERROR = 160
"""Characters of an error that the bar shows; its details show all."""


class Bar:
    """The frame's bar: drawn before the page, its details filled after it.

    Back and Next stand in the same places on every step; other pages have only the link.
    """

    def __init__(self, steps: Sequence[Any], number: int | None) -> None:
        self.details: Any = None
        with st.bottom:
            if number is None:
                with st.container(horizontal=True, horizontal_alignment="right", key="bar"):
                    self.link = links.menu()
                return
            with st.container(horizontal=True, vertical_alignment="center", key="bar"):
                self.text = st.container(width="stretch", gap=None)
                with st.container(
                    horizontal=True, width="content", vertical_alignment="center", gap="xsmall"
                ):
                    self.link = links.menu()
                    self.details = st.popover("Why?", key="details")
                    draw_back_step(steps, number)
                    draw_forward_step(steps, number)
        with self.text:
            self.answer = current_answer()
            draw_answer(self.answer)

    def finish(self) -> None:
        """Fill the details and the link, after the page."""
        links.fill_link_menu(self.link)
        if self.details is not None:
            with self.details:
                draw_explanation(self.answer, "bar")


def draw_back_step(steps: Sequence[Any], number: int) -> None:
    if number == 0:
        st.empty()
    elif st.button("Back", key="back"):
        st.switch_page(steps[number - 1], query_params=common.screen_link_query())


def draw_forward_step(steps: Sequence[Any], number: int) -> None:
    """The button to the next step; on the last one its room, so that no other button moves."""
    if number + 1 == len(steps):
        st.space(NEXT_PX)
    elif st.button(
        "Next",
        type=common.main_button(),
        key="next",
        shortcut="Ctrl+Enter",
    ):
        st.switch_page(steps[number + 1], query_params=common.screen_link_query())


# --- the answer ----------------------------------------------------------------------------------


Answer = tuple[Plan, Verdict] | RecipeError | None
"""A plan with its verdict; what is wrong with the request; None before hardware was chosen."""


def current_answer() -> Answer:
    """Return the plan the bar speaks about, except where no hardware was chosen yet."""
    try:
        if not common.hardware_chosen():
            common.model()
            return None
        plan = planned.planned_request()
    except RecipeError as error:
        return error
    return plan, plan_verdict(plan, planned.selected_row(plan))


def draw_answer(answer: Answer) -> None:
    if isinstance(answer, RecipeError):
        text = str(answer)
        short = text if len(text) <= MOST_OF_AN_ERROR else f"{text[:MOST_OF_AN_ERROR]} …"
        two_lines(ICONS["error"], "The request cannot be planned", "", short)
    elif answer is None:
        hardware = common.request().hardware
        title = chip_title(device_profile(hardware.device))
        assumed = f"{hardware.devices:,} × {title} assumed until you choose"
        two_lines(ICONS["open"], "No hardware is chosen yet", "", assumed)
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


# --- in full -------------------------------------------------------------------------------------


def widget(name: str, place: str) -> str:
    """A widget's key: the bar's differ where the page draws the same below its title."""
    twice = place == "bar" and st.session_state.get("page") in READ_ONLY
    return f"bar-{name}" if twice else name


def draw_explanation(answer: Answer, place: str) -> None:
    """The answer in full, with what helps as one click each; ``place`` names its widgets."""
    if isinstance(answer, RecipeError):
        draw_problem(answer, place)
    elif answer is None:
        st.markdown(
            "Splits are judged once you choose hardware, or on the Compare page on what is assumed."
        )
    elif answer[1].state == "nothing":
        draw_no_answer(answer[0], answer[1], place)
        draw_left_split_note()
    else:
        draw_verdict(*answer)
        draw_left_split_note()
        draw_bundle_refusal(answer[0], place)
        draw_split_offers(answer[0], place)


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
    if st.session_state.get("page") not in READ_ONLY:
        common.page_link(
            "compare.py",
            "Other formats, fewer and more devices: on Compare",
            ":material/alt_route:",
        )


def draw_figure_notes(plan: Plan, row: int) -> None:
    common.calibration_note(plan, row)
    draw_price_note(plan)


def draw_bundle_refusal(plan: Plan, place: str) -> None:
    """Say why no bundle can be made of any split, and changes after which one can, a click each."""
    note = plan_launch_note(plan)
    if note is None:
        return
    st.warning(common.escape(note), icon=":material/block:")
    with st.container(horizontal=True):
        for n, change in enumerate(planned.buildable_edits()):
            draw_edit_button(
                change_label(change.fields),
                widget(f"buildable-{n}", place),
                change.fields,
                ":material/build:",
                f"Then {change.split} fits, and has a bundle.",
            )


def draw_left_split_note() -> None:
    if lost := planned.left_split_name():
        st.caption(
            common.escape(f"{lost}, the split that you chose, no longer fits: the link omits it.")
        )


def draw_price_note(plan: Plan) -> None:
    if note := unpriced_note(plan):
        st.caption(common.escape(f"{note} State a price on the hardware page."))


def draw_split_offers(plan: Plan, place: str) -> None:
    """The split that keeps the limits surely, and the way back from a chosen one to the best."""
    best, row = plan.best_row, planned.selected_row(plan)
    if best is None or row is None:
        return
    with st.container(horizontal=True):
        if row != best:
            draw_edit_button(
                f"Back to the best: {split_label(plan, best)}",
                widget("best", place),
                {"candidate": common.shared_fields()},
                ":material/undo:",
            )
        safe_choice(plan, row, place)


def safe_choice(plan: Plan, row: int, place: str) -> None:
    """Return a split within the limits where one may miss them, and the limit on that."""
    safe = find_safer_row(plan, row)
    if safe is not None:
        safe_button(plan, row, safe, place)
    if may_ask(plan, row):
        draw_edit_button(
            f"Ask for {SURE * 100:.0f} %",
            widget("sure", place),
            {"objective.confidence": SURE, "candidate": common.shared_fields()},
            ":material/percent:",
            "Only splits that keep all limits with this probability then count",
        )


def may_ask(plan: Plan, row: int) -> bool:
    """Return whether more splits hold where limits must hold more surely, or with less load."""
    return (
        common.request().objective.required_confidence < SURE
        and may_miss(plan, row)
        and (plan.request.load_searched or find_safer_row(plan, row) is not None)
    )


def safe_button(plan: Plan, row: int, safe: int, place: str) -> None:
    """The split that keeps the limits surely, with its price, one click."""
    draw_edit_button(
        safer_text(plan, row, safe),
        widget("safe", place),
        common.split_fields(row_key(plan, safe)),
        ":material/verified_user:",
    )


def safe_row(plan: Plan) -> None:
    """The same in a row of a page, about the split that is chosen."""
    row = planned.selected_row(plan)
    if row is not None and (find_safer_row(plan, row) is not None or may_ask(plan, row)):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":orange[:material/warning:] {common.escape(limits_text(plan, row))}")
            safe_choice(plan, row, "page")


def draw_edit_button(
    label: str, key: str, fields: Mapping[str, Any], icon: str, tip: str | None = None
) -> None:
    common.edit_button(
        common.escape(label), key, fields, icon, help=common.escape(tip) if tip else None
    )


def draw_no_answer(plan: Plan, verdict: Verdict, place: str) -> None:
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
            draw_edit_button(label, widget(f"change-{n}", place), change.fields, ":material/build:")


def draw_problem(error: RecipeError, place: str) -> None:
    st.error(common.escape(error), icon=":material/error:")
    page = PAGE_OF.get((error.field or "").split(".")[0])
    with st.container(horizontal=True):
        if page and st.session_state.get("page") != page:
            common.page_link(page, "Correct it", ":material/edit:")
        names.draw_model_ways_out(error, place)
        st.button(
            "Start over",
            key=widget("start-over", place),
            icon=":material/restart_alt:",
            on_click=common.start_over,
        )


# --- alternatives --------------------------------------------------------------------------------


def reserve_alternatives() -> Callable[[], None]:
    """Reserve a place for choices beside the verdict; gives what fills it, after the page.

    A page calls ``common.later`` with it: nothing on the page waits for what is planned for them.
    """
    place = st.empty()
    with place.container(horizontal=True, key="alternatives-wait"):
        st.skeleton(height=40)

    def fill() -> None:
        try:
            choices = planned.split_alternatives()
        except RecipeError:  # the server is busy: the page does without
            choices = []
        if not choices:
            place.empty()  # a container without content would keep what it had
            return
        with place.container(horizontal=True, key="alternatives"):
            for n, choice in enumerate(choices):
                tip = (
                    f"{choice.split} is then best, each figure planned anew. {choice.accuracy_text}"
                )
                draw_edit_button(
                    choice.label, f"alternative-{n}", choice.fields, MARKS[choice.kind], tip
                )

    return fill


MARKS = {
    "weights": ":material/compress:",
    "checkpoint": ":material/inventory:",
    "made": ":material/construction:",
    "cache": ":material/memory:",
    "fewer": ":material/remove:",
    "more": ":material/add:",
    "sure": ":material/verified_user:",
}
"""Marks of the kinds of alternatives."""
