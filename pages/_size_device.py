"""One device of the lens on hardware closely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _columns as columns_of
import _common as common
import streamlit as st

from recipe_core.views import size_view as view

Json = Mapping[str, Any]


def draw_sized_device(answer: Json, row: Json) -> None:
    """Offer, figures, headroom, load and ladder of the device that is looked at."""
    st.header(f"{row['count']} × {view.short(row)}", anchor=False)
    best = row is answer["devices"][0] or row == answer["best"]
    sentences = [view.load_sentence(row), view.wins_sentence(row, best=best)]
    st.markdown(common.escape(" ".join(filter(None, sentences))))
    price, work = st.columns(2, gap="large")
    with price:
        common.draw_facts(view.offer_facts(row), "The price and where it is from")
    with work:
        common.draw_facts(view.sized_device_facts(row), "What runs and what it does")
    if rows := view.headroom_rows(row):
        common.draw_cells(
            [{name: common.escape(text) for name, text in room.items()} for room in rows],
            "Each limit with the estimate and what is left",
        )
    st.markdown("**More or fewer devices**")
    rungs = row["ladder"]
    shown = view.size_columns(rungs, ladder=True)
    columns_of.draw_sorted(
        rungs, shown, "Every number of devices with its cost and confidence", rows_high=8
    )
