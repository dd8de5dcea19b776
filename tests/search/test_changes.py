"""What lets a refused split run, and what lets any run: each change is applied and judged again."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.base.labels import change_label
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.changes import fixes, helpful_changes, looser_limits, nearest_feasible
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan
from recipe_core.search.serving_plan import ServingPlan
from tests.fixtures.rows import over, table

LLAMA_70B = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
TRAINING = {"workload.kind": "training"}


def planned(changes: dict[str, Any]) -> Plan:
    return plan(change(DEFAULT, changes))


@over("changes code", table("search", "fixed"))
def test_a_change_that_is_offered_lets_the_split_run(changes: dict[str, Any], code: str) -> None:
    board = planned(changes)
    rows = [int(row) for row in board.refused_rows() if code in board.codes(int(row))]
    row, fix = next((row, fix) for row in rows for fix in fixes(board, row) if fix.fields)
    after = plan(change(board.request, fix.fields))
    key = board.key(row)
    if weights := fix.fields.get("options.weight_dtypes"):
        key = key.replace(".bf16.", f".{weights[0]}.", 1)
    assert after.feasible[after.find(key)]
    assert change_label(fix.fields)


@pytest.mark.parametrize("changes", [LLAMA_70B, TRAINING | {"hardware.nodes": 2}])
def test_the_nearest_split_that_fits_differs_least(changes: dict[str, Any]) -> None:
    board = planned(changes)
    row = int(board.refused_rows()[0])
    near = nearest_feasible(board, row)
    assert board.feasible[near]
    assert fixes(board, row)[-1].key == board.key(near)
    assert fixes(board, near) == []
    if changes == LLAMA_70B:
        odd = nearest_feasible(board, board.find("vllm.bf16.bf16.tp7.pp1.dp1.ep1"))
        assert board.key(odd) == "vllm.bf16.bf16.tp8.pp1.dp1.ep1"


@over("changes", table("search", "nothing_fits"))
def test_where_nothing_fits_changes_let_something_in(changes: dict[str, Any]) -> None:
    board = planned(changes)
    assert board.best is None
    offered = helpful_changes(board)
    assert 1 <= len(offered) <= 3
    assert [remedy.fields for remedy in board.changes()] == [remedy.fields for remedy in offered]
    for remedy in offered:
        after = plan(change(board.request, remedy.fields))
        assert after.best.candidate == remedy.candidate
        assert remedy.split == after.label(after.best_row) or isinstance(after, ServingPlan)
        assert str(remedy).startswith(next(iter(remedy.fields)))
        if changes == LLAMA_70B | {"hardware.per_node": 1}:  # only weights that the engine can load
            assert remedy.fields.get("options.weight_dtypes") in (None, ("fp8",))


def test_nothing_is_proposed_where_something_fits() -> None:
    assert plan(DEFAULT).nearest_row() is None
    assert helpful_changes(plan(DEFAULT)) == []


@over("kind limits", table("search", "limits"))
def test_looser_limits_let_the_named_split_in(kind: str, limits: dict[str, float]) -> None:
    changes = TRAINING if kind == "training" else {}
    fields = {f"objective.limits.{name}": value for name, value in limits.items()}
    board = planned(changes | fields)
    assert not len(board.order)
    [looser] = looser_limits(board)
    assert sorted(looser.fields) == sorted(fields)
    if len(limits) == 1:
        assert looser.candidate == board.candidate(board.nearest_row())
    elif changes:
        assert [len(board.reasons(row)) for row in board.beyond_limits()[:3]] == [2, 2, 2]
    assert looser.key in {split.key for split in planned(changes | looser.fields).ranked}
