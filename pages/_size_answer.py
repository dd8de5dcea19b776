"""The answer of the lens on hardware: devices sized part by part by workers, and cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import _session as session
import _work as work
from cachetools import LRUCache

from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import answer_in_parts

Json = Mapping[str, Any]
Key = tuple[str, str, bool, str]
_answers: LRUCache[Key, Json] = LRUCache(maxsize=32)
_lock = threading.Lock()


def find_sizing(request: SizeRequest, draw_part: Callable[[Json], None]) -> Json:
    """The answer over all devices, at once where it is known; ``draw_part`` shows those before it.

    Sessions share it, so read only.

    Raises:
        RecipeError: where there is nothing to size.
    """
    value = request.model_dump(mode="json", exclude_none=True)
    # marks of old prices depend on the day
    key = (json.dumps(value), session.inputs_digest(), folders_allowed(), str(current_day()))
    with _lock:
        answer = _answers.get(key)
    parts = 0
    while answer is None:
        parts += 1
        part = work.calculated(
            "Sizing every device",
            answer_in_parts,
            value,
            parts,
            digest=key[1],
            folders=key[2],
            simulated_noun="devices" if request.objective.limits.percentile else "",
        )
        if part["sized"] < part["of"]:
            draw_part(part)
            continue
        answer = part
        with _lock:
            _answers[key] = answer
    return answer
