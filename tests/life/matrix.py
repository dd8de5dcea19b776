"""How far each bundle is held to what it claims: framework × target × method, one state each.

``started``: it ran for real, by the named test. ``parsed``, ``schema``: the tool's words and the
target's files are held by the named tests. ``refused``: the builder answers with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from recipe_core.base.errors import RecipeError
from recipe_core.engines.training_programs import program_facts
from recipe_core.recipe.build import Additions, make_recipe, redecide
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.request.training_workload import TrainingWorkload
from recipe_core.targets import TRAINING, each_target
from recipe_core.targets.recipe_context import place_launch, target_context
from tests.fixtures.rows import table
from tests.life.targets import MACHINE

State = Literal["started", "parsed", "schema", "refused"]
STATES: tuple[State, ...] = get_args(State)
METHODS: tuple[str, ...] = get_args(TrainingWorkload.model_fields["method"].annotation)
TARGETS = (MACHINE, *TRAINING)
HELD = yaml.safe_load(Path(__file__).with_name("matrix.yaml").read_text())
LIFE = "tests/life/test_lives.py::test_a_bundle_trains_and_goes_on_after_its_death"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
ZERO = {"megatron": 1, "unsloth": 0}
"""Stages of frameworks that have no third, or none on one node."""
ROLLOUT = {"prompts": 128, "samples": 8, "prompt_tokens": 200, "response_tokens": 800}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; ``by`` are the tests that hold it, ``reason`` is a refusal's."""

    framework: str
    method: str
    target: str
    state: State
    by: tuple[str, ...] = ()
    reason: str = ""


def frameworks() -> tuple[str, ...]:
    """Every framework of training, in the builder's order."""
    return tuple(program_facts().preferred)


def cells() -> list[Cell]:
    """Every cell, from what the builder answers now."""
    return [
        cell
        for framework in frameworks()
        for method in METHODS
        for cell in _cells(framework, method)
    ]


def _cells(framework: str, method: str) -> Iterator[Cell]:
    answers, begun = _answers(framework, method), _started()
    for target in TARGETS:
        if reason := answers.get(target):
            yield Cell(framework, method, target, "refused", reason=reason)
        elif test := begun.get((framework, method, target)):
            yield Cell(framework, method, target, "started", (test,))
        else:
            held = HELD["frameworks"][framework]
            tests = (held["test"], HELD["targets"][target])
            yield Cell(framework, method, target, held["by"], tests)


@cache
def _started() -> Mapping[tuple[str, str, str], str]:
    """The test that starts a cell for real."""
    lives = {
        (engine, method, target): LIFE
        for _, engine, method, target, _, _ in table("life", "started")
    }
    return lives | {tuple(cell): test for *cell, test in HELD["started"]}


def _answers(framework: str, method: str) -> dict[str, str]:
    """By target, the sentence with which the builder refuses it; empty where it does not."""
    place = Parameters(image="registry.example/trainer:1", namespace="training")
    request = PlanRequest.parse(_request(framework, method))
    try:
        recipe = make_recipe(request, Additions(parameters=place), folders=False)
    except RecipeError as error:
        return dict.fromkeys(TARGETS, str(error))
    decision = redecide(recipe)
    context = target_context(recipe, decision, place_launch(decision, place))
    texts = each_target(context).items()
    return {target: text for target, text in texts if isinstance(text, str)}


def _request(framework: str, method: str) -> dict[str, Any]:
    """Replicas on one node of eight H100, of a model that every framework knows."""
    work: dict[str, Any] = {"kind": "training", "method": method, "tokens": 1e9}
    if method in ("grpo", "ppo"):
        work |= {"rollout": ROLLOUT, "global_batch": 256}
    else:
        work |= {"sequence_length": 4096, "global_batch": 64}
    split = {"engine": framework, "zero_stage": ZERO.get(framework, 3), "recompute": "full"}
    return {
        "model": MODEL,
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
        "workload": work,
        "candidate": split | {"tp": 1, "pp": 1, "dp": 8, "micro_batch": 2},
    }
