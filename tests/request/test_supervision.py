"""``options.supervision`` of a request: its limits, its link, its edits."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.base.errors import InputError
from recipe_core.recipe.build import make_recipe, rebuilt, redecide
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.supervision import Supervision
from recipe_core.search.plans import plan
from tests.conftest import make_request, request_values

FIELD = "options.supervision"


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Supervision().model_dump() == {
        "crash_budget": 5,
        "window_s": 600,
        "backoff_s": 1,
        "backoff_most_s": 60,
        "stable_s": 300,
        "hang_s": 60,
        "slow_s": 300,
        "drain_s": 30,
        "poll_s": 1,
        "min_available": None,
        "requeues": 3,
    }


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"crash_budget": 0}, ".crash_budget", "greater than or equal to 1"),
        ({"hang_s": 4}, ".hang_s", "greater than or equal to 5"),
        ({"hang_s": "soon"}, ".hang_s", "valid integer"),
        ({"drain_s": 0}, ".drain_s", "greater than or equal to 1"),
        ({"backoff_s": float("inf")}, ".backoff_s", "finite number"),
        ({"min_available": -1}, ".min_available", "greater than or equal to 0"),
        ({"backoff_s": 90}, "", "backoff_most_s (60) is less than backoff_s (90); raise it"),
        ({"poll_s": 61}, "", "poll_s (61) is longer than hang_s (60), so no hang would be seen"),
        ({"retries": 3}, ".retries", "is not a known field"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        PlanRequest.parse(request_values(options={"supervision": values}))
    assert caught.value.field == FIELD + field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("least", "replicas", "kept"),
    [(None, 1, 1), (None, 2, 1), (None, 8, 7), (0, 1, 0), (2, 8, 2), (9, 8, 8)],
)
def test_replicas_that_stay_up(least: int | None, replicas: int, kept: int) -> None:
    assert Supervision(min_available=least).available_of(replicas) == kept


def test_it_survives_a_link() -> None:
    stated = {f"{FIELD}.hang_s": 120, f"{FIELD}.backoff_s": 2.5, f"{FIELD}.min_available": 0}
    request = change(DEFAULT, stated)
    query = to_query(request)
    assert {name for name in query if name.startswith(FIELD)} == set(stated)
    assert from_query(query) == (request, [])


def test_it_stays_when_serving_becomes_training() -> None:
    request = change(DEFAULT, {f"{FIELD}.crash_budget": 9, f"{FIELD}.min_available": 0})
    run = change(request, {"workload.kind": "training"})
    assert run.options.supervision == Supervision(crash_budget=9)


def test_a_run_has_no_replicas_to_keep() -> None:
    run = change(DEFAULT, {"workload.kind": "training", f"{FIELD}.min_available": 1})
    with pytest.raises(InputError) as caught:
        plan(run)
    assert caught.value.field == f"{FIELD}.min_available"


def test_no_plan_depends_on_it() -> None:
    changed = make_request(options={"supervision": {"hang_s": 20, "crash_budget": 1}})
    before, after = plan(make_request()), plan(changed)
    assert [split.key for split in after.ranked] == [split.key for split in before.ranked]


def test_a_recipe_keeps_it() -> None:
    recipe = make_recipe(make_request(options={"supervision": {"hang_s": 20}}))
    assert recipe.request["options"]["supervision"]["hang_s"] == 20
    assert redecide(recipe).request.options.supervision == Supervision(hang_s=20)
    assert rebuilt(recipe).digest == recipe.digest


def test_a_recipe_of_an_older_form_has_the_defaults() -> None:
    recipe = make_recipe(make_request())
    options = {k: v for k, v in recipe.request["options"].items() if k != "supervision"}
    older = recipe.model_copy(update={"request": {**recipe.request, "options": options}})
    assert redecide(older).request.options.supervision == Supervision()
