"""A placed fleet on its page: what is not served, figures, racks, tables, money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _columns as columns_of
import _common as common
import _fleet_answer as answers
import _fleet_document as documents
import streamlit as st

from recipe_core.base.documents import to_json
from recipe_core.doors.fleets import AnsweredFleet
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.moves import Moves
from recipe_core.views import fleets as view
from recipe_core.views.charts.fleets import rack_picture, rack_style, team_costs
from recipe_core.views.columns import UNKNOWN, Column, known_columns

PERIOD, WANTED = "fleet-period", "fleet-folder-wanted"
"""What of the session holds the period that is drawn, and the question whose files are wanted."""


def draw_headline(answer: FleetAnswer) -> None:
    """Show first what is not served, and why; then cost, probability, power and the gap."""
    sentence = common.escape(view.served_sentence(answer))
    if answer.complete:
        st.success(f"**{sentence}**", icon=":material/check_circle:")
    else:
        lines = "\n".join(f"- {common.escape(line)}" for line in view.unmet_lines(answer))
        st.error(f"**{sentence}**\n\n{lines}", icon=":material/block:")
    if month := documents.current_month():
        st.caption(f"Placed for the load in {month:g} months.")
    with st.grid(6, min_column_width=130):
        for title, value, about in view.PHRASES.rows("figures", answer):
            st.metric(title, common.escape(value), border=True, help=common.escape(about))


@st.fragment
def draw_racks(answer: FleetAnswer) -> None:
    """The picture of one period; another redraws only this."""
    st.header("Racks and devices", anchor=False)
    period = answer.busiest_period
    if len(answer.periods) > 1:
        period = (
            st.selectbox(
                "Period",
                list(answer.periods),
                index=list(answer.periods).index(period),
                key=PERIOD,
                format_func=lambda name: f"{name}, {answer.periods[name]:g} h a day",
                width=220,
            )
            or period
        )
    st.html(f"<style>{rack_style(dark=common.dark())}</style>")
    st.html(rack_picture(answer, period))
    st.caption(
        "A cell is a device, a part of it a slice or a model that sleeps in turn with others; "
        "joined cells are one replica. The tables below say the same."
    )


def draw_rows(rows: Sequence[Any], columns: Sequence[Column[Any]], about: str) -> None:
    """A table that sorts, without columns of which nothing is known."""
    columns_of.draw_sorted(rows, known_columns(rows, columns), about, placeholder=UNKNOWN)


def draw_tables(answer: FleetAnswer) -> None:
    st.header("Who runs where", anchor=False)
    rows = view.placed_rows(answer)
    about = f"{len(rows)} placements of {len(answer.models)} models and {len(answer.jobs)} jobs"
    draw_rows(rows, view.PLACEMENTS, about)
    st.header("Pools", anchor=False)
    about = f"{len(answer.pools)} pools with what is used and paid of them"
    draw_rows(answer.pools, view.POOLS, about)
    for note in answer.notes:
        st.caption(common.escape(note))


def draw_money(answer: FleetAnswer) -> None:
    """Show who pays: a bar a team, and the charges in figures."""
    st.header("Money by team", anchor=False)
    chart_column, table_column = st.columns(2, gap="large")
    with chart_column:
        common.draw_chart(
            team_costs(answer.charges, dark=common.dark()),
            "fleet-charges",
            f"Cost of a month of {len(answer.charges)} teams, projects and cost centres",
        )
    with table_column:
        draw_rows(answer.charges, view.CHARGES, "Charges by team, project and cost centre")


def draw_moves(moves: Moves) -> None:
    """The steps from what the document says runs today."""
    st.header("Moves from today", anchor=False)
    if not moves.steps:
        st.caption("None: everything runs already.")
        return
    if not moves.is_safe:
        st.warning(
            "Some steps need devices that are not free meanwhile; see the notes.",
            icon=":material/warning:",
        )
    draw_rows(moves.steps, view.STEPS, f"{len(moves.steps)} moves in their order")
    for note in moves.notes:
        st.caption(common.escape(note))


def draw_downloads(answered: AnsweredFleet, question: answers.Question) -> None:
    """The folder of all files, which is made when it is asked for, and the answer as JSON."""
    folder = answers.find_answer(question)
    with st.container(horizontal=True):
        if folder is None:
            st.button(
                "Make all files",
                key="fleet-make",
                type="primary",
                icon=":material/folder_zip:",
                on_click=ask_folder,
                args=(question,),
                disabled=question in answers.running_tasks(),
                help="A bundle for each placement, and what joins them: weights of the router, "
                "queues, cuts, schedules, charges, the report",
            )
        else:
            st.download_button(
                "Download all files",
                folder,
                file_name=f"{answered.answer.request.name}.zip",
                mime="application/zip",
                on_click="ignore",
                type="primary",
                icon=":material/folder_zip:",
                key="fleet-folder",
            )
        st.download_button(
            "Download the answer",
            lambda: f"{to_json(answered.to_json())}\n".encode(),
            file_name="answer.json",
            mime="application/json",
            on_click="ignore",
            icon=":material/data_object:",
            key="fleet-answer",
        )
    if (error := answers.ended_questions().get(question)) is not None:
        st.error(common.escape(error), icon=":material/error:")


def ask_folder(question: answers.Question) -> None:
    answers.place_again(question)
    st.session_state[WANTED] = question
