"""The cases that a deployment tool must get right."""

from __future__ import annotations

import pickle
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.model.catalog import catalog_model
from recipe_core.search.plans import plan, plan_candidate
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.refusals import refusal


def reasons_of(model, device, **candidate):
    table, row = plan_candidate(
        make_request(model, device, 8, candidate={"pp": 1, "dp": 1} | candidate)
    )
    return table.reasons(row)


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_llama_70b_runs_on_eight(device):
    table = plan(make_request(LLAMA_70B, device))
    splits = [table.candidate(int(row)) for row in table.order]
    assert any((split["tp"], split["pp"], split["dp"]) == (8, 1, 1) for split in splits)


def test_llama_70b_in_bf16_is_refused_on_one_h100_with_the_shortfall():
    table = plan(make_request(LLAMA_70B, "h100-sxm", 1))
    assert len(table.order) == 0
    (reason,) = table.reasons(table.nearest_row())
    assert "72.8 GiB usable (92% of 79.2 GiB)" in reason
    assert "GiB short" in reason
    assert table.to_json()["nearest"]["changes"]


@pytest.mark.parametrize("device", ["h200-sxm", "mi300x"])
def test_deepseek_v3_runs_on_eight(device):
    table = plan(make_request("deepseek-ai/DeepSeek-V3", device))
    splits = [table.candidate(int(row)) for row in table.order]
    assert any((split["tp"], split["ep"]) == (8, 8) for split in splits)
    assert all(split["weight_dtype"] == "fp8-block" for split in splits)


def test_qwen_32b_on_l40s():
    counts = (1, 2, 4, 8)
    tables = [plan(make_request("Qwen/Qwen3-32B", "l40s", count)) for count in counts]
    assert [len(table.order) > 0 for table in tables] == [False, True, True, True]


def test_more_ranks_than_kv_heads_repeat_the_cache_and_are_not_refused():
    split = {"tp": 8, "pp": 1, "dp": 1}
    request = make_request("Qwen/Qwen3-30B-A3B", "h100-sxm", 8, candidate=split)
    table, row = plan_candidate(request)
    assert table.reasons(row) == []
    assert "held 2 times: 4 KV heads over tp 8" in " ".join(table.estimate(row).notes)


def test_what_cannot_be_is_refused_with_its_numbers():
    blocks = "Qwen/Qwen3-235B-A22B-FP8"
    experts = "Qwen/Qwen3-30B-A3B"
    fp32 = {"weight_dtype": "fp32", "kv_dtype": "fp32"}
    rows = [
        (LLAMA_70B, {"tp": 3}, "64 attention heads are not divisible by tp 3"),
        (
            LLAMA_70B,
            {"tp": 8, "pp": 2, "dp": 3},
            "tp(8) × pp(2) × dp(3) = 48 devices; only 8 available",
        ),
        (blocks, {"tp": 8}, "1536/8 = 192"),
        (LLAMA_70B, {"tp": 4, "ep": 4}, "no experts"),
        (experts, {"tp": 4, "dp": 2, "ep": 4}, "ep must be 1 or 8"),
        (LLAMA_70B, {"engine": "transformers", "tp": 2}, "no tensor parallelism"),
        (LLAMA_70B, {"tp": 8} | fp32, "does not support fp32 KV caches"),
    ]
    reasons = [reasons_of(model, "h100-sxm", **split) for model, split, _ in rows]
    unsaid = [
        (*row, said)
        for row, said in zip(rows, reasons, strict=True)
        if not any(row[2] in reason for reason in said)
    ]
    assert unsaid == []
    assert reasons[1][0] == rows[1][2]
    assert any("share the experts" in reason for reason in reasons[2])
    assert reasons_of(blocks, "h100-sxm", tp=8, ep=8) == []
    whole = {"tp": 8, "pp": 1, "dp": 1}
    table, row = plan_candidate(make_request(workload={"max_context": 200_000}, candidate=whole))
    assert "131,072" in table.reasons(row)[0]
    table = plan(make_request(objective={"limits": {"tpot_ms": 0.001}}))
    assert len(table.order) == 0
    assert "exceeds the limit of 0.001" in table.reasons(table.nearest_row())[0]


@pytest.mark.parametrize(
    ("optimize", "column", "sign"),
    [
        ("throughput", "output_tokens_per_s", -1),
        ("latency", "request_latency_s", 1),
        ("ttft", "ttft_s", 1),
        ("tpot", "tpot_s", 1),
        ("gpus", "gpus", 1),
    ],
)
def test_ranking_follows_the_objective(optimize, column, sign):
    table = plan(make_request(objective={"optimize": optimize}))
    ranks = {"holds": 0, "queues": 1, "uncertain": 2}
    states = np.array([ranks[table.state(row)] for row in table.order])
    assert states.tolist() == sorted(states)  # those that hold the load come first
    for rows in (table.order[states == rank] for rank in (0, 1)):
        values = sign * table.columns[column][rows]
        assert all(a <= b * (1 + 1e-3 * sign) or a <= b for a, b in pairwise(values))


def test_ties_go_to_the_simpler_split_and_all_nodes_or_any_are_used():
    fewest = {"optimize": "gpus"}
    table = plan(make_request("meta-llama/Llama-3.1-8B-Instruct", per_node=2, objective=fewest))
    assert table.columns["gpus"][table.order[0]] == 1
    whole = plan(make_request(options={"nodes": "all"}))
    assert set(whole.columns["gpus"]) == {8}
    assert set(plan(make_request()).columns["gpus"]) == set(range(1, 9))


def test_a_candidate_left_open_is_chosen():
    table, row = plan_candidate(make_request(candidate={"tp": 4}))
    assert table.candidate(row)["tp"] == 4
    nothing = refusal(plan_candidate, make_request(candidate={"tp": 400}), kind=RecipeError)
    assert "agrees" in str(nothing)


def test_what_is_not_modelled_is_refused_not_ignored():
    for name, value in (("eager", True), ("zero_stage", 3)):
        request = make_request(candidate={"tp": 8, name: value})
        assert refusal(plan_candidate, request).field == f"candidate.{name}"
    unknown = make_request(options={"engines": ["llm-o-matic"]})
    assert refusal(plan, unknown).field == "candidate.engine"


def test_a_32_bit_checkpoint_runs_in_16_bit_where_caches_do():
    config = {**catalog_model("Qwen/Qwen3-0.6B").config, "torch_dtype": "float32"}
    for device, weights in (("h100-sxm", "bf16"), ("mi300x", "bf16"), ("cpu", "fp32")):
        table, row = plan_candidate(make_request(config, device, 1, candidate={}))
        split = table.candidate(row)
        assert (split["weight_dtype"], split["kv_dtype"]) == (weights, weights)
        assert table.columns["feasible"][row]


def test_reasons_of_many_rows_are_those_of_each() -> None:
    options = {"disaggregated": True, "hardware": [{"device": "mi300x", "per_node": 8}]}
    table = plan(make_request("deepseek-ai/DeepSeek-V3", nodes=2, options=options))
    rows = [int(row) for row in np.random.default_rng(7).permutation(len(table))[:60]]
    said = table.sentences(rows)
    assert said == [table.reasons(row) for row in rows]
    assert sum(map(bool, said)) > 10
    assert table.sentences([]) == []


def test_a_plan_that_went_to_another_process_names_its_rows() -> None:
    table = plan(make_request(LLAMA_70B, objective={"limits": {"tpot_ms": 7.0}}))
    keys = [table.key(row) for row in range(len(table))]  # counted here, before it is sent
    arrived = pickle.loads(cloudpickle.dumps(table))
    assert [arrived.key(row) for row in range(len(table))] == keys
    offered, sent = ([change.to_json() for change in plan.changes()] for plan in (table, arrived))
    assert sent == offered
