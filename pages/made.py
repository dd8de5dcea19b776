"""Recipes and bundles of requests, made once for all sessions that ask the same, so read only."""

from __future__ import annotations

import json
from functools import lru_cache

import common

from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.recipe import Recipe, make_recipe, with_parameters
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest


@lru_cache(maxsize=64)
def recipe_of(text: str, digest: str, may_read: bool) -> Recipe:  # noqa: ARG001 - the digest tells changed folders apart
    """The recipe of a request, by its JSON."""
    with common.working("Deciding"):
        return make_recipe(PlanRequest.parse(json.loads(text)), folders=may_read)


@lru_cache(maxsize=32)
def files_of(text: str, digest: str, may_read: bool, at: str) -> Bundle:
    """The bundle of a request in a place."""
    recipe = recipe_of(text, digest, may_read)
    return bundle_of(with_parameters(recipe, Parameters.model_validate_json(at)) if at else recipe)
