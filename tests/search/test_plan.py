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
from tests.fixtures.rows import over, table


def reasons_of(model, device, **candidate):
    splits, row = plan_candidate(
        make_request(model, device, 8, candidate={"pp": 1, "dp": 1} | candidate)
    )
    return splits.reasons(row)


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_llama_70b_runs_on_eight(device):
    splits = plan(make_request(LLAMA_70B, device))
    candidates = [splits.candidate(int(row)) for row in splits.order]
    assert any((split["tp"], split["pp"], split["dp"]) == (8, 1, 1) for split in candidates)


def test_models_that_do_not_fit_are_refused_with_the_shortfall():
    splits = plan(make_request(LLAMA_70B, "h100-sxm", 1))
    assert len(splits.order) == 0
    (reason,) = splits.reasons(splits.nearest_row())
    assert "72.8 GiB usable (92% of 79.2 GiB)" in reason
    assert "GiB short" in reason
    assert splits.to_json()["nearest"]["changes"]
    counts = (1, 2, 4, 8)
    tables = [plan(make_request("Qwen/Qwen3-32B", "l40s", count)) for count in counts]
    assert [len(splits.order) > 0 for splits in tables] == [False, True, True, True]


@pytest.mark.parametrize("device", ["h200-sxm", "mi300x"])
def test_deepseek_v3_runs_on_eight(device):
    splits = plan(make_request("deepseek-ai/DeepSeek-V3", device))
    candidates = [splits.candidate(int(row)) for row in splits.order]
    assert any((split["tp"], split["ep"]) == (8, 8) for split in candidates)
    assert all(split["weight_dtype"] == "fp8-block" for split in candidates)


def test_more_ranks_than_kv_heads_repeat_the_cache_and_are_not_refused():
    split = {"tp": 8, "pp": 1, "dp": 1}
    request = make_request("Qwen/Qwen3-30B-A3B", "h100-sxm", 8, candidate=split)
    splits, row = plan_candidate(request)
    assert splits.reasons(row) == []
    assert "held 2 times: 4 KV heads over tp 8" in " ".join(splits.estimate(row).notes)


@over("model split said", table("plan", "refused"))
def test_what_cannot_be_is_refused_with_its_numbers(model, split, said):
    assert any(said in reason for reason in reasons_of(model, "h100-sxm", **split))


def test_experts_that_are_shared_a_context_and_a_limit_are_judged():
    blocks = "Qwen/Qwen3-235B-A22B-FP8"
    assert reasons_of(blocks, "h100-sxm", tp=8, ep=8) == []
    whole = {"tp": 8, "pp": 1, "dp": 1}
    splits, row = plan_candidate(make_request(workload={"max_context": 200_000}, candidate=whole))
    assert "131,072" in splits.reasons(row)[0]
    splits = plan(make_request(objective={"limits": {"tpot_ms": 0.001}}))
    assert len(splits.order) == 0
    assert "exceeds the limit of 0.001" in splits.reasons(splits.nearest_row())[0]


@over("optimize column sign", table("search", "goals"))
def test_ranking_follows_the_objective(optimize, column, sign):
    splits = plan(make_request(objective={"optimize": optimize}))
    ranks = {"holds": 0, "queues": 1, "uncertain": 2}
    states = np.array([ranks[splits.state(row)] for row in splits.order])
    assert states.tolist() == sorted(states)  # those that hold the load come first
    for rows in (splits.order[states == rank] for rank in (0, 1)):
        values = sign * splits.columns[column][rows]
        assert all(a <= b * (1 + 1e-3 * sign) or a <= b for a, b in pairwise(values))


def test_ties_go_to_the_simpler_split_and_all_nodes_or_any_are_used():
    fewest = {"optimize": "gpus"}
    splits = plan(make_request("meta-llama/Llama-3.1-8B-Instruct", per_node=2, objective=fewest))
    assert splits.columns["gpus"][splits.order[0]] == 1
    whole = plan(make_request(options={"nodes": "all"}))
    assert set(whole.columns["gpus"]) == {8}
    assert set(plan(make_request()).columns["gpus"]) == set(range(1, 9))


def test_a_candidate_left_open_is_chosen_and_what_is_not_modelled_is_refused():
    splits, row = plan_candidate(make_request(candidate={"tp": 4}))
    assert splits.candidate(row)["tp"] == 4
    nothing = refusal(plan_candidate, make_request(candidate={"tp": 400}), kind=RecipeError)
    assert "agrees" in str(nothing)
    for name, value in (("eager", True), ("zero_stage", 3)):
        request = make_request(candidate={"tp": 8, name: value})
        assert refusal(plan_candidate, request).field == f"candidate.{name}"
    unknown = make_request(options={"engines": ["llm-o-matic"]})
    assert refusal(plan, unknown).field == "candidate.engine"


def test_a_32_bit_checkpoint_runs_in_16_bit_where_caches_do():
    config = {**catalog_model("Qwen/Qwen3-0.6B").config, "torch_dtype": "float32"}
    for device, weights in (("h100-sxm", "bf16"), ("mi300x", "bf16"), ("cpu", "fp32")):
        splits, row = plan_candidate(make_request(config, device, 1, candidate={}))
        split = splits.candidate(row)
        assert (split["weight_dtype"], split["kv_dtype"]) == (weights, weights)
        assert splits.columns["feasible"][row]


def test_many_rows_and_another_process_have_the_reasons_and_keys_of_each() -> None:
    options = {"disaggregated": True, "hardware": [{"device": "mi300x", "per_node": 8}]}
    splits = plan(make_request("deepseek-ai/DeepSeek-V3", nodes=2, options=options))
    rows = [int(row) for row in np.random.default_rng(7).permutation(len(splits))[:30]]
    said = splits.sentences(rows)
    assert said == [splits.reasons(row) for row in rows]
    assert sum(map(bool, said)) > 10
    assert splits.sentences([]) == []
    splits = plan(make_request(LLAMA_70B, objective={"limits": {"tpot_ms": 7.0}}))
    keys = [splits.key(row) for row in range(len(splits))]  # counted here, before it is sent
    arrived = pickle.loads(cloudpickle.dumps(splits))
    assert [arrived.key(row) for row in range(len(splits))] == keys
    offered, sent = ([change.to_json() for change in plan.changes()] for plan in (splits, arrived))
    assert sent == offered
