"""Splits by their degrees, in the lower half of the comparison."""

from __future__ import annotations

import common
import parts
import streamlit as st

from recipe_core.present import charts, tables
from recipe_core.search.plan import Plan


def degrees(board: Plan, row: int) -> None:  # noqa: ARG001 - every view takes the split that is looked at
    """Splits by their degrees."""
    measures = [name for name in board.listed if board.known(name)]
    name = st.selectbox(
        "Measure",
        measures,
        index=min(2, len(measures) - 1),
        format_func=lambda name: board.measures[name].title,
        key="heat",
        persist_state="session",
    )
    st.plotly_chart(
        charts.heatmap(board, name or measures[0], dark=common.dark()),
        key="heatmap",
        alt="The best split at each tp and pp",
    )
    st.caption("The best over all other degrees. ✕: none fits; point at it for the reason.")
    along(board, measures[1:6])


def along(board: Plan, measures: list[str]) -> None:
    """Splits as lines along their degrees and measures, and those that pass through what was marked."""
    figure = charts.parallel(board, measures, dark=common.dark())
    alt = "Every split along its degrees and measures"
    marked = st.plotly_chart(
        figure, key="parallel", on_select="rerun", selection_mode="box", alt=alt
    )["selection"].get("box", [])
    st.caption(
        f"One line a split, stronger the better its {board.measures[measures[0]].title.lower()}. "
        "Drag a box over a part of an axis to list the splits that pass through it; Shift adds a box, a double click takes all away."
    )
    if not marked:
        return
    kept = charts.passing(board, measures, marked)
    st.markdown(f"**Splits that pass through: {len(kept):,}**")
    if kept:
        frame = tables.splits_frame(board, kept)
        st.dataframe(
            frame,
            hide_index=True,
            height="content" if len(frame) < 8 else 320,
            column_order=["split", *measures],
            column_config=parts.column_config(board),
            alt=f"{len(kept)} splits that pass through what was marked",
        )
