"""Serving and training are planned alike, over several clusters too, and pass over no field."""

import json
import re
from functools import cache

import numpy as np
import pytest
from starlette.testclient import TestClient

from recipe_core.bundle.write import write_bundle
from recipe_core.doors.api import create_api
from recipe_core.estimates.training.starts import SURE
from recipe_core.plans.flips import row_identity
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import plan_candidate, plan_splits, plan_together
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import beats, nearest_row, pareto_front, ties_elsewhere
from recipe_core.plans.splits import find_row, refusal_reasons, row_key, row_reasons, row_request
from recipe_core.recipe.build import make_recipe
from recipe_core.request.edit import change, select_split
from recipe_core.request.metrics import goals_of
from recipe_core.request.objective import Limits, Objective
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.views.plan_words import rule_titles, shown_limit
from tests.conftest import request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_values

SERVING = request_values("meta-llama/Llama-3.1-8B-Instruct", per_node=4)
TRAINING = training_values(nodes=1, sequence_length=4096, global_batch=64, tokens=2e9)
BATCHED = request_values(
    "BAAI/bge-m3",
    per_node=1,
    workload={"output_tokens": None, "input_tokens": 400},
    options={"engines": ["triton-onnxruntime"]},
)
REQUESTS = {"serving": SERVING, "training": TRAINING}
RUN_SPLIT = {"engine": "torchtitan", "tp": 2, "pp": 1, "dp": 4, "zero_stage": 3, "micro_batch": 1}
SPLITS = {"serving": {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1}, "training": RUN_SPLIT}
HUGE = {"model": "meta-llama/Llama-3.1-405B"}

kinds = pytest.mark.parametrize("kind", REQUESTS)


@cache
def plain(kind):
    return planned(REQUESTS[kind])


def planned(values):
    return plan_splits(PlanRequest.parse(values))


def changed(values, path, value):
    """A copy of plain values with one dotted field set."""
    first, _, rest = path.partition(".")
    return {**values, first: changed(values.get(first, {}), rest, value) if rest else value}


def training_with(field, value):
    return planned(changed(TRAINING, field, value))


HONOURED, REFUSED, SHARED = (table("one_plan", name) for name in ("honoured", "refused", "limits"))


def keys_of(splits):
    return [split.key for split in splits.ranked]


def test_every_field_is_honoured_or_refused_and_every_limit_of_training_tried():
    fields = [f"objective.{name}" for name in Objective.model_fields if name != "limits"]
    fields += [f"objective.limits.{name}" for name in Limits.model_fields]
    fields += [f"options.{name}" for name in Options.model_fields]
    kept_running = ["options.supervision", "options.simulated"]  # of a split that is chosen already
    assert sorted([*HONOURED, *REFUSED, *kept_running]) == sorted(fields)
    names = [limit.name for limit in LIMITS.values() if "training" in limit.kinds]
    assert sorted(names) == sorted(SHARED)


@over("field value", HONOURED.items())
def test_what_training_honours_changes_its_plan(field, value):
    before = changed(TRAINING, "objective.limits", {"usd": 450.0} if "confid" in field else {})
    after = planned(changed(before, field, value))
    assert len(after.order)
    assert keys_of(after) != keys_of(planned(before))


@over("field value", REFUSED.items())
def test_what_only_serving_has_is_refused_with_a_fix(field, value):
    error = refusal(training_with, field, value)
    assert (error.field, bool(error.hint)) == (field, True)
    assert "serving" in error.message
    taken = BATCHED if field == "options.batch_windows_ms" else SERVING
    assert len(planned(changed(taken, field, value)))  # and serving takes it


def test_goals_of_requests_are_refused_for_a_run_and_defaults_and_a_confidence_honoured():
    for goal in ("latency", "ttft", "tpot", "accuracy"):
        for field, value in (("weights", {"cost": 1.0, goal: 1.0}), ("optimize", goal)):
            error = refusal(training_with, f"objective.{field}", value)
            of_goal = f".{goal}" if field == "weights" else ""
            assert error.field == f"objective.{field}{of_goal}"
            assert all(name in (error.hint or "") for name in goals_of("training"))
    whole = PlanRequest.parse(TRAINING).to_json()
    optional = {"scaling", "simulated", "kv_offload", "compression"}
    assert set(whole["options"]) == set(Options.model_fields) - optional
    assert keys_of(planned(whole)) == keys_of(plain("training"))
    values = changed(TRAINING, "objective.limits", {"wall_hours": 30.0})
    likely, sure = planned(values), planned(changed(values, "objective.confidence", 0.95))
    assert 0 < len(sure.order) < len(likely.order)
    assert (sure.chances[sure.order] >= 0.95).all()
    assert set(sure.order) == {row for row in likely.order if likely.chances[row] >= 0.95}


@over("weights", table("one_plan", "weights"))
def test_weights_rank_as_columns_multiplied_by_hand(weights):
    frame = training_with("objective.weights", weights).to_frame()
    ranked = frame[frame["rank"].notna()].sort_values("rank")
    merit = np.ones(len(ranked))
    for goal, weight in weights.items():
        column, sign = table("one_plan", "goals")[goal]
        merit *= ranked[column].to_numpy(dtype=float) ** (sign * weight)
    slack = 0.0011 if len(weights) == 1 else 0.011  # what ties, the simpler first
    chance = ranked["start_probability"].to_numpy()
    holds = (ranked["state"] == "holds").to_numpy()
    assert holds[0]
    assert (holds == (chance >= SURE)).all()
    assert (np.diff(holds.astype(int)) <= 0).all()  # those that start, then the rest
    assert (np.diff(chance[~holds]) <= 0).all()
    assert merit[holds][-1] > 1.1 * merit[0]
    assert (merit[holds] >= np.maximum.accumulate(merit[holds]) * (1 - slack)).all()


@over("name limit", SHARED.items())
def test_a_limit_of_training_is_named_with_its_figure(name, limit):
    value, label, said = limit
    splits = training_with("objective.limits", {name: value})
    row = nearest_row(splits)
    rule = next(rule for rule in LIMITS.values() if rule.name == name)
    figure = rule.show(float(splits.columns[rule.column][row]))
    assert row_reasons(splits, row) == [f"{label} {figure} exceeds the limit of {said}"]
    answer = splits.to_json(0, len(splits))
    assert answer["counts"]["refused"] == len(splits) >= int(splits.runs.sum())
    assert all(row["reasons"] for row in answer["refused"])


def shape(values):
    """Names of an answer at every depth that is not a split or its estimate."""
    if isinstance(values, list):
        return [shape(values[0])] if values else []
    if isinstance(values, dict):
        return {
            name: None if name in ("candidate", "estimate", "set") else shape(value)
            for name, value in values.items()
        }
    return None


def test_json_of_both_kinds_has_the_same_names():
    for edits in ({}, HUGE):  # where nothing runs, too
        serving, training = (
            shape(plan_splits(change(PlanRequest.parse(values), edits)).to_json())
            for values in REQUESTS.values()
        )
        assert serving == training
        assert bool(training["candidates"]) == (not edits)
    assert training["nearest"]["changes"]


@kinds
def test_splits_of_a_plan_and_its_frame(kind):
    splits = plain(kind)
    best, refused = splits.best, splits.refused[0]
    assert best == splits.ranked[0]
    assert (best.feasible, best.rank, best.reasons) == (True, 1, [])
    assert [split.rank for split in splits.ranked[:3]] == [1, 2, 3]
    assert len(splits.ranked) + len(splits.refused) == len(splits)
    assert (refused.feasible, refused.rank, bool(refused.reasons)) == (False, None, True)
    assert splits.changes() == []
    for split in (best, refused):
        alone = plan_splits(split.request)
        row = find_row(alone, split.key)
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
def test_json_says_what_splits_say_and_a_front_is_that_of_its_columns(kind):
    splits = plain(kind)
    view = splits.to_json(2, 3)
    chances = [None, beats(splits, splits.order[1:], splits.best_row)[0]]
    for listed, split, chance in zip(view["candidates"], splits.ranked[:2], chances, strict=True):
        assert (listed["rank"], listed["candidate"]) == (split.rank, split.candidate)
        assert listed["estimate"] == split.estimate.to_json()
        assert listed["pareto"] is (split.row in splits.pareto().rows)
        assert listed["beats_best"] == chance
    refused = np.flatnonzero(~splits.feasible)[:3].tolist()
    assert [row["reasons"] for row in view["refused"]] == refusal_reasons(splits, refused)
    assert view["nearest"] is None
    counts = view["counts"]
    assert counts["candidates"] - counts["refused"] == counts["feasible"] == len(splits.ranked)
    assert sum(counts[name] for name in ("holds", "queues", "uncertain")) == counts["feasible"]
    for names in (splits.spec.frontier, (*splits.spec.frontier, "gpus")):
        less = [splits.columns[n] * (-1.0 if "tokens_per_s" in n else 1.0) for n in names]
        on = pareto_front(*less, among=splits.holds)  # none beats them: test_search
        front = splits.pareto(*names) if "gpus" in names else splits.pareto()
        assert len(front) >= (2 if "gpus" in names else 1)
        assert {split.row for split in front} == set(np.flatnonzero(on))


@pytest.mark.parametrize("kind", ["serving", pytest.param("training", marks=pytest.mark.nightly)])
def test_sensitivity_is_really_planned_and_answers_on_the_command_line(kind, tmp_path):
    splits = plain(kind)
    flips = splits.sensitivity()
    assert len(flips) >= 4
    assert {flip.flips for flip in flips} <= {True, False}
    for flip in flips:
        after = plan_splits(change(splits.request, flip.fields)).best
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
def api():
    return TestClient(create_api(folders=False))


def written(folder, values):
    path = folder / "request.json"
    path.write_text(json.dumps(values))
    return str(path)


@kinds
def test_check_answers_for_a_split_with_a_better_one_or_says_why_not(kind, api, tmp_path):
    values = REQUESTS[kind] | {"candidate": SPLITS[kind]}
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is True
    assert SPLITS[kind].items() <= verdict["candidate"].items()
    best = plain(kind).best
    offer = {"candidate": best.candidate, "estimate": best.estimate.to_json()}
    checked = plan_candidate(PlanRequest.parse(values))
    tie = ties_elsewhere(plain(kind), best.row, *checked)
    assert verdict["better"] == offer | {"tie": tie}
    done = recipe("check", written(tmp_path, values), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == verdict
    text = recipe("check", written(tmp_path, values)).stdout
    assert text.startswith("yes: it can run")
    assert "better: " in text
    twins = {"options": {"engines": ["vllm", "tensorrt-llm"]}}
    if kind == "serving":  # the other engine on the layout of the best
        engine = next(e for e in twins["options"]["engines"] if e != best.candidate["engine"])
        split = {name: best.candidate[name] for name in ("tp", "pp", "dp", "ep")}
        values = REQUESTS[kind] | twins | {"candidate": split | {"engine": engine}}
        text = recipe("check", written(tmp_path, values)).stdout
        assert re.search(r"better: .*, no measurable difference\n", text), text

    values = changed(values, "candidate.dp", 16)
    verdict = api.post("/check", json=values).json()
    assert verdict["ok"] is False
    assert any("devices; only" in reason for reason in verdict["reasons"])
    done = recipe("check", written(tmp_path, values))
    assert done.returncode == 1
    assert done.stdout.startswith("no: it cannot run")

    request = change(PlanRequest.parse(REQUESTS[kind]), HUGE)  # where nothing runs
    verdict = api.post("/check", json=request.to_json()).json()
    offered = [remedy.to_json() for remedy in plan_splits(request).changes()]
    assert (verdict["ok"], verdict["better"]) == (False, None)
    assert verdict["changes"] == json.loads(json.dumps(offered)) != []


def test_a_candidate_field_of_the_other_kind_is_an_error_at_every_door(api, tmp_path):
    others = (("serving", "zero_stage", 3), ("training", "max_num_seqs", 1))
    for kind, name, value in (*others, ("training", "kv_dtype", "fp8")):
        values = REQUESTS[kind] | {"candidate": {name: value}}
        assert refusal(planned, values).field == f"candidate.{name}"
        for question in ("plan", "estimate", "check"):
            answer = api.post(f"/{question}", json=values)
            assert answer.status_code == 422
            assert answer.json()["error"]["field"] == f"candidate.{name}"
            done = recipe(question, written(tmp_path, values))
            assert done.returncode == 2
            assert f"candidate.{name}" in done.stderr


BESIDE = ({"device": "mi300x", "per_node": 8}, {"device": "h100-sxm", "per_node": 4})


def request(*beside, **edits):
    """The run with clusters beside; ``objective__optimize`` is ``objective.optimize``."""
    fields = {name.replace("__", "."): value for name, value in edits.items()}
    options = {"options.hardware": beside} if beside else {}
    return change(PlanRequest.parse(TRAINING), {**options, **fields})


@cache
def several():
    return plan_splits(request(*BESIDE))


def figures(splits, rows):
    names = ("tp", "pp", "dp", "zero_stage", "micro_batch", "step_s", "peak_memory_bytes", "usd")
    return np.stack([splits.columns[name][rows] for name in names])


def test_a_plan_over_several_clusters_is_that_of_each_and_rows_know_theirs():
    splits = several()
    numbers, places = splits.clusters_of_rows, (TRAINING["hardware"], *BESIDE)
    for k, device in enumerate(("8 × H100 SXM", "8 × MI300X", "4 × H100 SXM")):
        own = plan_splits(request(hardware=places[k]))
        rows = np.flatnonzero(numbers == k)
        assert len(rows) == len(own)
        ranked = splits.order[numbers[splits.order] == k]
        np.testing.assert_array_equal(figures(splits, ranked), figures(own, own.order))
        devices = {splits.setting(int(row)).cluster.devices for row in rows}
        assert devices == {own.problem.cluster.devices}
        row = int(ranked[0])
        key = row_key(splits, row)
        assert key.endswith(f".on{k}") == bool(k)
        assert device in split_label(splits, row)
        alone = row_request(splits, row)
        assert (alone.options.hardware, alone.hardware) == ((), splits.setting(row).cluster.request)
        chosen = change(splits.request, select_split(splits.request, key))
        assert places[k].items() <= chosen.hardware.model_dump().items()
        assert len(chosen.options.hardware) == len(BESIDE)
    assert set(splits.to_frame()["device"]) == {"h100-sxm", "mi300x"}
    assert len({row_identity(splits, int(row))[0] for row in splits.order}) == 2
    values = splits.to_json(20, 5)
    for case in (*values["candidates"], *values["refused"]):
        assert case["hardware"]["device"] in ("h100-sxm", "mi300x")
    assert "hardware" not in plain("training").to_json(1)["candidates"][0]


def test_a_price_may_move_the_choice_of_clusters_a_recipe_is_of_and_an_unknown_device_is_named(
    tmp_path,
):
    moves = [flip.title for flip in several().sensitivity()]
    assert moves[:2] == ["price -20 %", "price +20 %"]
    assert not any("price" in flip.title for flip in plain("training").sensitivity())
    flips = plan_splits(request(*BESIDE, objective__optimize="cost")).sensitivity()
    assert {flip.title for flip in flips} >= set(moves[:2])
    built = make_recipe(request(*BESIDE))
    assert built.request["hardware"]["device"] == several().best.request.hardware.device
    assert built.request["options"]["hardware"] == []
    devices = {fall.device for fall in built.fallbacks if fall.kind == "other-device"}
    assert devices <= {"h100-sxm", "mi300x"}
    assert write_bundle(built, tmp_path / "bundle")
    problems = [
        resolve_problem(request()),
        resolve_problem(request(workload__sequence_length=2048)),
    ]
    together, sources = plan_together(problems)
    assert np.bincount(sources).tolist() == [len(plan_splits(p.request)) for p in problems]
    assert split_label(together, len(together) - 1)
    unknown = refusal(training_with, "options.hardware", [{"device": "h1000"}])
    assert unknown.field == "options.hardware.0.device"


RUN_LIMITS = [("wall_hours", "wall_s", 3600, "wall"), ("usd", "usd", 1, "usd_run")]


@over("name column unit shown", RUN_LIMITS)
def test_a_limit_on_a_run_keeps_what_is_below_it_and_needs_tokens(name, column, unit, shown):
    free = plain("training")
    values = free.columns[column][free.order] / unit
    bound = float(f"{np.median(values):.3g}")
    by_estimate = {"objective__confidence": 0.5, f"objective__limits__{name}": bound}
    limited = request(*BESIDE, **by_estimate)
    splits = plan_splits(change(limited, {"options.hardware": ()}))
    assert (splits.columns[column][splits.order] <= bound * unit).all()
    assert len(splits.order) == (values <= bound).sum()
    assert shown_limit(splits, shown) == pytest.approx(bound * unit * splits.measures[shown].factor)
    code = next(code for code, rule in LIMITS.items() if rule.name == name)
    assert not LIMITS[code].timed
    assert rule_titles([code]).startswith("Over the limit on")
    limits = {"objective": {"limits": {name: 10}}}
    without = changed(TRAINING, "workload.tokens", None)
    serving = request_values()  # which has such a limit for a queue alone
    for asked, hints in ((without, ["workload.tokens"]), (serving, ["offline"])):
        error = refusal(planned, asked | limits)
        assert error.field == f"objective.limits.{name}"
        assert all(other in (error.hint or "") for other in hints)
    for edit in ({"workload.tokens": None}, {"workload.kind": "serving"}):
        assert getattr(change(limited, edit).objective.limits, name) is None
    assert len(change(limited, edit).options.hardware) == len(BESIDE)
