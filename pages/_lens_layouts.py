"""The lens on layouts: the chart of what they trade, the table of all, and those refused."""

from functools import partial
from typing import Any

import _common as common
import _export as export
import _lens_why as why
import _planned as planned
import _session as session
import _table as table
import streamlit as st

from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import (
    split_label,
)
from recipe_core.plans.splits import find_row, is_known, row_reasons, row_request
from recipe_core.request import split_key
from recipe_core.views.charts import front
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.frontier import frontier_figure
from recipe_core.views.plan_words import (
    against_best,
    figures_phrase,
)

WHY_NOT = "Why not the others?"


def pin_clicked(chart: str) -> None:
    """Pin what was clicked in a chart, which is drawn anew: that clears its selection."""
    for point in st.session_state[chart]["selection"]["points"]:
        custom = point.get("customdata")
        if custom and split_key.key_split(str(custom[0])) is not None:
            session.toggle_pin(str(custom[0]))


def pick_axes(plan: Plan) -> tuple[str, str]:
    measures = [name for name in plan.measures if is_known(plan, name)]
    # other first axes are another widget: a choice for one device is none for several
    several = "" if "device" not in plan.differs else "-devices"
    names = []
    for label, default in zip(("Horizontal", "Vertical"), plan.shown.axes, strict=True):
        name = st.selectbox(
            label,
            measures,
            index=measures.index(default) if default in measures else 0,
            format_func=lambda name: plan.measures[name].title,
            key=f"axis-{label.lower()}-{plan.kind}{several}",
            persist_state="session",
            width=260,
        )
        names.append(name or default)
    return names[0], names[1]


def colour_by(plan: Plan) -> str:
    """Choose what the colours of the tradeoff tell apart, where more than one thing differs."""
    names = front.group_names(plan)
    if len(names) < 2:
        return front.first_grouping(plan)
    titles = {name: front.TITLES[name] for name in names} | {front.ALONE: "Nothing"}
    name = st.selectbox(
        "Colour by",
        list(titles),
        format_func=titles.get,
        key=f"colour-{plan.kind}-{'-'.join(names)}",
        persist_state="session",
        width=170,
    )
    return name or names[0]


@st.fragment
def draw_frontier(plan: Plan, row: int | None) -> None:
    """Draw what each device gives a user and in all; without a layout, any two figures of all."""
    session.follow_edit()
    if row is None:
        draw_tradeoff(plan)
        return
    pins = list(session.pins())
    draw_chart(
        "frontier",
        frontier_figure(plan, row, pins=pins, dark=common.dark()),
        "What each device gives a user and in all, with the limit and the chosen layout",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            "Click a mark to pin its layout, or tick rows under Layouts. "
            f"Up to {session.MAX_PINS} pins are compared.",
            width="stretch",
        )
        export.chart_menu("frontier", lambda: frontier_figure(plan, row, pins=pins))


def draw_chart(key: str, figure: Any, alt: str) -> None:
    """Draw a chart whose marks can be clicked."""
    st.plotly_chart(
        figure,
        key=key,
        on_select=partial(pin_clicked, key),
        selection_mode="points",
        config=export.chart_config(key),
        alt=alt,
    )


@st.fragment
def draw_tradeoff(plan: Plan) -> None:
    """Draw all layouts over two figures of the reader's choice."""
    session.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        x, y = pick_axes(plan)
        by = colour_by(plan)
        bands = st.toggle(
            "Likely ranges", value=True, key="tradeoff-ranges", persist_state="session"
        )
        settings: dict[str, Any] = {"pins": list(session.pins()), "by": by, "bands": bands}
        export.chart_menu("tradeoff", lambda: tradeoff(plan, x, y, **settings))
    measured = " against ".join(plan.measures[name].title.lower() for name in (x, y))
    alt = f"{measured} for {len(plan)} layouts; {split_states_text(plan)}.".capitalize()
    draw_chart("tradeoff", tradeoff(plan, x, y, dark=common.dark(), **settings), alt)


def split_states_text(plan: Plan) -> str:
    """Return how many splits are in which state."""
    waiting = int(plan.queues[plan.order].sum())
    doubtful = int(plan.uncertain[plan.order].sum())
    holding = len(plan.order) - waiting - doubtful
    if plan.kind == "training":
        return f"{holding:,} can run"
    queueing = f", {waiting:,} start and queue" if waiting else ""
    open_question = f", {doubtful:,} may not start" if doubtful else ""
    return f"{holding:,} hold the load{queueing}{open_question}"


def draw_pins(plan: Plan) -> None:
    """Pinned splits side by side, each with its figures and buttons to use or remove it."""
    with st.grid(session.MAX_PINS):
        for key in session.pins():
            with st.container(border=True, height="stretch"):
                draw_pinned_split(plan, key)


def draw_pinned_split(plan: Plan, key: str) -> None:
    row = find_row(plan, key)
    fits = row is not None and plan.feasible[row]
    if row is None:
        name = split_key.split_name(split_key.key_split(key))
        st.markdown(f"**{common.escape(name)}** is no longer a layout of this plan.")
        st.caption("The link omits it.")
    elif fits:
        st.markdown(
            f"**{common.escape(split_label(plan, row))}**\\\n"
            f"{common.escape(figures_phrase(plan, row))}"
        )
        if sentence := against_best(plan, row):
            st.caption(common.escape(sentence))
    else:
        reasons = common.escape("; ".join(row_reasons(plan, row)))
        st.markdown(f"**{common.escape(split_label(plan, row))}** is refused: {reasons}")
    with st.container(horizontal=True):
        if fits and st.button(
            "Use this layout",
            key=f"use-{key}",
            icon=":material/check:",
            on_click=session.select,
            args=(key,),
        ):
            st.rerun()
        split_request = (
            row_request(plan, row) if row is not None and fits else planned.pinned_request(key)
        )
        if split_request is not None:
            common.keep_button(split_request, f"keep-{key}", type="tertiary")
        st.button(
            "Remove",
            key=f"unpin-{key}",
            icon=":material/keep_off:",
            type="tertiary",
            on_click=session.toggle_pin,
            args=(key,),
        )


def draw_layouts(plan: Plan) -> None:
    """Every layout that runs, best first, those that are pinned, and why others are refused."""
    if session.pins():
        draw_pins(plan)
    if plan.best_row is not None:
        table.draw_ranked_splits(plan)
        common.draw_opened(
            "Any two figures of all layouts",
            "tradeoff-part",
            partial(draw_tradeoff, plan),
            st.expander,
            icon=":material/scatter_plot:",
        )
    with st.expander(WHY_NOT, icon=":material/block:", key="why-not", on_change="rerun") as refused:
        if refused.open or plan.best_row is None:
            why.why_not(plan)
