"""The form of the size page: model and traffic, limits, and what to choose from."""

from __future__ import annotations

from typing import get_args

import _common as common
import _numbers as numbers
import _size_filters as filters
import _workload as asking
import streamlit as st

from recipe_core.hardware.profile import Commitment
from recipe_core.models.catalog import catalog_ids
from recipe_core.request.metrics import Limit, limits_by_name, run_limits, timed_limits
from recipe_core.request.open_hardware import CONFIDENCE
from recipe_core.request.presets import aims
from recipe_core.request.size import Market

GOALS = ("cost", "gpus", "energy")
"""What sizing may count, cost first; the wizard's objective may count more."""
INLINE = "config in the link"


def draw_size_form() -> None:
    work_column, limits_column, market_column = st.columns(3, gap="large")
    with work_column:
        st.header("What runs", anchor=False)
        draw_size_workload()
    with limits_column:
        st.header("What it must hold", anchor=False)
        draw_size_limits()
    with market_column:
        st.header("What to choose from", anchor=False)
        draw_market()
    narrowed = common.current_market() != Market()
    title = "More filters and own machines" + (" · narrowed" if narrowed else "")
    key, icon = "size-more", ":material/filter_alt:"
    with st.expander(title, icon=icon, key=key, on_change="rerun") as more:
        if more.open:
            filters.draw_size_filters()


# --- what runs -------------------------------------------------------------------------------


def draw_size_workload() -> None:
    common.draw_kind(label_visibility="collapsed")
    model = common.request().model
    shown = model if isinstance(model, str) else INLINE
    catalog_names = catalog_ids()
    common.edit(
        st.selectbox,
        "Model",
        "model",
        read=lambda _: shown,
        write=lambda option: model if option == INLINE else option.strip(),
        options=catalog_names if shown in catalog_names else [shown, *catalog_names],
        accept_new_options=True,
    )
    if common.asks_for_training():
        asking.training_run()
        return
    asking.draw_preset()
    asking.serving_load()


# --- what it must hold -----------------------------------------------------------------------


def draw_size_limits() -> None:
    training = common.asks_for_training()
    names = run_limits() if training else timed_limits()
    # three beside each other cut their numbers off
    with numbers.group_boxes("size-limits"), st.grid(2, min_column_width=150):
        for name in names:
            draw_size_limit(limits_by_name()[name])
    if not training:
        asking.draw_percentile()
    common.edit(
        st.slider,
        "Confidence",
        "objective.confidence",
        read=lambda share: whole_percent(share or CONFIDENCE),
        write=lambda value: value / 100.0,
        min_value=50,
        max_value=99,
        step=1,
        format="%d%%",
    )
    draw_size_goals()


def whole_percent(share: float) -> int:
    return round(100.0 * share)


def draw_size_limit(limit: Limit) -> None:
    field, unit = f"objective.limits.{limit.name}", limit.field_symbol
    label = f"{limit.metric.head} ({unit})"
    numbers.draw_number(label, field, optional=True, unit=unit, placeholder="no limit")


def goal() -> str:
    return str(st.session_state.get("size-goal", GOALS[0]))


def draw_size_goals() -> None:
    aims_by_name = aims(common.request())

    def commit() -> None:
        if goal_name := st.session_state["_size_goal"]:
            st.session_state["size-goal"] = goal_name

    st.session_state["_size_goal"] = goal()
    st.pills(
        "Minimise",
        GOALS,
        key="_size_goal",
        format_func=lambda name: {"gpus": "Devices"}.get(name, aims_by_name[name].title),
        on_change=commit,
        required=True,
        help="The other pages keep their objective until you take hardware from this one.",
    )


# --- what to choose from ---------------------------------------------------------------------


def draw_market() -> None:
    filters.draw_filter(
        st.pills,
        "Vendors",
        "vendors",
        read=list,
        options=filters.VENDORS,
        selection_mode="multi",
    )
    filters.draw_filter(
        st.pills,
        "Commitment",
        "commitments",
        read=list,
        options=list(get_args(Commitment)),
        selection_mode="multi",
    )
    with numbers.group_boxes("market"), st.grid(2, min_column_width=150):
        filters.market_number(
            "Budget ($ a month)", "usd_per_month", unit="$", placeholder="no limit"
        )
        filters.market_number("Most devices", "most_devices")
