"""One device of the size page closely, and what its tables share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _common as common
import pandas as pd
import streamlit as st

from recipe_core.views import size_tables
from recipe_core.views import size_view as view

Json = Mapping[str, Any]
AMOUNTS = {
    "hour": "$ an hour",
    "month": "$ a month",
    "tokens": "$ per million tokens",
    "run": "$ for the run",
}


def draw(answer: Json, row: Json) -> None:
    """Offer, figures, headroom, load and ladder of the device that is looked at."""
    st.header(f"{row['count']} × {view.short(row)}", anchor=False)
    best = row is answer["devices"][0] or row == answer["best"]
    sentences = [view.load_sentence(row), view.wins_sentence(row, best)]
    st.markdown(common.escape(" ".join(filter(None, sentences))))
    left, right = st.columns(2, gap="large")
    with left:
        facts(size_tables.offer_rows(row), "The price and where it is from")
    with right:
        facts(size_tables.fact_rows(row), "What runs and what it does")
    if rows := size_tables.headroom_rows(row):
        st.table(
            [{name: common.escape(text) for name, text in room.items()} for room in rows],
            border="horizontal",
            hide_index=True,
            alt="Each limit with the estimate and what is left",
        )
    st.markdown("**More or fewer devices**")
    ladder = size_tables.ladder_frame(row)
    doubtful = [n for n, rung in enumerate(row["ladder"]) if view.is_doubtful(rung)]
    st.dataframe(
        marked(ladder, doubtful),
        hide_index=True,
        height="content" if len(ladder) < 9 else 320,
        column_config=columns(),
        alt="Every number of devices with its cost and confidence",
    )


def facts(rows: Mapping[str, str], alt: str) -> None:
    """A list of names and texts."""
    st.table(
        {name: common.escape(text) for name, text in rows.items()}, border="horizontal", alt=alt
    )


def marked(frame: pd.DataFrame, doubtful: list[int]) -> Any:
    """The table with a mark behind each amount that rests on a price to doubt."""
    amounts = [name for name in AMOUNTS if name in frame]
    style = frame.style.format(
        {**dict.fromkeys(amounts, "{:,.2f}"), "month": "{:,.0f}"}, na_rep="–"
    )
    for name in amounts:
        digits = 0 if name == "month" else 2
        style = style.format(
            f"{{:,.{digits}f}} {view.DOUBT}", subset=pd.IndexSlice[doubtful, [name]], na_rep="–"
        )
    if "confidence" in frame:
        style = style.format("{:.0f}%", subset=["confidence"], na_rep="–")
    return style


def columns() -> dict[str, object]:
    """Titles of the columns, and what they mean."""
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    return {
        "key": None,
        "device": text("Device", pinned=True, width=190),
        "rented": text("Rented", help="Units; of machines with several devices: units × devices"),
        "split": text("Split"),
        "engine": text("Engine"),
        **{name: number(title) for name, title in AMOUNTS.items()},
        "confidence": number("Confidence", help="Probability that every limit holds if measured"),
        "price": text("Price from", help="Provider and date, and what to doubt"),
        "wins": text("Cheapest of all", help="Price of a device-hour at which it is the best"),
        "holds": text("Holds"),
        "pays": text("Worth it", help="No number that costs less is as sure"),
    }
