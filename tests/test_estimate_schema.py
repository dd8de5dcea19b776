"""Estimates match their published schema: hundreds, of both kinds, feasible and not."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter

import pytest

from recipe_core.physics.estimate_schema import (
    ServingCost,
    ServingEnergy,
    TrainingRun,
    TrainingStage,
)
from recipe_core.physics.serving.cost import ENERGY, MONEY
from recipe_core.physics.training.estimates import RUN
from recipe_core.physics.training.memory import PARTS
from recipe_core.present.schemas import schema
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from tests.conftest import make_request

jsonschema = pytest.importorskip(
    "jsonschema", reason="needs jsonschema to hold estimates against the schema"
)

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-70B-Instruct",
)
DEVICES = ("h100-sxm", "mi300x", "l40s", "b200-sxm", "rtx-4090", "gaudi3", "cpu")
LOADS = (
    {"concurrency": 64},
    {"mode": "open", "concurrency": None, "request_rate": 3},
    {"mode": "offline", "concurrency": None, "requests": 500},
    {"mode": "static", "concurrency": None, "batch": 8},
)


@pytest.fixture(scope="module")
def validator():
    found = schema("estimate")
    return jsonschema.validators.validator_for(found)(found)


def plain(estimate):
    """As it is written: no number that JSON does not have."""
    return json.loads(json.dumps(estimate, allow_nan=False))


def said(validator, estimate):
    """What is wrong with an estimate, of the kind that it is of."""
    return [error.message for error in validator.iter_errors(plain(estimate))]


@pytest.mark.parametrize("seed", range(4))
def test_estimates_of_serving_are_what_the_schema_says(validator, seed):
    draw, seen = random.Random(seed), Counter()
    for _ in range(20):
        workload = draw.choice(LOADS)
        options = {"disaggregated": workload.get("mode") != "static" and draw.random() < 0.3}
        objective = (
            {"optimize": "throughput", "limits": {"ttft_ms": 2000}}
            if draw.random() < 0.3
            else {"optimize": "cost"}
        )
        request = make_request(
            draw.choice(MODELS),
            draw.choice(DEVICES),
            draw.choice((1, 4, 8)),
            options=options,
            objective=objective,
            workload=workload,
        )
        table = plan(request)
        for row in draw.sample(range(len(table)), min(8, len(table))):
            estimate = table.estimate(row) if draw.random() < 0.8 else table.detailed(row)
            assert said(validator, estimate) == []
            seen[estimate["feasible"]] += 1
        for row in map(int, table.order[:2]):
            assert said(validator, table.detailed(row)) == []
            seen["causes"] += "causes_s" in table.detailed(row)
            seen["percentiles"] += "ttft_p95_s" in table.detailed(row)["serving"]
    assert all(seen[what] >= 5 for what in (True, False, "causes", "percentiles"))


@pytest.mark.parametrize("seed", range(2))
def test_estimates_of_training_are_what_the_schema_says(validator, seed):
    draw, seen = random.Random(seed), Counter()
    for _ in range(3):
        workload = {
            "kind": "training",
            "sequence_length": draw.choice((2048, 8192)),
            "global_batch": 64,
        }
        workload |= draw.choice(
            ({}, {"tokens": 1e9}, {"tokens": 1e9, "method": "lora"}, {"method": "dpo"})
        )
        hardware = {
            "device": draw.choice(("h100-sxm", "mi300x", "b200-sxm")),
            "per_node": 8,
            "nodes": 1,
        }
        table = plan(
            PlanRequest.parse(
                {"model": draw.choice(MODELS[:2]), "hardware": hardware, "workload": workload}
            )
        )
        for row in [
            *draw.sample(range(len(table)), min(60, len(table))),
            *map(int, table.order[:10]),
        ]:
            estimate = table.estimates.row(row)
            assert said(validator, estimate) == []
            seen[estimate["feasible"]] += 1
    assert min(seen[True], seen[False]) >= 20


def test_it_is_strict(validator):
    """Anything more, less or of another kind is found, at every depth."""
    table = plan(make_request())
    good = plain(table.detailed(int(table.order[0])))
    changes = [
        lambda e: e.update(surprise=1),
        lambda e: e["serving"].update(ttft_p95=1.0),
        lambda e: e["serving"].pop("tpot_s"),
        lambda e: e["memory"].update(weights_bytes="much"),
        lambda e: e["cost"].update(usd_per_hour=-1),
        lambda e: e["bands"].update(tpot_s=[1.0]),
        lambda e: e["causes_s"]["decode"].update(luck=1.0),
        lambda e: e.pop("reasons"),
    ]
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad)
        assert said(validator, bad)
    assert said(validator, good) == []


def test_its_names_are_those_of_the_estimates():
    assert tuple(ServingCost.model_fields) == MONEY
    assert tuple(ServingEnergy.model_fields) == ENERGY
    assert tuple(TrainingStage.model_fields) == tuple(f"{part}_bytes" for part in PARTS)
    assert set(TrainingRun.model_fields) == {*RUN, "elastic_nodes"}
