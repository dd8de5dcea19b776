from __future__ import annotations

import json

import common
import handout
import made
import parts
import place
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle, zipped
from recipe_core.doors.serve import folders_allowed
from recipe_core.present import overview
from recipe_core.present.report import html_report
from recipe_core.recipe import Recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request import edit
from recipe_core.request.edit import SHARED, shared_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import key_of
from recipe_core.search.plan import Plan

BEST, STATED = "", "stated"
LISTED = 50


def is_stated() -> bool:
    """Whether the request states a split, or a part of one, that no key of this plan names."""
    candidate = common.request().candidate
    planned = candidate is not None and (
        candidate.prefill is None or common.request().options.disaggregated
    )
    if candidate is None or (planned and common.chosen_key()):
        return False
    return bool(
        set(candidate.model_dump(exclude_none=True)) - (set(SHARED) if common.training() else set())
    )


def is_gone(board: Plan) -> str | None:
    """The name of a chosen split that no longer fits; what only the request can name is judged by itself."""
    return None if is_stated() else common.chosen_is_gone(board)


def wanted(board: Plan) -> PlanRequest:
    """The request; without its split where that no longer fits."""
    asked = common.request()
    return (
        asked.model_copy(update={"candidate": shared_candidate(asked)}) if is_gone(board) else asked
    )


def option_label(board: Plan, key: str) -> str:
    """A split in the list, with its figures."""
    if key == STATED:
        return f"As stated: {overview.stated(common.request().candidate)}"
    row = board.best_row if key == BEST else board.find(key)
    lead = "Best: " if key == BEST else "Pinned: " if key in common.pins() else ""
    return f"{lead}{board.label(row)} · {board.phrase(row)}"


def chosen_changes(key: str) -> dict:
    """What choosing a split changes in the request."""
    if key == STATED:
        return {}
    shared = shared_candidate(common.request())
    return (
        edit.select_split(common.request(), key)
        if key
        else {"candidate": shared.model_dump(exclude_none=True) if shared else None}
    )


def picker(board: Plan) -> None:
    """The chosen split: the best one, a pinned one, or any that fits."""
    gone = is_gone(board)
    pinned = [
        key for key in common.pins() if (row := board.find(key)) is not None and board.feasible[row]
    ]
    ranked = [board.key(int(row)) for row in board.order[:LISTED]]
    now = (
        STATED
        if is_stated()
        else BEST
        if common.chosen_key() is None or gone
        else board.key(common.chosen(board))
    )
    options = {key: option_label(board, key) for key in [BEST, *pinned, *ranked, now]}
    common.choose(
        st.selectbox,
        "Split",
        "_split",
        now,
        chosen_changes,
        options=list(options),
        format_func=options.get,
    )
    if gone:
        st.warning(
            f"The split you chose, {gone}, does not fit any more; this is the best one.",
            icon=":material/info:",
        )


def take_away(bundle: Bundle, board: Plan) -> None:
    """The bundle and the report as files, each made on click."""
    recipe, addresses = bundle.recipe, place.addresses(bundle)
    pins = [key for key in dict.fromkeys([key_of(recipe.candidate), *common.pins()]) if key]
    with st.container(horizontal=True):
        st.download_button(
            "Download bundle",
            lambda: zipped(bundle.files),
            file_name=f"{recipe.name}.zip",
            mime="application/zip",
            on_click="ignore",
            type=common.main_button(),
            icon=":material/download:",
            key="download",
            shortcut="Ctrl+S",
        )
        st.download_button(
            "Report with charts",
            lambda: html_report(bundle, board, pins=pins, addresses=addresses).encode(),
            file_name=f"{recipe.name}.html",
            mime="text/html",
            on_click="ignore",
            icon=":material/lab_profile:",
            key="report",
            help="One HTML file that opens without a network: figures, charts, arithmetic, commands",
        )


def described(recipe: Recipe, device_title: str) -> None:
    """What was decided, memory by part, figures with bands and basis."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.header("What was decided", anchor=False)
        facts = {name: common.escape(value) for name, value in overview.facts(recipe).items()}
        st.table(facts, border="horizontal", alt="What was decided")
    with right:
        st.header(f"Memory per {device_title}", anchor=False)
        memory = {
            f"**{name}**" if name == "Total" else name: common.escape(value)
            for name, value in overview.memory(recipe).items()
        }
        st.table(memory, border="horizontal", alt="Memory by part")
    st.header("What to expect", anchor=False)
    rows = overview.expected(recipe)
    st.table(
        {
            "Figure": [row.label for row in rows],
            "Estimate": [f"**{common.escape(row.value)}**" for row in rows],
            "Likely between": [common.escape(overview.banded(row)) for row in rows],
            "Basis": [common.escape(row.basis) for row in rows],
        },
        border="horizontal",
        hide_index=True,
        alt="Expected figures with their bands and basis",
    )
    st.caption("Eight of ten measured runs are expected within a band.")


def taken(board: Plan) -> None:
    """The chosen split's bundle and all about it; or why there is none."""
    request = wanted(board)
    key = (json.dumps(request.to_json()), common.model().digest, folders_allowed())
    try:
        recipe = made.recipe_of(*key)
    except RecipeError as error:
        refused(board, error)
        return
    here = place.parameters()
    try:
        bundle = made.files_of(*key, here.model_dump_json() if here != Parameters() else "")
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/block:")
        bundle = made.files_of(*key, "")
    take_away(bundle, board)
    for note in recipe.notes:
        st.info(common.escape(note), icon=":material/info:")
    described(recipe, board.device_title)
    handout.show(bundle, request)


def refused(board: Plan, error: RecipeError) -> None:
    """Why a split has no bundle, what helps as one click, and the engines that would take it."""
    st.error(f"**This split cannot be built.** {common.escape(error)}", icon=":material/block:")
    row = common.chosen(board)
    one = common.request().hardware.per_node
    if row is not None and board.raw("gpus")[row] > one:
        fewer = {"objective.limits.gpus": one, "candidate": None}
        st.button(
            f"Only splits of at most {one} devices, one node",
            key="one-node",
            on_click=common.apply,
            args=(fewer,),
        )
    if row is not None:
        stated = common.request().candidate.model_dump(exclude_none=True) if is_stated() else {}
        st.header("The same split on another engine", anchor=False)
        handout.engines(common.request(), board.candidate(row) | stated)


parts.head("Take it")
board = common.board_or_none()
if board is not None and board.best_row is not None:
    picker(board)
    taken(board)
elif board is not None:
    st.page_link(
        "compare.py",
        label="See why nothing fits",
        icon=":material/help:",
        query_params=common.link(),
    )
