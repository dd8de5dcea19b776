"""The parts of a time by cause."""

from __future__ import annotations

import pytest

from recipe_core.search.plans import plan, plan_candidate
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.rows import over, table

CAUSES = {"compute", "memory", "network", "overhead", "queue"}


def estimate_of(model=LLAMA_70B, **parts):
    candidate = {"engine": "vllm", "pp": 1, "dp": 1} | parts.pop("candidate", {"tp": 8})
    splits, row = plan_candidate(make_request(model, "h100-sxm", candidate=candidate, **parts))
    answer = splits.detailed(row).to_json()
    assert answer["feasible"], answer["reasons"]
    return answer


@over("parts", table("search", "causes"))
def test_causes_add_up_to_the_time(parts):
    answer = estimate_of(**parts)
    for name, whole in (("decode", "tpot_s"), ("prefill", "ttft_s")):
        causes = answer["causes_s"][name]
        assert set(causes) <= CAUSES
        assert all(seconds > 0 for seconds in causes.values())
        assert sum(causes.values()) == pytest.approx(answer["serving"][whole], rel=1e-9)


def test_causes_are_those_of_physics_and_of_the_row():
    answer = estimate_of(workload={"concurrency": 1, "input_tokens": 8000})
    decode, prefill = answer["causes_s"]["decode"], answer["causes_s"]["prefill"]
    assert decode["memory"] > 2 * decode["compute"]
    assert prefill["compute"] > 2 * prefill["memory"]
    assert "queue" not in decode
    answer = estimate_of("meta-llama/Llama-3.1-8B-Instruct", candidate={"tp": 1})
    decode = answer["causes_s"]["decode"]
    assert "network" not in decode  # of one device
    interference = answer["breakdown_s"]["decode"]["prefill_interference"]
    assert decode["queue"] == pytest.approx(interference)
    splits = plan(make_request(LLAMA_70B, "h100-sxm"))
    answer = splits.detailed(int(splits.order[0])).to_json()  # not of the plan's first row
    causes = answer["causes_s"]["decode"].values()
    assert sum(causes) == pytest.approx(answer["serving"]["tpot_s"], rel=1e-9)
