"""Estimates match their published schema: hundreds, of both kinds, feasible and not."""

import copy
import json
import pickle
import random
from collections import Counter
from dataclasses import FrozenInstanceError

import pytest
from pydantic import TypeAdapter

from recipe_core.physics.results import Estimate
from recipe_core.physics.training.memory import PARTS
from recipe_core.physics.training.results import TrainingStage
from recipe_core.present.schemas import schema
from recipe_core.search.plans import plan
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.rows import over
from tests.fixtures.training import training_request

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema to hold estimates to it")

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")
MODELS += (LLAMA_70B,)
DEVICES = ("h100-sxm", "mi300x", "l40s", "b200-sxm", "rtx-4090", "gaudi3", "cpu")
LOADS = (
    {"concurrency": 64},
    {"mode": "open", "concurrency": None, "request_rate": 3},
    {"mode": "offline", "concurrency": None, "requests": 500},
    {"mode": "static", "concurrency": None, "batch": 8},
)
SCHEMA = schema("estimate")
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
ADAPTER = TypeAdapter(Estimate)


def plain(values):
    """As it is written: no number that JSON does not have."""
    return json.loads(json.dumps(values, allow_nan=False))


def wrong_in(values):
    """What is wrong with an estimate, of the kind that it is of."""
    return [error.message for error in VALIDATOR.iter_errors(plain(values))]


def assert_holds(estimate):
    """An estimate is what the schema says, and is read back as it was, in the order of its keys."""
    values = estimate.to_json()
    assert wrong_in(values) == []
    again = ADAPTER.validate_python(plain(values))
    assert again == estimate
    assert type(again) is type(estimate)
    assert json.dumps(ADAPTER.dump_python(again)) == json.dumps(values)


@over("seed", range(4), share=4)
def test_estimates_of_serving_are_what_the_schema_says(seed):
    draw, seen = random.Random(seed), Counter()
    limited = {"optimize": "throughput", "limits": {"ttft_ms": 2000}}
    for _ in range(20):
        workload = draw.choice(LOADS)
        options = {"disaggregated": workload.get("mode") != "static" and draw.random() < 0.3}
        objective = limited if draw.random() < 0.3 else {"optimize": "cost"}
        place = draw.choice(MODELS), draw.choice(DEVICES), draw.choice((1, 4, 8))
        table = plan(make_request(*place, options=options, objective=objective, workload=workload))
        for row in draw.sample(range(len(table)), min(8, len(table))):
            estimate = table.estimate(row) if draw.random() < 0.8 else table.detailed(row)
            assert_holds(estimate)
            seen[estimate.feasible] += 1
        for row in map(int, table.order[:2]):
            detailed = table.detailed(row)
            assert_holds(detailed)
            seen["causes"] += "causes_s" in detailed.to_json()
            seen["percentiles"] += "ttft_p95_s" in detailed.to_json()["serving"]
    assert all(seen[what] >= 5 for what in (True, False, "causes", "percentiles"))


@over("seed", range(2), share=2)
def test_estimates_of_training_are_what_the_schema_says(seed):
    draw, seen = random.Random(seed), Counter()
    runs = ({}, {"tokens": 1e9}, {"tokens": 1e9, "method": "lora"}, {"method": "dpo"})
    for _ in range(3):
        work = {"sequence_length": draw.choice((2048, 8192)), "global_batch": 64}
        work |= draw.choice(runs)
        hardware = {"device": draw.choice(("h100-sxm", "mi300x", "b200-sxm")), "per_node": 8}
        model = draw.choice(MODELS[:2])
        table = plan(training_request(nodes=1, model=model, hardware=hardware, **work))
        drawn = draw.sample(range(len(table)), min(60, len(table)))
        for row in [*drawn, *map(int, table.order[:10])]:
            estimate = table.estimate(row)
            assert_holds(estimate)
            seen[estimate.feasible] += 1
    assert min(seen[True], seen[False]) >= 20


def test_it_is_strict():
    """Anything more, less or of another kind is found, at every depth."""
    table = plan(make_request())
    good = plain(table.detailed(int(table.order[0])).to_json())
    changes = [
        lambda e: e.update(surprise=1),
        lambda e: e["serving"].update(ttft_p95=1.0),
        lambda e: e["serving"].pop("tpot_s"),
        lambda e: e["memory"].update(weights_bytes="much"),
        lambda e: e["cost"].update(usd_per_hour=-1),
        lambda e: e["bands"].update(tpot_s=[1.0]),
        lambda e: e["intervals"]["tpot_s"].update({"90": [1.0, 2.0]}),
        lambda e: e["causes_s"]["decode"].update(luck=1.0),
        lambda e: e.pop("reasons"),
    ]
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad)
        assert wrong_in(bad)
    assert wrong_in(good) == []


def test_parts_of_memory_and_percentiles_have_their_names():
    assert tuple(TrainingStage.__slots__) == tuple(f"{part}_bytes" for part in PARTS)
    (percentiles,) = SCHEMA["$defs"]["ServingFigures"]["patternProperties"].values()
    assert "in seconds" in percentiles["description"]
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
        assert low <= figure.value <= high
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
