"""Choices beside the best split: each is what its own plan says, and improves or trades."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

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

LLAMA = {"model": "meta-llama/Llama-3.1-70B-Instruct"}
LIMITED = LLAMA | {
    "objective.limits.tpot_ms": "40",
    "objective.optimize": "cost",
    "workload.concurrency": "64",
}
CASES: dict[str, dict[str, str]] = {
    "throughput": LLAMA,
    "cost": LIMITED,
    "sure": LIMITED | {"objective.confidence": "0.8"},
    "searched": LLAMA | {"objective.limits.tpot_ms": "40", "objective.optimize": "cost"},
    "latency": LLAMA | {"objective.orientation": "latency"},
    "l40s": {
        "model": "Qwen/Qwen3-32B",
        "hardware.device": "l40s",
        "objective.optimize": "cost",
    },
    "unpriced": {
        "model": "Qwen/Qwen3-32B",
        "hardware.device": "gh200-144gb",
        "objective.optimize": "cost",
    },
    "stated": LLAMA
    | {
        "candidate.engine": "vllm",
        "candidate.tp": "8",
        "candidate.pp": "1",
        "candidate.dp": "1",
    },
    "clusters": LLAMA
    | {"options.hardware": '[{"device":"mi300x","per_node":8}]', "objective.optimize": "cost"},
    "training": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "workload.kind": "training",
        "workload.tokens": "1e10",
    },
    "cpu": {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": "1"},
}


@cache
def planned(name: str) -> Plan:
    request, ignored = from_query(CASES[name])
    assert not ignored
    return plan(request)


@pytest.mark.parametrize("name", CASES)
def test_each_is_what_its_own_plan_says(name: str) -> None:
    before = planned(name)
    choices = alternatives(before)
    assert choices
    assert len({one.kind for one in choices}) == len(choices) <= 5
    for one in choices:
        after = plan(change(before.request, one.fields))
        row = after.find(one.key)
        assert row is not None, one
        assert after.feasible[row]
        assert after.candidate(row) == one.candidate
        assert after.raw("gpus")[row] == one.devices
        assert one.figure in {after.text(measure, row) for measure in after.measures}
        assert one.label.startswith(f"{one.what}: ")


@pytest.mark.parametrize("name", CASES)
def test_each_improves_the_goal_or_gains_something_for_it(name: str) -> None:
    choices = alternatives(planned(name))
    better = [one.better for one in choices if one.kind != "sure"]
    assert better == sorted(better, reverse=True)  # those that improve come first
    for one in choices:
        assert one.better != bool(one.gained)
        if one.better and len(planned(name).request.objective.goals) == 1:
            assert abs(one.change) >= LEAST_GAIN * 0.9
        if not one.better:
            assert one.kind in (
                "fewer",
                "more",
                "sure",
            )  # another format without a gain is no choice


def test_cheaper_formats_of_engine_and_device_are_offered() -> None:
    by_kind = {one.kind: one for one in alternatives(planned("cost"))}
    assert by_kind["weights"].fields == {"options.weight_dtypes": ("fp8",)}
    assert by_kind["weights"].change < -0.1
    assert by_kind["weights"].formats
    assert by_kind["cache"].what == "fp8 cache"
    assert by_kind["checkpoint"].fields["model"] != LLAMA["model"]
    assert by_kind["more"].gained
    assert not by_kind["more"].formats


def test_a_device_without_fp8_is_offered_none() -> None:
    request, _ = from_query(LIMITED | {"hardware.device": "a100-sxm-80gb"})
    chosen = plan(request)
    kinds = chosen.problem.cluster.device
    for one in alternatives(chosen):
        if one.kind == "cache":
            assert one.what.removesuffix(" cache") in kinds.kv_dtypes
        if one.kind == "weights":
            assert one.what.removesuffix(" weights") in kinds.weight_dtypes


def test_a_stated_split_is_left_to_the_ranking_again() -> None:
    for one in alternatives(planned("stated")):
        if one.kind not in ("fewer", "more"):
            assert one.fields["candidate"] is None


def test_nothing_is_planned_beside_a_large_plan() -> None:
    request, _ = from_query(CASES["training"] | {"hardware.nodes": "2"})
    large = plan(request)
    assert len(large) > MOST_ROWS
    assert {one.kind for one in alternatives(large)} <= {"fewer", "more"}
    assert all("hardware.nodes" not in one.fields for one in alternatives(large))


def test_nothing_is_offered_where_nothing_runs() -> None:
    request, _ = from_query(LLAMA | {"hardware.per_node": "1"})
    assert alternatives(plan(request)) == []


def test_the_safe_split_is_the_best_of_the_sure_ones() -> None:
    request, _ = from_query(LIMITED | {"objective.limits.tpot_ms": "35"})
    doubtful = plan(request)
    best = doubtful.best_row
    assert best is not None
    assert doubtful.confidence([best])[0] < SURE
    safe = safer(doubtful, best)
    assert safe is not None
    assert doubtful.confidence([safe])[0] >= SURE
    ranked = [int(row) for row in doubtful.order]
    before = ranked[: ranked.index(safe)]
    assert all(doubtful.confidence([row])[0] < SURE or doubtful.queues[row] for row in before)
    asked = plan(change(request, {"objective.confidence": SURE}))
    assert asked.best_row is not None
    assert asked.candidate(asked.best_row) == doubtful.candidate(safe)


def test_none_is_safer_than_a_sure_one_or_without_limits() -> None:
    sure = planned("throughput")
    assert sure.best_row is not None
    assert safer(sure, sure.best_row) is None
    limited = planned("cost")
    assert limited.best_row is not None
    if limited.confidence([limited.best_row])[0] >= SURE:
        assert safer(limited, limited.best_row) is None


def test_a_plan_gives_the_same_in_another_process() -> None:
    before = planned("clusters")
    first = alternatives(before)
    assert [one.label for one in alternatives(pickle.loads(pickled(before)))] == [
        one.label for one in first
    ]


@pytest.mark.parametrize(
    ("share", "text"), [(-0.152, "−15 %"), (0.001, "same"), (12.0, "+1,200 %"), (-0.004, "same")]
)
def test_shares_are_whole_percents(share: float, text: str) -> None:
    assert share_text(share) == text


def test_plain_values_say_the_same() -> None:
    one = alternatives(planned("cost"))[0]
    value: dict[str, Any] = one.to_json()
    assert value["set"] == dict(one.fields)
    assert value["label"] == one.label


def test_a_searched_load_that_may_miss_its_limit_is_offered_a_surer_one_first() -> None:
    searched = planned("searched")
    best = searched.best_row
    assert best is not None
    assert searched.confidence([best])[0] < SURE
    first = alternatives(searched)[0]
    assert first.kind == "sure"
    assert first.fields == {"objective.confidence": SURE}
    assert first.change > 0  # it costs more
    sure = plan(change(searched.request, first.fields))
    assert sure.best_row is not None
    assert sure.confidence([sure.best_row])[0] >= SURE
    assert "keeps the limit with 8" in first.label
