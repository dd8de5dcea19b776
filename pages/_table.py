"""The table of splits: filters, columns, ticks that pin, and what is taken away."""

from __future__ import annotations

from typing import Any

import _columns as columns_of
import _common as common
import _export as export
import _session as session
import streamlit as st

from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import is_known
from recipe_core.views import tables
from recipe_core.views.plans import HOLDS, ties_text
from recipe_core.views.tables import SHOWN_ROWS, Filters


@st.fragment
def draw_ranked_splits(plan: Plan) -> None:
    """Every split that runs, best first. Ticks are pins; filters and columns redraw only this."""
    session.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        filters = pick_filters(plan)
        names, ranges = pick_columns(plan)
        passing = tables.filtered(plan, filters)
        export.table_menu("splits", lambda: tables.export_frame(plan, passing, names))
    if not len(passing):
        st.info("No layout passes these filters.", icon=":material/filter_alt:")
        return
    frame = tables.splits_frame(plan, passing[:SHOWN_ROWS], ranges=ranges)
    keys = frame["key"].tolist()

    def pin_rows() -> None:
        """Pins follow the table's ticks; pins of splits that the table does not list stay."""
        ticked = [keys[row] for row in st.session_state["splits"]["selection"]["rows"]]
        unlisted = [pin for pin in session.pins() if pin not in keys]
        st.session_state["pins"] = [*unlisted, *ticked][-session.MAX_PINS :]
        st.session_state["edited"] = True

    ticks = [n for n, key in enumerate(keys) if key in session.pins()]
    st.session_state["splits"] = {"selection": {"rows": ticks, "columns": [], "cells": []}}
    order = column_order(plan, names, ranges=ranges)
    st.dataframe(
        columns_of.with_digits(plan, frame, order),
        key="splits",
        on_select=pin_rows,
        selection_mode="multi-row",
        hide_index=True,
        height="content" if len(frame) < 11 else 390,
        column_order=order,
        column_config=columns_of.column_config(plan),
        alt=f"The {len(frame)} best layouts that run, best first",
    )
    if ties := ties_text(plan):
        st.caption(common.escape(f"{ties}."))
    if len(passing) > len(frame):
        st.caption(f"The first {len(frame):,} of {len(passing):,} layouts; the export has all.")
    elif len(passing) < len(plan.order):
        st.caption(f"{len(passing):,} of {len(plan.order):,} layouts pass the filters.")


def pick_filters(plan: Plan) -> Filters:
    by = []
    for name, title in tables.differing(plan).items():
        options = tables.group_titles(plan, name)
        if len(options) > 1:
            by.append((name, tuple(pick_several(title, list(options), f"filter-{name}"))))
    states, counts = tables.states_of(plan), tables.device_counts(plan)
    picked_states = (
        pick_several("State", states, "filter-state", tables.STATE_TITLES.__getitem__)
        if len(states) > 1
        else []
    )
    picked = pick_several("Devices used", counts, "filter-count", str) if len(counts) > 1 else []
    front = st.toggle(
        "Best tradeoffs only",
        key=f"filter-front-{plan.kind}",
        persist_state="session",
        help="Layouts that no other beats in both measures in which the chart starts, by device",
    )
    axes = plan.shown.axes if front else None
    return Filters(tuple(by), tuple(picked_states), tuple(picked), axes)


def pick_several(title: str, options: list[Any], key: str, text: Any = str) -> list[Any]:
    """A choice of some of the options; none means all. What is no option any more is left out."""
    picked = [value for value in st.session_state.get(key, []) if value in options]
    if picked != st.session_state.get(key, []):
        st.session_state[key] = picked
    values: list[Any] = st.multiselect(
        title,
        options,
        format_func=text,
        key=key,
        placeholder="All",
        persist_state="session",
        width=190,
    )
    return values


def pick_columns(plan: Plan) -> tuple[list[str], bool]:
    """The measures that the table shows, as the reader chose, and whether with their ranges."""
    with st.popover("Columns", icon=":material/view_column:"):
        names = st.pills(
            "Columns of the table",
            [name for name in plan.measures if is_known(plan, name)],
            default=[name for name in plan.shown.listed if is_known(plan, name)],
            selection_mode="multi",
            format_func=lambda name: plan.measures[name].title,
            key=f"columns-{plan.kind}",
            persist_state="session",
        )
        ranges = st.toggle(
            "Likely ranges",
            key="column-ranges",
            persist_state="session",
            help="Between which values eight of ten measured runs are expected",
        )
    return names or list(plan.shown.listed), ranges


def column_order(plan: Plan, names: list[str], *, ranges: bool) -> list[str]:
    """Columns from left to right: what tells splits apart, then the chosen measures."""
    measures: list[str] = []
    for name in names:
        measures.append(name)
        if ranges and plan.measures[name].band is not None:
            measures.append(f"{name}_likely")
    state = ["state"] if set(tables.states_of(plan)) - {HOLDS} else []
    sure = ["sure"] if stated_limits(plan) else []
    return ["split", *tables.named_columns(plan), *state, *sure, *measures, "front"]
