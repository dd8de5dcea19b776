"""Columns of tables of splits: titles, units, help and digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _common as common
import _session as session
import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from recipe_core.plans.plan import Plan
from recipe_core.views.columns import UNKNOWN, Column, styled
from recipe_core.views.glossary import term_help
from recipe_core.views.plans import FRONT, split_columns


def column_settings(columns: Sequence[Column[Any]]) -> dict[str, object]:
    return {
        column.key: st.column_config.Column(column.title, help=column.help or None)
        for column in columns
    }


def draw_sorted(
    rows: Sequence[Any],
    columns: Sequence[Column[Any]],
    alt: str,
    rows_high: int = 10,
    **options: Any,
) -> Any:
    """Draw a table that sorts, as high as ``rows_high`` rows; return what is selected."""
    config = {**column_settings(columns), **options.pop("column_config", {})}
    return st.dataframe(
        styled(rows, columns),
        hide_index=True,
        height="content" if len(rows) <= rows_high else 35 * (rows_high + 1),
        column_config=config,
        alt=alt,
        **options,
    )


def draw_columns(
    rows: Sequence[Any], columns: Sequence[Column[Any]], alt: str, strong: str = ""
) -> None:
    """A table that is read, not sorted; ``strong``: the title of the column that is read first."""
    cells = {}
    for column in columns:
        texts = [common.escape(column.text(row)) for row in rows]
        bold = column.title == strong
        cells[column.title] = [f"**{text}**" for text in texts] if bold else texts
    common.draw_cells(cells, alt)


def column_config(plan: Plan) -> dict[str, object]:
    """Titles, help and bars of the columns of a table of splits."""
    described = column_settings(split_columns(plan))
    if "used" in described:
        described["used"] = st.column_config.ProgressColumn(
            plan.measures["used"].head,
            format="%.0f%%",
            min_value=0,
            max_value=100,
            help=plan.measures["used"].help,
        )
    # names of training splits are long
    width = 330 if session.asks_for_training() else None
    split = st.column_config.TextColumn("Layout", pinned=True, width=width)
    front = st.column_config.TextColumn(
        "Front", width="small", help=f"{FRONT}: {term_help('front')}"
    )
    return {**described, "key": None, "label": split, "split": split, "front": front}


def with_digits(plan: Plan, frame: pd.DataFrame, shown: Sequence[str]) -> Styler:
    """The shown columns of a table, and its key, with figures as they are written everywhere.

    They sort by their values.
    """
    figures = {
        column.key: column.show
        for column in split_columns(plan)
        if column.key in shown and column.align == "right"
    }
    return frame[["key", *shown]].style.format(figures, na_rep=UNKNOWN)
