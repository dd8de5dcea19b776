"""What holds of every split and estimate, of their schema, and of what they cost and draw."""

import copy
import json
import pickle
import random
from dataclasses import FrozenInstanceError
from itertools import permutations, product

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from recipe_core.base.errors import HardwareError
from recipe_core.estimates.results import Estimate
from recipe_core.estimates.serving.cost import busy_shares, busy_time_setting
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.weights import stage_layer_bounds
from recipe_core.estimates.training.memory import PARTS
from recipe_core.estimates.training.results import TrainingStage
from recipe_core.hardware.cluster import cluster, device_profile
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.request import HardwareRequest
from recipe_core.models.catalog import catalog_model
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.plans.splits import row_reasons
from recipe_core.request.link import from_query, link_omissions, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.views.catalog import document_schema
from tests.conftest import LLAMA_70B, make_request, request_values
from tests.corpus.__main__ import recorded
from tests.corpus.asking import entries
from tests.fixtures.properties import broken
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples

MODELS = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"]
MODELS += ["openai/gpt-oss-20b", "google/gemma-2-9b-it"]
DEVICES = ["h100-sxm", "mi300x", "l40s", "b200-sxm"]
SPLIT = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
HELD = {"within its band", "memory parts add up", "times add up", "below the peak rate"}
HELD |= {"Little's law (closed, static)", "open loop serves what arrives"}


def asked(*operations):
    """Requests of the corpus by name: pools, drafts, encoders, windows, tiers, training."""
    for name, entry in entries().items():
        if entry["operation"] in operations and not name.startswith("refusals/"):
            values = entry["request"]
            yield name, PlanRequest.parse(values.get("request", values))


def test_recorded_estimates_keep_what_holds_of_all_of_them():
    answers = recorded(("estimates/", "training/"))
    held = {name: request for name, request in asked("estimate") if answers[name]["feasible"]}
    assert len(held) > 35
    for name, request in held.items():
        summed = {"memory parts add up"} if name == "training/megatron-3d" else set()
        assert broken(request, answers[name], *(HELD - summed)) == [], name


def test_recorded_requests_survive_their_links():
    drafts = {"tokens": 2, "acceptance": 0.7, "method": "ngram"}
    for name, request in (
        *asked("estimate", "plan"),
        ("drafts of a layout", make_request(candidate={"speculative": drafts})),
        ("images", make_request("google/gemma-4-E4B-it", workload={"images": {}, "audio": {}})),
    ):
        if link_omissions(request) is None:
            assert from_query(to_query(request)) == (request, []), name


def test_layers_are_spread_over_stages_as_vllm_does():
    for layers, sizes in ((80, [10] * 8), (61, [15, 15, 16, 15]), (94, [23, 24, 24, 23])):
        assert [end - start for start, end in stage_layer_bounds(layers, len(sizes))] == sizes


@over("name", MODELS, share=3)
def test_memory_never_rises_with_tp(name):
    table = plan_splits(make_request(name, "h100-sxm"))
    c = table.columns
    uneven = ("divisible", "evenly", "multiple")
    legal = [
        row
        for row in range(len(table))
        if not any(word in reason for word in uneven for reason in row_reasons(table, row))
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
    """A token needs its flops; a step of at most ``load`` tokens reads the weights of one."""
    field = {"closed": "concurrency", "static": "batch", "offline": "requests"}[mode]
    workload = {"mode": mode, "concurrency": None, field: load}
    workload |= dict(zip(("input_tokens", "output_tokens"), lengths, strict=True))
    table = plan_splits(make_request(name, chip, workload=workload))
    profile, model, c = device_profile(chip), catalog_model(name), table.columns
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


SCHEMA = document_schema("estimate")
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
ADAPTER = TypeAdapter(Estimate)


def assert_holds(estimate):
    """An estimate is what the schema says, and is read back as it was, in the order of its keys."""
    values = estimate.to_json()
    plain = json.loads(json.dumps(values, allow_nan=False))
    assert [error.message for error in VALIDATOR.iter_errors(plain)] == []
    again = ADAPTER.validate_python(plain)
    assert again == estimate
    assert type(again) is type(estimate)
    assert json.dumps(ADAPTER.dump_python(again)) == json.dumps(values)


@over("name", [name for name, _ in asked("estimate", "plan")], share=6)
def test_estimates_are_what_the_schema_says(name):
    """The best rows of a request and any others, refused ones too, with causes and percentiles."""
    table = plan_splits(dict(asked("estimate", "plan"))[name])
    drawn = random.Random(name).sample(range(len(table)), min(8, len(table)))
    for row in {*map(int, table.order[:2]), *drawn}:
        assert_holds(table.estimate(row))
        assert_holds(table.spec.detailed(table, row))


def test_parts_of_memory_and_percentiles_have_their_names():
    assert tuple(TrainingStage.__slots__) == tuple(f"{part}_bytes" for part in PARTS)
    values = plan_splits(make_request()).best.estimate.to_json()
    values["serving"] |= {"ttft_p95_s": 1.0, "tpot_p99.9_s": 0.1}
    assert ADAPTER.validate_python(values).to_json()["serving"]["tpot_p99.9_s"] == 0.1
    for name in ("ttft_p95", "percentiles_s", "watts_p50_s"):
        with pytest.raises(ValueError, match=name):
            ADAPTER.validate_python(values | {"serving": values["serving"] | {name: 1.0}})


def test_a_figure_comes_with_its_band():
    table = plan_splits(make_request())
    estimate = table.spec.detailed(table, table.best_row)
    parts = estimate.to_json()
    values = {**parts["cost"], **parts["energy"], **parts["serving"]}
    assert set(estimate.bands) == set(estimate.intervals)
    for name, (low, high) in estimate.bands.items():
        figure = getattr(estimate, name)
        assert (figure.low, figure.high) == (low, high)
        assert figure.value == values[name]
        assert figure.interval() == figure.interval(80) == (low, high)
        lows, highs = zip(*map(figure.interval, (95, 80, 50)), strict=True)
        assert (*lows, *reversed(highs)) == (*sorted(lows), *sorted(highs))
        assert 0.5 - 0.45 < figure.probability_below(figure.value) < 0.5 + 0.45
        assert figure.basis == estimate.basis[name]
    assert {"tpot_s", "ttft_p95_s", "output_tokens_per_s"} <= set(dir(estimate))
    with pytest.raises(ValueError, match="level must be 50, 80, 95"):
        estimate.tpot_s.interval(90)
    with pytest.raises(ValueError, match="limit must be above 0"):
        estimate.tpot_s.probability_below(0.0)
    with pytest.raises(AttributeError, match="'tpot'; known: ttft_s, tpot_s, "):
        _ = estimate.tpot


def test_of_one_request_times_per_token_hold_what_the_throughput_says():
    """Llama 3.3 70B in NVFP4 alone on a DGX Spark writes 4.0 to 4.2 tokens a second."""
    asked = make_request(
        "nvidia/Llama-3.3-70B-Instruct-NVFP4",
        device="dgx-spark",
        per_node=1,
        workload={"input_tokens": 128, "output_tokens": 512, "concurrency": 1},
        candidate={"engine": "vllm", "tp": 1, "pp": 1, "dp": 1},
    )
    bands = estimate_batch([asked.to_json()])[0]["bands"]
    low, high = bands["output_tokens_per_s"]
    assert low < 4.0 < 4.2 < high
    assert bands["tpot_s"][0] <= 1 / high < 1 / low <= bands["tpot_s"][1]


def test_a_split_that_cannot_run_has_no_figures_and_estimates_are_values():
    table = plan_splits(make_request(LLAMA_70B, "rtx-4090", 1))
    estimate = table.estimate(nearest_row(table))
    assert not estimate.feasible
    assert estimate.predictions() == {}
    with pytest.raises(AttributeError, match="cannot run"):
        _ = estimate.tpot_s
    # Equal, copied and pickled as such; nothing changes one
    table = plan_splits(make_request())
    estimate = table.best.estimate
    assert estimate == table.best.estimate
    assert copy.deepcopy(estimate) == pickle.loads(pickle.dumps(estimate)) == estimate
    assert estimate != table.ranked[1].estimate
    with pytest.raises(FrozenInstanceError):
        estimate.feasible = False


def estimate_of(model=LLAMA_70B, *args, hardware=None, tp=2, **parts):
    values = request_values(model, *args, **({"candidate": SPLIT | {"tp": tp}} | parts))
    values["hardware"] |= hardware or {}
    table, row = plan_candidate(PlanRequest.parse(values))
    return table.estimate(row).to_json()


def test_cost_adds_up_and_twice_the_price_costs_twice_as_much():
    static, offline = {"mode": "static", "batch": 16}, {"mode": "offline", "requests": 500}
    none = {"concurrency": None}
    for workload in ({}, static | none, offline | none):
        found, twice = (
            estimate_of(workload=workload, tp=4, hardware={"usd_per_device_hour": usd})
            for usd in (2.5, 5.0)
        )
        cost, tokens_per_s = found["cost"], found["serving"]["output_tokens_per_s"]
        per_million, per_request = cost["usd_per_million_output_tokens"], cost["usd_per_request"]
        assert cost["usd_per_hour"] == pytest.approx(10)
        assert per_million == pytest.approx(10 / (tokens_per_s * 3600) * 1e6)
        assert per_request == pytest.approx(per_million * 256 / 1e6)
        prompts = 1024 * cost["usd_per_million_input_tokens_alone"] / 1e6
        answers = 256 * cost["usd_per_million_output_tokens_alone"] / 1e6
        assert prompts + answers == pytest.approx(per_request)
        assert prompts == pytest.approx(cost["prefill_share"] * per_request)
        assert 0 < cost["prefill_share"] < 1
        factors = dict.fromkeys(cost, 2.0) | {"prefill_share": 1.0, "devices_rented": 1.0}
        assert {n: value / cost[n] for n, value in twice["cost"].items()} == pytest.approx(factors)


@pytest.mark.parametrize(("machine", "paid"), [(1, 2), (2, 2), (4, 4), (8, 8)])
def test_a_named_offer_is_taken_and_said(machine, paid):
    """Of a machine that is rented whole, devices that the split leaves idle are paid for too."""
    wanted = ("h100-sxm", "Lambda", machine, "on-demand")
    named = next(
        o
        for o in all_offers()
        if (o.device, o.provider, o.devices_per_node, o.commitment) == wanted
    )
    found = estimate_of(hardware={"offer": named.name})
    assert found["cost"]["devices_rented"] == paid
    assert found["cost"]["usd_per_hour"] == pytest.approx(paid * named.usd_per_device_hour)
    assert named.name in found["basis"]["usd_per_hour"]
    assert named.date in found["basis"]["usd_per_hour"]
    with pytest.raises(HardwareError, match="not both"):
        cluster(HardwareRequest(device="h100-sxm", offer=named.name, usd_per_device_hour=1.0))


def test_missing_offers_are_silent_spot_prices_noted_and_energy_is_power_over_rate():
    found = estimate_of(MODELS[0], "radeon-pro-w7900", 1, tp=1)
    assert found["basis"]["usd_per_hour"] == "unknown"
    known = {name for name, value in found["cost"].items() if value is not None}
    assert known == {"prefill_share", "devices_rented"}
    assert found["energy"]["watts"] > 0
    assert "spot" in estimate_of(hardware={"commitment": "spot"})["basis"]["usd_per_hour"]
    assert not any("price" in note for note in estimate_of()["notes"])
    found = estimate_of(tp=8)
    energy, rate = found["energy"], found["serving"]["output_tokens_per_s"]
    assert energy["joules_per_token"] == pytest.approx(energy["watts"] / rate)
    assert energy["joules_per_request"] == pytest.approx(256 * energy["joules_per_token"])
    for words in ("70.0 W idle (assumed) to 700 W", "without hosts"):
        assert words in found["basis"]["watts"]


SLOW = {"mode": "open", "concurrency": None, "request_rate": 0.01}


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x", "b200-sxm", "l4", "rx-7900-xtx"])
@pytest.mark.parametrize("workload", [{}, {"concurrency": 1}, SLOW])
def test_power_is_between_idle_and_the_limit(name, workload):
    table = plan_splits(make_request(MODELS[0], name, 4, workload=workload))
    profile, rows = device_profile(name), table.columns
    some = rows["feasible"]
    assert some.any()
    each = rows["watts"][some] / rows["gpus"][some]
    assert np.all(each >= profile.idle_watts.value * (1 - 1e-12))
    assert np.all(each <= profile.tdp_watts.value * (1 + 1e-12))


def test_a_full_replica_is_busy_all_the_time_and_what_waits_for_no_work_draws_nothing():
    full, block = (
        estimate_serving(*stated_serving_case(resolve_problem(request), request.candidate))
        for request in (
            make_request(candidate=SPLIT | {"tp": 4}, workload=workload)
            for workload in ({"concurrency": 4000}, {})
        )
    )
    found = busy_shares(full.setting, full.cases, full.serving)
    assert 0.5 < found.prefill[0] + found.decode[0] <= 1.1
    one = np.ones(1)
    step = Step(0 * one, 0 * one, 64 * one, 1024 * one, 64 * one)
    free, real = (
        serving_step_parts(setting, block.cases, step)
        for setting in (busy_time_setting(block.setting), block.setting)
    )
    assert [free[name][0] for name in ("all_reduce", "engine", "launch")] == [0, 0, 0]
    assert 0 < total(free)[0] < total(real)[0]
    assert free["qkv"][0] > 0
