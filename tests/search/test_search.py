"""The search: what varies, what is compared, and that alone and together are the same bits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.recipe import make_recipe
from recipe_core.request.edit import change
from recipe_core.search.evaluated import CHUNK, evaluate
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.rows import pareto_front
from recipe_core.search.sensitivity import flips
from recipe_core.search.serving_candidates import every_case
from recipe_core.search.serving_plan import PHYSICS
from recipe_core.space.splits import enumerate_splits
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

MIXED = (
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    LLAMA_70B,
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)


def test_candidates_alone_and_together_are_the_same_bits():
    """A thousand of them in the full run."""
    rng = np.random.default_rng(5)
    draws, compared = examples(250, least=15), 0
    for model in MIXED:
        options = {"loads": [1, 7, 64, 500], "max_batched_tokens": [2048, 8192]}
        setting, cases = every_case(resolve(make_request(model, nodes=4, options=options)))[0]
        together = evaluate(PHYSICS, setting, cases)
        for i in rng.choice(len(cases), draws, replace=False):
            alone = evaluate(PHYSICS, setting, cases.take([i]))
            assert alone.feasible[0] == together.feasible[i]
            for name in PHYSICS.quantities:
                assert np.array_equal(
                    alone.quantities[name][0], together.quantities[name][i], equal_nan=True
                ), (model, i, name)
            compared += 1
    assert compared == draws * len(MIXED)


def test_rows_beyond_a_chunk_have_their_details_too():
    found = resolve(make_request(nodes=4, options={"loads": [1 + n for n in range(256)]}))
    block = evaluate(PHYSICS, *every_case(found)[0])
    assert len(block.legal) > CHUNK
    assert block.estimates is None
    last = int(block.legal[-1])
    assert block.row(last).memory.total_bytes == block.quantities["total_bytes"][last]


def test_every_number_of_devices_and_every_sharing_of_experts_is_tried():
    splits = enumerate_splits(12, shares_experts="none")
    assert {3, 6, 12} <= set((splits["tp"] * splits["pp"] * splits["dp"]).tolist())
    ranked = plan(make_request("Qwen/Qwen3-8B", per_node=8, options={"nodes": "any"})).columns
    assert set(ranked["gpus"][ranked["feasible"]].tolist()) == set(range(1, 9))
    shared = enumerate_splits(8, shares_experts="divisors")
    rows = set(zip(*(shared[name].tolist() for name in ("tp", "pp", "dp", "ep")), strict=True))
    assert {(8, 1, 1, 1), (8, 1, 1, 2), (8, 1, 1, 4), (8, 1, 1, 8)} <= rows


def test_a_shared_cache_holds_more_and_its_copies_bound_it():
    """Kimi K2 on 8 H200: vLLM logged 8 times the tokens with decode context parallelism 8 (the
    latent is replicated over tp).
    """
    splits = plan(
        make_request(
            "deepseek-ai/DeepSeek-V3",
            "h200-sxm",
            workload={"max_context": 16_384},
            options={"context_parallel": True, "nodes": "all"},
        )
    )
    c = splits.columns
    rows = np.flatnonzero((c["tp"] == 8) & (c["ep"] == 1))
    tokens = {int(c["cp"][row]): float(c["kv_cache_tokens"][row]) for row in rows}
    assert set(tokens) == {1, 2, 4, 8}
    for few, many in pairwise(sorted(tokens)):
        assert tokens[many] == pytest.approx(2 * tokens[few], rel=0.01)
    split = {"engine": "vllm", "tp": 8, "pp": 1, "dp": 1, "cp": 2}
    grouped, row = plan_candidate(make_request(candidate=split))
    assert grouped.reasons(row) == ["tp 8 puts each of 8 KV heads on 1 rank, not divisible by cp 2"]


def test_loads_and_limits_of_a_step_are_combined_with_legal_splits():
    plain = plan(make_request())
    splits = plan(make_request(options={"loads": [8, 256], "max_batched_tokens": [2048, 4096]}))
    c = splits.columns
    legal = int((~np.isnan(plain.columns["total_bytes"])).sum())
    assert len(splits) == len(plain) - legal + legal * 3 * 2
    assert set(c["load"][c["feasible"]].tolist()) == {8, 64, 256}
    assert splits.to_json(1)["candidates"][0]["load"] == c["load"][splits.order[0]]


def test_goodput_is_the_best_within_the_limits_and_hardware_the_least_for_a_rate():
    """More in flight serves more tokens, until the limit on time per token."""
    objective = {"optimize": "throughput", "limits": {"tpot_ms": 25}}
    options = {"loads": [1, 4, 16, 64, 256, 1024]}
    request = make_request(workload={"concurrency": 1}, objective=objective, options=options)
    splits = plan(request)
    block, row = splits.at(int(splits.order[0]))
    assert 1 < block.cases.load[row] < 1024
    assert splits.columns["tpot_s"][splits.order].max() <= 0.025
    # Twice the rate takes more devices, and each answer serves what arrives.
    gpus = []
    objective = {"optimize": "gpus", "limits": {"tpot_ms": 50}}
    for rate in (2.0, 8.0, 32.0):
        workload = {"mode": "open", "concurrency": None, "request_rate": rate}
        splits = plan(make_request(nodes=4, workload=workload, objective=objective))
        best = int(splits.order[0])
        gpus.append(int(splits.columns["gpus"][best]))
        assert splits.columns["output_tokens_per_s"][best] == pytest.approx(rate * 256, rel=1e-6)
    assert gpus == sorted(gpus)
    assert gpus[0] < gpus[-1]


def test_devices_are_compared_side_by_side_and_a_recipe_is_of_the_one_that_won():
    other = {"device": "mi300x", "per_node": 8}
    splits = plan(make_request(options={"hardware": [other]}, objective={"optimize": "cost"}))
    frame = splits.to_frame()
    assert set(frame.device) == {"h100-sxm", "mi300x"}
    best = frame[frame["rank"] == 1].iloc[0]
    feasible = frame[frame.feasible]
    assert best.usd_per_million_output_tokens == pytest.approx(
        feasible.usd_per_million_output_tokens.min(), rel=1e-3
    )
    row = int(splits.order[0])
    alone, at = plan_candidate(splits.request_of(row))
    assert alone.problem.cluster.device.name == best.device
    assert alone.columns["tpot_s"][at] == splits.columns["tpot_s"][row]
    request = make_request(options={"hardware": [{"device": "mi300x"}, {"device": "nope"}]})
    assert refusal(plan, request).field == "options.hardware.1.device"
    options = {"hardware": [{"device": "mi300x", "per_node": 8}], "loads": [8], "engines": ["vllm"]}
    recipe = make_recipe(make_request(options=options, objective={"optimize": "gpus"}))
    assert recipe.device.name == "mi300x"
    assert not recipe.request["options"].get("hardware")


def test_weights_lie_between_their_goals():
    def best(**objective):
        splits = plan(make_request(nodes=2, objective=objective))
        columns = ("tpot_s", "usd_per_million_output_tokens")
        return tuple(float(splits.columns[name][splits.best_row]) for name in columns)

    fast, cheap, both = best(optimize="tpot"), best(optimize="cost"), best(orientation="balanced")
    assert fast[0] <= both[0] <= cheap[0]
    assert cheap[1] <= both[1] <= fast[1]
    assert best(weights={"tpot": 1, "cost": 1}) == both
    twice = {"weights": {"tpot": 1}, "orientation": "latency"}
    assert "not both" in str(refusal(make_request, objective=twice))


@over("name limit code", table("search", "codes"))
def test_each_limit_refuses_and_says_what_would_do(name, limit, code):
    splits = plan(make_request(objective={"limits": {name: limit}}))
    assert not len(splits.order)
    assert any(rule == code and broken.any() for rule, broken in splits.blocks[0].rules())
    fields = splits.to_json()["nearest"]["changes"][0]["set"]
    assert list(fields) == [f"objective.limits.{name}"]
    assert len(plan(change(splits.request, fields)).order)


points = st.lists(st.tuples(*[st.integers(0, 6)] * 3, st.booleans()), min_size=1, max_size=40)


@settings(deadline=None)
@given(points)
def test_a_front_of_three_columns(rows):
    columns = [np.array([row[k] for row in rows], dtype=float) for k in range(3)]
    among = np.array([row[3] for row in rows])
    front = pareto_front(*columns, among=among)
    values = np.stack(columns, axis=1)
    for i in range(len(rows)):
        beaten = any(
            among[j] and (values[j] <= values[i]).all() and (values[j] < values[i]).any()
            for j in range(len(rows))
        )
        twin = any(front[j] and (values[j] == values[i]).all() for j in range(len(rows)))
        assert front[i] == (among[i] and not beaten and (front[i] or not twin))
        if among[i] and not beaten:
            assert twin


def test_a_front_and_flips_are_of_what_is_asked():
    splits = plan(make_request())
    assert splits.front_of("ttft_s", "tpot_s", "usd_per_million_output_tokens")[splits.order].any()
    assert "two or three columns" in str(refusal(splits.front_of, "tpot_s", "colour"))
    splits = plan(make_request(objective={"optimize": "cost", "limits": {"tpot_ms": 20}}, nodes=2))
    names = {flip.what for flip in flips(splits)}  # each is planned: test_one_plan
    assert {"concurrency × 2", "input tokens +50%", "output tokens -50%"} <= names


def test_a_tie_goes_to_the_simplest_and_wasteful_pipelines_can_be_asked_for():
    request = make_request(
        "Qwen/Qwen3-8B",
        workload={"concurrency": 1},
        objective={"optimize": "gpus"},
        options={"max_batched_tokens": [2048, 4096, 8192]},
    )
    splits = plan(request)
    best = splits.candidate(int(splits.order[0]))
    assert best["tp"] == best["pp"] == best["dp"] == 1
    assert splits.to_json(1)["counts"]["tied_with_best"] == splits.tied == 2
    splits = plan(make_request(per_node=8, nodes=6))
    row = splits.find("vllm.bf16.bf16.tp1.pp45.dp1.ep1")
    assert (
        "45 stages hold up to 2 of 80 layers each, as 40 would; the other 5 add nothing"
        in splits.reasons(row)[0]
    )
    split = {"engine": "vllm", "tp": 1, "pp": 45, "dp": 1}
    stated, at = plan_candidate(make_request(per_node=8, nodes=6, candidate=split))
    assert not any("stages" in reason for reason in stated.reasons(at))


def test_pools_are_searched_beside_plain_splits():
    pooled = {"disaggregated": True}
    workload = {"input_tokens": 4000, "concurrency": 32}
    splits = plan(make_request(options=pooled, workload=workload, objective={"optimize": "tpot"}))
    pools = [row for row in map(int, splits.order) if "prefill" in splits.candidate(row)]
    assert pools
    assert all(splits.columns["gpus"][row] <= 8 for row in pools)
    alone, at = plan_candidate(splits.request_of(pools[0]))
    assert alone.columns["tpot_s"][at] == splits.columns["tpot_s"][pools[0]]
    names = ("tp", "pp", "replicas", "prefill")
    several = {str([splits.candidate(row).get(name) for name in names]) for row in pools}
    assert len(several) == len(pools)
    static = {"mode": "static", "concurrency": None, "batch": 4}
    request = make_request(options=pooled, workload=static)
    assert "static batch" in str(refusal(plan, request))


@pytest.mark.parametrize(
    "options", [{"loads": [1, 64, 2000]}, {"disaggregated": True, "engines": ["vllm"]}]
)
def test_rows_written_together_are_those_written_alone(options):
    splits = plan(make_request(MIXED[1], nodes=2, options=options))
    rows = np.random.default_rng(7).choice(len(splits), examples(60, least=15), replace=False)
    assert splits.candidates(rows) == [splits.candidate(int(row)) for row in rows]
    assert splits.estimates(rows) == [splits.estimate(int(row)) for row in rows]
    assert splits.sentences(rows) == [splits.reasons(int(row)) for row in rows]
