"""Properties that hold for every split, and figures published elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.units import GIB
from recipe_core.hardware.cluster import device
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.serving.weights import stage_layers
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.search.rows import pareto_front
from tests.conftest import make_request, request_values
from tests.fixtures.sizes import examples

MODELS = [
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "google/gemma-2-9b-it",
]
DEVICES = ["h100-sxm", "mi300x", "l40s", "b200-sxm"]


def memory_of(**candidate):
    model, name = candidate.pop("model"), candidate.pop("device", "h100-sxm")
    workload = candidate.pop("workload", {})
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1} | candidate
    table, row = plan_candidate(make_request(model, name, 8, 4, workload=workload, candidate=split))
    return table.estimate(row).memory.to_json()


@pytest.mark.parametrize(
    ("candidate", "weights_gib", "source"),
    [
        ({"model": "meta-llama/Llama-3.1-8B-Instruct"}, 14.99, "vLLM log, H100"),
        ({"model": "Qwen/Qwen3-32B"}, 61.03, "vLLM log, H100"),
        ({"model": "Qwen/Qwen3-32B", "tp": 2}, 30.59, "vLLM log, 2 × H100"),
        (
            {"model": "meta-llama/Llama-3.1-70B-Instruct", "tp": 8},
            16.429,
            "traced with fake tensors, tp 8",
        ),
        (
            {"model": "meta-llama/Llama-3.1-8B-Instruct", "tp": 4},
            3.740,
            "traced with fake tensors, tp 4",
        ),
    ],
)
def test_weights_match_what_engines_logged(candidate, weights_gib, source):
    assert memory_of(**candidate)["weights_bytes"] / GIB == pytest.approx(weights_gib, rel=0.01), (
        source
    )


@pytest.mark.parametrize(
    ("candidate", "kv_gib", "source"),
    [
        (
            {"model": "meta-llama/Llama-3.1-8B-Instruct", "memory_fraction": 0.9},
            51.38,
            "vLLM log, H100, utilisation 0.9",
        ),
        (
            {"model": "Qwen/Qwen3-32B", "memory_fraction": 0.9},
            4.45,
            "vLLM log, H100, utilisation 0.9",
        ),
        (
            {"model": "Qwen/Qwen3-32B", "tp": 2, "memory_fraction": 0.9},
            34.49,
            "vLLM log, 2 × H100, utilisation 0.9",
        ),
    ],
)
def test_the_cache_pool_matches_what_vllm_logged(candidate, kv_gib, source):
    """The peaks in these logs are of a sampler that sorts, as it did before 0.17."""
    then = memory_of(**candidate, engine_version="0.16.0")
    assert then["kv_cache_bytes"] / GIB == pytest.approx(kv_gib, rel=0.03), source


@pytest.mark.parametrize(
    ("tp", "bytes_per_token"), [(1, 131_072), (4, 32_768), (8, 16_384), (16, 16_384)]
)
def test_kv_heads_are_divided_until_one_is_left(tp, bytes_per_token):
    """Llama-3.1-8B: 32 layers × 8 KV heads × 2 × 128 × 2 bytes; 16 ranks store each head twice."""
    one = memory_of(
        model="meta-llama/Llama-3.1-8B-Instruct",
        tp=tp,
        workload={"input_tokens": 1000, "output_tokens": 24, "concurrency": 1},
    )
    assert one["kv_needed_bytes"] == 1024 * bytes_per_token


def test_the_latent_cache_is_not_divided_by_tp():
    needs = {
        tp: memory_of(model="deepseek-ai/DeepSeek-V3", tp=tp)["kv_needed_bytes"]
        for tp in (1, 8, 16)
    }
    assert needs[1] == needs[8] == needs[16] == 64 * 1280 * 61 * 576 * 2


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(80, 8, [10] * 8), (61, 4, [15, 15, 16, 15]), (94, 4, [23, 24, 24, 23])],
)
def test_layers_are_spread_over_stages_as_vllm_does(layers, stages, sizes):
    assert [end - start for start, end in stage_layers(layers, stages)] == sizes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chip", DEVICES)
def test_parts_add_to_totals_exactly(name, chip):
    table = plan(make_request(name, chip))
    for row in map(int, table.order):
        answer = table.estimate(row).to_json()
        m, s, parts = answer["memory"], answer["serving"], answer["breakdown_s"]
        assert (
            m["weights_bytes"] + m["kv_needed_bytes"] + m["activations_bytes"] + m["runtime_bytes"]
            == m["total_bytes"]
        )
        assert sum(parts["decode"].values()) == pytest.approx(s["tpot_s"], rel=1e-12)
        assert sum(parts["prefill"].values()) == pytest.approx(s["ttft_s"], rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_memory_never_rises_with_tp(name):
    table = plan(make_request(name, "h100-sxm"))
    c = table.columns
    uneven = ("divisible", "evenly", "multiple")
    legal = [
        row
        for row in range(len(table))
        if not any(word in reason for word in uneven for reason in table.reasons(row))
    ]
    for a in legal:
        for b in legal:
            same = all(c[k][a] == c[k][b] for k in ("pp", "dp")) and (c["ep"][a] > 1) == (
                c["ep"][b] > 1
            )
            if same and c["tp"][a] < c["tp"][b]:
                assert c["weights_bytes"][b] <= c["weights_bytes"][a]
                assert c["kv_needed_bytes"][b] <= c["kv_needed_bytes"][a]
                assert c["activations_bytes"][b] <= c["activations_bytes"][a]


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
    workload = {
        "mode": mode,
        "concurrency": None,
        "input_tokens": lengths[0],
        "output_tokens": lengths[1],
        field: load,
    }
    table = plan(make_request(name, chip, workload=workload))
    profile, model, c = device(chip), catalog_model(name), table.columns
    ok = c["feasible"]
    peak = max(figure.value for figure in profile.peak_flops_per_s.values())
    weights = model.active_parameters - model.vocabulary * model.hidden
    flops_bound = c["gpus"] * peak / (2 * weights)
    assert np.all(c["output_tokens_per_s"][ok] <= flops_bound[ok])
    smallest = 0.5 * weights  # no stored format is below 4 bits
    step_s = (
        smallest
        / (c["tp"] * c["pp"] * np.where(c["ep"] > 1, c["dp"], 1))
        / profile.memory_bandwidth_bytes_per_s.value
    )
    assert np.all(c["tpot_s"][ok] >= step_s[ok])
    assert np.all(
        c["output_tokens_per_s"][ok] * c["tpot_s"][ok]
        <= load * 1.001 * lengths[1] / (lengths[1] - 1)
    )


@pytest.mark.parametrize("field", ["input_tokens", "concurrency"])
def test_more_work_never_makes_a_token_faster(field):
    answers = estimate_batch(
        request_values(
            workload={field: value}, candidate={"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}
        )
        for value in (64, 256, 1024)
    )
    tpot = [answer["serving"]["tpot_s"] for answer in answers]
    assert tpot == sorted(tpot)


def test_an_open_loop_serves_what_arrives_or_is_refused():
    rate = {"mode": "open", "concurrency": None, "request_rate": 2.0}
    table, row = plan_candidate(make_request(workload=rate, candidate={"tp": 8, "pp": 1, "dp": 1}))
    assert table.estimate(row).serving.output_tokens_per_s == pytest.approx(512, rel=1e-6)
    flood, row = plan_candidate(
        make_request(workload=rate | {"request_rate": 500.0}, candidate={"tp": 8, "pp": 1, "dp": 1})
    )
    assert "500 requests/s arrive" in flood.reasons(row)[0]


def test_a_slow_open_loop_is_as_fast_as_a_lonely_request():
    candidate = {"tp": 8, "pp": 1, "dp": 1}
    lonely = (
        plan_candidate(make_request(workload={"concurrency": 1}, candidate=candidate))[0]
        .estimate(0)
        .serving.to_json()
    )
    rare = {"mode": "open", "concurrency": None, "request_rate": 0.01}
    slow = (
        plan_candidate(make_request(workload=rare, candidate=candidate))[0]
        .estimate(0)
        .serving.to_json()
    )
    assert slow["request_latency_s"] == pytest.approx(lonely["request_latency_s"], rel=0.02)


def test_many_estimates_equal_single_ones():
    """Columns are estimated together; each answer is what it would be alone."""
    values = [
        request_values(
            name,
            chip,
            workload={"concurrency": load},
            candidate={"engine": "vllm", "tp": tp, "pp": pp, "dp": dp},
        )
        for name in MODELS[:3]
        for chip in DEVICES[:2]
        for load in (1, 100)
        for tp, pp, dp in ((8, 1, 1), (2, 2, 1), (1, 1, 2))
    ]
    for value, together in zip(values, estimate_batch(values), strict=True):
        (alone,) = estimate_batch([value])
        assert alone == together


def test_a_bad_line_answers_its_error_in_its_place():
    good = request_values(candidate={"tp": 8, "pp": 1, "dp": 1})
    first, second, third = estimate_batch([good, {"model": "nope"}, good])
    assert first["feasible"]
    assert first == third
    assert second["error"]["field"] == "hardware"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=40))
def test_the_front_has_no_dominated_point_and_misses_none(points):
    x, y, ok = (
        (np.array(column) for column in zip(*points, strict=True))
        if points
        else (np.array([]), np.array([]), np.array([], bool))
    )
    on = pareto_front(x.astype(float), y.astype(float), among=ok.astype(bool))
    for i in range(len(points)):
        beaten = any(
            ok[j] and x[j] <= x[i] and y[j] <= y[i] and (x[j], y[j]) != (x[i], y[i])
            for j in range(len(points))
        )
        twin = any(on[j] and (x[j], y[j]) == (x[i], y[i]) for j in range(len(points)))
        assert on[i] <= (ok[i] and not beaten)
        assert twin == (bool(ok[i]) and not beaten) or not ok[i]
