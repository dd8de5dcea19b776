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
from recipe_core.views import columns
from recipe_core.views import size_view as view
from recipe_core.views.charts.size import (
    axes_of,
    confidence_curves,
    cost_against,
    cost_bars,
    limit_of,
)

Json = Mapping[str, Any]


def draw_partial_sizing(answer: Json) -> None:
    """The devices that are sized so far."""
    if answer["best"] is not None:
        best_text = common.escape(view.sentence(answer["best"]))
        st.info(f"**Best of {answer['sized']} of {answer['of']} devices:** {best_text}.")
        draw_device_table(answer, selectable=False)


def draw_whole_sizing(answer: Json, request: SizeRequest) -> None:
    """Verdict, table, charts, the device that is looked at."""
    good, sentence = view.size_verdict(answer)
    if good:
        st.success(f"**{common.escape(sentence)}.**", icon=":material/check_circle:")
    else:
        st.error(f"**{common.escape(sentence)}**", icon=":material/block:")
    if doubt := answer.get("price_warning"):
        st.caption(f":material/warning: {common.escape(doubt)}")
    if own_runs := answer.get("own_runs"):
        st.caption(f":material/tune: {common.escape(view.own_runs_sentence(own_runs))}")
    if not request.objective.limits.model_dump(exclude_none=True, exclude={"percentile"}):
        st.caption(
            "No limit is stated, so the cheapest hardware that runs it is the answer, however slow."
        )
    if good:
        draw_sized_devices(answer, request)
    draw_unpriced_devices(answer)
    draw_refused_devices(answer)


@st.fragment
def draw_sized_devices(answer: Json, request: SizeRequest) -> None:
    """Everything about devices that hold; to look at another one leaves the form as it is."""
    common.follow_edit()
    row = selected_device_row(answer)
    draw_device_actions(row, request)
    draw_device_table(answer, selectable=True)
    draw_sizing_charts(answer, request, row)
    closely.draw_sized_device(answer, row)


def selected_device_row(answer: Json) -> Json:
    """The row that the reader selected, else the best."""
    selected_key = st.session_state.get("size-device")
    rows = {view.key(row): row for row in answer["devices"]}
    selected: Json = rows.get(selected_key, answer["devices"][0])
    return selected


def draw_device_actions(row: Json, request: SizeRequest) -> None:
    """Make the device the wizard's own, and go on with its recipe or its splits."""
    with st.container(horizontal=True):
        st.button(
            view.take_label(row),
            key="size-take",
            type=common.main_button(),
            icon=":material/inventory_2:",
            on_click=take_device,
            args=(row, request, "recipe.py"),
            help="Sets hardware, price, objective and split, and opens the recipe",
        )
        st.button(
            "Compare its splits",
            key="size-compare",
            icon=":material/scatter_plot:",
            on_click=take_device,
            args=(row, request, "compare.py"),
            help="Sets the same, and opens the comparison",
        )
        current = common.request()
        common.keep_button(change(current, take_size_row(current, request, row)), "size-keep")


def take_device(row: Json, request: SizeRequest, page: str) -> None:
    """Change the request; the page goes on from its next run, as a callback cannot."""
    common.apply_changes(take_size_row(common.request(), request, row))
    if "refused" not in st.session_state:
        st.session_state["size-goto"] = page


# --- table -----------------------------------------------------------------------------------


def draw_device_table(answer: Json, *, selectable: bool) -> None:
    """A row for each device; a selected one is looked at."""
    rows = answer["devices"]
    shown = view.size_columns(rows)
    keys = [view.key(row) for row in rows]
    options: dict[str, Any] = {}
    if selectable:
        now = view.key(selected_device_row(answer))

        def look() -> None:
            rows = st.session_state["size-devices"]["selection"]["rows"]
            st.session_state["size-device"] = keys[rows[0]] if rows else None
            if later.stated_parts():  # these parts are about the same device, outside this fragment
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
            **columns_of.column_settings(shown),
            "key": None,
            "device": st.column_config.TextColumn("Device", pinned=True, width=190),
        },
        alt=f"{len(rows)} devices that hold the limits, best first",
        **options,
    )
    if any(map(view.is_doubtful, rows)):
        st.caption(view.DOUBT_MEANS)


def draw_unpriced_devices(answer: Json) -> None:
    """Devices that would do, if anybody named a price."""
    rows = answer.get("unpriced") or []
    if rows:
        st.header("Without a price", anchor=False)
        shown = [column for column in view.UNPRICED if column.key != "key"]
        columns_of.draw_columns(rows, shown, "Devices that hold the limits and have no price")


def draw_refused_devices(answer: Json) -> None:
    """Devices on which nothing holds, folded."""
    rows = answer.get("refused") or []
    if not rows:
        return
    title = f"{len(rows)} devices do not hold the limits"
    with st.expander(title, icon=":material/block:"):
        st.dataframe(
            columns.column_frame(rows, view.REFUSED),
            hide_index=True,
            height="content" if len(rows) < 11 else 390,
            column_config={"Why": st.column_config.TextColumn(width="large")},
            alt="Devices that do not hold the limits, the likeliest first",
        )


# --- charts ----------------------------------------------------------------------------------


def draw_sizing_charts(answer: Json, request: SizeRequest, row: Json) -> None:
    """Cost by device or against a limit, confidence by count; only the open one is drawn."""
    limited = any(device_row["confidence"] is not None for device_row in answer["devices"])
    axes = axes_of(answer)
    views = {"Cost": lambda: draw_cost_bars(answer, row)}
    if axes:
        views["Cost against a limit"] = lambda: draw_cost_against(answer, request, row, axes)
    if limited:
        views["Confidence"] = lambda: draw_confidence_curves(answer, request, row)
    tabs = st.tabs(list(views), key="size-views", on_change="rerun")
    for tab, draw in zip(tabs, views.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def draw_cost_bars(answer: Json, row: Json) -> None:
    """Cost of a month by device."""
    st.plotly_chart(
        cost_bars(answer, view.key(row), dark=common.dark()),
        key="size-costs",
        alt=f"Cost of a month of {len(answer['devices'])} devices",
    )


def draw_cost_against(answer: Json, request: SizeRequest, row: Json, axes: list[str]) -> None:
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
        cost_against(
            answer,
            axis,
            view.key(row),
            limit=getattr(request.objective.limits, limit_of(axis).name),
            dark=common.dark(),
        ),
        key="size-against",
        alt=f"Cost against {column_metric(axis).label} for every number of every device",
    )
    st.caption("One mark for each number of devices; open marks do not hold the limits.")


def draw_confidence_curves(answer: Json, request: SizeRequest, row: Json) -> None:
    """Confidence against the number of devices."""
    st.plotly_chart(
        confidence_curves(
            answer, view.key(row), confidence=request.objective.confidence, dark=common.dark()
        ),
        key="size-confidence",
        alt="Highest confidence against the number of devices rented, by device",
    )
