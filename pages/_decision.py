"""The decision: what to run, on what, at which price, how fast, how sure, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _address as address
import _columns as columns_of
import _common as common
import _panels as panels
import _planned as planned
import _verdict as verdicts
import _widgets as widgets
import _work as work
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.doors.serve import folders_allowed
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import device_basis, measure_text
from recipe_core.plans.splits import row_request
from recipe_core.targets.by_hand import start_command
from recipe_core.views.by_device import device_columns, factor_sentence, plan_by_device
from recipe_core.views.decision import Decision, describe_decision, left_out_sentence, runner_up
from recipe_core.views.plan_words import (
    confidence_prices_text,
    likely_text,
    shown_limit,
)
from recipe_core.views.size_view import size_verdict
from recipe_core.views.verdict import main_figures

Json = Mapping[str, Any]
FIGURES = 3
"""Figures on the card."""
SHOWN = {
    "holds": ("green", ":material/check_circle:"),
    "queues": ("orange", ":material/hourglass_top:"),
    "uncertain": ("orange", ":material/contact_support:"),
    "doubtful": ("orange", ":material/warning:"),
}
"""Colour and mark of a state."""


def draw_decision(plan: Plan, row: int, sized: Json | None) -> None:
    """The card on top of the plan; ``sized``: the answer over devices where they were open."""
    decision = describe_decision(plan, row, sized)
    with st.container(border=True, key="decision"):
        draw_subject(decision)
        draw_figures(plan, row)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            draw_actions(plan, row)
            draw_certainty(plan, hardware_found=sized is not None)
    draw_what_changes(plan, decision)


def draw_subject(decision: Decision) -> None:
    """The layout with engine and formats, the devices, and the money of a month."""
    st.header(common.escape(decision.where), anchor=False)
    st.markdown(
        f"**{common.escape(decision.layout)}** · {common.escape(decision.engine)}"
        f" · {common.escape(decision.formats)}"
    )
    colour, icon = SHOWN["doubtful" if decision.doubtful else decision.state]
    st.markdown(f":{colour}[{icon}] {common.escape(decision.verdict)}")


def draw_figures(plan: Plan, row: int) -> None:
    """Three figures with their likely ranges and limits, and what the ranges mean."""
    with st.grid(FIGURES, min_column_width=150):
        for name in main_figures(plan, row, FIGURES):
            text, measure = measure_text(plan, name, row), plan.measures[name]
            st.metric(
                measure.head,
                "no price" if text == "unknown" else text,
                delta=common.escape(below_figure(plan, name, row)) or None,
                delta_color="off",
                delta_arrow="off",
                border=True,
                height="stretch",
            )
    st.caption(
        common.escape(
            f"Ranges: eight of ten measured runs are expected there. "
            f"The device is {device_basis(plan)}."
        )
    )


def below_figure(plan: Plan, name: str, row: int) -> str:
    """The likely range of a figure, and its limit."""
    likely, bound = likely_text(plan, name, row), shown_limit(plan, name)
    measure = plan.measures[name]
    limit = "" if bound is None else f"limit {measure.show(bound / measure.factor)}"
    return ", ".join(filter(None, [likely, limit]))


def draw_certainty(plan: Plan, *, hardware_found: bool) -> None:
    """Ask how surely the limits must hold, and say what other certainty costs.

    Not of ``hardware_found`` for it: other certainty is then a matter of other hardware.
    """
    if not stated_limits(plan):
        return
    with st.container(width=120):
        panels.draw_confidence("_sure-on-card")
    if hardware_found:
        return
    place = st.empty()

    def fill() -> None:
        try:
            prices = planned.confidence_prices()
        except RecipeError:  # the server is busy: the card does without
            return
        if prices:
            now = plan.request.objective.required_confidence
            place.caption(common.escape(confidence_prices_text(prices, now)))

    work.later(fill)


def draw_actions(plan: Plan, row: int) -> None:
    """Ship the decision, keep it beside others, or copy the command that starts it."""
    if st.button("Ship it", key="ship", type="primary", icon=":material/inventory_2:"):
        st.switch_page("ship.py", query_params=address.screen_link_query())
    common.keep_button(row_request(plan, row), "keep")

    def draw_command() -> None:
        try:
            widgets.code(start_command(plan, row, folders=folders_allowed()))
            st.caption("Of the first process. Ship has every process, file, check and target.")
        except RecipeError as error:
            st.warning(common.escape(error), icon=":material/block:")

    common.draw_opened("Command", "card-command", draw_command, icon=":material/terminal:")


def draw_what_changes(plan: Plan, decision: Decision) -> None:
    """Say what would change the decision: doubts about prices, near limits, own runs."""
    verdicts.draw_left_split_note()
    verdicts.draw_bundle_refusal(plan)
    verdicts.draw_way_to_best(plan)
    for sentence in decision.caveats:
        st.caption(f":material/info: {common.escape(sentence)}")


def draw_runner_up_device(sized: Json | None) -> None:
    """The next device of those that were found, with the difference."""
    if sized and (second := runner_up(sized)):
        st.caption(f":material/memory: {common.escape(second['sentence'])}")


def draw_by_device(plan: Plan) -> None:
    """The best of each cluster side by side, and what makes the factor between the first two."""
    rows = plan_by_device(plan)
    if len(rows) < 2:
        return
    columns_of.draw_columns(rows, device_columns(rows), "The best layout of each cluster")
    if why := factor_sentence(rows[0], rows[1]):
        st.caption(f":material/info: {common.escape(why)}")


def draw_runners_up(plan: Plan, sized: Json | None) -> None:
    """The next best by device, engine, format and number of devices, each a click away."""
    st.markdown("**Runners-up**")
    draw_by_device(plan)
    draw_runner_up_device(sized)
    work.later(verdicts.reserve_alternatives())


def draw_nothing_found(sized: Json) -> None:
    """Say that no device of the market holds what is asked, and what keeps the nearest from it."""
    _, sentence = size_verdict(sized)
    st.error(f"**{common.escape(sentence)}**", icon=":material/block:")
    if left_out := left_out_sentence(sized):
        st.caption(common.escape(left_out))
