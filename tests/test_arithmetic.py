"""The lines that show the arithmetic: their numbers give their values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from recipe_core.explain.arithmetic import Line, arithmetic, training_arithmetic
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan


def number(text: str) -> float:
    """The first number of a text in SI: GiB, MB and ms understood."""
    found = re.search(r"([\d,.]+)\s*(GiB|MB|ms|B|%)?", text)
    assert found
    scale = {"GiB": 2.0**30, "MB": 1e6, "ms": 1e-3, "%": 0.01}.get(found[2] or "", 1.0)
    return float(found[1].replace(",", "").rstrip(".")) * scale


def evaluated(numbers: str) -> float:
    """Sums of products and quotients as they are written."""
    total = 0.0
    for term in numbers.replace("(", "").replace(")", "").split(" + "):
        value = 1.0
        for sign, factor in re.findall(r"(^|×|÷)\s*([^×÷]+)", term):
            value = value / number(factor) if sign == "÷" else value * number(factor)
        total += value
    return total


def lines(found: dict[str, list[Line]]) -> dict[str, Line]:
    return {line.name: line for some in found.values() for line in some}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "meta-llama/Llama-3.1-70B-Instruct"},
        {"model": "openai/gpt-oss-120b"},
        {"model": "deepseek-ai/DeepSeek-V3", "hardware.nodes": 2},
        {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
        {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": 1},
    ],
)
@pytest.mark.parametrize("pipeline", [False, True])
def test_serving_lines_give_their_values(changes: dict[str, Any], pipeline: bool) -> None:
    board = plan(change(DEFAULT, changes))
    assert isinstance(board, ServingPlan)
    rows = [int(row) for row in board.order if (board.degree("pp")[row] > 1) == pipeline][:3]
    for row in rows:
        found = lines(arithmetic(board, row))
        for name in (
            "Weights",
            "Cache of one request",
            "KV cache needed",
            "Total",
            "Usable",
            "Time per output token",
            "Time to first token",
            "Output",
        ):
            line = found[name]
            assert evaluated(line.numbers) == pytest.approx(number(line.value), rel=0.02), line


def test_cost_and_energy_are_of_the_same_rate() -> None:
    board = plan(DEFAULT)
    assert isinstance(board, ServingPlan)
    found = lines(arithmetic(board, int(board.order[0])))
    hourly, rate = number(found["Cost per hour"].value), number(found["Output"].value)
    assert hourly / (3600 * rate) * 1e6 == pytest.approx(
        number(found["Cost per million output tokens"].value.lstrip("$")), rel=0.01
    )


def test_a_refused_split_shows_its_memory_alone() -> None:
    board = plan(change(DEFAULT, {"model": "meta-llama/Llama-3.1-70B-Instruct"}))
    assert isinstance(board, ServingPlan)
    short = next(int(row) for row in board.refused_rows() if board.codes(int(row)) == {"memory"})
    assert list(arithmetic(board, short)) == ["Memory of the fullest device"]


def test_training_lines_give_their_values() -> None:
    board = plan(change(DEFAULT, {"workload.kind": "training", "hardware.nodes": 2}))
    assert isinstance(board, TrainingPlan)
    found = lines(training_arithmetic(board, int(board.order[0])))
    for name in ("Peak", "Tokens of a step", "Tokens per device"):
        assert evaluated(found[name].numbers) == pytest.approx(
            number(found[name].value), rel=0.02
        ), found[name]
    assert number(found["Steps"].value) >= evaluated(found["Steps"].numbers)
    step = sum(number(term) for term in found["Step"].numbers.split(" + "))
    assert step == pytest.approx(number(found["Step"].value), rel=0.02)
