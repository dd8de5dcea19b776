"""The lens on reasons: one layout in every registered view, and why others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import _common as common
import _export as export
import _planned as planned
import _session as session
import _work as work
import streamlit as st

from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.remedies import change_label, fixes
from recipe_core.plans.splits import find_row, row_key, row_reasons
from recipe_core.views import tables
from recipe_core.views.charts.views import Chart, Focus, Item, Note, Table, View, views_of


@st.fragment
def look_closer(plan: Plan) -> None:
    """The split to look at and its views.

    Only the open tab is computed, and the rest of the page stays as it is.
    """
    session.follow_edit()
    row = nearest_row(plan) if plan.best_row is None else pick_row(plan)
    if row is None:
        return
    views = views_of(plan)
    titles = [view.title for view in views]
    for tab, view in zip(st.tabs(titles, key="views", on_change="rerun"), views, strict=True):
        if tab.open:
            with tab:
                show_view(view, plan, row)


def pick_row(plan: Plan) -> int:
    candidates = [plan.best_row, planned.selected_row(plan), *planned.pinned_rows(plan)]
    rows = list(dict.fromkeys(row for row in candidates if row is not None))
    options = {row_key(plan, row): split_label(plan, row) for row in rows}
    key = st.selectbox(
        "Layout",
        list(options),
        format_func=options.get,
        key="focus",
        help="The best layout, the one you use, and those you pinned",
        width=460,
    )
    row = find_row(plan, key) if key in options else None
    return rows[0] if row is None else row


def show_view(view: View, plan: Plan, row: int) -> None:
    measure = pick_measure(view, plan)
    focus = Focus(plan, row, tuple(session.pins()), measure=measure, dark=common.dark())
    with work.limit_page_time():
        show_items(plan, list(view.draw(focus)))


def pick_measure(view: View, plan: Plan) -> str:
    names, first = view.choices(plan), view.first_measure(plan)
    if not names:
        return ""
    name = st.selectbox(
        "Measure",
        names,
        index=names.index(first),
        format_func=lambda name: plan.measures[name].title,
        key=f"measure-{view.name}-{plan.kind}",
        persist_state="session",
        width=460,
    )
    return name if name in names else first


def show_items(plan: Plan, items: Iterable[Item]) -> None:
    slots: list[Any] = []
    for item in items:
        half = isinstance(item, Chart) and item.half
        if half and not slots:
            slots = list(st.columns(2, gap="large"))
        with slots.pop(0) if half else st.container():
            SHOW[type(item)](plan, item)


def show_chart(plan: Plan, chart: Chart) -> None:  # noqa: ARG001 - every item is shown alike
    """A chart with its title and note."""
    st.markdown(f"**{common.escape(chart.title)}**")
    st.plotly_chart(
        chart.figure, key=chart.key, alt=chart.alt, config=export.chart_config(chart.key)
    )
    if chart.note:
        st.caption(common.escape(chart.note))


def show_table(plan: Plan, table: Table) -> None:  # noqa: ARG001 - every item is shown alike
    st.markdown(f"**{common.escape(table.title)}**")
    columns: dict[str, list[str]] = {}
    for name, cells in zip(table.head, zip(*table.rows, strict=True), strict=True):
        texts = [common.escape(cell) for cell in cells]
        columns[name] = [f"**{text}**" for text in texts] if name == table.strong else texts
    common.draw_cells(columns, table.title)


def show_note(plan: Plan, note: Note) -> None:  # noqa: ARG001 - every item is shown alike
    st.info(common.escape(note.text), icon=":material/info:")


SHOW: dict[type, Callable[[Plan, Any], None]] = {
    Chart: show_chart,
    Table: show_table,
    Note: show_note,
}


def why_not(plan: Plan) -> None:
    """Refused splits, the reasons of each, and what would let it run."""
    number = int((~plan.feasible).sum())
    if not number:
        st.info("No layout is refused.", icon=":material/check_circle:")
        return
    counts = tables.refusal_counts(plan).items()
    st.markdown(" · ".join(f"{common.escape(kind)}: **{n:,}**" for kind, n in counts))
    refused = tables.refused_frame(plan)
    event = st.dataframe(
        refused,
        key="refused-splits",
        on_select="rerun",
        selection_mode="single-row",
        hide_index=True,
        height="content" if len(refused) < 10 else 380,
        column_config={
            "key": None,
            "split": st.column_config.TextColumn("Layout", pinned=True),
            "why": st.column_config.TextColumn("Why not", width=900),
            "kind": st.column_config.TextColumn("Rule", width="medium"),
        },
        alt=f"{len(refused)} refused layouts with their reasons",
    )
    if number > len(refused):
        st.caption(f"The {len(refused):,} of {number:,} with the fewest problems.")
    ticked = event["selection"]["rows"]
    ticked_key = refused["key"].get(ticked[0]) if ticked else None
    row = None if ticked_key is None else find_row(plan, str(ticked_key))
    if row is None:
        st.caption("Tick a row to see what would let that layout run.")
    else:
        show_fixes(plan, row)


def show_fixes(plan: Plan, row: int) -> None:
    """Show what would let a refused split run, and the nearest that runs, one click each."""
    with st.container(border=True):
        reasons = "; ".join(row_reasons(plan, row))
        st.markdown(f"**{common.escape(split_label(plan, row))}**: {common.escape(reasons)}.")
        changes = work.calculated("Looking for a change that fits", fixes, plan, row)
        if not changes:
            st.caption("No small change to the request lets it run.")
        with st.container(horizontal=True):
            for n, change in enumerate(changes):
                nearest = not change.fields
                label = (
                    f"Pin {change.split}, the nearest that fits"
                    if nearest
                    else change_label(change.fields)
                )
                st.button(
                    common.escape(label),
                    key=f"fix-{n}",
                    icon=":material/keep:" if nearest else ":material/build:",
                    on_click=session.toggle_pin if nearest else session.apply_changes,
                    args=(change.key,) if nearest else (change.fields,),
                )
