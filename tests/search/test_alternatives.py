"""Choices beside the best split: each is what its own plan says, and improves or trades."""

from __future__ import annotations

import pickle
from functools import cache

import pytest

from recipe_core.doors.worker import pickled
from recipe_core.request.edit import change
from recipe_core.request.link import from_query
from recipe_core.search.alternatives import (
    LEAST_GAIN,
    MOST_ROWS,
    SURE,
    alternatives,
    safer,
    share_text,
)
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan
from tests.fixtures.rows import table

CASES = table("alternatives", "plans")
LLAMA, LIMITED = CASES["throughput"], CASES["cost"]


def planned_from(query: dict[str, str]) -> Plan:
    request, ignored = from_query(query)
    assert not ignored
    return plan(request)


@cache
def planned(name: str) -> Plan:
    return planned_from(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_is_what_its_own_plan_says_and_improves_the_goal_or_gains_for_it(name: str) -> None:
    before = planned(name)
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


def test_cheaper_formats_that_engine_and_device_have_are_offered() -> None:
    choices = alternatives(planned("cost"))
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
    chosen = planned_from(LIMITED | {"hardware.device": "a100-sxm-80gb"})
    device = chosen.problem.cluster.device
    for choice in alternatives(chosen):
        if choice.kind == "cache":
            assert choice.what.removesuffix(" cache") in device.kv_dtypes
        if choice.kind == "weights":
            assert choice.what.removesuffix(" weights") in device.weight_dtypes


def test_nothing_is_planned_beside_a_large_plan_or_where_nothing_runs() -> None:
    large = planned_from(CASES["training"] | {"hardware.nodes": "2"})
    assert len(large) > MOST_ROWS
    choices = alternatives(large)
    assert {choice.kind for choice in choices} <= {"fewer", "more"}
    assert all("hardware.nodes" not in choice.fields for choice in choices)
    assert alternatives(planned_from(LLAMA | {"hardware.per_node": "1"})) == []


def test_the_safe_split_is_the_best_of_the_sure_ones() -> None:
    doubtful = planned_from(LIMITED | {"objective.limits.tpot_ms": "35"})
    best = doubtful.best_row
    assert doubtful.confidence([best])[0] < SURE
    safe = safer(doubtful, best)
    assert doubtful.confidence([safe])[0] >= SURE
    ranked = [int(row) for row in doubtful.order]
    before = ranked[: ranked.index(safe)]
    assert all(doubtful.confidence([row])[0] < SURE or doubtful.queues[row] for row in before)
    asked = plan(change(doubtful.request, {"objective.confidence": SURE}))
    assert asked.candidate(asked.best_row) == doubtful.candidate(safe)
    free, limited = planned("throughput"), planned("cost")
    assert safer(free, free.best_row) is None
    if limited.confidence([limited.best_row])[0] >= SURE:
        assert safer(limited, limited.best_row) is None


def test_a_plan_gives_the_same_in_another_process() -> None:
    before = planned("clusters")
    labels, sent = (
        [choice.label for choice in alternatives(splits)]
        for splits in (before, pickle.loads(pickled(before)))
    )
    assert labels == sent


def test_shares_are_whole_percents() -> None:
    shares = {-0.152: "−15 %", 0.001: "same", 12.0: "+1,200 %", -0.004: "same"}
    assert {share: share_text(share) for share in shares} == shares


def test_a_searched_load_that_may_miss_its_limit_is_offered_a_surer_one_first() -> None:
    searched = planned("searched")
    best = searched.best_row
    assert searched.confidence([best])[0] < SURE
    first = alternatives(searched)[0]
    assert (first.kind, first.fields) == ("sure", {"objective.confidence": SURE})
    assert first.change > 0  # it costs more
    assert "keeps the limit with 8" in first.label
    sure = plan(change(searched.request, first.fields))
    assert sure.confidence([sure.best_row])[0] >= SURE
