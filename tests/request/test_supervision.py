"""``options.supervision`` of a request: its limits, its link, its edits."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.recipe.build import make_recipe, rebuilt, redecide
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.supervision import Supervision
from recipe_core.search.plans import plan
from tests.conftest import make_request, request_values
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

FIELD = "options.supervision"


def test_the_defaults_are_those_that_are_documented_and_replicas_stay_up() -> None:
    times = {"window_s": 600, "backoff_s": 1, "backoff_most_s": 60, "stable_s": 300, "hang_s": 60}
    times |= {"slow_s": 300, "drain_s": 30, "poll_s": 1}
    counts = {"crash_budget": 5, "min_available": None, "requeues": 3}
    assert Supervision().model_dump() == times | counts
    rows = [(None, 1, 1), (None, 2, 1), (None, 8, 7), (0, 1, 0), (2, 8, 2), (9, 8, 8)]
    for least, replicas, kept in rows:
        assert Supervision(min_available=least).available_of(replicas) == kept


@over(
    "values field said",
    [*table("request", "supervision"), ({"backoff_s": math.inf}, ".backoff_s", "finite number")],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any], field: str, said: str) -> None:
    error = refusal(PlanRequest.parse, request_values(options={"supervision": values}))
    assert error.field == FIELD + field
    assert said in str(error)


def test_it_survives_a_link_and_becoming_training_which_has_no_replicas() -> None:
    stated = {f"{FIELD}.hang_s": 120, f"{FIELD}.backoff_s": 2.5, f"{FIELD}.min_available": 0}
    request = change(DEFAULT, stated)
    query = to_query(request)
    assert {name for name in query if name.startswith(FIELD)} == set(stated)
    assert from_query(query) == (request, [])
    request = change(DEFAULT, {f"{FIELD}.crash_budget": 9, f"{FIELD}.min_available": 0})
    run = change(request, {"workload.kind": "training"})
    assert run.options.supervision == Supervision(crash_budget=9)
    kept = change(run, {f"{FIELD}.min_available": 1})
    assert refusal(plan, kept).field == f"{FIELD}.min_available"


def test_no_plan_depends_on_it_and_a_recipe_keeps_it() -> None:
    changed = make_request(options={"supervision": {"hang_s": 20, "crash_budget": 1}})
    before, after = plan(make_request()), plan(changed)
    assert [split.key for split in after.ranked] == [split.key for split in before.ranked]
    recipe = make_recipe(changed)
    assert recipe.request["options"]["supervision"]["hang_s"] == 20
    kept = Supervision(hang_s=20, crash_budget=1)
    assert redecide(recipe).request.options.supervision == kept
    assert rebuilt(recipe).digest == recipe.digest
    options = {k: v for k, v in recipe.request["options"].items() if k != "supervision"}
    older = recipe.model_copy(update={"request": {**recipe.request, "options": options}})
    assert redecide(older).request.options.supervision == Supervision()
