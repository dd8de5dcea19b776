"""What all pages draw: the question, the request in one line, the verdict with its remedies, errors with where to correct them."""

from __future__ import annotations

import common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import change_label
from recipe_core.request.describe import summary
from recipe_core.search.plan import Plan

PAGE_OF = {
    "model": "model.py",
    "hardware": "hardware.py",
    "workload": "objective.py",
    "objective": "objective.py",
    "options": "objective.py",
    "candidate": "compare.py",
}
"""The page where a part of the request is edited."""


def show_notice() -> None:
    """Say once what was ignored of a link or why an edit was refused."""
    if ignored := st.session_state.pop("ignored", None):
        lines = [common.escape(line) for line in ignored]
        said = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
        st.warning(f"**Parts of the link were ignored.**\n\n{said}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(common.escape(refused), icon=":material/block:")


def head(title: str) -> None:
    """The question of a page, the request in one line, and the verdict."""
    st.title(title, anchor=False)
    st.caption(common.escape(summary(common.request())))
    verdict()


def verdict() -> None:
    """One line on every page: how many splits fit and the best, or why none does and what would change that."""
    try:
        found = common.board()
    except RecipeError as error:
        problem(error)
        return
    row = found.best()
    if row is None:
        nothing_fits(found)
        return
    fitting = (
        "**The only split fits.**"
        if len(found) == 1
        else f"**{len(found.ranked):,} of {len(found):,} splits fit.**"
    )
    best = f"Best: **{common.escape(found.label(row))}**, {common.escape(found.phrase(row))}."
    st.success(f"{fitting} {best}", icon=":material/check_circle:")


def problem(error: RecipeError) -> None:
    """An error of the request, with where to correct it."""
    st.error(common.escape(error), icon=":material/error:")
    where = PAGE_OF.get((error.field or "").split(".")[0])
    with st.container(horizontal=True):
        if where and st.session_state.get("page") != where:
            st.page_link(
                where, label="Correct it", icon=":material/edit:", query_params=common.link()
            )
        st.button(
            "Start over",
            key="start-over",
            icon=":material/restart_alt:",
            on_click=common.start_over,
        )


def nothing_fits(found: Plan) -> None:
    """Which limit refuses everything, by how much for the nearest split, and the change that helps as one click."""
    row = found.nearest()
    if row is None:
        st.error("There are no splits of these devices to judge.", icon=":material/block:")
        return
    nearest = f"The nearest, {found.label(row)}: {'; '.join(found.reasons(row))}."
    none = (
        "The only split does not fit."
        if len(found) == 1
        else f"None of {len(found):,} splits fits."
    )
    st.error(f"**{none}** {common.escape(nearest)}", icon=":material/block:")
    with st.container(horizontal=True):
        for n, remedy in enumerate(common.remedies()):
            label = common.escape(f"{change_label(remedy.changes)}: then {remedy.split} fits")
            st.button(
                label,
                key=f"remedy-{n}",
                icon=":material/build:",
                on_click=common.apply,
                args=(remedy.changes,),
            )


def code(text: str) -> None:
    """Text to copy, in one colour: those that syntax is painted with are too pale to read for some."""
    st.code(text, language=None, wrap_lines=True)


def column_config(board: Plan) -> dict[str, object]:
    """Titles, units and bars of the table's columns."""
    config: dict[str, object] = {
        name: st.column_config.NumberColumn(
            f"{measure.head} ({measure.unit})" if measure.unit else measure.head,
            format="localized",
            help=measure.help or measure.title,
        )
        for name, measure in board.measures.items()
    }
    if "used" in config:
        used = board.measures["used"]
        config["used"] = st.column_config.ProgressColumn(
            used.head, format="%.0f%%", min_value=0, max_value=100, help=used.help
        )
    front = st.column_config.TextColumn(
        "Front",
        width="small",
        help="◆: no other split is better in both of the first chart's measures",
    )
    return config | {
        "key": None,
        "split": st.column_config.TextColumn("Split", pinned=True, width=split_width()),
        "front": front,
    }


def split_width() -> int | None:
    """Training splits have long names."""
    return 330 if common.training() else None
