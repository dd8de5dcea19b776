"""The answer of the lens on time: simulated by the server's workers when asked, and cached."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from typing import Any

import _session as session
import streamlit as st
from cachetools import LRUCache

import recipe_core as rb
from recipe_core.doors.background import Background
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.request.edit import change
from recipe_core.request.over_time import OverTime
from recipe_core.request.schema import PlanRequest

Json = Mapping[str, Any]
Key = tuple[str, str, bool, str]
_answers: LRUCache[Key, Json] = LRUCache(maxsize=32)
_lock = threading.Lock()
TASK = "over-time-task"
"""What of the session holds the simulation that runs: its key, and the calculation."""


def simulation_question(
    request: PlanRequest, load: OverTime, policies: list[str]
) -> dict[str, Any]:
    """Return what is simulated: every policy searched, whichever the request uses already."""
    options = request.options.model_copy(update={"scaling": None, "simulated": None})
    workload = request.workload.model_copy(update={"over_time": load})
    searched_request = request.model_copy(update={"options": options, "workload": workload})
    return {"request": searched_request.to_json(), "policies": policies or None}


def simulation_key(question: Mapping[str, Any]) -> Key:
    """Return what tells answers apart.

    Raises:
        RecipeError: where the model cannot be read.
    """
    return json.dumps(question), session.inputs_digest(), folders_allowed(), str(current_day())


def find_simulated(key: Key) -> Json | None:
    """An answer that was calculated before; sessions share it, so read only."""
    with _lock:
        return _answers.get(key)


def begin_simulation() -> None:
    """Ask for the answer: the next run begins it, whatever is asked by then."""
    st.session_state["over-time-asked"] = True


def cancel_simulation() -> None:
    """Ask no more."""
    st.session_state.pop("over-time-asked", None)
    if TASK in st.session_state:
        st.session_state.pop(TASK)[1].cancel()


def is_simulating() -> bool:
    return TASK in st.session_state


def running_simulation(key: Key, question: Mapping[str, Any]) -> Background | None:
    """Return what simulates a question, begun where the reader asked for it; None where nobody did.

    One of another question is given up. Its answer is kept, and its error raised, once it is over.

    Raises:
        RecipeError: where there is nothing to simulate.
    """
    state = st.session_state
    if TASK in state and state[TASK][0] != key:
        cancel_simulation()
    if state.pop("over-time-asked", False):
        state[TASK] = (key, _start_simulation(key, question))
    if TASK not in state:
        return None
    task: Background = state[TASK][1]
    if not server_pool().settings.workers:  # nothing runs beside the page then
        task.wait()
    if task.is_over:
        del state[TASK]
        if task.error is not None:
            raise task.error
        if task.value is not None:
            _keep_answer(key, question, task.value.to_json())
    return task


def _start_simulation(key: Key, question: Mapping[str, Any]) -> Background:
    client = st.session_state.setdefault("client", secrets.token_hex(8))
    return Background(
        server_pool(),
        rb.simulate,
        question["request"],
        policies=question["policies"],
        folders=key[2],
        client=client,
    )


def _keep_answer(key: Key, question: Mapping[str, Any], answer: Json) -> None:
    """Keep an answer, also for the request that states the split which was simulated."""
    split = {"candidate": answer["candidate"], **answer["per_replica"]}
    split_request = change(PlanRequest.parse(question["request"]), split)
    of_split = simulation_key({**question, "request": split_request.to_json()})
    with _lock:
        _answers[key] = _answers[of_split] = answer
