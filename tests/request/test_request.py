"""Requests that are refused by the field, and ``options.supervision``: its limits and edits."""

import math

from recipe_core.recipe.build import make_recipe, rebuilt, redecide
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.schema import PlanRequest
from recipe_core.request.supervision import Supervision
from recipe_core.search.plans import plan
from tests.conftest import make_request, request_values
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


@over("changes field said", table("request", "requests"))
def test_bad_requests_name_the_field_the_value_and_the_fix(changes, field, said):
    workload = request_values(workload=changes.get("workload", {}))["workload"]
    values = request_values() | changes | {"workload": workload}
    error = refusal(PlanRequest.parse, {name: values[name] for name in values if values[name]})
    assert error.field == field
    assert said in str(error)


def test_a_request_is_an_object_of_serving_unless_it_says_otherwise_and_json_keeps_it():
    assert PlanRequest.parse(request_values()).workload.kind == "serving"
    run = {"kind": "training", "sequence_length": 8192, "global_batch": 512, "tokens": "15e9"}
    assert PlanRequest.parse(request_values() | {"workload": run}).workload.kind == "training"
    objective = {"optimize": "cost", "limits": {"tpot_ms": 30}}
    split = {"tp": 8, "pp": 1, "dp": 1}
    request = PlanRequest.parse(request_values(objective=objective, candidate=split))
    assert PlanRequest.parse(request.to_json()) == request
    assert "object" in str(refusal(PlanRequest.parse, []))


FIELD = "options.supervision"


def test_the_defaults_are_those_that_are_documented_and_replicas_stay_up():
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
def test_what_cannot_be_is_refused_by_name(values, field, said):
    error = refusal(PlanRequest.parse, request_values(options={"supervision": values}))
    assert error.field == FIELD + field
    assert said in str(error)


def test_supervision_is_kept_by_training_without_replicas_and_by_a_recipe_but_changes_no_plan():
    request = change(DEFAULT, {f"{FIELD}.crash_budget": 9, f"{FIELD}.min_available": 0})
    run = change(request, {"workload.kind": "training"})
    assert run.options.supervision == Supervision(crash_budget=9)
    kept = change(run, {f"{FIELD}.min_available": 1})
    assert refusal(plan, kept).field == f"{FIELD}.min_available"
    stated = {"hang_s": 20, "crash_budget": 1}
    changed = make_request(options={"supervision": stated})
    before, after = plan(make_request()), plan(changed)
    assert [split.key for split in after.ranked] == [split.key for split in before.ranked]
    recipe = make_recipe(changed)
    assert stated.items() <= recipe.request["options"]["supervision"].items()
    assert redecide(recipe).request.options.supervision == Supervision(**stated)
    assert rebuilt(recipe).digest == recipe.digest
    options = {k: v for k, v in recipe.request["options"].items() if k != "supervision"}
    older = recipe.model_copy(update={"request": {**recipe.request, "options": options}})
    assert redecide(older).request.options.supervision == Supervision()
