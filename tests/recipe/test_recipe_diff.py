"""What differs between recipes, and the words for it."""

from __future__ import annotations

import pytest

from recipe_core.recipe import Additions, make_recipe, passing_on
from recipe_core.recipe.diff import diff, diff_text
from recipe_core.recipe.place import Parameters
from tests.conftest import make_request
from tests.fixtures.recipes import recipe_of


@pytest.fixture(scope="module")
def pair():
    splits = ({"tp": 4, "pp": 1, "dp": 1}, {"tp": 2, "pp": 1, "dp": 2})
    return tuple(recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4, candidate=split) for split in splits)


def fields(found) -> dict:
    every = [row for rows in found["changed"].values() for row in rows]
    return {row["field"]: (row["before"], row["after"]) for row in every}


def test_a_recipe_does_not_differ_from_itself(pair):
    found = diff(pair[0], pair[0])
    assert found["same"]
    assert found["changed"] == {}
    assert all(row["ratio"] in (1, None) for row in found["estimate"])
    assert "no difference" in diff_text(found)


def test_what_changed_is_named_once_with_both_values(pair):
    found = diff(*pair)
    assert fields(found)["candidate.tp"] == (4, 2)
    assert fields(found)["engine.options.tensor_parallel_size"] == (4, 2)
    assert not any(name.startswith("request.candidate") for name in fields(found))
    assert "model.id" not in fields(found)
    back = fields(diff(*reversed(pair)))
    assert back == {name: values[::-1] for name, values in fields(found).items()}


def test_what_it_does_to_the_estimate(pair):
    before, after = pair
    rows = {row["figure"]: row for row in diff(before, after)["estimate"]}
    row = rows["serving.tpot_s"]
    first, second = (each.estimate["serving"]["tpot_s"] for each in (before, after))
    assert row["before"] == first
    assert row["ratio"] == pytest.approx(second / first)
    low, high = before.estimate["bands"]["tpot_s"]
    assert row["in_band"] == (low <= row["after"] <= high)
    assert "serving.tpot_s" in diff_text(diff(before, after))


def test_parameters_and_options_of_the_user_differ_too():
    request = make_request("Qwen/Qwen3-8B", "h100-sxm", 1)
    asked = passing_on(request, {}, {"VLLM_LOGGING_LEVEL": "INFO"})
    mine = make_recipe(asked, Additions(parameters=Parameters(port=9000)))
    found = fields(diff(make_recipe(request), mine))
    assert found["parameters.port"] == (8000, 9000)
    assert found["environment.VLLM_LOGGING_LEVEL"] == (None, "INFO")
