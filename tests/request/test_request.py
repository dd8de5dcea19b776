from __future__ import annotations

from recipe_core.request.schema import PlanRequest
from tests.conftest import request_values
from tests.fixtures.refusals import refusal


def test_bad_requests_name_the_field_the_value_and_the_fix():
    open_load = request_values(workload={"concurrency": None})
    rows = [
        ([], None, "object"),
        ({}, "model", "missing"),
        (request_values(per_node=0), "hardware.per_node", "got 0"),
        (request_values(workload={"input_tokens": -4}), "workload.input_tokens", "got -4"),
        (open_load, "workload.concurrency", "limits.tpot_ms"),
        (request_values(workload={"batch": 4}), "workload", "not batch"),
        (request_values(workload={"max_context": 100}), "workload", "shorter than"),
        (request_values(workload={"kind": "juggling"}), "workload", "juggling"),
        (request_values(objective={"optimize": "karma"}), "objective.optimize", "karma"),
        (request_values(options={"weight_dtypes": ["fp3"]}), "options.weight_dtypes.0", "fp3"),
        (request_values(candidate={"tp": 0}), "candidate.tp", "got 0"),
        (request_values(objective={"limits": {"tpot": 3}}), "objective.limits.tpot", "tpot_ms"),
        (request_values() | {"modle": 1}, "modle", "model"),
    ]
    errors = [refusal(PlanRequest.parse, values) for values, *_ in rows]
    assert [error.field for error in errors] == [field for _, field, _ in rows]
    said = zip(errors, rows, strict=True)
    assert [str(error) for error, (*_, words) in said if words not in str(error)] == []


def test_a_workload_is_serving_unless_it_says_otherwise_and_json_keeps_everything():
    assert PlanRequest.parse(request_values()).workload.kind == "serving"
    run = {"kind": "training", "sequence_length": 8192, "global_batch": 512, "tokens": "15e9"}
    assert PlanRequest.parse(request_values() | {"workload": run}).workload.kind == "training"
    objective = {"optimize": "cost", "limits": {"tpot_ms": 30}}
    split = {"tp": 8, "pp": 1, "dp": 1}
    request = PlanRequest.parse(request_values(objective=objective, candidate=split))
    assert PlanRequest.parse(request.to_json()) == request
