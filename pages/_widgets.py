"""What all pages draw: question, request in one line, notices, columns of tables."""

from __future__ import annotations

import _bar as bar
import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.present.glossary import measure_help, term_help
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
    if st.session_state.get("page") in bar.READ_ONLY:
        given = bar.answer()
        if isinstance(given, RecipeError) or (given and given[1].state == "nothing"):
            bar.explain(given, "page")


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
            format="localized",
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
    sure = st.column_config.NumberColumn(
        "Sure (%)", help="Probability that all limits hold, if the split were measured"
    )
    return {**config, "key": None, "split": split, "sure": sure, "front": front}
