"""Serving and training are planned alike: one form of answers, and no field that is passed over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from recipe_core.base.errors import InputError
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

SERVING = request_values("meta-llama/Llama-3.1-8B-Instruct", per_node=4)
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64},
}
SPLIT = {"engine": "torchtitan", "tp": 2, "pp": 1, "dp": 4, "zero_stage": 3, "micro_batch": 1}
REQUESTS = {"serving": SERVING, "training": TRAINING}
HUGE = {"model": "meta-llama/Llama-3.1-405B"}

kinds = pytest.mark.parametrize("kind", REQUESTS)


def request(kind: str, **fields: Any) -> PlanRequest:
    """The request of a kind, changed: ``objective__optimize`` is ``objective.optimize``."""
    edits = {name.replace("__", "."): value for name, value in fields.items()}
    return change(PlanRequest.parse(REQUESTS[kind]), edits)


@cache
def plain(kind: str) -> Plan:
    return plan(request(kind))


def training_with(field: str, value: Any, **limits: float) -> Plan:
    """The plan of a run with a field changed; a limit on a whole run needs its tokens.

    ``limits``: beside the field, which means nothing without.
    """
    named = [*limits, *(value if isinstance(value, dict) else field.split("."))]
    whole = any(name in named for name in RUN_LIMITS)
    values = _with(TRAINING, "workload.tokens", 2e9) if whole else TRAINING
    for name, limit in limits.items():
        values = _with(values, f"objective.limits.{name}", limit)
    return plan(PlanRequest.parse(_with(values, field, value)))


def _with(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of plain values with one dotted field set."""
    first, _, rest = path.partition(".")
    return {**values, first: _with(values.get(first, {}), rest, value) if rest else value}


# Every field is honoured or refused

HONOURED: dict[str, Any] = {
    "objective.optimize": "gpus",
    "objective.weights": {"throughput": 1.0, "gpus": 2.0},
    "objective.confidence": 0.95,
    "objective.limits.usd_per_hour": 10.0,
    "objective.limits.wall_hours": 20.0,
    "objective.limits.usd": 200.0,
    "objective.limits.joules_per_token": 0.1,
    "objective.limits.watts": 2000.0,
    "objective.limits.gpus": 4,
    "options.engines": ["megatron", "torchtitan"],
    "options.nodes": "all",
    "options.hardware": [{"device": "mi300x"}],
}
"""What a training plan takes into account, with values that change it."""

REFUSED: dict[str, Any] = {
    "objective.orientation": "latency",
    "objective.limits.ttft_ms": 100.0,
    "objective.limits.tpot_ms": 20.0,
    "objective.limits.request_latency_ms": 5000.0,
    "objective.limits.percentile": 95,
    "objective.limits.usd_per_million_output_tokens": 1.0,
    "objective.limits.output_tokens_per_s_at_least": 1000.0,
    "objective.limits.accuracy_recovery": 0.95,
    "objective.accuracy_of": "math",
    "options.weight_dtypes": ["fp8"],
    "options.kv_dtypes": ["fp8"],
    "options.loads": [8],
    "options.max_batched_tokens": [2048],
    "options.batch_windows_ms": [5],
    "options.speculative": [{"tokens": 3, "acceptance": 0.7}],
    "options.context_parallel": True,
    "options.disaggregated": True,
    "options.engine_options": {"tool_call_parser": "hermes"},
    "options.environment": {"NCCL_SOCKET_IFNAME": "eth0"},
    "options.kv_offload": {"host_gib": 64},
    "options.compression": {"technique": "int4_weight_only"},
    "options.scaling": {"max_replicas": 4},
    "options.start": {"node": "ready"},
}
"""What a training plan has no use for."""


BESIDE = ("options.supervision",)
"""What says how a split is kept running, once it is chosen."""


def decided_fields() -> Iterator[str]:
    """Every field of objective, limits and options by its dotted name."""
    yield from (f"objective.{name}" for name in Objective.model_fields if name != "limits")
    yield from (f"objective.limits.{name}" for name in Limits.model_fields)
    yield from (f"options.{name}" for name in Options.model_fields)


def summed_up(table: Plan) -> list[str]:
    return [split.key for split in table.ranked]


def test_every_field_is_honoured_or_refused() -> None:
    assert sorted([*HONOURED, *REFUSED, *BESIDE]) == sorted(decided_fields())


@pytest.mark.parametrize(("field", "value"), HONOURED.items(), ids=list(HONOURED))
def test_what_training_honours_changes_its_plan(field: str, value: Any) -> None:
    beside = {"usd": 450.0} if field == "objective.confidence" else {}
    changed = training_with(field, value, **beside)
    assert len(changed.order)
    before = training_with("objective.limits", beside) if beside else plain("training")
    assert summed_up(changed) != summed_up(before)


@kinds
def test_a_confidence_is_honoured_by_both_kinds(kind: str) -> None:
    limits = {"serving": {"tpot_ms": 12.0}, "training": {"wall_hours": 30.0}}[kind]
    values = _with(REQUESTS[kind], "objective.limits", limits)
    if kind == "training":
        values = _with(values, "workload.tokens", 2e9)
    likely = plan(PlanRequest.parse(values))
    sure = plan(PlanRequest.parse(_with(values, "objective.confidence", 0.95)))
    assert 0 < len(sure.order) < len(likely.order)
    assert (sure.confidence(sure.order) >= 0.95).all()
    assert set(sure.order) == {row for row in likely.order if likely.confidence([row])[0] >= 0.95}


@pytest.mark.parametrize(("field", "value"), REFUSED.items(), ids=list(REFUSED))
def test_what_only_serving_has_is_refused_with_a_fix(field: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        training_with(field, value)
    assert (caught.value.field, bool(caught.value.hint)) == (field, True)
    assert "serving" in caught.value.message
    assert len(plan(PlanRequest.parse(_with(SERVING, field, value))))  # and serving takes it


@pytest.mark.parametrize("goal", ["latency", "ttft", "tpot", "accuracy"])
@pytest.mark.parametrize("field", ["objective.optimize", "objective.weights"])
def test_goals_of_requests_are_refused_for_a_run(field: str, goal: str) -> None:
    weights = field.endswith("weights")
    with pytest.raises(InputError) as caught:
        training_with(field, {"cost": 1.0, goal: 1.0} if weights else goal)
    assert caught.value.field == (f"{field}.{goal}" if weights else field)
    assert all(name in (caught.value.hint or "") for name in TRAINING_GOALS)


@pytest.mark.parametrize("kind", ["serving", "training"])
def test_a_candidate_of_the_other_kind_is_refused_by_a_plan_too(kind: str) -> None:
    name, value = {"serving": ("zero_stage", 3), "training": ("kv_dtype", "fp8")}[kind]
    with pytest.raises(InputError) as caught:
        plan(PlanRequest.parse(REQUESTS[kind] | {"candidate": {name: value}}))
    assert caught.value.field == f"candidate.{name}"


def test_defaults_that_are_written_out_are_not_refused() -> None:
    whole = PlanRequest.parse(TRAINING).to_json()
    optional = {"scaling", "kv_offload", "compression"}
    assert set(whole["options"]) == set(Options.model_fields) - optional
    assert summed_up(plan(PlanRequest.parse(whole))) == summed_up(plain("training"))


# Goals

GOALS = {
    "throughput": ("tokens_per_s", -1),
    "cost": ("usd_per_million_tokens", 1),
    "gpus": ("gpus", 1),
    "energy": ("joules_per_token", 1),
}


@pytest.mark.parametrize(
    "weights",
    [
        {"throughput": 1.0, "cost": 3.0},
        {"gpus": 1.0, "energy": 1.0},
        {"throughput": 2.0, "gpus": 1.0},
        {"throughput": 1.0, "cost": 1.0, "gpus": 0.5, "energy": 2.0},
        *({goal: 1.0} for goal in GOALS),
    ],
    ids=lambda weights: "-".join(weights),
)
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


def test_weights_lie_between_their_goals() -> None:
    def best(**weights: float) -> tuple[float, float]:
        table = training_with("objective.weights", weights)
        return tuple(
            float(table.columns[name][table.order[0]]) for name in ("tokens_per_s", "gpus")
        )

    fast, small, both = best(throughput=1), best(gpus=1), best(throughput=1, gpus=0.9)
    assert fast[0] >= both[0] >= small[0]
    assert fast[1] >= both[1] >= small[1]


# Limits

SHARED = [
    ("usd_per_hour", 3.0, "cost per hour", "$3.00"),
    ("joules_per_token", 1e-4, "energy per token", "0.000100 J"),
    ("watts", 100.0, "power", "100 W"),
    ("gpus", 1, "device count", "1"),
    ("wall_hours", 2.0, "time to finish", "2.00 h"),
    ("usd", 50.0, "cost of the run", "$50.0"),
]


def test_the_limits_of_training_are_all_tried_here() -> None:
    names = [limit.name for limit in LIMITS.values() if "training" in limit.kinds]
    assert sorted(names) == sorted(name for name, *_ in SHARED)


@pytest.mark.parametrize(("name", "value", "label", "limit"), SHARED)
def test_a_limit_of_training_is_named_with_its_figure_and_a_change_that_works(
    name: str, value: float, label: str, limit: str
) -> None:
    table = training_with("objective.limits", {name: value})
    assert not len(table.order)
    row = table.nearest_row()
    assert row is not None
    rule = next(rule for rule in LIMITS.values() if rule.name == name)
    figure = rule.show(float(table.columns[rule.column][row]))
    assert table.reasons(row) == [f"{label} {figure} exceeds the limit of {limit}"]
    (looser,) = table.changes()
    assert list(looser.fields) == [f"objective.limits.{name}"]
    after = plan(change(table.request, looser.fields))
    assert looser.key in summed_up(after)
    runs = int(table.runs.sum())
    assert table.to_json(0, len(table))["counts"]["refused"] == len(table) >= runs
    assert all(row["reasons"] for row in table.to_json(0, len(table))["refused"])


def test_several_limits_of_training_are_loosened_together() -> None:
    table = training_with("objective.limits", {"watts": 100.0, "joules_per_token": 1e-4})
    assert [len(table.reasons(row)) for row in table.beyond_limits()[:3]] == [2, 2, 2]
    (looser,) = table.changes()
    assert sorted(looser.fields) == [
        "objective.limits.joules_per_token",
        "objective.limits.watts",
    ]
    assert looser.key in summed_up(plan(change(table.request, looser.fields)))


# One form


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
    assert set(training["candidates"][0]) == {
        "rank",
        "candidate",
        "state",
        "bundle",
        "estimate",
        "pareto",
        "beats_best",
        "confidence",
    }
    counts = {"candidates", "feasible", "holds", "queues", "uncertain", "refused"}
    counts |= {"tied_with_best"}
    assert set(training["counts"]) == counts


def test_json_of_both_kinds_has_the_same_names_where_nothing_runs() -> None:
    serving, training = (
        shape(plan(change(PlanRequest.parse(values), HUGE)).to_json())
        for values in REQUESTS.values()
    )
    assert serving == training
    assert training["candidates"] == []
    assert set(training["nearest"]) == {"candidate", "estimate", "reasons", "changes"}
    assert training["nearest"]["changes"]


@kinds
def test_splits_of_a_plan(kind: str) -> None:
    table = plain(kind)
    best = table.best
    assert best is not None
    assert best == table.ranked[0]
    assert (best.feasible, best.rank, best.reasons) == (True, 1, [])
    assert [split.rank for split in table.ranked[:3]] == [1, 2, 3]
    assert len(table.ranked) + len(table.refused) == len(table)
    refused = table.refused[0]
    assert (refused.feasible, refused.rank) == (False, None)
    assert refused.reasons
    assert table.changes() == []
    for split in (best, refused):
        alone = plan(split.request)
        row = alone.find(split.key)
        assert row is not None
        assert alone.candidate(row) == split.candidate
        assert alone.estimate(row) == split.estimate


@kinds
def test_json_says_what_splits_say(kind: str) -> None:
    table = plain(kind)
    view = table.to_json(2, 3)
    for listed, split in zip(view["candidates"], table.ranked[:2], strict=True):
        assert listed["rank"] == split.rank
        assert listed["candidate"] == split.candidate
        assert listed["estimate"] == split.estimate.to_json()
        assert listed["pareto"] is (split.row in table.pareto().rows)
    assert [row["reasons"] for row in view["refused"]] == [
        table.reasons(int(row)) for row in np.flatnonzero(~table.feasible)[:3]
    ]
    best = int(table.order[0])
    chances = table.beats(table.order[1:], best)
    assert [listed["beats_best"] for listed in view["candidates"]] == [None, chances[0]]
    assert view["counts"] == {
        "candidates": len(table),
        "feasible": len(table.ranked),
        "holds": int(table.holds.sum()),
        "queues": int((table.feasible & table.queues).sum()),
        "uncertain": int((table.feasible & table.uncertain).sum()),
        "refused": len(table.refused),
        "tied_with_best": sum(chance is not None and chance >= TIED for chance in chances),
    }
    assert sum(view["counts"][name] for name in ("holds", "queues", "uncertain")) == len(
        table.ranked
    )
    assert view["nearest"] is None


@kinds
def test_the_frame_has_a_row_for_every_split(kind: str) -> None:
    table = plain(kind)
    frame = table.to_frame()
    assert set(table.columns) | {"engine", "rank", "pareto", "reasons"} <= set(frame.columns)
    assert frame["rank"].dropna().sort_values().tolist() == list(range(1, len(table.order) + 1))
    assert ((frame["reasons"] == "") == frame["feasible"]).all()
    best = frame[frame["rank"] == 1].iloc[0]
    for name, value in table.best.candidate.items() if table.best else ():
        if name in frame.columns:
            assert best[name] == value, name


@kinds
@pytest.mark.parametrize("third", [(), ("gpus",)], ids=["two", "three"])
def test_no_split_of_a_front_is_beaten(kind: str, third: tuple[str, ...]) -> None:
    table = plain(kind)
    names = (*table.frontier_columns, *third)
    front = table.pareto(*names) if third else table.pareto()
    assert len(front) >= 2
    values = np.stack(
        [
            table.columns[name] * (-1.0 if "tokens_per_s" in name else 1.0)
            for name in names  # less is better
        ],
        axis=1,
    )
    for split in front:
        no_worse = (values[table.order] <= values[split.row]).all(axis=1)
        better = (values[table.order] < values[split.row]).any(axis=1)
        assert not (no_worse & better).any()
    beaten = set(table.order.tolist()) - {split.row for split in front}
    on = values[[split.row for split in front]]
    assert all((on <= values[row]).all(axis=1).any() for row in beaten)


@kinds
def test_a_front_of_an_unknown_column_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="two or three columns"):
        plain(kind).pareto("gpus", "colour")


@pytest.mark.parametrize(
    "edits", [HUGE, {"model": "meta-llama/Llama-3.1-70B", "hardware.per_node": 1}]
)
@kinds
def test_changes_are_really_planned(kind: str, edits: dict[str, Any]) -> None:
    table = plan(request(kind, **edits))
    assert table.best is None
    changes = table.changes()
    assert 1 <= len(changes) <= 3
    for offered in changes:
        after = plan(change(table.request, offered.fields))
        assert after.best is not None
        assert after.best.candidate == offered.candidate
        assert str(offered).startswith(next(iter(offered.fields)))


@kinds
def test_sensitivity_is_really_planned(kind: str) -> None:
    table = plain(kind)
    flips = table.sensitivity()
    assert len(flips) >= 4
    for flip in flips:
        after = plan(change(table.request, flip.fields)).best
        assert flip.candidate == (after and after.candidate)
        same = after is not None and flip.flips is False
        if same and table.best and after:
            names = ("engine", "tp", "pp", "dp")
            assert [after.candidate[name] for name in names] == [
                table.best.candidate[name] for name in names
            ]
    assert {flip.flips for flip in flips} <= {True, False}


# Doors


@pytest.fixture(scope="module")
def api() -> TestClient:
    return TestClient(create_api(folders=False))


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "request.json"
    path.write_text(json.dumps(values))
    return str(path)


SPLITS = {"serving": {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1}, "training": SPLIT}


@kinds
def test_check_answers_for_a_split_with_a_better_one(
    kind: str, api: TestClient, tmp_path: Path
) -> None:
    values = REQUESTS[kind] | {"candidate": SPLITS[kind]}
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is True
    assert SPLITS[kind].items() <= verdict["candidate"].items()
    best = plain(kind).best
    assert best is not None
    assert verdict["better"] == {"candidate": best.candidate, "estimate": best.estimate.to_json()}
    done = recipe("check", written(tmp_path, values), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == verdict
    text = recipe("check", written(tmp_path, values)).stdout
    assert text.startswith("yes: it can run")
    assert "better: " in text


@kinds
def test_check_says_why_a_split_cannot_run(kind: str, api: TestClient, tmp_path: Path) -> None:
    values = REQUESTS[kind] | {"candidate": SPLITS[kind] | {"dp": 16}}
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is False
    assert any("devices; only" in reason for reason in verdict["reasons"])
    done = recipe("check", written(tmp_path, values))
    assert done.returncode == 1
    assert done.stdout.startswith("no: it cannot run")


@kinds
def test_check_offers_changes_where_nothing_runs(kind: str, api: TestClient) -> None:
    values = change(PlanRequest.parse(REQUESTS[kind]), HUGE).to_json()
    verdict = api.post("/check", json=values).json()
    assert (verdict["ok"], verdict["better"]) == (False, None)
    assert verdict["changes"]
    for offered in verdict["changes"]:
        after = plan(change(PlanRequest.parse(values), offered["set"]))
        assert after.best is not None
        assert after.best.candidate == offered["candidate"]


@kinds
def test_sensitivity_answers_on_the_command_line(kind: str, tmp_path: Path) -> None:
    file = written(tmp_path, REQUESTS[kind])
    answer = json.loads(recipe("plan", file, "--sensitivity", "--json").stdout)
    assert answer["sensitivity"] == json.loads(
        json.dumps([flip.to_json() for flip in plain(kind).sensitivity()])
    )
    text = recipe("plan", file, "--sensitivity").stdout
    assert "what would change the choice:" in text
    assert all(f"  {flip['what']}: " in text for flip in answer["sensitivity"])


@kinds
def test_a_refused_field_is_an_error_at_every_door(
    kind: str, api: TestClient, tmp_path: Path
) -> None:
    name = {"serving": "zero_stage", "training": "max_num_seqs"}[kind]
    values = REQUESTS[kind] | {"candidate": {name: 1}}
    for question in ("plan", "estimate", "check"):
        answer = api.post(f"/{question}", json=values)
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == f"candidate.{name}"
        done = recipe(question, written(tmp_path, values))
        assert done.returncode == 2
        assert f"candidate.{name}" in done.stderr
