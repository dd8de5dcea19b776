import _bar as bar
import _common as common
import _explain as explain
import _widgets as widgets
import streamlit as st

from recipe_core.base import labels
from recipe_core.present import charts, tables
from recipe_core.present.glossary import measure_help
from recipe_core.present.tables import SHOWN_ROWS
from recipe_core.request import split_key
from recipe_core.search.plan import Plan


def pin_clicked() -> None:
    """Pin what was clicked in the chart; the chart is drawn anew, which clears its selection."""
    for point in st.session_state["frontier"]["selection"]["points"]:
        if custom := point.get("customdata"):
            common.toggle_pin(custom[0])


def cards(plan: Plan, row: int) -> None:
    """The main figures of the best split."""
    with st.grid(5, min_column_width=150):
        st.metric(
            "Best split",
            labels.short_name(plan.candidate(row)),
            border=True,
            help=common.escape(plan.label(row)),
            height="stretch",
        )
        for name in plan.headline:
            text = plan.text(name, row)
            st.metric(
                plan.measures[name].title,
                "no price" if text == "unknown" else text,
                border=True,
                help=about_figure(plan, name, row),
                height="stretch",
            )


def about_figure(plan: Plan, name: str, row: int) -> str:
    """What a figure means, its exact value, and where measured runs are expected."""
    measure, band = plan.measures[name], plan.band(name, row)
    exact = f"{plan.values(name)[row]:.6g} {measure.unit}".strip()
    sentences = [measure_help(measure).rstrip(".")]
    sentences.append(f"Computed: {exact}; the device is {plan.basis}")
    if band:
        sentences.append(f"Eight of ten measured runs are expected between {band}")
    return common.escape(". ".join(sentences) + ".")


def axes(plan: Plan) -> tuple[str, str]:
    """The two measures that are drawn against each other."""
    known = [name for name in plan.measures if plan.known(name)]
    names = []
    with st.container(horizontal=True):
        for label, default in zip(("Horizontal", "Vertical"), plan.axes, strict=True):
            name = st.selectbox(
                label,
                known,
                index=known.index(default) if default in known else 0,
                format_func=lambda name: plan.measures[name].title,
                key=f"axis-{label.lower()}-{plan.kind}",
                persist_state="session",
                width=300,
            )
            names.append(name or default)
    return names[0], names[1]


@st.fragment
def scatter(plan: Plan) -> None:
    """What splits trade, by click; other axes leave the rest of the page as it is."""
    common.follow_edit()
    x, y = axes(plan)
    titles = [plan.measures[name].title.lower() for name in (x, y)]
    alt = f"{titles[0]} against {titles[1]} for {len(plan)} splits; {len(plan.order)} fit."
    st.plotly_chart(
        charts.tradeoff(plan, x, y, pins=common.pins(), dark=common.dark()),
        key="frontier",
        on_select=pin_clicked,
        selection_mode="points",
        alt=alt.capitalize(),
    )
    st.caption(
        "Larger markers use more devices. Click a marker to pin its split, or tick rows in the "
        f"table below. Up to {common.MAX_PINS} pins are compared."
    )


def tray(plan: Plan) -> None:
    """Pinned splits side by side, each with its figures and buttons to use or remove it."""
    with st.grid(common.MAX_PINS):
        for key in common.pins():
            with st.container(border=True, height="stretch"):
                pinned(plan, key)


def pinned(plan: Plan, key: str) -> None:
    """One pinned split."""
    row = plan.find(key)
    fits = row is not None and plan.feasible[row]
    if row is None:
        name = labels.split_name(split_key.split_of(key))
        st.markdown(f"**{common.escape(name)}** is no longer a split of this plan.")
    elif fits:
        st.markdown(f"**{common.escape(plan.label(row))}**\\\n{common.escape(plan.phrase(row))}")
        if sentence := plan.against_best(row):
            st.caption(common.escape(sentence))
    else:
        reasons = common.escape("; ".join(plan.reasons(row)))
        st.markdown(f"**{common.escape(plan.label(row))}** is refused: {reasons}")
    with st.container(horizontal=True):
        if fits and st.button(
            "Use this split",
            key=f"use-{key}",
            icon=":material/check:",
            on_click=common.select,
            args=(key,),
        ):
            st.switch_page("recipe.py", query_params=common.link())
        st.button(
            "Remove",
            key=f"unpin-{key}",
            icon=":material/keep_off:",
            type="tertiary",
            on_click=common.toggle_pin,
            args=(key,),
        )


def columns(plan: Plan) -> list[str]:
    """The measures that the table shows, as the reader chose."""
    with st.popover("Columns", icon=":material/view_column:"):
        names = st.pills(
            "Columns of the table",
            [name for name in plan.measures if plan.known(name)],
            default=[name for name in plan.listed if plan.known(name)],
            selection_mode="multi",
            format_func=lambda name: plan.measures[name].title,
            key=f"columns-{plan.kind}",
            persist_state="session",
        )
    return names or list(plan.listed)


@st.fragment
def ranked_table(plan: Plan) -> None:
    """Every split that fits, best first. Ticks are pins; other columns redraw only the table."""
    common.follow_edit()
    rows = [int(row) for row in plan.order[:SHOWN_ROWS]]
    frame = tables.splits_frame(plan, rows)
    keys = frame["key"].tolist()

    def pin_rows() -> None:
        """Pins follow the table's ticks; pins of splits that the table does not list stay."""
        ticked = [keys[row] for row in st.session_state["splits"]["selection"]["rows"]]
        unlisted = [pin for pin in common.pins() if pin not in keys]
        st.session_state["pins"] = [*unlisted, *ticked][-common.MAX_PINS :]
        st.session_state["edited"] = True

    ticks = [n for n, key in enumerate(keys) if key in common.pins()]
    st.session_state["splits"] = {"selection": {"rows": ticks, "columns": [], "cells": []}}
    st.dataframe(
        frame,
        key="splits",
        on_select=pin_rows,
        selection_mode="multi-row",
        hide_index=True,
        height="content" if len(frame) < 11 else 390,
        column_order=["split", *(["sure"] if plan.limited else []), *columns(plan), "front"],
        column_config=widgets.column_config(plan),
        alt=f"The {len(frame)} best splits that fit, best first",
    )
    if len(plan.order) > len(rows):
        st.caption(f"The first {len(rows):,} of {len(plan.order):,} splits.")


widgets.head("Which split?")
plan = common.planned_or_none()
if plan is not None:
    best = plan.best_row
    if best is not None:
        cards(plan, best)
        common.later(bar.alternatives(plan))
    if best is not None or plan.beyond_limits():
        st.header("Tradeoffs", anchor=False)
        scatter(plan)
        if common.pins():
            tray(plan)
    if best is not None:
        st.header("Splits that fit, best first", anchor=False)
        ranked_table(plan)
    explain.look_closer(plan)
