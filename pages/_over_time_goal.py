"""Limits on time, and what a new replica finds, on the lens on time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _common as common
import _numbers as numbers
import _over_time_load as loads
import _planned as planned
import _session as session
import streamlit as st

from recipe_core.base.units import percent_text
from recipe_core.hardware.host import storage_names, storage_tier
from recipe_core.request.describe import limits_summary
from recipe_core.request.metrics import timed_limits
from recipe_core.request.over_time import OverTime
from recipe_core.request.presets import TimeLimits, published_time_limits
from recipe_core.scaling.scenario import start_of
from recipe_core.views.charts.policies import start_phases
from recipe_core.views.glossary import term_help
from recipe_core.views.over_time import start_savings, start_sentence, time_limits_text
from recipe_core.views.plain import describe_plainly

SHARES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
MOST_SAVINGS = 5


# --- limits --------------------------------------------------------------------------------------


def has_time_limits() -> bool:
    limits = session.request().objective.limits
    return any(getattr(limits, name) is not None for name in timed_limits())


def draw_time_limits() -> None:
    """Published limits on time to start from where none is stated, and the share to keep."""
    with st.container(key="over-time-presets"):
        if has_time_limits():
            st.caption(common.escape(f"Limits: {limits_summary(session.asked())}."))
        else:
            draw_limit_presets()
    draw_attainment()


def draw_limit_presets() -> None:
    st.info("State a limit on time, or start from a published one:", icon=":material/timer:")
    with st.container(horizontal=True):
        for name, preset in published_time_limits().items():
            common.edit_button(
                f"{preset.title}: {time_limits_text(preset.ttft_ms, preset.tpot_ms)}",
                f"over-time-limits-{name}",
                limit_changes(preset),
                help=preset.help,
            )


def limit_changes(preset: TimeLimits) -> dict[str, float]:
    return {
        "objective.limits.ttft_ms": preset.ttft_ms,
        "objective.limits.tpot_ms": preset.tpot_ms,
    }


def draw_attainment() -> None:
    now = loads.current_load().attainment
    common.draw_choice(
        st.select_slider,
        "Requests within the limits",
        "_over-time-attainment",
        now,
        lambda share: loads.apply_load_changes({"attainment": share}),
        options=sorted({*SHARES, now}),
        format_func=percent_text,
        help=f"{describe_plainly(OverTime, 'attainment')}\n\n{term_help('attainment')}",
    )


# --- what a new replica finds --------------------------------------------------------------------


NODES = {"new": "A new node", "ready": "A node that is ready"}
IMAGES = {"": "As usual there", "pull": "Pulled", "streamed": "Streamed", "cached": "On the node"}
LOADERS = {
    "default": "The engine's own",
    "streamer": "Streamer",
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "InstantTensor",
}
WAKES = {
    "cold": "A cold start",
    "sleep-1": "Sleep, weights in host memory",
    "sleep-2": "Sleep, weights dropped",
    "snapshot": "A snapshot",
}
PLACES = {
    "": "As usual there",
    "hub": "Hugging Face Hub",
    "tmpfs": "Memory (tmpfs)",
    "peer": "A peer",
}


def draw_cold_start() -> None:
    with st.grid(2, min_column_width=170):
        pick("Node", "node", NODES)
        pick("Image", "image", IMAGES)
        pick("Weights from", "weights", places())
        pick("Loader", "loader", LOADERS)
        pick("Waking", "wake", WAKES)
        with numbers.group_boxes("over-time-start"):
            numbers.draw_number(
                "Extra seconds", "options.start.extra_s", optional=True, placeholder="none"
            )
    common.edit(st.toggle, "Compiled code is kept", "options.start.compile_cache")
    with st.container(key="over-time-phases"):
        plan = planned.planned_or_none()
        row = None if plan is None else planned.selected_row(plan)
        if plan is not None and row is not None:
            draw_start_phases(start_of(plan, row)[0].to_json())


def places() -> dict[str, str]:
    tiers = {name: storage_tier(name).title for name in storage_names()}
    now = session.request().options.start.weights
    titles = {**PLACES, **tiers}
    return titles if now is None or now in titles else {**titles, now: now}


def pick(label: str, name: str, options: Mapping[str, str]) -> None:
    """A field of the start with few values; the empty one leaves it out."""
    common.edit(
        st.selectbox,
        label,
        f"options.start.{name}",
        read=lambda value: value or "",
        write=lambda value: value or None,
        options=options,
    )


def draw_start_phases(start: Mapping[str, Any]) -> None:
    st.markdown(common.escape(start_sentence(start)))
    common.draw_chart(
        start_phases(start, dark=common.dark()),
        "over-time-start-chart",
        "Phases of a cold start, in seconds from the order of a replica",
    )
    if changes := start_savings(start):
        st.markdown("**What shortens it**")
        with st.container(horizontal=True, key="over-time-savings"):
            for n, (text, fields) in enumerate(changes[:MOST_SAVINGS]):
                common.edit_button(
                    common.escape(text), f"over-time-saving-{n}", fields, ":material/speed:"
                )
