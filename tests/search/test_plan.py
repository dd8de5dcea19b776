"""The cases that a deployment tool must get right."""

from __future__ import annotations

import pickle
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.model.catalog import catalog_model
from recipe_core.search.plans import plan, plan_candidate
from tests.conftest import LLAMA_70B, make_request


def reasons_of(model, device, **candidate):
    table, row = plan_candidate(
        make_request(model, device, 8, candidate={"pp": 1, "dp": 1} | candidate)
    )
    return table.reasons(row)


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_llama_70b_runs_on_eight(device):
    table = plan(make_request(LLAMA_70B, device))
    splits = [table.candidate(int(row)) for row in table.order]
    assert any((s["tp"], s["pp"], s["dp"]) == (8, 1, 1) for s in splits)


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
    assert any((s["tp"], s["ep"]) == (8, 8) for s in splits)
    assert all(s["weight_dtype"] == "fp8-block" for s in splits)


@pytest.mark.parametrize(("count", "runs"), [(1, False), (2, True), (4, True), (8, True)])
def test_qwen_32b_on_l40s(count, runs):
    assert bool(len(plan(make_request("Qwen/Qwen3-32B", "l40s", count)).order)) is runs


def test_more_ranks_than_kv_heads_repeat_the_cache_and_are_not_refused():
    table, row = plan_candidate(
        make_request("Qwen/Qwen3-30B-A3B", "h100-sxm", 8, candidate={"tp": 8, "pp": 1, "dp": 1})
    )
    assert table.reasons(row) == []
    assert "held 2 times: 4 KV heads over tp 8" in " ".join(table.estimate(row).notes)


def test_heads_that_do_not_divide_are_refused_with_both_numbers():
    assert "64 attention heads are not divisible by tp 3" in reasons_of(LLAMA_70B, "h100-sxm", tp=3)


def test_too_many_devices_print_every_term():
    assert (
        reasons_of(LLAMA_70B, "h100-sxm", tp=8, pp=2, dp=3)[0]
        == "tp(8) × pp(2) × dp(3) = 48 devices; only 8 available"
    )


def test_fp8_blocks_refuse_a_share_they_do_not_divide_unless_experts_are_shared():
    cut = reasons_of("Qwen/Qwen3-235B-A22B-FP8", "h100-sxm", tp=8)
    assert any("1536/8 = 192" in reason and "share the experts" in reason for reason in cut)
    assert reasons_of("Qwen/Qwen3-235B-A22B-FP8", "h100-sxm", tp=8, ep=8) == []


@pytest.mark.parametrize(
    ("model", "candidate", "says"),
    [
        (LLAMA_70B, {"tp": 4, "ep": 4}, "no experts"),
        ("Qwen/Qwen3-30B-A3B", {"tp": 4, "dp": 2, "ep": 4}, "ep must be 1 or 8"),
        (LLAMA_70B, {"engine": "transformers", "tp": 2}, "no tensor parallelism"),
        (
            LLAMA_70B,
            {"tp": 8, "weight_dtype": "fp32", "kv_dtype": "fp32"},
            "does not support fp32 KV caches",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_said(model, candidate, says):
    assert any(says in reason for reason in reasons_of(model, "h100-sxm", **candidate))


def test_a_context_beyond_the_model_is_refused():
    table, row = plan_candidate(
        make_request(workload={"max_context": 200_000}, candidate={"tp": 8, "pp": 1, "dp": 1})
    )
    assert "exceed the model's context of 131,072" in table.reasons(row)[0]


def test_limits_refuse_with_the_figure_and_the_limit():
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


def test_ties_go_to_the_simpler_split():
    table = plan(
        make_request(
            "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", 2, objective={"optimize": "gpus"}
        )
    )
    assert table.columns["gpus"][table.order[0]] == 1


def test_all_nodes_or_any():
    whole = plan(make_request(options={"nodes": "all"}))
    assert set(whole.columns["gpus"]) == {8}
    assert set(plan(make_request()).columns["gpus"]) == set(range(1, 9))


def test_a_candidate_left_open_is_chosen():
    table, row = plan_candidate(make_request(candidate={"tp": 4}))
    assert table.candidate(row)["tp"] == 4
    with pytest.raises(RecipeError, match="agrees"):
        plan_candidate(make_request(candidate={"tp": 400}))


def test_the_frame_has_every_row_and_column():
    table = plan(make_request())
    frame = table.to_frame()
    assert len(frame) == len(table)
    assert set(table.columns) < set(frame.columns)
    assert frame["rank"].notna().sum() == len(table.order)
    assert (frame["reasons"] == "").sum() == len(table.order)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"candidate": {"tp": 8, "eager": True}}, "candidate.eager"),
        ({"candidate": {"tp": 8, "zero_stage": 3}}, "candidate.zero_stage"),
        ({"options": {"engines": ["llm-o-matic"]}}, "candidate.engine"),
    ],
)
def test_what_is_not_modelled_is_refused_not_ignored(parts, field):
    with pytest.raises(InputError) as caught:
        plan(make_request(**parts)) if "candidate" not in parts else plan_candidate(
            make_request(**parts)
        )
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("device", "weights"), [("h100-sxm", "bf16"), ("mi300x", "bf16"), ("cpu", "fp32")]
)
def test_a_32_bit_checkpoint_runs_in_16_bit_where_caches_do(device, weights):
    config = {**catalog_model("Qwen/Qwen3-0.6B").config, "torch_dtype": "float32"}
    request = make_request(config, device, 1, candidate={})
    table, row = plan_candidate(request)
    assert table.candidate(row)["weight_dtype"] == table.candidate(row)["kv_dtype"] == weights
    assert table.columns["feasible"][row]


def test_reasons_of_many_rows_are_those_of_each() -> None:
    request = make_request(
        "deepseek-ai/DeepSeek-V3",
        nodes=2,
        options={"disaggregated": True, "hardware": [{"device": "mi300x", "per_node": 8}]},
    )
    table = plan(request)
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
    assert [change.to_json() for change in arrived.changes()] == [
        change.to_json() for change in table.changes()
    ]
