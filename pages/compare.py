import common
import explain
import parts
import streamlit as st

from recipe_core.base import labels
from recipe_core.present import charts, tables
from recipe_core.present.tables import SHOWN_ROWS
from recipe_core.request import split_key
from recipe_core.search.plan import Plan


def pin_clicked() -> None:
    """Pin what was clicked in the chart; the chart is drawn anew, which clears its selection."""
    for point in st.session_state["frontier"]["selection"]["points"]:
        if custom := point.get("customdata"):
            common.toggle_pin(custom[0])


def cards(board: Plan, row: int) -> None:
    """The main figures of the best split."""
    with st.grid(5, min_column_width=150):
        st.metric(
            "Best split",
            labels.short_name(board.candidate(row)),
            border=True,
            help=board.label(row),
            height="stretch",
        )
        for name in board.headline:
            text = board.text(name, row)
            st.metric(
                board.measures[name].title,
                "no price" if text == "unknown" else text,
                border=True,
                help=told(board, name, row),
                height="stretch",
            )


def told(board: Plan, name: str, row: int) -> str | None:
    """What a figure means, the exact value, and where measured runs are expected."""
    measure, band = board.measures[name], board.band(name, row)
    said = [measure.help] if measure.help else []
    said += [
        f"Exactly {board.values(name)[row]:.6g} {measure.unit}, computed; the device is {board.basis}"
    ]
    said += [f"Eight of ten measured runs are expected between {band}"] if band else []
    return common.escape(". ".join(said) + ".")


def axes(board: Plan) -> tuple[str, str]:
    """The two measures that are drawn against each other."""
    known = [name for name in board.measures if board.known(name)]
    chosen = []
    with st.container(horizontal=True):
        for label, default in zip(("Across", "Up"), board.axes, strict=True):
            name = st.selectbox(
                label,
                known,
                index=known.index(default) if default in known else 0,
                format_func=lambda name: board.measures[name].title,
                key=f"axis-{label.lower()}-{'training' if common.training() else 'serving'}",
                persist_state="session",
                width=300,
            )
            chosen.append(name or default)
    return chosen[0], chosen[1]


@st.fragment
def scatter(board: Plan) -> None:
    """What splits trade, by click; other axes leave the rest of the page as it is."""
    common.follow_edit()
    x, y = axes(board)
    titles = [board.measures[name].title.lower() for name in (x, y)]
    st.plotly_chart(
        charts.tradeoff(board, x, y, pins=common.pins(), dark=common.dark()),
        key="frontier",
        on_select=pin_clicked,
        selection_mode="points",
        alt=f"{titles[0]} against {titles[1]} for {len(board)} splits; {len(board.order)} fit.".capitalize(),
    )
    st.caption(
        "The larger a mark, the more devices. Click a mark to pin it, or tick rows in the table below. Up to four pins are compared."
    )


def tray(board: Plan) -> None:
    """Pinned splits side by side, each with what it is now and a way to take it or take it out."""
    with st.grid(common.MAX_PINS):
        for key in common.pins():
            with st.container(border=True, height="stretch"):
                pinned(board, key)


def pinned(board: Plan, key: str) -> None:
    """One pinned split."""
    row = board.find(key)
    if row is None:
        st.markdown(
            f"**{labels.split_name(split_key.split_of(key))}** is not a split of this plan any more."
        )
    elif not board.feasible[row]:
        st.markdown(
            f"**{common.escape(board.label(row))}** is refused: {common.escape('; '.join(board.reasons(row)))}"
        )
    else:
        st.markdown(f"**{common.escape(board.label(row))}**\\\n{common.escape(board.phrase(row))}")
    with st.container(horizontal=True):
        fits = row is not None and board.feasible[row]
        if fits and st.button(
            "Take it", key=f"take-{key}", icon=":material/check:", on_click=common.take, args=(key,)
        ):
            st.switch_page("recipe.py", query_params=common.link())
        st.button(
            "Remove",
            key=f"unpin-{key}",
            icon=":material/keep_off:",
            type="tertiary",
            on_click=common.toggle_pin,
            args=(key,),
        )


def columns(board: Plan) -> list[str]:
    """The measures that the table shows, as the reader chose."""
    with st.popover("Columns", icon=":material/view_column:"):
        chosen = st.pills(
            "Columns of the table",
            [name for name in board.measures if board.known(name)],
            default=[name for name in board.listed if board.known(name)],
            selection_mode="multi",
            format_func=lambda name: board.measures[name].title,
            key=f"columns-{'training' if common.training() else 'serving'}",
            persist_state="session",
        )
    return chosen or list(board.listed)


@st.fragment
def ranked_table(board: Plan) -> None:
    """Every split that fits, best first; ticks are pins, and other columns leave the rest of the page as it is."""
    common.follow_edit()
    shown = [int(row) for row in board.order[:SHOWN_ROWS]]
    frame = tables.splits_frame(board, shown)
    names = frame["key"].tolist()

    def pin_rows() -> None:
        """Pins follow the table's ticks; those that the table does not show are kept."""
        ticked = [names[row] for row in st.session_state["splits"]["selection"]["rows"]]
        hidden = [pin for pin in common.pins() if pin not in names]
        st.session_state["pins"] = [*hidden, *ticked][-common.MAX_PINS :]
        st.session_state["edited"] = True

    st.session_state["splits"] = {
        "selection": {
            "rows": [n for n, key in enumerate(names) if key in common.pins()],
            "columns": [],
            "cells": [],
        }
    }
    st.dataframe(
        frame,
        key="splits",
        on_select=pin_rows,
        selection_mode="multi-row",
        hide_index=True,
        height="content" if len(frame) < 11 else 390,
        column_order=["split", *columns(board), "front"],
        column_config=parts.column_config(board),
        alt=f"The {len(frame)} best splits that fit, best first",
    )
    if len(board.order) > len(shown):
        st.caption(f"The first {len(shown):,} of {len(board.order):,} are listed.")


parts.head("Which split?")
board = common.board_or_none()
if board is not None:
    best = board.best_row
    if best is not None:
        cards(board, best)
    if best is not None or board.beyond_limits():
        st.header("What splits trade", anchor=False)
        scatter(board)
        if common.pins():
            tray(board)
    if best is not None:
        st.header("Splits that fit, best first", anchor=False)
        ranked_table(board)
    explain.look_closer(board)
