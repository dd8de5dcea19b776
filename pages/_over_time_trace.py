"""A trace on the page Over time: uploaded, described, and made the load of the request.

The trace itself stays in the session; what the request needs of it travels in the link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.present import charts
from recipe_core.present import over_time_view as view
from recipe_core.present.glossary import term_help
from recipe_core.request.over_time import DAY_S
from recipe_core.traffic.looked_at import TraceLook, look_at
from recipe_core.traffic.shapes import shape_names

MOST_MB = 16
OWN_HOURS = ""
"""The choice of the trace's own hours, not those of a published week."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A trace of this session: the name of its file, what its bytes are known by, what it shows."""

    name: str
    digest: str
    look: TraceLook


def uploaded() -> Uploaded | None:
    """The trace that was uploaded last; None where there is none."""
    found: Uploaded | None = st.session_state.get("over-time-trace")
    return found


def draw(changed: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """A place for a file, and what it holds; ``changed`` gives the load with some changes."""
    st.file_uploader(
        "Trace (CSV, JSON lines, gzip)",
        type=["csv", "jsonl", "json", "log", "txt", "tsv", "gz"],
        key="over-time-file",
        on_change=take,
        max_upload_size=MOST_MB,
    )
    st.caption(
        "Azure, Mooncake, BurstGPT, access logs, or a table with time, input and output tokens. "
        "Prompts are not read. The file stays in this session; what you use of it is in the link."
    )
    read()
    with st.container(key="over-time-described"):
        if (trace := uploaded()) is not None:
            described(trace)
            use(trace, changed)


def take() -> None:
    """A file was chosen, or taken away."""
    file = st.session_state["over-time-file"]
    st.session_state.pop("over-time-trace", None)
    st.session_state["over-time-unread"] = file and (file.name, file.getvalue())


def read() -> None:
    """Read a file that was chosen; what is wrong with it is said here."""
    if unread := st.session_state.get("over-time-unread"):
        name, data = unread
        try:
            look = common.calculated("Reading the trace", look_at, data, name, simulated_what="")
        except RecipeError as error:
            st.error(common.escape(error), icon=":material/block:")
            return
        st.session_state["over-time-unread"] = None
        st.session_state["over-time-trace"] = Uploaded(name, hashlib.sha256(data).hexdigest(), look)


# --- what it holds -------------------------------------------------------------------------------


def described(trace: Uploaded) -> None:
    """Its figures and charts."""
    look = trace.look
    st.table(
        {name: common.escape(text) for name, text in view.trace_rows(look.facts).items()},
        border="horizontal",
        alt=f"What {trace.name} holds",
    )
    dark = common.dark()
    views: dict[str, Callable[[], None]] = {
        "Rate": lambda: rate(look, dark),
        "Lengths": lambda: token_lengths(look, dark),
    }
    if look.reuse is not None:
        views["Prefix reuse"] = lambda: reuse(look, dark)
    for tab, show in zip(st.tabs(list(views), key="over-time-trace-views"), views.values()):
        with tab:
            show()
