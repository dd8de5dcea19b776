"""Placed fleets: calculated by the server's workers beside the page, and cached for all sessions.

A page asks for several at once: the fleet, the same with changes that are tried, the moves from
what runs today, and the folder of files, which stays in the session.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import _fleet_document as documents
import streamlit as st
from cachetools import LRUCache

import recipe_core as rb
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import zip_bundle
from recipe_core.calibration.place import calibration_stamp
from recipe_core.doors.background import Background
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import folders_allowed
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.columns import Sources
from recipe_core.fleets.exports.folder import fleet_folder
from recipe_core.fleets.moves import Moves
from recipe_core.fleets.place import move_fleet
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges
from recipe_core.hardware.offers import current_day
from recipe_core.models.catalog import load_model_spec

SEARCH_S = 60.0
"""Seconds after which the best fleet so far is the answer."""
TASKS, ENDED, FOLDER = "fleet-tasks", "fleet-ended", "fleet-zip"
"""What of the session holds calculations that run, why others ended, and the last folder."""


Part = Literal["answer", "moves", "folder"]


@dataclass(frozen=True, slots=True)
class Question:
    """A fleet as JSON, with changes of it as JSON and the months ahead; it tells answers apart.

    ``part``: what of it is calculated; moves and the folder are those of its answer.
    """

    fleet: str
    changes: str
    month: float
    inputs: str
    part: Part = "answer"


_answers: LRUCache[Question, FleetAnswer] = LRUCache(maxsize=64)
_moves: LRUCache[Question, Moves] = LRUCache(maxsize=64)
_lock = threading.Lock()


def fleet_question(
    fleet: FleetRequest, month: float, changes: FleetChanges | None = None
) -> Question:
    """Return what is calculated.

    Raises:
        RecipeError: where a model cannot be read.
    """
    parts = (*fleet.models, *fleet.jobs)
    folders = folders_allowed()
    models = [load_model_spec(part.model, folders=folders).digest for part in parts]
    inputs = [models, calibration_stamp(), folders, str(current_day())]
    changed = changes.model_dump_json(exclude_defaults=True) if changes else ""
    return Question(json.dumps(fleet.to_json()), changed, month, json.dumps(inputs))


def find_placed(question: Question) -> FleetAnswer | None:
    """An answer that was calculated before; sessions share it, so read only."""
    with _lock:
        return _answers.get(question)


def find_moves(question: Question) -> Moves | None:
    with _lock:
        return _moves.get(question)


def find_folder(question: Question) -> bytes | None:
    """The zip of a fleet's folder, which the session made last."""
    answered, data = st.session_state.get(FOLDER, (None, None))
    return data if answered == question else None


def is_calculated(question: Question) -> bool:
    finders = {"answer": find_placed, "moves": find_moves, "folder": find_folder}
    return finders[question.part](question) is not None


def placing(question: Question) -> Background | None:
    """Return what calculates a question, begun where nothing does; None where it has ended.

    Its answer is kept, and why it ended otherwise, once it is over.
    """
    tasks, ended = running_tasks(), ended_questions()
    if question in ended:
        return None
    if question not in tasks:
        tasks[question] = _begin(question)
    task = tasks[question]
    if not server_pool().settings.workers:  # nothing runs beside the page then
        task.wait()
    if not task.is_over:
        return task
    del tasks[question]
    if task.value is None:
        ended[question] = task.error
    elif question.part == "folder":
        st.session_state[FOLDER] = (question, zip_bundle(task.value))
    else:
        with _lock:
            (_answers if question.part == "answer" else _moves)[question] = task.value
    return None


def running_tasks() -> dict[Question, Background]:
    tasks: dict[Question, Background] = st.session_state.setdefault(TASKS, {})
    return tasks


def ended_questions() -> dict[Question, RecipeError | None]:
    """Questions without an answer, with the error that they met; None: they were cancelled."""
    ended: dict[Question, RecipeError | None] = st.session_state.setdefault(ENDED, {})
    return ended


def cancel_placing(question: Question) -> None:
    """Give a calculation up until it is asked for again."""
    if question in running_tasks():
        running_tasks().pop(question).cancel()
    ended_questions()[question] = None


def place_again(question: Question) -> None:
    ended_questions().pop(question, None)


def keep_only(questions: Collection[Question]) -> None:
    """Give up what nobody asks any more, and forget how it ended."""
    for question in [task for task in running_tasks() if task not in questions]:
        running_tasks().pop(question).cancel()
    for question in [name for name in ended_questions() if name not in questions]:
        del ended_questions()[question]


def tried_changes() -> dict[str, FleetChanges]:
    """Changes that the reader tries, by their labels."""
    tried: dict[str, FleetChanges] = st.session_state.setdefault(documents.TRIED, {})
    return tried


def _begin(question: Question) -> Background:
    client = st.session_state.setdefault("client", secrets.token_hex(8))
    folders, pool = folders_allowed(), server_pool()
    answer = find_placed(replace(question, part="answer"))
    if question.part == "moves":
        return Background(pool, move_fleet, answer, Sources(folders), client=client)
    if question.part == "folder":
        return Background(pool, fleet_folder, answer, client=client)
    return Background(
        pool,
        rb.fleet,
        json.loads(question.fleet),
        what_if=json.loads(question.changes) if question.changes else None,
        month=question.month,
        seconds=SEARCH_S,
        folders=folders,
        client=client,
    )
