"""The answer of the lens on formats: judged by the server's workers, and cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import _session as session
import _work as work
from cachetools import LRUCache

from recipe_core.compression.advisor.advise import formats_answer
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.request.schema import PlanRequest

Json = Mapping[str, Any]
_answers: LRUCache[tuple[str, str, bool, str], Json] = LRUCache(maxsize=32)
_lock = threading.Lock()


def judge_formats(request: PlanRequest) -> Json:
    """Return what every technique does to the request; sessions share it, so read only.

    Raises:
        RecipeError: where there is nothing to judge.
    """
    text = json.dumps(request.to_json())
    key = (text, session.inputs_digest(), folders_allowed(), str(current_day()))
    with _lock:
        cached = _answers.get(key)
    if cached is not None:
        return cached
    judged: Json = work.calculated(
        "Judging every format",
        formats_answer,
        json.loads(text),
        folders=key[2],
        simulated_noun="",
    )
    with _lock:
        _answers[key] = judged
    return judged
