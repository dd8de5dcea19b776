"""One technique in full: why, by whose word, what was published of it; and a button to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _common as common
import _session as session
import pandas as pd
import streamlit as st

from recipe_core.views import formats as view

Row = Mapping[str, Any]


def draw_format_row(row: Row, answer: Row) -> None:
    support = row["support"]
    with st.container(border=True):
        title = common.escape(view.technique_title(row))
        st.markdown(f"**{title}**: {common.escape(row['effect'])}")
        lines = [
            view.reason_text(row),
            *row["notes"],
            view.support_text(row),
            view.checkpoint_sentence(row),
            view.weights_text(row, answer),
            row["accuracy"]["basis"],
        ]
        for line in filter(None, lines):
            st.caption(common.escape(line))
        if support["url"]:
            name = common.escape(support["source"] or support["url"])
            st.caption(f"[{name}]({support['url']}) {common.escape(support['date'])}")
        if row["checkpoints"]:
            names = ", ".join(row["checkpoints"])
            st.caption(common.escape(f"Checkpoints of the catalog that are it: {names}"))
        draw_published_figures(row)
        draw_use_format(row, "formats-use")


def draw_published_figures(row: Row) -> None:
    nearest = row["accuracy"]["nearest"]
    if not nearest:
        return
    frame = pd.DataFrame(nearest)
    frame["kept"] = frame["retained"] * 100
    st.dataframe(
        frame[["model", "method", "benchmark", "base_value", "value", "kept", "source"]],
        hide_index=True,
        column_config={
            "model": st.column_config.TextColumn("Published of", pinned=True),
            "method": "Method",
            "benchmark": "Benchmark",
            "base_value": st.column_config.NumberColumn("Base", format="%.4g"),
            "value": st.column_config.NumberColumn("Compressed", format="%.4g"),
            "kept": st.column_config.NumberColumn("Kept", format="%.1f%%"),
            "source": st.column_config.TextColumn("Source", width="large"),
        },
        alt=f"{len(frame)} published figures near to it",
    )


def draw_use_format(row: Row, key: str, *, main: bool = False) -> None:
    """A button that puts the format into the request, and goes on to compare splits."""
    if row["set"] is None:
        if not main:
            st.caption("No plan has it as a format, so it cannot be put into the request.")
        return
    st.button(
        f"Use {common.escape(view.technique_title(row))}",
        key=key,
        type="primary" if main else "secondary",
        icon=":material/check:",
        on_click=_take,
        args=(dict(row["set"]),),
    )


def _take(fields: dict[str, Any]) -> None:
    """Make it the request's format: the layout is left to the ranking again."""
    session.apply_changes({**fields, "candidate": session.shared_fields()}, undo="another format")
