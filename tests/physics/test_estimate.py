"""Properties that hold for every split, and figures published elsewhere."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.hardware.cluster import device
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.serving.weights import stage_layers
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.search.rows import pareto_front
from tests.conftest import make_request, request_values
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples

LLAMA_8B, QWEN_32B = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B"
MODELS = [LLAMA_8B, "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"]
MODELS.append("google/gemma-2-9b-it")
DEVICES = ["h100-sxm", "mi300x", "l40s", "b200-sxm"]
SPLIT = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
OPEN = {"mode": "open", "concurrency": None}


def memory_of(model, workload=None, **candidate):
    split = SPLIT | candidate
    request = make_request(model, "h100-sxm", 8, 4, workload=workload or {}, candidate=split)
    table, row = plan_candidate(request)
    return table.estimate(row).memory.to_json()


def test_kv_heads_are_divided_until_one_is_left_and_a_latent_is_not():
    """Llama-3.1-8B: 32 layers × 8 KV heads × 2 × 128 × 2 bytes; 16 ranks store each head twice."""
    one = {"input_tokens": 1000, "output_tokens": 24, "concurrency": 1}
    heads = {tp: memory_of(LLAMA_8B, one, tp=tp)["kv_needed_bytes"] for tp in (1, 4, 8, 16)}
    per_token = {1: 131_072, 4: 32_768, 8: 16_384, 16: 16_384}
    assert heads == {tp: 1024 * size for tp, size in per_token.items()}
    latent = {memory_of(MODELS[2], tp=tp)["kv_needed_bytes"] for tp in (1, 8, 16)}
    assert latent == {64 * 1280 * 61 * 576 * 2}


@over(
    "layers stages sizes", [(80, 8, [10] * 8), (61, 4, [15, 15, 16, 15]), (94, 4, [23, 24, 24, 23])]
)
def test_layers_are_spread_over_stages_as_vllm_does(layers, stages, sizes):
    assert [end - start for start, end in stage_layers(layers, stages)] == sizes


@over("name chip", product(MODELS, DEVICES), share=5)
def test_parts_add_to_totals_exactly(name, chip):
    table = plan(make_request(name, chip))
    for row in map(int, table.order):
        answer = table.estimate(row).to_json()
        memory, served, parts = answer["memory"], answer["serving"], answer["breakdown_s"]
        names = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")
        assert sum(memory[name] for name in names) == memory["total_bytes"]
        assert sum(parts["decode"].values()) == pytest.approx(served["tpot_s"], rel=1e-12)
        assert sum(parts["prefill"].values()) == pytest.approx(served["ttft_s"], rel=1e-12)


@over("name", MODELS, share=3)
def test_memory_never_rises_with_tp(name):
    table = plan(make_request(name, "h100-sxm"))
    c = table.columns
    uneven = ("divisible", "evenly", "multiple")
    legal = [
        row
        for row in range(len(table))
        if not any(word in reason for word in uneven for reason in table.reasons(row))
    ]
    for a, b in permutations(legal, 2):
        same = all(c[k][a] == c[k][b] for k in ("pp", "dp"))
        if same and (c["ep"][a] > 1) == (c["ep"][b] > 1) and c["tp"][a] < c["tp"][b]:
            for part in ("weights_bytes", "kv_needed_bytes", "activations_bytes"):
                assert c[part][b] <= c[part][a]


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(MODELS),
    chip=st.sampled_from(DEVICES),
    mode=st.sampled_from(["closed", "static", "offline"]),
    lengths=st.tuples(st.integers(1, 4000), st.integers(2, 2000)),
    load=st.integers(1, 512),
)
def test_throughput_never_exceeds_the_roofline(name, chip, mode, lengths, load):
    """Every token needs its flops; every step of at most ``load`` tokens a replica reads the
    weights a token uses at least once.
    """
    field = {"closed": "concurrency", "static": "batch", "offline": "requests"}[mode]
    workload = {"mode": mode, "concurrency": None, field: load}
    workload |= dict(zip(("input_tokens", "output_tokens"), lengths, strict=True))
    table = plan(make_request(name, chip, workload=workload))
    profile, model, c = device(chip), catalog_model(name), table.columns
    ok = c["feasible"]
    rate, tpot_s = c["output_tokens_per_s"][ok], c["tpot_s"][ok]
    peak = max(figure.value for figure in profile.peak_flops_per_s.values())
    weights = model.active_parameters - model.vocabulary * model.hidden
    assert np.all(rate <= (c["gpus"] * peak / (2 * weights))[ok])
    smallest = 0.5 * weights  # no stored format is below 4 bits
    devices = c["tp"] * c["pp"] * np.where(c["ep"] > 1, c["dp"], 1)
    step_s = smallest / devices / profile.memory_bandwidth_bytes_per_s.value
    assert np.all(tpot_s >= step_s[ok])
    assert np.all(rate * tpot_s <= load * 1.001 * lengths[1] / (lengths[1] - 1))


@pytest.mark.parametrize("field", ["input_tokens", "concurrency"])
def test_more_work_never_makes_a_token_faster(field):
    answers = estimate_batch(
        request_values(workload={field: value}, candidate=SPLIT | {"tp": 8})
        for value in (64, 256, 1024)
    )
    tpot = [answer["serving"]["tpot_s"] for answer in answers]
    assert tpot == sorted(tpot)


def test_an_open_loop_serves_what_arrives_or_is_refused():
    def served(**load):
        return plan_candidate(make_request(workload=load, candidate={"tp": 8, "pp": 1, "dp": 1}))

    table, row = served(**OPEN, request_rate=2.0)
    assert table.estimate(row).serving.output_tokens_per_s == pytest.approx(512, rel=1e-6)
    flood, row = served(**OPEN, request_rate=500.0)
    assert "500 requests/s arrive" in flood.reasons(row)[0]
    # a slow one is as fast as a lonely request
    slow, lonely = (
        served(**load)[0].estimate(0).serving.request_latency_s
        for load in (OPEN | {"request_rate": 0.01}, {"concurrency": 1})
    )
    assert slow == pytest.approx(lonely, rel=0.02)


def test_many_estimates_equal_single_ones():
    """Columns are estimated together; each answer is what it would be alone, errors included."""
    splits = [SPLIT | more for more in ({"tp": 8}, {"tp": 2, "pp": 2}, {"dp": 2})]
    values = [
        request_values(name, chip, workload={"concurrency": load}, candidate=split)
        for name, chip, load, split in product(MODELS[:3], DEVICES[:2], (1, 100), splits)
    ]
    values.insert(1, {"model": "nope"})
    answers = estimate_batch(values)
    for value, together in zip(values, answers, strict=True):
        assert estimate_batch([value]) == [together]
    assert answers[1]["error"]["field"] == "hardware"
    assert answers[0]["feasible"]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=40))
def test_the_front_has_no_dominated_point_and_misses_none(points):
    x, y, ok = np.array(points, dtype=float).reshape(-1, 3).T
    on = pareto_front(x, y, among=ok.astype(bool))
    front = {(x[j], y[j]) for j in np.flatnonzero(on)}
    for i, (a, b, among) in enumerate(points):
        beaten = any(good and c <= a and d <= b and (c, d) != (a, b) for c, d, good in points)
        assert on[i] <= (among and not beaten)
        assert ((a, b) in front) == (among and not beaten) or not among
