"""Placed fleets: calculated by the server's workers beside the page, and cached for all sessions.

A page asks for several at once: the fleet, the same with changes that are tried, and the folder of
files.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st
from cachetools import LRUCache

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import zip_bundle
from recipe_core.calibration.place import calibration_stamp
from recipe_core.doors.background import Background
from recipe_core.doors.fleets import AnsweredFleet, FleetQuestion
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import folders_allowed
from recipe_core.fleets.columns import Sources
from recipe_core.fleets.exports.folder import fleet_folder
from recipe_core.fleets.request import FleetRequest
from recipe_core.hardware.offers import current_day
from recipe_core.models.catalog import load_model_spec

SEARCH_S = 60.0
"""Seconds after which the best fleet so far is the answer."""
TASKS, ENDED = "fleet-tasks", "fleet-ended"
"""What of the session holds calculations that run, and why others ended."""


@dataclass(frozen=True, slots=True)
class Question:
    """A fleet as JSON and the months ahead; it tells answers apart.

    ``files``: whether the folder of its answer is asked for.
    """

    fleet: str
    month: float
    inputs: str
    files: bool = False


# A folder counts as several answers.
_answers: LRUCache[Question, AnsweredFleet | bytes] = LRUCache(
    64, lambda answer: 8 if isinstance(answer, bytes) else 1
)
_lock = threading.Lock()


def fleet_question(fleet: FleetRequest, month: float) -> Question:
    """Return what is calculated.

    Raises:
        RecipeError: where a model cannot be read.
    """
    parts = (*fleet.models, *fleet.jobs)
    folders = folders_allowed()
    models = [load_model_spec(part.model, folders=folders).digest for part in parts]
    inputs = [models, calibration_stamp(), folders, str(current_day())]
    return Question(json.dumps(fleet.to_json()), month, json.dumps(inputs))


def find_answer(question: Question) -> Any:
    """An answer, or the zip of a folder, that was made before; sessions share it, so read only."""
    with _lock:
        return _answers.get(question)


def placing(question: Question) -> Background | None:
    """Return what calculates a question, begun where nothing does; None where it has ended.

    Its answer is kept, and why it ended otherwise, once it is over.
    """
    tasks, ended = running_tasks(), ended_questions()
    if question in ended or find_answer(question) is not None:
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
        return None
    with _lock:
        _answers[question] = zip_bundle(task.value) if question.files else task.value
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
    for question in {*running_tasks(), *ended_questions()} - {*questions}:
        cancel_placing(question)
        place_again(question)


def _begin(question: Question) -> Background:
    client = st.session_state.setdefault("client", secrets.token_hex(8))
    if question.files and (answered := find_answer(replace(question, files=False))) is not None:
        return Background(server_pool(), fleet_folder, answered.answer, client=client)
    fleet = FleetQuestion(FleetRequest.parse(json.loads(question.fleet)))
    sources = Sources(folders_allowed())
    place = partial(fleet.answer, sources=sources, month=question.month, seconds=SEARCH_S)
    return Background(server_pool(), place, client=client)
