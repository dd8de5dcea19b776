"""A trace on the lens on time: uploaded, described, and made the load of the request.

The trace itself stays in the session; what the request needs of it travels in the link.
"""

from __future__ import annotations

import _common as common
import _work as work
import plotly.graph_objects as go
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.over_time import OverTime
from recipe_core.scaling.traces.loads import shape_names
from recipe_core.scaling.traces.trace import Trace
from recipe_core.views.charts.over_time import (
    alt_text,
    arrival_gaps,
    hits_by_cache,
    lengths_density,
    requests_over_time,
)
from recipe_core.views.traces import TraceLook, look_at_trace, shape_title, trace_rows

MOST_MB = 16
KINDS = ["csv", "tsv", "txt", "log", "json", "jsonl", "gz"]
OWN = ""
"""The choice of the trace's own hours, not those of a published week."""


def draw_trace_upload(load: OverTime | None) -> None:
    st.file_uploader(
        "Trace",
        type=KINDS,
        key="over-time-file",
        on_change=take_trace_upload,
        max_upload_size=MOST_MB,
    )
    st.caption(
        "Azure and BurstGPT (CSV), Mooncake (JSON lines), access logs, or a table with times, "
        "input and output tokens; gzip or not. The file stays in this session. Its rates, lengths "
        "and reuse travel in the link once you use them."
    )
    with st.container(key="over-time-read"):
        read_trace_upload()
    with st.container(key="over-time-described"):
        look: TraceLook | None = st.session_state.get("over-time-trace")
        if look is not None:
            draw_trace_look(look)
            draw_use_trace(look, load)


def take_trace_upload() -> None:
    file = st.session_state["over-time-file"]
    st.session_state.pop("over-time-trace", None)
    st.session_state["over-time-unread"] = (file.getvalue(), file.name) if file else None


def read_trace_upload() -> None:
    """Read a file that was chosen; what is wrong with it is said here."""
    unread = st.session_state.get("over-time-unread")
    if unread is None:
        return
    try:
        look = work.calculated("Reading the trace", look_at_trace, *unread, simulated_noun="")
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/block:")
    else:
        st.session_state.update({"over-time-trace": look, "over-time-unread": None})


def draw_trace_look(look: TraceLook) -> None:
    common.draw_facts(trace_rows(look.facts), "What the trace holds")
    views: dict[str, tuple[go.Figure, str]] = trace_figures(look)
    tabs = st.tabs(list(views), key="over-time-trace-views")
    for number, (tab, (figure, alt)) in enumerate(zip(tabs, views.values(), strict=True)):
        with tab:
            common.draw_chart(figure, f"over-time-trace-{number}", alt)


def trace_figures(look: TraceLook) -> dict[str, tuple[go.Figure, str]]:
    load, dark = look.load, common.dark()
    views = {"Rate of the trace": (requests_over_time(load, dark=dark), alt_text(load))}
    if isinstance(load, Trace):
        views["Lengths"] = (
            lengths_density(load, dark=dark),
            "How many requests have which lengths of prompt and answer",
        )
        views["Gaps"] = (
            arrival_gaps(load, dark=dark),
            "How many gaps between requests are longer, beside a Poisson process",
        )
    if hit := look.facts.get("prefix_hit"):
        views["Prefix reuse"] = (
            hits_by_cache(hit, dark=dark),
            "Share of prompt tokens found in prefix caches of each size",
        )
    return views


def draw_use_trace(look: TraceLook, load: OverTime | None) -> None:
    """Take the trace into the request, in its own hours or in those of a published week."""
    shape = OWN
    if look.is_short:
        shape = st.selectbox(
            "It lasts less than a day. Days and nights are those of",
            [OWN, *shape_names()],
            key="over-time-trace-shape",
            format_func=lambda name: shape_title(name) if name else "the trace, repeated",
            persist_state="session",
        )
    changes = look.changes(load, shape or None)
    used = load == OverTime.model_validate(changes["workload.over_time"])
    common.edit_button(
        "This trace is used" if used else "Use this trace",
        "over-time-use-trace",
        changes,
        ":material/check:" if used else ":material/upload:",
        type="primary",
        disabled=used,
        help="Sets rates, lengths, reuse of prefixes and the mean load of the request",
    )
