"""Recipes from anybody: whatever is in them, one clear error or none, and never a crash."""

import copy
import re
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import BundleError, RecipeError
from recipe_core.bundle.write import bundle_files
from recipe_core.recipe import Recipe
from recipe_core.recipe.build import rebuild_recipe
from recipe_core.recipe.comparison import diff_recipes, diff_text, verify_lock
from recipe_core.recipe.resolve import hardware_named, recipe_for
from recipe_core.recipe.schema import migrate
from recipe_core.request.schema import PlanRequest
from tests.conftest import request_values
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.sizes import examples
from tests.nightly.attack import hostile_bundles

TEXT = st.text(max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@cache
def whole():
    return recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)


@cache
def plain():
    """Its plain values; copy before changing."""
    return whole().model_dump(mode="json")


def spots():
    return st.sampled_from([*hostile_bundles.places(plain())])


def changed(path, value, of=plain):
    out = copy.deepcopy(of())
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out


def read(path, value):
    """The recipe with one value replaced, None where it is refused in words."""
    try:
        return Recipe.parse(changed(path, value))
    except BundleError as error:
        return None if error.message else whole()


@settings(max_examples=examples(200), deadline=None)
@given(st.deferred(spots), JSON)
def test_no_value_anywhere_crashes_a_comparison(path, value):
    recipe = read(path, value)
    if recipe is not None:
        assert diff_text(diff_recipes(whole(), recipe))
        assert diff_text(diff_recipes(recipe, whole()))


SLOW = {"suppress_health_check": [HealthCheck.too_slow], "phases": [Phase.generate]}


@settings(max_examples=examples(120, least=12), deadline=None, **SLOW)
@given(st.deferred(spots), JSON)
def test_no_value_anywhere_crashes_what_a_recipe_is_used_for(path, value):
    recipe = read(path, value)
    if recipe is None:
        return
    with suppress(RecipeError):
        bundle_files(rebuild_recipe(recipe))
    with suppress(RecipeError):
        if recipe.lock:
            verify_lock(recipe, recipe.lock)
    with suppress(RecipeError):
        recipe_for(recipe, hardware_named("mi300x:2"))


@settings(max_examples=examples(200), deadline=None)
@given(JSON)
def test_no_value_is_migrated_into_a_crash(value):
    with pytest.raises(BundleError):
        Recipe.parse(value)
    if isinstance(value, dict):
        with pytest.raises(BundleError):
            Recipe.parse(value | {"schema_version": 1, "alternatives": value.get("", 3)})


def test_an_estimate_without_its_figures_is_named_and_migrating_changes_nothing_in_place():
    before = copy.deepcopy(plain())
    migrate(plain())
    assert before == plain()
    names = "serving.tpot_s memory.total_bytes bands cost.usd_per_hour notes"
    for path in names.split():
        with pytest.raises(BundleError, match=path.split(".")[-1]):
            Recipe.parse(changed(("estimate", *path.split(".")), "soon"))


@cache
def trained():
    workload = {"kind": "training", "sequence_length": 1024, "global_batch": 64, "tokens": 1e7}
    request = request_values("meta-llama/Llama-3.1-8B-Instruct", nodes=2, per_node=4)
    recipe = recipe_for_request(PlanRequest.parse({**request, "workload": workload}))
    return recipe.model_dump(mode="json")


def test_a_split_is_refused_by_its_field_wherever_it_stands():
    """As a README would show it: none is left out, and each is of the request's type."""
    wrong = {"tp": "4", "pp": None, "dp": 0, "cp": 2.5, "ep": [], "weight_dtype": 1, "who": 1}
    splits = (("candidate",), ("fallbacks", 0, "candidate"))
    for of, more in ((plain, {"kv_dtype": None}), (trained, {"micro_batch": None, "recompute": 3})):
        for place in splits:
            for name, value in {**wrong, **more}.items():
                error = refusal(Recipe.parse, changed((*place, name), value, of), kind=BundleError)
                where = ".".join(map(str, place))
                assert re.match(rf"recipe.yaml: {where}: {name}: ", error.message), error
        for value in ("4", [4], {}, True, 0):
            place = ("fallbacks", 0, "changes")
            error = refusal(
                Recipe.parse, changed(place, {"workload.x": value}, of), kind=BundleError
            )
            assert "fallbacks.0.changes: workload.x: " in error.message
    for path, says in {"run.wall_s": "run.wall_s: ", "run": "run", "memory": "memory"}.items():
        error = refusal(
            Recipe.parse, changed(("estimate", *path.split(".")), "1", trained), kind=BundleError
        )
        assert error.message.startswith(f"recipe.yaml: estimate: {says}"), error
