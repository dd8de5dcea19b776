"""Serving and training are planned alike: one form of answers, and no field that is passed over."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from recipe_core.doors.api import create_api
from recipe_core.request.edit import RUN_LIMITS, change
from recipe_core.request.objective import Limits, Objective
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.search.limits import LIMITS
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan
from recipe_core.search.problem import TRAINING_GOALS
from recipe_core.search.rows import TIED
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

SERVING = request_values("meta-llama/Llama-3.1-8B-Instruct", per_node=4)
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64},
}
REQUESTS = {"serving": SERVING, "training": TRAINING}
SPLITS = {
    "serving": {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1},
    "training": {"engine": "torchtitan", "tp": 2, "pp": 1, "dp": 4}
    | {"zero_stage": 3, "micro_batch": 1},
}
HUGE = {"model": "meta-llama/Llama-3.1-405B"}

kinds = pytest.mark.parametrize("kind", REQUESTS)


@cache
def plain(kind: str) -> Plan:
    return planned(REQUESTS[kind])


def planned(values: dict[str, Any]) -> Plan:
    return plan(PlanRequest.parse(values))


def training_with(field: str, value: Any, **limits: float) -> Plan:
    """The plan of a run with a field changed; a limit on a whole run needs its tokens.

    ``limits``: beside the field, which means nothing without.
    """
    named = [*limits, *(value if isinstance(value, dict) else field.split("."))]
    whole = any(name in named for name in RUN_LIMITS)
    values = _with(TRAINING, "workload.tokens", 2e9) if whole else TRAINING
    for name, limit in limits.items():
        values = _with(values, f"objective.limits.{name}", limit)
    return planned(_with(values, field, value))


def _with(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of plain values with one dotted field set."""
    first, _, rest = path.partition(".")
    return {**values, first: _with(values.get(first, {}), rest, value) if rest else value}


HONOURED, REFUSED = table("one_plan", "honoured"), table("one_plan", "refused")


def keys_of(splits: Plan) -> list[str]:
    return [split.key for split in splits.ranked]


def test_every_field_is_honoured_or_refused_and_every_limit_of_training_tried() -> None:
    fields = [f"objective.{name}" for name in Objective.model_fields if name != "limits"]
    fields += [f"objective.limits.{name}" for name in Limits.model_fields]
    fields += [f"options.{name}" for name in Options.model_fields]
    kept_running = "options.supervision"  # of a split that is chosen already
    assert sorted([*HONOURED, *REFUSED, kept_running]) == sorted(fields)
    names = [limit.name for limit in LIMITS.values() if "training" in limit.kinds]
    assert sorted(names) == sorted(SHARED)


@over("field value", HONOURED.items())
def test_what_training_honours_changes_its_plan(field: str, value: Any) -> None:
    beside = {"usd": 450.0} if field == "objective.confidence" else {}
    changed = training_with(field, value, **beside)
    assert len(changed.order)
    before = training_with("objective.limits", beside) if beside else plain("training")
    assert keys_of(changed) != keys_of(before)


@kinds
def test_a_confidence_is_honoured_by_both_kinds(kind: str) -> None:
    limits = {"serving": {"tpot_ms": 12.0}, "training": {"wall_hours": 30.0}}[kind]
    values = _with(REQUESTS[kind], "objective.limits", limits)
    if kind == "training":
        values = _with(values, "workload.tokens", 2e9)
    likely, sure = planned(values), planned(_with(values, "objective.confidence", 0.95))
    assert 0 < len(sure.order) < len(likely.order)
    assert (sure.confidence(sure.order) >= 0.95).all()
    assert set(sure.order) == {row for row in likely.order if likely.confidence([row])[0] >= 0.95}


@over("field value", REFUSED.items())
def test_what_only_serving_has_is_refused_with_a_fix(field: str, value: Any) -> None:
    error = refusal(training_with, field, value)
    assert (error.field, bool(error.hint)) == (field, True)
    assert "serving" in error.message
    assert len(planned(_with(SERVING, field, value)))  # and serving takes it


def test_goals_of_requests_are_refused_for_a_run() -> None:
    for goal in ("latency", "ttft", "tpot", "accuracy"):
        weights = refusal(training_with, "objective.weights", {"cost": 1.0, goal: 1.0})
        single = refusal(training_with, "objective.optimize", goal)
        assert weights.field == f"objective.weights.{goal}"
        assert single.field == "objective.optimize"
        for error in (weights, single):
            assert all(name in (error.hint or "") for name in TRAINING_GOALS)


def test_defaults_that_are_written_out_are_not_refused() -> None:
    whole = PlanRequest.parse(TRAINING).to_json()
    optional = {"scaling", "kv_offload", "compression"}
    assert set(whole["options"]) == set(Options.model_fields) - optional
    assert keys_of(planned(whole)) == keys_of(plain("training"))


GOALS = {
    "throughput": ("tokens_per_s", -1),
    "cost": ("usd_per_million_tokens", 1),
    "gpus": ("gpus", 1),
    "energy": ("joules_per_token", 1),
}


@over("weights", table("one_plan", "weights"))
def test_weights_rank_as_columns_multiplied_by_hand(weights: dict[str, float]) -> None:
    frame = training_with("objective.weights", weights).to_frame()
    ranked = frame[frame["rank"].notna()].sort_values("rank")
    merit = np.ones(len(ranked))
    for goal, weight in weights.items():
        column, sign = GOALS[goal]
        merit *= ranked[column].to_numpy(dtype=float) ** (sign * weight)
    slack = 0.0011 if len(weights) == 1 else 0.011  # what ties, the simpler first
    beyond = (ranked["peak_memory_bytes"] > ranked["usable_bytes"]).to_numpy()
    assert (np.diff(beyond.astype(int)) >= 0).all()  # within the error of memory, but over it: last
    for group in (merit[~beyond], merit[beyond]):
        assert len(group) < 2 or group[-1] > 1.1 * group[0]
        assert (group >= np.maximum.accumulate(group) * (1 - slack)).all()


SHARED = table("one_plan", "limits")


@over("name limit", SHARED.items())
def test_a_limit_of_training_is_named_with_its_figure_and_a_change_that_works(
    name: str, limit: list[Any]
) -> None:
    value, label, said = limit
    splits = training_with("objective.limits", {name: value})
    assert not len(splits.order)
    row = splits.nearest_row()
    rule = next(rule for rule in LIMITS.values() if rule.name == name)
    figure = rule.show(float(splits.columns[rule.column][row]))
    assert splits.reasons(row) == [f"{label} {figure} exceeds the limit of {said}"]
    (looser,) = splits.changes()
    assert list(looser.fields) == [f"objective.limits.{name}"]
    assert looser.key in keys_of(plan(change(splits.request, looser.fields)))
    answer = splits.to_json(0, len(splits))
    assert answer["counts"]["refused"] == len(splits) >= int(splits.runs.sum())
    assert all(row["reasons"] for row in answer["refused"])


def shape(values: Any) -> Any:
    """Names of an answer at every depth that is not a split or its estimate."""
    if isinstance(values, list):
        return [shape(values[0])] if values else []
    if isinstance(values, dict):
        return {
            name: None if name in ("candidate", "estimate", "set") else shape(value)
            for name, value in values.items()
        }
    return None


def test_json_of_both_kinds_has_the_same_names() -> None:
    serving, training = (shape(plain(kind).to_json()) for kind in REQUESTS)
    assert serving == training
    case = "rank candidate state bundle estimate pareto beats_best confidence"
    assert set(training["candidates"][0]) == set(case.split())
    counts = "candidates feasible holds queues uncertain refused tied_with_best"
    assert set(training["counts"]) == set(counts.split())
    serving, training = (
        shape(plan(change(PlanRequest.parse(values), HUGE)).to_json())
        for values in REQUESTS.values()
    )
    assert serving == training  # where nothing runs, too
    assert training["candidates"] == []
    assert set(training["nearest"]) == {"candidate", "estimate", "reasons", "changes"}
    assert training["nearest"]["changes"]


@kinds
def test_splits_of_a_plan_and_its_frame(kind: str) -> None:
    splits = plain(kind)
    best = splits.best
    assert best == splits.ranked[0]
    assert (best.feasible, best.rank, best.reasons) == (True, 1, [])
    assert [split.rank for split in splits.ranked[:3]] == [1, 2, 3]
    assert len(splits.ranked) + len(splits.refused) == len(splits)
    refused = splits.refused[0]
    assert (refused.feasible, refused.rank) == (False, None)
    assert refused.reasons
    assert splits.changes() == []
    for split in (best, refused):
        alone = plan(split.request)
        row = alone.find(split.key)
        assert alone.candidate(row) == split.candidate
        assert alone.estimate(row) == split.estimate
    frame = splits.to_frame()
    assert set(splits.columns) | {"engine", "rank", "pareto", "reasons"} <= set(frame.columns)
    assert frame["rank"].dropna().sort_values().tolist() == list(range(1, len(splits.order) + 1))
    assert ((frame["reasons"] == "") == frame["feasible"]).all()
    first = frame[frame["rank"] == 1].iloc[0]
    named = {name: value for name, value in best.candidate.items() if name in frame.columns}
    assert {name: first[name] for name in named} == named


@kinds
def test_json_says_what_splits_say(kind: str) -> None:
    splits = plain(kind)
    view = splits.to_json(2, 3)
    for listed, split in zip(view["candidates"], splits.ranked[:2], strict=True):
        assert listed["rank"] == split.rank
        assert listed["candidate"] == split.candidate
        assert listed["estimate"] == split.estimate.to_json()
        assert listed["pareto"] is (split.row in splits.pareto().rows)
    assert [row["reasons"] for row in view["refused"]] == [
        splits.reasons(int(row)) for row in np.flatnonzero(~splits.feasible)[:3]
    ]
    chances = splits.beats(splits.order[1:], int(splits.order[0]))
    assert [listed["beats_best"] for listed in view["candidates"]] == [None, chances[0]]
    counts = view["counts"]
    assert counts == {
        "candidates": len(splits),
        "feasible": len(splits.ranked),
        "holds": int(splits.holds.sum()),
        "queues": int((splits.feasible & splits.queues).sum()),
        "uncertain": int((splits.feasible & splits.uncertain).sum()),
        "refused": len(splits.refused),
        "tied_with_best": sum(chance is not None and chance >= TIED for chance in chances),
    }
    assert sum(counts[name] for name in ("holds", "queues", "uncertain")) == len(splits.ranked)
    assert view["nearest"] is None


@kinds
def test_no_split_of_a_front_is_beaten(kind: str) -> None:
    splits = plain(kind)
    for names in (splits.frontier_columns, (*splits.frontier_columns, "gpus")):
        front = splits.pareto(*names) if "gpus" in names else splits.pareto()
        assert len(front) >= 2
        less_is_better = [
            splits.columns[name] * (-1.0 if "tokens_per_s" in name else 1.0) for name in names
        ]
        values = np.stack(less_is_better, axis=1)
        for split in front:
            no_worse = (values[splits.order] <= values[split.row]).all(axis=1)
            better = (values[splits.order] < values[split.row]).any(axis=1)
            assert not (no_worse & better).any()
        on = values[[split.row for split in front]]
        beaten = set(splits.order.tolist()) - {split.row for split in front}
        assert all((on <= values[row]).all(axis=1).any() for row in beaten)
    assert "two or three columns" in str(refusal(splits.pareto, "gpus", "colour"))


@pytest.mark.parametrize("kind", ["serving", pytest.param("training", marks=pytest.mark.nightly)])
def test_sensitivity_is_really_planned_and_answers_on_the_command_line(
    kind: str, tmp_path: Path
) -> None:
    splits = plain(kind)
    flips = splits.sensitivity()
    assert len(flips) >= 4
    assert {flip.flips for flip in flips} <= {True, False}
    for flip in flips:
        after = plan(change(splits.request, flip.fields)).best
        assert flip.candidate == (after and after.candidate)
        if after is not None and splits.best and flip.flips is False:
            for name in ("engine", "tp", "pp", "dp"):
                assert after.candidate[name] == splits.best.candidate[name]
    file = written(tmp_path, REQUESTS[kind])
    answer = json.loads(recipe("plan", file, "--sensitivity", "--json").stdout)
    assert answer["sensitivity"] == json.loads(json.dumps([flip.to_json() for flip in flips]))
    text = recipe("plan", file, "--sensitivity").stdout
    assert all(f"  {flip['what']}: " in text for flip in answer["sensitivity"])


@pytest.fixture(scope="module")
def api() -> TestClient:
    return TestClient(create_api(folders=False))


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "request.json"
    path.write_text(json.dumps(values))
    return str(path)


@kinds
def test_check_answers_for_a_split_with_a_better_one_or_says_why_not(
    kind: str, api: TestClient, tmp_path: Path
) -> None:
    values = REQUESTS[kind] | {"candidate": SPLITS[kind]}
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is True
    assert SPLITS[kind].items() <= verdict["candidate"].items()
    best = plain(kind).best
    assert verdict["better"] == {"candidate": best.candidate, "estimate": best.estimate.to_json()}
    done = recipe("check", written(tmp_path, values), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == verdict
    text = recipe("check", written(tmp_path, values)).stdout
    assert text.startswith("yes: it can run")
    assert "better: " in text

    values = REQUESTS[kind] | {"candidate": SPLITS[kind] | {"dp": 16}}
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is False
    assert any("devices; only" in reason for reason in verdict["reasons"])
    done = recipe("check", written(tmp_path, values))
    assert done.returncode == 1
    assert done.stdout.startswith("no: it cannot run")


@kinds
def test_check_offers_changes_where_nothing_runs(kind: str, api: TestClient) -> None:
    request = change(PlanRequest.parse(REQUESTS[kind]), HUGE)
    verdict = api.post("/check", json=request.to_json()).json()
    assert (verdict["ok"], verdict["better"]) == (False, None)
    assert verdict["changes"]
    for offered in verdict["changes"]:
        after = plan(change(request, offered["set"]))
        assert after.best.candidate == offered["candidate"]


@pytest.mark.parametrize(
    ("kind", "other"), [("serving", {"zero_stage": 3}), ("training", {"max_num_seqs": 1})]
)
def test_a_candidate_field_of_the_other_kind_is_an_error_at_every_door(
    kind: str, other: dict[str, Any], api: TestClient, tmp_path: Path
) -> None:
    values = REQUESTS[kind] | {"candidate": other}
    field = f"candidate.{next(iter(other))}"
    assert refusal(planned, values).field == field
    for question in ("plan", "estimate", "check"):
        answer = api.post(f"/{question}", json=values)
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
        done = recipe(question, written(tmp_path, values))
        assert done.returncode == 2
        assert field in done.stderr
    kv = refusal(planned, TRAINING | {"candidate": {"kv_dtype": "fp8"}})
    assert kv.field == "candidate.kv_dtype"
