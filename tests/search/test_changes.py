"""What lets splits run, and choices beside the best: each is applied and judged again."""

import pickle
from functools import cache

import pytest

from recipe_core.base.labels import change_label
from recipe_core.doors.worker import pickled
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query
from recipe_core.search.alternatives import (
    LEAST_GAIN,
    MOST_ROWS,
    SURE,
    alternatives,
    safer,
    share_text,
)
from recipe_core.search.changes import fixes, helpful_changes, looser_limits, nearest_feasible
from recipe_core.search.plans import plan
from recipe_core.search.serving_plan import ServingPlan
from tests.fixtures.rows import over, table

CASES = table("alternatives", "plans")
LLAMA, LIMITED = CASES["throughput"], CASES["cost"]


def planned(query):
    request, ignored = from_query(query)
    assert not ignored
    return plan(request)


@cache
def case(name):
    return planned(CASES[name])


@over("changes code", table("search", "fixed"))
def test_a_change_that_is_offered_lets_the_split_run(changes, code):
    board = plan(change(DEFAULT, changes))
    rows = [int(row) for row in board.refused_rows() if code in board.codes(int(row))]
    row, fix = next((row, fix) for row in rows for fix in fixes(board, row) if fix.fields)
    after = plan(change(board.request, fix.fields))
    key = board.key(row)
    if weights := fix.fields.get("options.weight_dtypes"):
        key = key.replace(".bf16.", f".{weights[0]}.", 1)
    assert after.feasible[after.find(key)]
    assert change_label(fix.fields)


@pytest.mark.parametrize("query", [LLAMA, {"workload.kind": "training", "hardware.nodes": "2"}])
def test_the_nearest_split_that_fits_differs_least(query):
    board = planned(query)
    row = int(board.refused_rows()[0])
    near = nearest_feasible(board, row)
    assert board.feasible[near]
    assert fixes(board, row)[-1].key == board.key(near)
    assert fixes(board, near) == []
    if query == LLAMA:
        odd = nearest_feasible(board, board.find("vllm.bf16.bf16.tp7.pp1.dp1.ep1"))
        assert board.key(odd) == "vllm.bf16.bf16.tp8.pp1.dp1.ep1"


@over("changes", table("search", "nothing_fits"))
def test_where_nothing_fits_changes_let_something_in(changes):
    board = plan(change(DEFAULT, changes))
    assert board.best is None
    offered = helpful_changes(board)
    assert 1 <= len(offered) <= 3
    assert [remedy.fields for remedy in board.changes()] == [remedy.fields for remedy in offered]
    for remedy in offered:
        after = plan(change(board.request, remedy.fields))
        assert after.best.candidate == remedy.candidate
        assert remedy.split == after.label(after.best_row) or isinstance(after, ServingPlan)
        assert str(remedy).startswith(next(iter(remedy.fields)))
        if changes == LLAMA | {"hardware.per_node": 1}:  # only weights that the engine can load
            assert remedy.fields.get("options.weight_dtypes") in (None, ("fp8",))
    free = case("throughput")
    assert (free.nearest_row(), helpful_changes(free)) == (None, [])


@over("kind limits", table("search", "limits"))
def test_looser_limits_let_the_named_split_in(kind, limits):
    fields = {f"objective.limits.{name}": value for name, value in limits.items()}
    base = change(DEFAULT, {"workload.kind": kind})
    board = plan(change(base, fields))
    assert not len(board.order)
    [looser] = looser_limits(board)
    assert sorted(looser.fields) == sorted(fields)
    if len(limits) == 1:
        assert looser.candidate == board.candidate(board.nearest_row())
    elif kind == "training":
        assert [len(board.reasons(row)) for row in board.beyond_limits()[:3]] == [2, 2, 2]
    assert looser.key in {split.key for split in plan(change(base, looser.fields)).ranked}


@pytest.mark.parametrize("name", CASES)
def test_each_is_what_its_own_plan_says_and_improves_the_goal_or_gains_for_it(name):
    before = case(name)
    choices = alternatives(before)
    assert choices
    assert len({choice.kind for choice in choices}) == len(choices) <= 5
    better = [choice.better for choice in choices if choice.kind != "sure"]
    assert better == sorted(better, reverse=True)  # those that improve come first
    for choice in choices:
        after = plan(change(before.request, choice.fields))
        row = after.find(choice.key)
        assert row is not None, choice
        assert after.feasible[row]
        assert after.candidate(row) == choice.candidate
        assert after.raw("gpus")[row] == choice.devices
        assert choice.figure in {after.text(measure, row) for measure in after.measures}
        assert choice.label.startswith(f"{choice.what}: ")
        assert choice.better != bool(choice.gained)
        if choice.better and len(before.request.objective.goals) == 1:
            assert abs(choice.change) >= LEAST_GAIN * 0.9
        if not choice.better:  # another format without a gain is no choice
            assert choice.kind in ("fewer", "more", "sure")
        if name == "stated" and choice.kind not in ("fewer", "more"):
            assert choice.fields["candidate"] is None  # left to the ranking again
    if name == "clusters":  # another process gives the same
        sent = alternatives(pickle.loads(pickled(before)))
        assert [choice.label for choice in sent] == [choice.label for choice in choices]


def test_cheaper_formats_that_engine_and_device_have_are_offered():
    choices = alternatives(case("cost"))
    value = choices[0].to_json()
    assert (value["set"], value["label"]) == (dict(choices[0].fields), choices[0].label)
    by_kind = {choice.kind: choice for choice in choices}
    assert by_kind["weights"].fields == {"options.weight_dtypes": ("fp8",)}
    assert by_kind["weights"].change < -0.1
    assert by_kind["weights"].formats
    assert by_kind["cache"].what == "fp8 cache"
    assert by_kind["checkpoint"].fields["model"] != LLAMA["model"]
    assert by_kind["more"].gained
    assert not by_kind["more"].formats
    chosen = planned(LIMITED | {"hardware.device": "a100-sxm-80gb"})
    device = chosen.problem.cluster.device
    known = {"cache": device.kv_dtypes, "weights": device.weight_dtypes}
    for choice in alternatives(chosen):
        if choice.kind in known:
            assert choice.what.removesuffix(f" {choice.kind}") in known[choice.kind]


def test_nothing_is_planned_beside_a_large_plan_or_where_nothing_runs():
    large = planned(CASES["training"] | {"hardware.nodes": "2"})
    assert len(large) > MOST_ROWS
    choices = alternatives(large)
    assert {choice.kind for choice in choices} <= {"fewer", "more"}
    assert all("hardware.nodes" not in choice.fields for choice in choices)
    assert alternatives(planned(LLAMA | {"hardware.per_node": "1"})) == []
    shares = {-0.152: "−15 %", 0.001: "same", 12.0: "+1,200 %", -0.004: "same"}
    assert {share: share_text(share) for share in shares} == shares


def test_the_safe_split_is_the_best_of_the_sure_ones_and_a_surer_load_is_offered_first():
    doubtful = planned(LIMITED | {"objective.limits.tpot_ms": "35"})
    best = doubtful.best_row
    assert doubtful.confidence([best])[0] < SURE
    safe = safer(doubtful, best)
    assert doubtful.confidence([safe])[0] >= SURE
    ranked = [int(row) for row in doubtful.order]
    before = ranked[: ranked.index(safe)]
    assert all(doubtful.confidence([row])[0] < SURE or doubtful.queues[row] for row in before)
    asked = plan(change(doubtful.request, {"objective.confidence": SURE}))
    assert asked.candidate(asked.best_row) == doubtful.candidate(safe)
    free, limited = case("throughput"), case("cost")
    assert safer(free, free.best_row) is None
    if limited.confidence([limited.best_row])[0] >= SURE:
        assert safer(limited, limited.best_row) is None
    searched = case("searched")
    assert searched.confidence([searched.best_row])[0] < SURE
    first = alternatives(searched)[0]
    assert (first.kind, first.fields) == ("sure", {"objective.confidence": SURE})
    assert first.change > 0  # it costs more
    assert "keeps the limit with 8" in first.label
    sure = plan(change(searched.request, first.fields))
    assert sure.confidence([sure.best_row])[0] >= SURE
