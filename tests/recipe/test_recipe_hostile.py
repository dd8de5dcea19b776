"""Recipes from anybody: whatever is in them, one clear error or none, and never a crash."""

from __future__ import annotations

import contextlib
import copy
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import BundleError, RecipeError
from recipe_core.bundle.write import bundle_files
from recipe_core.recipe import Recipe
from recipe_core.recipe.build import rebuilt
from recipe_core.recipe.diff import diff, diff_text
from recipe_core.recipe.lockcheck import verify_lock
from recipe_core.recipe.migrate import migrate
from recipe_core.recipe.resolve import hardware_named, recipe_for
from tests.fixtures.recipes import recipe_of
from tests.fixtures.sizes import examples

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@cache
def whole() -> Recipe:
    return recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)


@cache
def plain() -> dict[str, Any]:
    """Its plain values; copy before changing."""
    return whole().model_dump(mode="json")


def paths(value: Any, here: tuple = ()) -> list[tuple]:
    """Every place in plain values."""
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return [each for key, item in items for each in [(*here, key), *paths(item, (*here, key))]]


def places() -> st.SearchStrategy[tuple]:
    return st.sampled_from([path for path in paths(plain()) if path[0] != "fallbacks"])


def changed(path: tuple, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(plain())
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out


def read(path: tuple, value: Any) -> Recipe | None:
    """The recipe with one value replaced, None where it is refused in words."""
    try:
        return Recipe.parse(changed(path, value))
    except BundleError as error:
        return None if error.message else whole()


@settings(max_examples=examples(200), deadline=None)
@given(st.deferred(places), JSON)
def test_no_value_anywhere_crashes_a_comparison(path, value):
    recipe = read(path, value)
    if recipe is not None:
        assert diff_text(diff(whole(), recipe))
        assert diff_text(diff(recipe, whole()))


@settings(
    max_examples=examples(120, least=12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)
@given(st.deferred(places), JSON)
def test_no_value_anywhere_crashes_what_a_recipe_is_used_for(path, value):
    recipe = read(path, value)
    if recipe is None:
        return
    uses = (
        lambda recipe: bundle_files(rebuilt(recipe)),
        lambda recipe: verify_lock(recipe, recipe.lock) if recipe.lock else None,
        lambda recipe: recipe_for(recipe, hardware_named("mi300x:2")),
    )
    for use in uses:
        with contextlib.suppress(RecipeError):
            use(recipe)


@settings(max_examples=examples(200), deadline=None)
@given(JSON)
def test_no_value_is_migrated_into_a_crash(value):
    with pytest.raises(BundleError):
        Recipe.parse(value)
    if isinstance(value, dict):
        with pytest.raises(BundleError):
            Recipe.parse(value | {"schema_version": 1, "alternatives": value.get("", 3)})


def test_an_estimate_without_its_figures_is_named():
    names = "serving.tpot_s memory.total_bytes bands cost.usd_per_hour notes"
    for path in names.split():
        with pytest.raises(BundleError, match=path.split(".")[-1]):
            Recipe.parse(changed(("estimate", *path.split(".")), "soon"))


def test_migrating_changes_nothing_in_place():
    before = copy.deepcopy(plain())
    migrate(plain())
    assert before == plain()
