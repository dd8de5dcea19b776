"""What a page lets its reader take away: tables as files, charts as pictures and HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _common as common
import plotly.graph_objects as go
import streamlit as st

from recipe_core.views import exports
from recipe_core.views.columns import csv_bytes, parquet_bytes

PICTURE = "picture-format"


def chart_config(subject: str) -> dict[str, Any]:
    """How a chart's camera saves it: as the reader chose, in a file named after the request."""
    picture = st.session_state.get(PICTURE) or exports.PICTURES[0]
    return exports.picture_config(exports.file_name(common.request(), subject), picture)


def chart_menu(subject: str, figure: Callable[[], go.Figure]) -> None:
    """The picture's format, and the chart as HTML, which ``figure`` draws on click."""
    name = exports.file_name(common.request(), subject)
    with st.popover("Export", icon=":material/download:"):
        st.segmented_control(
            "Picture format",
            exports.PICTURES,
            default=exports.PICTURES[0],
            format_func=str.upper,
            key=PICTURE,
            persist_state="session",
            required=True,
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


def table_menu(subject: str, frame: Callable[[], Any]) -> None:
    """A table as CSV and as Parquet, which ``frame`` makes on click."""
    name = exports.file_name(common.request(), subject)
    kinds = (("CSV", "csv", exports.CSV, csv_bytes),)
    kinds += (("Parquet", "parquet", exports.PARQUET, parquet_bytes),)
    with st.popover("Export", icon=":material/download:"):
        st.caption("The splits that pass the filters, with the ends of likely ranges.")
        for title, ending, mime, write in kinds:
            st.download_button(
                title,
                lambda write=write: write(frame()),
                file_name=f"{name}.{ending}",
                mime=mime,
                on_click="ignore",
                icon=":material/table:",
                key=f"{ending}-{subject}",
            )
