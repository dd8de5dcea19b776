"""What lets a refused split run, and what lets any run: each change is applied and judged again."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.base.labels import change_label
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.changes import fixes, helpful_changes, nearest_feasible
from recipe_core.search.plans import plan
from recipe_core.search.serving_plan import ServingPlan

LLAMA_70B = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
TRAINING = {"workload.kind": "training"}


def refused_with(board: Any, code: str) -> int:
    return next(int(row) for row in board.refused_rows() if code in board.codes(int(row)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "Qwen/Qwen3-32B", "hardware.per_node": 1, "hardware.device": "l40s"}, "memory"),
        (LLAMA_70B | {"objective.limits.tpot_ms": 20.0}, "limit-tpot"),
        (LLAMA_70B | {"objective.limits.gpus": 4}, "limit-gpus"),
        ({"workload.mode": "open", "workload.request_rate": 200.0}, "rate"),
        ({"workload.mode": "static", "workload.batch": 4000}, "batch"),
        ({"workload.concurrency": 2}, "idle-replicas"),
        ({"model": "EleutherAI/pythia-12b", "workload.input_tokens": 4000}, "context"),
    ],
)
def test_a_change_that_is_offered_lets_the_split_run(changes: dict[str, Any], code: str) -> None:
    request = change(DEFAULT, changes)
    board = plan(request)
    rows = [int(row) for row in board.refused_rows() if code in board.codes(int(row))]
    found = [(row, fix) for row in rows for fix in fixes(board, row) if fix.fields]
    assert found, "no split has a fix"
    row, fix = found[0]
    after = plan(change(request, fix.fields))
    key = (
        board.key(row).replace(".bf16.", f".{fix.fields['options.weight_dtypes'][0]}.", 1)
        if "options.weight_dtypes" in fix.fields
        else board.key(row)
    )
    assert after.feasible[after.find(key)]
    assert change_label(fix.fields)


@pytest.mark.parametrize("changes", [LLAMA_70B, TRAINING | {"hardware.nodes": 2}])
def test_the_nearest_split_that_fits_differs_least(changes: dict[str, Any]) -> None:
    board = plan(change(DEFAULT, changes))
    row = int(board.refused_rows()[0])
    near = nearest_feasible(board, row)
    assert near is not None
    assert board.feasible[near]
    assert fixes(board, row)[-1].key == board.key(near)
    assert fixes(board, near) == []


def test_the_nearest_to_an_odd_split_is_beside_it() -> None:
    board = plan(change(DEFAULT, LLAMA_70B))
    row = board.find("vllm.bf16.bf16.tp7.pp1.dp1.ep1")
    assert row is not None
    near = nearest_feasible(board, row)
    assert board.key(near or 0) == "vllm.bf16.bf16.tp8.pp1.dp1.ep1"


@pytest.mark.parametrize(
    "changes",
    [
        LLAMA_70B | {"hardware.per_node": 1},
        TRAINING | LLAMA_70B,
        TRAINING | {"hardware.per_node": 1},
    ],
)
def test_where_nothing_fits_remedies_let_something_in(changes: dict[str, Any]) -> None:
    request = change(DEFAULT, changes)
    board = plan(request)
    assert board.best_row is None
    found = helpful_changes(board)
    assert found
    for remedy in found:
        after = plan(change(request, remedy.fields))
        assert after.best_row is not None
        assert remedy.split == after.label(after.best_row) or isinstance(after, ServingPlan)
