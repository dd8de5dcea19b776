"""One device of the size page closely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _columns as columns_of
import _common as common
import streamlit as st

from recipe_core.views import columns
from recipe_core.views import size_view as view

Json = Mapping[str, Any]


def draw_sized_device(answer: Json, row: Json) -> None:
    """Offer, figures, headroom, load and ladder of the device that is looked at."""
    st.header(f"{row['count']} × {view.short(row)}", anchor=False)
    best = row is answer["devices"][0] or row == answer["best"]
    sentences = [view.load_sentence(row), view.wins_sentence(row, best=best)]
    st.markdown(common.escape(" ".join(filter(None, sentences))))
    left, right = st.columns(2, gap="large")
    with left:
        draw_named_facts(view.offer_facts(row), "The price and where it is from")
    with right:
        draw_named_facts(view.sized_device_facts(row), "What runs and what it does")
    if rows := view.headroom_rows(row):
        st.table(
            [{name: common.escape(text) for name, text in room.items()} for room in rows],
            border="horizontal",
            hide_index=True,
            alt="Each limit with the estimate and what is left",
        )
    st.markdown("**More or fewer devices**")
    rungs = row["ladder"]
    shown = view.size_columns(rungs, ladder=True)
    st.dataframe(
        columns.styled(rungs, shown),
        hide_index=True,
        height="content" if len(rungs) < 9 else 320,
        column_config=columns_of.column_settings(shown),
        alt="Every number of devices with its cost and confidence",
    )


def draw_named_facts(rows: Mapping[str, str], alt: str) -> None:
    """A list of names and texts."""
    st.table(
        {name: common.escape(text) for name, text in rows.items()}, border="horizontal", alt=alt
    )
