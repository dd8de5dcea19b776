from __future__ import annotations

from recipe_core.request.schema import PlanRequest
from tests.conftest import request_values
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
