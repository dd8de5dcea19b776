"""The search: what varies, what is compared, and that alone and together are the same bits."""

import pickle
from functools import partial
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.base.errors import RecipeError
from recipe_core.estimates.columns.splits import enumerate_splits
from recipe_core.models.catalog import catalog_model
from recipe_core.plans.evaluation import CHUNK, evaluate_cases
from recipe_core.plans.flips import find_flips
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import count_ties, front_of_columns, nearest_row, pareto_front
from recipe_core.plans.serving_candidates import every_serving_case
from recipe_core.plans.serving_search import PHYSICS
from recipe_core.plans.splits import (
    find_row,
    refusal_reasons,
    row_key,
    row_reasons,
    row_request,
    row_state,
)
from recipe_core.recipe import make_recipe
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

MIXED = table("search", "mixed")


def test_candidates_alone_and_together_are_the_same_bits_and_those_beyond_a_chunk_too():
    """A thousand of them in the full run."""
    rng = np.random.default_rng(5)
    draws, compared = examples(250, least=15), 0
    options = {"loads": [1, 7, 64, 500], "max_batched_tokens": [2048, 8192]}
    for model in MIXED:
        setting, cases = every_serving_case(
            resolve_problem(make_request(model, nodes=4, options=options))
        )[0]
        together = evaluate_cases(PHYSICS, setting, cases)
        for i in rng.choice(len(cases), draws, replace=False):
            alone = evaluate_cases(PHYSICS, setting, cases.take([i]))
            assert alone.feasible[0] == together.feasible[i]
            for name in PHYSICS.quantities:
                both = (alone.quantities[name][0], together.quantities[name][i])
                assert np.array_equal(*both, equal_nan=True), (model, i, name)
            compared += 1
    assert compared == draws * len(MIXED)
    found = resolve_problem(make_request(nodes=4, options={"loads": [1 + n for n in range(256)]}))
    block = evaluate_cases(PHYSICS, *every_serving_case(found)[0])
    assert len(block.legal) > CHUNK
    assert block.estimates is None
    last = int(block.legal[-1])
    assert block.row(last).memory.total_bytes == block.quantities["total_bytes"][last]


def test_every_number_of_devices_sharing_of_experts_load_and_limit_of_a_step_is_tried():
    splits = enumerate_splits(12, shares_experts="none")
    assert {3, 6, 12} <= set((splits["tp"] * splits["pp"] * splits["dp"]).tolist())
    shared = enumerate_splits(8, shares_experts="divisors")
    rows = set(zip(*(shared[name].tolist() for name in ("tp", "pp", "dp", "ep")), strict=True))
    assert {(8, 1, 1, 1), (8, 1, 1, 2), (8, 1, 1, 4), (8, 1, 1, 8)} <= rows
    ranked = plan_splits(make_request("Qwen/Qwen3-8B", options={"nodes": "any"})).columns
    assert set(ranked["gpus"][ranked["feasible"]].tolist()) == set(range(1, 9))
    assert set(plan_splits(make_request(options={"nodes": "all"})).columns["gpus"]) == {8}
    assert set(plan_splits(make_request()).columns["gpus"]) == set(range(1, 9))
    plain = plan_splits(make_request())
    splits = plan_splits(
        make_request(options={"loads": [8, 256], "max_batched_tokens": [2048, 4096]})
    )
    c = splits.columns
    legal = int((~np.isnan(plain.columns["total_bytes"])).sum())
    assert len(splits) == len(plain) - legal + legal * 3 * 2
    assert set(c["load"][c["feasible"]].tolist()) == {8, 64, 256}


def test_a_shared_cache_holds_more_and_its_copies_bound_it():
    """Kimi K2 on 8 H200: vLLM logged 8 times the tokens with decode context parallelism 8 (the
    latent is replicated over tp).
    """
    options = {"context_parallel": True, "nodes": "all"}
    asked = {"workload": {"max_context": 16_384}, "options": options}
    c = plan_splits(make_request("deepseek-ai/DeepSeek-V3", "h200-sxm", **asked)).columns
    rows = np.flatnonzero((c["tp"] == 8) & (c["ep"] == 1))
    tokens = {int(c["cp"][row]): float(c["kv_cache_tokens"][row]) for row in rows}
    assert set(tokens) == {1, 2, 4, 8}
    for few, many in pairwise(sorted(tokens)):
        assert tokens[many] == pytest.approx(2 * tokens[few], rel=0.01)
    said = ["TP 8 puts each of 8 KV heads on 1 rank, not divisible by CP 2"]
    assert reasons_of(LLAMA_70B, engine="vllm", tp=8, cp=2) == said


def test_goodput_is_the_best_within_the_limits_and_hardware_the_least_for_a_rate():
    """More in flight serves more tokens, until the limit on time per token."""
    objective = {"optimize": "throughput", "limits": {"tpot_ms": 25}}
    options = {"loads": [1, 4, 16, 64, 256, 1024]}
    loads = {"workload": {"concurrency": 1}, "options": options}
    splits = plan_splits(make_request(objective=objective, **loads))
    assert 1 < splits.columns["load"][splits.best_row] < 1024
    assert splits.columns["tpot_s"][splits.order].max() <= 0.025
    # Twice the rate takes more devices, and each answer serves what arrives.
    gpus = []
    objective = {"optimize": "gpus", "limits": {"tpot_ms": 50}}
    for rate in (2.0, 8.0, 32.0):
        workload = {"mode": "open", "concurrency": None, "request_rate": rate}
        splits = plan_splits(make_request(nodes=4, workload=workload, objective=objective))
        best = splits.best_row
        gpus.append(int(splits.columns["gpus"][best]))
        assert splits.columns["output_tokens_per_s"][best] == pytest.approx(rate * 256, rel=1e-6)
    assert gpus == sorted(gpus)
    assert gpus[0] < gpus[-1]


def test_devices_are_compared_side_by_side_and_a_recipe_is_of_the_one_that_won():
    other = {"device": "mi300x", "per_node": 8}
    splits = plan_splits(
        make_request(options={"hardware": [other]}, objective={"optimize": "cost"})
    )
    frame = splits.to_frame()
    assert set(frame.device) == {"h100-sxm", "mi300x"}
    best = frame[frame["rank"] == 1].iloc[0]
    least = frame[frame.feasible].usd_per_million_output_tokens.min()
    assert best.usd_per_million_output_tokens == pytest.approx(least, rel=1e-3)
    assert row_request(splits, splits.best_row).hardware.device == best.device
    request = make_request(options={"hardware": [{"device": "mi300x"}, {"device": "nope"}]})
    assert refusal(plan_splits, request).field == "options.hardware.1.device"
    options = {"hardware": [other], "loads": [8], "engines": ["vllm"]}
    recipe = make_recipe(make_request(options=options, objective={"optimize": "gpus"}))
    assert recipe.device.name == "mi300x"
    assert not recipe.request["options"].get("hardware")


def test_weights_lie_between_their_goals():
    def best(**objective):
        splits = plan_splits(make_request(nodes=2, objective=objective))
        columns = ("tpot_s", "usd_per_million_output_tokens")
        return tuple(float(splits.columns[name][splits.best_row]) for name in columns)

    fast, cheap, both = best(optimize="tpot"), best(optimize="cost"), best(orientation="balanced")
    assert fast[0] <= both[0] <= cheap[0]
    assert cheap[1] <= both[1] <= fast[1]
    assert best(weights={"tpot": 1, "cost": 1}) == both
    twice = {"weights": {"tpot": 1}, "orientation": "latency"}
    assert "not both" in str(refusal(make_request, objective=twice))


points = st.lists(st.tuples(*[st.integers(0, 6)] * 3, st.booleans()), min_size=1, max_size=40)


@given(points, st.sampled_from([2, 3]))
def test_a_front_of_columns(rows, count):
    values = np.array([row[:count] for row in rows], dtype=float)
    among = np.array([row[3] for row in rows])
    front = pareto_front(*values.T, among=among)
    for i, point in enumerate(values):
        beaten = (among & (values <= point).all(axis=1) & (values < point).any(axis=1)).any()
        twin = (front & (values == point).all(axis=1)).any()
        assert front[i] == (among[i] and not beaten and (front[i] or not twin))
        assert twin or beaten or not among[i]


def test_fronts_and_flips_are_of_what_is_asked_and_another_process_has_keys_and_changes():
    splits = plan_splits(make_request())
    assert front_of_columns(splits, "ttft_s", "tpot_s", "usd_per_million_output_tokens")[
        splits.order
    ].any()
    for front in (partial(front_of_columns, splits), splits.pareto):
        assert "two or three columns" in str(refusal(front, "tpot_s", "colour"))
    splits = plan_splits(
        make_request(objective={"optimize": "cost", "limits": {"tpot_ms": 26}}, nodes=2)
    )
    names = {flip.title for flip in find_flips(splits)}  # each is planned: test_one_plan
    assert {"concurrency × 2", "input tokens +50 %", "output tokens -50 %"} <= names
    splits = plan_splits(make_request(objective={"limits": {"tpot_ms": 7.0}}))
    keys = [row_key(splits, row) for row in range(len(splits))]  # counted here, before it is sent
    arrived = pickle.loads(cloudpickle.dumps(splits))
    assert [row_key(arrived, row) for row in range(len(splits))] == keys
    offered, sent = ([change.to_json() for change in plan.changes()] for plan in (splits, arrived))
    assert sent == offered


def test_a_tie_goes_to_the_simplest_and_wasteful_pipelines_can_be_asked_for():
    fewest = {"objective": {"optimize": "gpus"}, "workload": {"concurrency": 1}}
    options = {"max_batched_tokens": [2048, 4096, 8192]}
    splits = plan_splits(make_request("Qwen/Qwen3-8B", options=options, **fewest))
    best = splits.candidate(splits.best_row)
    assert best["tp"] == best["pp"] == best["dp"] == 1
    assert splits.to_json(1)["counts"]["tied_with_best"] == count_ties(splits) == 2
    splits = plan_splits(make_request(nodes=6))
    row = find_row(splits, "vllm.bf16.bf16.tp1.pp45.dp1.ep1")
    said = "45 stages hold up to 2 of 80 layers each, as 40 would; the other 5 add nothing"
    assert said in row_reasons(splits, row)[0]
    split = {"engine": "vllm", "tp": 1, "pp": 45, "dp": 1}
    stated, at = plan_candidate(make_request(nodes=6, candidate=split))
    assert not any("stages" in reason for reason in row_reasons(stated, at))


def test_pools_are_searched_beside_plain_splits():
    pooled = {"disaggregated": True}
    workload = {"input_tokens": 4000, "concurrency": 32}
    splits = plan_splits(
        make_request(options=pooled, workload=workload, objective={"optimize": "tpot"})
    )
    pools = [row for row in map(int, splits.order) if "prefill" in splits.candidate(row)]
    assert pools
    assert (splits.columns["gpus"][pools] <= 8).all()
    names = ("tp", "pp", "replicas", "prefill")
    several = {str([splits.candidate(row).get(name) for name in names]) for row in pools}
    assert len(several) == len(pools)
    static = {"mode": "static", "concurrency": None, "batch": 4}
    request = make_request(options=pooled, workload=static)
    assert "static batch" in str(refusal(plan_splits, request))


@pytest.mark.parametrize("drawn", [30, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("options", table("search", "written"))
def test_rows_written_together_are_those_written_alone(options, drawn):
    splits = plan_splits(make_request("deepseek-ai/DeepSeek-V3", nodes=2, options=options))
    rows = [int(row) for row in np.random.default_rng(7).permutation(len(splits))[:drawn]]
    assert splits.candidates(rows) == [splits.candidate(row) for row in rows]
    assert splits.estimates(rows) == [splits.estimate(row) for row in rows]
    said = refusal_reasons(splits, rows)
    assert said == [row_reasons(splits, row) for row in rows]
    assert sum(map(bool, said)) > drawn / 3 or "loads" in options
    assert refusal_reasons(splits, []) == []


def reasons_of(model, **candidate):
    split = {"pp": 1, "dp": 1} | candidate
    splits, row = plan_candidate(make_request(model, candidate=split))
    return row_reasons(splits, row)


@over("model device degrees", table("search", "runs"))
def test_large_models_run_on_eight(model, device, degrees):
    splits = plan_splits(make_request(model, device))
    candidates = [splits.candidate(int(row)) for row in splits.order]
    assert any(degrees.items() <= split.items() for split in candidates)
    if stored := degrees.get("weight_dtype"):
        assert {split["weight_dtype"] for split in candidates} == {stored}


def test_memory_repeated_caches_shared_experts_a_context_and_a_limit_are_judged():
    splits = plan_splits(make_request(per_node=1))
    assert len(splits.order) == 0
    (reason,) = row_reasons(splits, nearest_row(splits))
    assert "72.8 GiB usable (92 % of 79.2 GiB)" in reason
    assert "GiB short" in reason
    assert splits.to_json()["nearest"]["changes"]
    plans = [plan_splits(make_request("Qwen/Qwen3-32B", "l40s", count)) for count in (1, 2, 4, 8)]
    assert [len(splits.order) > 0 for splits in plans] == [False, True, True, True]
    whole = {"tp": 8, "pp": 1, "dp": 1}
    splits, row = plan_candidate(make_request("Qwen/Qwen3-30B-A3B", candidate=whole))
    assert row_reasons(splits, row) == []
    assert "held 2 times: 4 KV heads over TP 8" in " ".join(splits.estimate(row).notes)
    assert reasons_of("Qwen/Qwen3-235B-A22B-FP8", tp=8, ep=8) == []
    splits, row = plan_candidate(make_request(workload={"max_context": 200_000}, candidate=whole))
    assert "131,072" in row_reasons(splits, row)[0]
    splits = plan_splits(make_request(objective={"limits": {"tpot_ms": 0.001}}))
    assert len(splits.order) == 0
    assert "exceeds the limit of 0.001" in row_reasons(splits, nearest_row(splits))[0]


@over("model split said", table("search", "refused"))
def test_what_cannot_be_is_refused_with_its_numbers(model, split, said):
    assert any(said in reason for reason in reasons_of(model, **split))


@over("optimize column sign", table("search", "goals"))
def test_ranking_follows_the_objective(optimize, column, sign):
    splits = plan_splits(make_request(objective={"optimize": optimize}))
    ranks = {"holds": 0, "queues": 1, "uncertain": 2}
    states = np.array([ranks[row_state(splits, row)] for row in splits.order])
    assert states.tolist() == sorted(states)  # those that hold the load come first
    for rows in (splits.order[states == rank] for rank in (0, 1)):
        values = sign * splits.columns[column][rows]
        assert all(a <= b * (1 + 1e-3 * sign) or a <= b for a, b in pairwise(values))


def test_a_candidate_left_open_is_chosen_and_what_is_not_modelled_is_refused():
    splits, row = plan_candidate(make_request(candidate={"tp": 4}))
    assert splits.candidate(row)["tp"] == 4
    nothing = refusal(plan_candidate, make_request(candidate={"tp": 400}), kind=RecipeError)
    assert "agrees" in str(nothing)
    for name, value in (("eager", True), ("zero_stage", 3)):
        request = make_request(candidate={"tp": 8, name: value})
        assert refusal(plan_candidate, request).field == f"candidate.{name}"
    unknown = make_request(options={"engines": ["llm-o-matic"]})
    assert refusal(plan_splits, unknown).field == "candidate.engine"
    # a 32-bit checkpoint runs in 16 bit where caches do
    config = {**catalog_model("Qwen/Qwen3-0.6B").config, "torch_dtype": "float32"}
    for device, weights in (("h100-sxm", "bf16"), ("mi300x", "bf16"), ("cpu", "fp32")):
        splits, row = plan_candidate(make_request(config, device, 1, candidate={}))
        split = splits.candidate(row)
        assert (split["weight_dtype"], split["kv_dtype"]) == (weights, weights)
        assert splits.columns["feasible"][row]
