"""The recipe: one decision with everything that pins it, and what can be asked of it.

Its schema, how it is made, locked, resolved, compared and converted; files are ``bundle``'s
business.
"""

from recipe_core.recipe.build import (
    Additions,
    make_recipe,
    recipe_request,
    relaunch,
    with_claims,
    with_parameters,
)
from recipe_core.recipe.decision import row_deployment
from recipe_core.recipe.options import passing_on
from recipe_core.recipe.resolve import with_variants
from recipe_core.recipe.schema import Recipe
from recipe_core.request.describe import model_short_name

__all__ = [
    "Additions",
    "Recipe",
    "make_recipe",
    "model_short_name",
    "passing_on",
    "recipe_request",
    "relaunch",
    "row_deployment",
    "with_claims",
    "with_parameters",
    "with_variants",
]
