"""What all pages draw: question, request in one line, notices, columns of tables."""

from __future__ import annotations

from collections.abc import Sequence

import _bar as bar
import _common as common
import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from recipe_core.base.errors import RecipeError
from recipe_core.present.charts.groups import TITLES
from recipe_core.present.tables import digits_of
from recipe_core.request.describe import summary
from recipe_core.search.plan import Plan


def show_notice() -> None:
    """Say once what was ignored of a link or why an edit was refused."""
    if ignored := st.session_state.pop("ignored", None):
        lines = [common.escape(line) for line in ignored]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
        st.warning(f"**Parts of the link were ignored.**\n\n{text}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(common.escape(refused), icon=":material/block:")


def head(title: str) -> None:
    """The question of a page and the request in one line.

    On pages on which nothing is edited also what keeps the request from an answer; everywhere the
    bar at the foot gives the verdict.
    """
    st.title(title, anchor=False)
    st.caption(common.escape(summary(common.request())))
    with st.container(key="answer"):  # one place, whatever it says: what follows stays in its own
        if st.session_state.get("page") in bar.READ_ONLY:
            given = bar.answer()
            if isinstance(given, RecipeError) or (given and given[1].state == "nothing"):
                bar.explain(given, "page")
            elif given and given[0].price_note:
                bar.price_note(given[0])


def hardware_unknown() -> None:
    """A link to the page that chooses the hardware."""
    st.page_link(
        "size.py",
        label="Any hardware: find it for me",
        icon=":material/shopping_cart:",
        query_params=common.link(),
    )


def code(text: str) -> None:
    """Text to copy, in one colour: syntax colours are too pale for some readers."""
    st.code(text, language=None, wrap_lines=True)


def column_config(plan: Plan) -> dict[str, object]:
    """Titles, units and bars of the table's columns."""
    config: dict[str, object] = {
        name: st.column_config.NumberColumn(
            f"{measure.head} ({measure.unit})" if measure.unit else measure.head,
            help=measure.help or measure.title,
        )
        for name, measure in plan.measures.items()
    }
    if "used" in config:
        used = plan.measures["used"]
        config["used"] = st.column_config.ProgressColumn(
            used.head, format="%.0f%%", min_value=0, max_value=100, help=used.help
        )
    front = st.column_config.TextColumn(
        "Front",
        width="small",
        help="◆: no other split beats it in both measures of the tradeoff chart",
    )
    # names of training splits are long
    width = 330 if common.training() else None
    split = st.column_config.TextColumn("Split", pinned=True, width=width)
    for name, measure in plan.measures.items():
        if plan.has_band(name):
            config[f"{name}_likely"] = st.column_config.TextColumn(
                f"{measure.head}, likely", help="Eight of ten measured runs are expected there"
            )
    config |= {name: st.column_config.TextColumn(title) for name, title in TITLES.items()}
    config["state"] = st.column_config.TextColumn(
        "State", help="Whether it holds the whole load at once, or starts and queues"
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
