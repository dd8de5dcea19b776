from __future__ import annotations

import pytest

from recipe_core.base.errors import InputError
from recipe_core.request.schema import PlanRequest
from tests.conftest import request_values


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ([], None, "object"),
        ({}, "model", "missing"),
        (request_values(per_node=0), "hardware.per_node", "got 0"),
        (request_values(workload={"input_tokens": -4}), "workload.input_tokens", "got -4"),
        (request_values(workload={"concurrency": None}), "workload.concurrency", "limits.tpot_ms"),
        (request_values(workload={"batch": 4}), "workload", "not batch"),
        (request_values(workload={"max_context": 100}), "workload", "shorter than"),
        (request_values(workload={"kind": "juggling"}), "workload", "juggling"),
        (request_values(objective={"optimize": "karma"}), "objective.optimize", "karma"),
        (request_values(options={"weight_dtypes": ["fp3"]}), "options.weight_dtypes.0", "fp3"),
        (request_values(candidate={"tp": 0}), "candidate.tp", "got 0"),
        (request_values(objective={"limits": {"tpot": 3}}), "objective.limits.tpot", "tpot_ms"),
        (request_values() | {"modle": 1}, "modle", "model"),
    ],
)
def test_bad_requests_name_the_field_the_value_and_the_fix(values, field, says):
    with pytest.raises(InputError) as caught:
        PlanRequest.parse(values)
    assert caught.value.field == field
    assert says in str(caught.value)


def test_a_workload_is_serving_unless_it_says_otherwise():
    assert PlanRequest.parse(request_values()).workload.kind == "serving"
    training = request_values() | {
        "workload": {
            "kind": "training",
            "sequence_length": 8192,
            "global_batch": 512,
            "tokens": "15e9",
        }
    }
    assert PlanRequest.parse(training).workload.kind == "training"


def test_json_round_trip_keeps_everything():
    values = request_values(
        objective={"optimize": "cost", "limits": {"tpot_ms": 30}},
        candidate={"tp": 8, "pp": 1, "dp": 1},
    )
    request = PlanRequest.parse(values)
    assert PlanRequest.parse(request.to_json()) == request
