"""The answer of the lens on hardware: verdict, devices, charts, and one device closely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _columns as columns_of
import _common as common
import _session as session
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
    if answer["best"] is not None:
        best_text = common.escape(view.sentence(answer["best"]))
        st.info(f"**Best of {answer['sized']} of {answer['of']} devices:** {best_text}.")
        draw_device_table(answer, selectable=False)


def draw_whole_sizing(answer: Json, request: SizeRequest) -> None:
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
    draw_refused_devices(answer)


@st.fragment
def draw_sized_devices(answer: Json, request: SizeRequest) -> None:
    """Everything about devices that hold; to look at another one leaves the form as it is."""
    session.follow_edit()
    row = later.selected_or_best_row(answer)
    draw_device_actions(row, request)
    draw_device_table(answer, selectable=True)
    draw_sizing_charts(answer, request, row)
    closely.draw_sized_device(answer, row)


def draw_device_actions(row: Json, request: SizeRequest) -> None:
    """Draw buttons that make the device the request's own, or keep it."""
    with st.container(horizontal=True):
        st.button(
            view.take_label(row),
            key="size-take",
            icon=":material/check:",
            on_click=take_device,
            args=(row, request),
            help="Sets hardware, price, objective and layout: the plan above is then on it",
        )
        current = session.request()
        common.keep_button(change(current, take_size_row(current, request, row)), "size-keep")


def take_device(row: Json, request: SizeRequest) -> None:
    """Make a device the request's own."""
    session.apply_changes(take_size_row(session.asked(), request, row), undo=view.take_label(row))


# --- table -----------------------------------------------------------------------------------


def draw_device_table(answer: Json, *, selectable: bool) -> None:
    rows = answer["devices"]
    shown = view.size_columns(rows)
    keys = [view.key(row) for row in rows]
    options: dict[str, Any] = {}
    if selectable:
        now = view.key(later.selected_or_best_row(answer))

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
    device = st.column_config.TextColumn("Device", pinned=True, width=190)
    columns_of.draw_sorted(
        rows,
        shown,
        f"{len(rows)} devices that hold the limits, best first",
        rows_high=16,
        column_config={"key": None, "device": device},
        **options,
    )
    if any(map(view.is_doubtful, rows)):
        st.caption(view.DOUBT_MEANS)


def draw_refused_devices(answer: Json) -> None:
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
    common.draw_chart(
        cost_bars(answer, view.key(row), dark=common.dark()),
        "size-costs",
        f"Cost of a month of {len(answer['devices'])} devices",
    )


def draw_cost_against(answer: Json, request: SizeRequest, row: Json, axes: list[str]) -> None:
    axis = axes[0]
    if len(axes) > 1:
        axis = common.pick_one(
            "Against", {name: column_metric(name).head for name in axes}, "size-axis"
        )
    common.draw_chart(
        cost_against(
            answer,
            axis,
            view.key(row),
            limit=getattr(request.objective.limits, limit_of(axis).name),
            dark=common.dark(),
        ),
        "size-against",
        f"Cost against {column_metric(axis).label} for every number of every device",
    )
    st.caption("One mark for each number of devices; open marks do not hold the limits.")


def draw_confidence_curves(answer: Json, request: SizeRequest, row: Json) -> None:
    common.draw_chart(
        confidence_curves(
            answer, view.key(row), confidence=request.objective.confidence, dark=common.dark()
        ),
        "size-confidence",
        "Highest confidence against the number of devices rented, by device",
    )
