"""Exports of a page: tables as files, charts as pictures and HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _common as common
import _session as session
import plotly.graph_objects as go
import streamlit as st

from recipe_core.views import exports
from recipe_core.views.columns import csv_bytes, parquet_bytes

PICTURE = "picture-format"


def chart_config(subject: str) -> dict[str, Any]:
    """Return how a chart's camera saves it: as chosen, in a file named after the request."""
    picture = st.session_state.get(f"{PICTURE}-{subject}") or exports.PICTURES[0]
    return exports.picture_config(exports.file_name(session.request(), subject), picture)


def chart_menu(subject: str, figure: Callable[[], go.Figure]) -> None:
    """The picture's format, and the chart as HTML, which ``figure`` draws on click."""
    name = exports.file_name(session.request(), subject)
    with st.popover("Export", icon=":material/download:"):
        common.pick_one(
            "Picture format", exports.PICTURES, f"{PICTURE}-{subject}", format_func=str.upper
        )
        st.caption("The camera at the chart's upper right corner saves the picture.")
        st.download_button(
            "Interactive chart (HTML)",
            lambda: exports.chart_page(figure(), name),
            file_name=f"{name}.html",
            mime=exports.HTML,
            on_click="ignore",
            icon=":material/html:",
            key=f"html-{subject}",
        )


def table_buttons(key: str, name: str, frame: Callable[[], Any]) -> None:
    """Draw a table as CSV and as Parquet, which ``frame`` makes on click."""
    kinds = (("CSV", exports.CSV, csv_bytes), ("Parquet", exports.PARQUET, parquet_bytes))
    for title, mime, write in kinds:
        st.download_button(
            title,
            lambda write=write: write(frame()),
            file_name=f"{name}.{title.lower()}",
            mime=mime,
            on_click="ignore",
            icon=":material/table:",
            key=f"{key}-{title.lower()}",
        )


def table_menu(subject: str, frame: Callable[[], Any]) -> None:
    with st.popover("Export", icon=":material/download:"):
        st.caption("The layouts that pass the filters, with the ends of likely ranges.")
        table_buttons(subject, exports.file_name(session.request(), subject), frame)
