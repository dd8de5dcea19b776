"""Recipes and bundles, made once for all sessions with the same request, so read only."""

from __future__ import annotations

import json
from functools import lru_cache

import _work as work

from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.recipe import Recipe, make_recipe, with_parameters
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest


@lru_cache(maxsize=64)
def cached_recipe(text: str, digest: str, may_read: bool) -> Recipe:  # noqa: ARG001 - part of the key
    """The recipe of a request, by its JSON."""
    request = PlanRequest.parse(json.loads(text))
    return work.calculated("Writing the recipe", make_recipe, request, folders=may_read)


@lru_cache(maxsize=32)
def cached_bundle(text: str, digest: str, may_read: bool, parameters: str) -> Bundle:
    """The bundle of a request under deployment settings (JSON, empty: the defaults)."""
    recipe = cached_recipe(text, digest, may_read)
    if parameters:
        recipe = with_parameters(recipe, Parameters.model_validate_json(parameters))
    return work.calculated("Writing the bundle", bundle_of, recipe)
