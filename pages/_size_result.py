"""What the size page shows of an answer: verdict, devices, charts, and one device closely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _columns as columns_of
import _common as common
import _size_device as closely
import _size_later as later
import streamlit as st

from recipe_core.request.edit import change
from recipe_core.request.metrics import column_metric
from recipe_core.request.open_hardware import take_size_row
from recipe_core.request.size import SizeRequest
from recipe_core.views import charts, columns
from recipe_core.views import size_view as view

Json = Mapping[str, Any]


def partial(answer: Json) -> None:
    """The devices that are sized so far."""
    if answer["best"] is not None:
        found = common.escape(view.sentence(answer["best"]))
        st.info(f"**Best of {answer['sized']} of {answer['of']} devices:** {found}.")
        table(answer, selectable=False)


def whole(answer: Json, asked: SizeRequest) -> None:
    """Verdict, table, charts, the device that is looked at."""
    good, sentence = view.verdict(answer)
    if good:
        st.success(f"**{common.escape(sentence)}.**", icon=":material/check_circle:")
    else:
        st.error(f"**{common.escape(sentence)}**", icon=":material/block:")
    if doubt := answer.get("price_warning"):
        st.caption(f":material/warning: {common.escape(doubt)}")
    if own := answer.get("own_runs"):
        st.caption(f":material/tune: {common.escape(view.own_runs_sentence(own))}")
    if not asked.objective.limits.model_dump(exclude_none=True, exclude={"percentile"}):
        st.caption(
            "No limit is stated, so the cheapest hardware that runs it is the answer, however slow."
        )
    if good:
        devices(answer, asked)
    unpriced(answer)
    refused(answer)


@st.fragment
def devices(answer: Json, asked: SizeRequest) -> None:
    """Everything about devices that hold; to look at another one leaves the form as it is."""
    common.follow_edit()
    row = looked_at(answer)
    actions(row, asked)
    table(answer, selectable=True)
    pictures(answer, asked, row)
    closely.draw(answer, row)


def looked_at(answer: Json) -> Json:
    """The row that the reader selected, else the best."""
    chosen = st.session_state.get("size-device")
    rows = {view.key(row): row for row in answer["devices"]}
    found: Json = rows.get(chosen, answer["devices"][0])
    return found


def actions(row: Json, asked: SizeRequest) -> None:
    """Make the device the wizard's own, and go on with its recipe or its splits."""
    with st.container(horizontal=True):
        st.button(
            view.take_label(row),
            key="size-take",
            type=common.main_button(),
            icon=":material/inventory_2:",
            on_click=taken,
            args=(row, asked, "recipe.py"),
            help="Sets hardware, price, objective and split, and opens the recipe",
        )
        st.button(
            "Compare its splits",
            key="size-compare",
            icon=":material/scatter_plot:",
            on_click=taken,
            args=(row, asked, "compare.py"),
            help="Sets the same, and opens the comparison",
        )
        current = common.request()
        common.keep_button(change(current, take_size_row(current, asked, row)), "size-keep")


def taken(row: Json, asked: SizeRequest, page: str) -> None:
    """Change the request; the page goes on from its next run, as a callback cannot."""
    common.apply(take_size_row(common.request(), asked, row))
    if "refused" not in st.session_state:
        st.session_state["size-goto"] = page


# --- table -----------------------------------------------------------------------------------


def table(answer: Json, *, selectable: bool) -> None:
    """A row for each device; a selected one is looked at."""
    rows = answer["devices"]
    shown = view.size_columns(rows)
    keys = [view.key(row) for row in rows]
    options: dict[str, Any] = {}
    if selectable:
        now = view.key(looked_at(answer))

        def look() -> None:
            rows = st.session_state["size-devices"]["selection"]["rows"]
            st.session_state["size-device"] = keys[rows[0]] if rows else None
            if later.asked():  # these parts are about the same device, outside this fragment
                st.session_state["edited"] = True

        st.session_state["size-devices"] = {
            "selection": {"rows": [keys.index(now)], "columns": [], "cells": []}
        }
        options = {
            "key": "size-devices",
            "on_select": look,
            "selection_mode": "single-row-required",
        }
    st.dataframe(
        columns.styled(rows, shown),
        hide_index=True,
        height="content" if len(rows) < 17 else 560,
        column_config={
            **columns_of.config(shown),
            "key": None,
            "device": st.column_config.TextColumn("Device", pinned=True, width=190),
        },
        alt=f"{len(rows)} devices that hold the limits, best first",
        **options,
    )
    if any(map(view.is_doubtful, rows)):
        st.caption(view.DOUBT_MEANS)


def unpriced(answer: Json) -> None:
    """Devices that would do, if anybody named a price."""
    rows = answer.get("unpriced") or []
    if rows:
        st.header("Without a price", anchor=False)
        shown = [column for column in view.UNPRICED if column.key != "key"]
        columns_of.table(rows, shown, "Devices that hold the limits and have no price")


def refused(answer: Json) -> None:
    """Devices on which nothing holds, folded."""
    rows = answer.get("refused") or []
    if not rows:
        return
    title = f"{len(rows)} devices do not hold the limits"
    with st.expander(title, icon=":material/block:"):
        st.dataframe(
            columns.frame(rows, view.REFUSED),
            hide_index=True,
            height="content" if len(rows) < 11 else 390,
            column_config={"Why": st.column_config.TextColumn(width="large")},
            alt="Devices that do not hold the limits, the likeliest first",
        )


# --- charts ----------------------------------------------------------------------------------


def pictures(answer: Json, asked: SizeRequest, row: Json) -> None:
    """Cost by device or against a limit, confidence by count; only the open one is drawn."""
    limited = any(one["confidence"] is not None for one in answer["devices"])
    axes = charts.axes_of(answer)
    views = {"Cost": lambda: costs(answer, row)}
    if axes:
        views["Cost against a limit"] = lambda: against(answer, asked, row, axes)
    if limited:
        views["Confidence"] = lambda: confidence(answer, asked, row)
    tabs = st.tabs(list(views), key="size-views", on_change="rerun")
    for tab, draw in zip(tabs, views.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def costs(answer: Json, row: Json) -> None:
    """Cost of a month by device."""
    st.plotly_chart(
        charts.cost_bars(answer, view.key(row), dark=common.dark()),
        key="size-costs",
        alt=f"Cost of a month of {len(answer['devices'])} devices",
    )


def against(answer: Json, asked: SizeRequest, row: Json, axes: list[str]) -> None:
    """Cost against what a limit bounds."""
    axis = axes[0]
    if len(axes) > 1:
        axis = st.segmented_control(
            "Against",
            axes,
            default=axes[0],
            format_func=lambda column: column_metric(column).head,
            key="size-axis",
            persist_state="session",
            required=True,
        )
    axis = axis or axes[0]
    st.plotly_chart(
        charts.cost_against(
            answer,
            axis,
            view.key(row),
            limit=getattr(asked.objective.limits, charts.limit_of(axis).name),
            dark=common.dark(),
        ),
        key="size-against",
        alt=f"Cost against {column_metric(axis).label} for every number of every device",
    )
    st.caption("One mark for each number of devices; open marks do not hold the limits.")


def confidence(answer: Json, asked: SizeRequest, row: Json) -> None:
    """Confidence against the number of devices."""
    st.plotly_chart(
        charts.confidence_curves(
            answer, view.key(row), confidence=asked.objective.confidence, dark=common.dark()
        ),
        key="size-confidence",
        alt="Highest confidence against the number of devices rented, by device",
    )
