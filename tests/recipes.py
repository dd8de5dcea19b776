"""Recipes and bundles of the requests that many tests start from, made once by a worker."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.recipe import Recipe, make_recipe
from recipe_core.recipe.schema import Fallback
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request


def recipe_for_request(request: PlanRequest) -> Recipe:
    """A copy, so that no test sees what another one changed. Tests of ``make_recipe`` call that."""
    return _recipe(_key(request)).model_copy(deep=True)


def recipe_of(*args: Any, **parts: Any) -> Recipe:
    """The recipe of a request that is said as for ``make_request``."""
    return recipe_for_request(make_request(*args, **parts))


def fallback_request(request: PlanRequest, fallback: Fallback) -> PlanRequest:
    """The request of a fallback, from that of its recipe."""
    return change(request, {**fallback.changes, "candidate": fallback.candidate})


def bundle_for_request(request: PlanRequest) -> Bundle:
    """The bundle of a request: to read, not to change."""
    return _bundle(_key(request))


def _key(request: PlanRequest) -> str:
    return json.dumps(request.to_json(), sort_keys=True)


@cache
def _recipe(key: str) -> Recipe:
    return make_recipe(PlanRequest.parse(json.loads(key)))


@cache
def _bundle(key: str) -> Bundle:
    return bundle_of(_recipe(key))
