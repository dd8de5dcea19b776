"""What holds of every split, of every estimate of the corpus and of their schema."""

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

from recipe_core.hardware.cluster import device
from recipe_core.model.catalog import catalog_model
from recipe_core.physics.results import Estimate
from recipe_core.physics.serving.weights import stage_layers
from recipe_core.physics.training.memory import PARTS
from recipe_core.physics.training.results import TrainingStage
from recipe_core.present.schemas import schema
from recipe_core.request.link import from_query, left_out, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch, plan
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
        ("drafts of a split", make_request(candidate={"speculative": drafts})),
        ("images", make_request("google/gemma-4-E4B-it", workload={"images": {}, "audio": {}})),
    ):
        if left_out(request) is None:
            assert from_query(to_query(request)) == (request, []), name


def test_layers_are_spread_over_stages_as_vllm_does():
    for layers, sizes in ((80, [10] * 8), (61, [15, 15, 16, 15]), (94, [23, 24, 24, 23])):
        assert [end - start for start, end in stage_layers(layers, len(sizes))] == sizes


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


SCHEMA = schema("estimate")
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
    """The best rows of a request of the corpus and any others, refused ones too, with causes and
    percentiles.
    """
    table = plan(dict(asked("estimate", "plan"))[name])
    drawn = random.Random(name).sample(range(len(table)), min(8, len(table)))
    for row in {*map(int, table.order[:2]), *drawn}:
        assert_holds(table.estimate(row))
        assert_holds(table.detailed(row))


def test_parts_of_memory_and_percentiles_have_their_names():
    assert tuple(TrainingStage.__slots__) == tuple(f"{part}_bytes" for part in PARTS)
    values = plan(make_request()).best.estimate.to_json()
    values["serving"] |= {"ttft_p95_s": 1.0, "tpot_p99.9_s": 0.1}
    assert ADAPTER.validate_python(values).to_json()["serving"]["tpot_p99.9_s"] == 0.1
    for name in ("ttft_p95", "percentiles_s", "watts_p50_s"):
        with pytest.raises(ValueError, match=name):
            ADAPTER.validate_python(values | {"serving": values["serving"] | {name: 1.0}})


def test_a_figure_comes_with_its_band():
    table = plan(make_request())
    estimate = table.detailed(table.best_row)
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


def test_a_split_that_cannot_run_has_no_figures_and_estimates_are_values():
    table = plan(make_request(LLAMA_70B, "rtx-4090", 1))
    estimate = table.estimate(table.nearest_row())
    assert not estimate.feasible
    assert estimate.predictions() == {}
    with pytest.raises(AttributeError, match="cannot run"):
        _ = estimate.tpot_s
    # Equal, copied and pickled as such; nothing changes one
    table = plan(make_request())
    estimate = table.best.estimate
    assert estimate == table.best.estimate
    assert copy.deepcopy(estimate) == pickle.loads(pickle.dumps(estimate)) == estimate
    assert estimate != table.ranked[1].estimate
    with pytest.raises(FrozenInstanceError):
        estimate.feasible = False
