"""Advice as plain values, from plain values: what a worker is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import finite
from recipe_core.compression.advisor.advise import advise
from recipe_core.request.schema import PlanRequest


def formats_answer(request: Mapping[str, Any], *, folders: bool = False) -> dict[str, Any]:
    """The advice on a request, with null for numbers that are not finite.

    Raises:
        RecipeError: as ``advise``.
    """
    answer: dict[str, Any] = finite(advise(PlanRequest.parse(request), folders=folders).to_json())
    return answer
