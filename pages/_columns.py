"""Columns of tables of splits: titles, units, help and digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _common as common
import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from recipe_core.plans.plan import Plan
from recipe_core.views.columns import Column
from recipe_core.views.glossary import measure_help, term_help
from recipe_core.views.tables import digits_of, named_columns


def config(columns: Sequence[Column[Any]]) -> dict[str, object]:
    """Titles of a table's columns, and what they mean."""
    return {
        column.key: st.column_config.Column(column.title, help=column.help or None)
        for column in columns
    }


def table(rows: Sequence[Any], columns: Sequence[Column[Any]], alt: str) -> None:
    """A table that is read, not sorted."""
    cells = {column.title: [common.escape(column.text(row)) for row in rows] for column in columns}
    st.table(cells, border="horizontal", hide_index=True, alt=alt)


def column_config(plan: Plan) -> dict[str, object]:
    """Titles, units and bars of the table's columns."""
    config: dict[str, object] = {
        name: st.column_config.NumberColumn(
            f"{measure.head} ({measure.unit})" if measure.unit else measure.head,
            help=measure_help(measure),
        )
        for name, measure in plan.measures.items()
    }
    if "used" in config:
        used = plan.measures["used"]
        config["used"] = st.column_config.ProgressColumn(
            used.head, format="%.0f%%", min_value=0, max_value=100, help=measure_help(used)
        )
    front = st.column_config.TextColumn(
        "Front",
        width="small",
        help=f"◆: {term_help('front')}",
    )
    # names of training splits are long
    width = 330 if common.training() else None
    split = st.column_config.TextColumn("Split", pinned=True, width=width)
    for name, measure in plan.measures.items():
        if plan.has_band(name):
            config[f"{name}_likely"] = st.column_config.TextColumn(
                f"{measure.head}, likely", help="Eight of ten measured runs are expected there"
            )
    for name, title in named_columns(plan).items():
        config[name] = st.column_config.TextColumn(title)
    config["state"] = st.column_config.TextColumn(
        "State", help="Whether it holds the whole load at once, starts and queues, or may not start"
    )
    sure = st.column_config.NumberColumn(
        "Sure (%)", help="Probability that all limits hold, if the split were measured"
    )
    return {**config, "key": None, "label": split, "split": split, "sure": sure, "front": front}


def with_digits(plan: Plan, frame: pd.DataFrame, shown: Sequence[str]) -> Styler:
    """The shown columns of a table, and its key, with figures as they are written everywhere.

    They sort by their values.
    """
    texts = {name: text for name, text in digits_of(plan).items() if name in shown}
    return frame[["key", *shown]].style.format(texts)
