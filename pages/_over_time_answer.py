"""The answer of the page Over time: simulated by the server's workers when asked, and cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import _common as common
import streamlit as st
from cachetools import LRUCache

import recipe_core as rb
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.request.edit import change
from recipe_core.request.over_time import OverTime
from recipe_core.request.schema import PlanRequest

Json = Mapping[str, Any]
Key = tuple[str, str, bool, str]
_answers: LRUCache[Key, Json] = LRUCache(maxsize=32)
_lock = threading.Lock()
NEXT = "next"
"""What is asked for until a run knows its key: a click may come before an edit is drawn."""


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
    return json.dumps(question), common.inputs_digest(), folders_allowed(), str(current_day())


def find_simulated(key: Key) -> Json | None:
    """An answer that was calculated before; sessions share it, so read only."""
    with _lock:
        return _answers.get(key)


def begin_simulation() -> None:
    """Ask for the answer: the next run calculates it, whatever is asked by then."""
    st.session_state["over-time-run"] = NEXT


def cancel_simulation() -> None:
    """Ask no more; the run that calculates ends with the click."""
    st.session_state.pop("over-time-run", None)


def is_simulating(key: Key) -> bool:
    """Return whether this answer was asked for; one for another request is given up."""
    if st.session_state.get("over-time-run") == NEXT:
        st.session_state["over-time-run"] = key
    if st.session_state.get("over-time-run") != key:
        cancel_simulation()
        return False
    return True


def simulate_question(key: Key, question: Mapping[str, Any]) -> Json:
    """The answer, with progress and a way to cancel.

    Raises:
        RecipeError: where there is nothing to simulate.
    """
    answer: Json = common.calculated(
        "Simulating policies",
        rb.simulate,
        question["request"],
        policies=question["policies"],
        folders=key[2],
        long=True,
        simulated_what="steps",
        give_up=common.WayOut("Cancel", "over-time-cancel", cancel_simulation),
    ).to_json()
    cancel_simulation()
    # who uses a policy states the split that was simulated: of it the answer is the same
    split = {"candidate": answer["candidate"], **answer["per_replica"]}
    split_request = change(PlanRequest.parse(question["request"]), split)
    of_split = simulation_key({**question, "request": split_request.to_json()})
    with _lock:
        _answers[key] = _answers[of_split] = answer
    return answer
