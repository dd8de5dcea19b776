"""Runs of one's own: what they teach estimates and plans, and what they leave as it is."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import recipe_core as rb
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.calibration.own_runs import MAX_RUNS, learn, of_runs, prior
from recipe_core.doors.answers import Answers
from recipe_core.measured.serving_runs import PUBLISHED, Run
from recipe_core.measured.training_runs import TRAINING_RUNS
from recipe_core.physics.bands import narrowed
from recipe_core.recipe.own_runs import corrections_of, read_measured, rows_of
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.space.corrections import version_of
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.command_line import recipe
from tests.fixtures.recipes import recipe_of

QWEN_32B = "Qwen/Qwen3-32B"
SPLIT = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 2}
LOADS = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}
TIMES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")


def request(mode: str = "closed", load: float = 64, **values) -> dict:
    workload = {"mode": mode, LOADS[mode]: load, "input_tokens": 1024, "output_tokens": 256}
    return {
        "model": QWEN_32B,
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": workload | values.pop("workload", {}),
        "candidate": SPLIT | values.pop("candidate", {}),
    } | values


def run(name: str = "one", **values) -> Run:
    plain = {"model": QWEN_32B, "device": "h100-sxm", "per_node": 8, "mode": "closed", "load": 64}
    plain |= {"engine": "vllm", "tp": 4, "dp": 2, "input_tokens": 1024, "output_tokens": 256}
    return Run.model_validate({"id": name} | plain | values)


def served(asked: dict, corrections=None) -> dict:
    (answer,) = estimate_batch([asked], corrections)
    assert answer["feasible"], answer["reasons"]
    return answer


def times_as_estimated(factor: float, count: int = 1, **values) -> list[Run]:
    """Runs whose time per token is ``factor`` times the estimate; no two are the same."""
    tpot_ms = served(run(tpot_ms=1, **values).request())["serving"]["tpot_s"] * 1e3
    return [
        run(f"run {k}", tpot_ms=tpot_ms * factor * (1 + 1e-6 * k), **values) for k in range(count)
    ]


def taught(runs: list[Run]):
    return learn(of_runs(runs))


# What does not change


def test_without_runs_answers_are_the_same_to_the_bit():
    asked = [request(), request("open", 2.0), request("static", 16), request("offline", 500)]
    assert estimate_batch(asked, corrections_of([])) == estimate_batch(asked)
    assert corrections_of(None) is None
    plain = plan(PlanRequest.parse(asked[0]))
    assert plain.setting(0).correction is None
    assert "own_runs" not in plain.to_json(1)


def test_another_device_keeps_its_estimate_and_says_so():
    other = request(hardware={"device": "mi300x", "per_node": 8})
    plain, told = served(other), served(other, taught(times_as_estimated(2.0, 2)))
    assert told["serving"] == plain["serving"]
    assert told["bands"] == plain["bands"]
    assert told["basis"]["tpot_s"] == "computed: none of 2 own runs is on this device"


def test_a_run_as_estimated_changes_nothing_but_the_band():
    plain, told = served(request()), served(request(), taught(times_as_estimated(1.0)))
    for name in TIMES:
        assert told["serving"][name] == pytest.approx(plain["serving"][name], rel=1e-9)
    assert told["bands"]["tpot_s"][1] < plain["bands"]["tpot_s"][1]


# How far runs move an estimate


def test_more_runs_move_the_same_deployment_further():
    plain = served(request())["serving"]["tpot_s"]
    factors = [
        served(request(), taught(times_as_estimated(2.0, count)))["serving"]["tpot_s"] / plain
        for count in (1, 2, 5, 20)
    ]
    assert 1 < factors[0] < factors[1] < factors[2] < factors[3] < 2


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_what_is_less_alike_moves_less(factor):
    told = taught(times_as_estimated(factor))

    def moved(asked: dict) -> float:
        ratio = served(asked, told)["serving"]["tpot_s"] / served(asked)["serving"]["tpot_s"]
        return abs(np.log(ratio))

    moves = [
        moved(request()),
        moved(request(workload={"concurrency": 32})),
        moved(request(workload={"concurrency": 32}, candidate={"tp": 8, "dp": 1})),
        moved(request(model=LLAMA_70B, candidate={"tp": 8, "dp": 1})),
        moved(request(model=LLAMA_70B, candidate={"engine": "sglang", "tp": 8, "dp": 1})),
    ]
    assert moves == sorted(moves, reverse=True)
    assert all(a > b > 0 for a, b in pairwise(moves))
    assert moves[0] < abs(np.log(factor))


def test_one_scope_is_buhlmann_credibility():
    known = prior().model_copy(
        update={
            "cap": 1e9,
            "shares": prior().shares.model_copy(
                update={
                    **dict.fromkeys(("version", "model", "deployment", "load"), 0.0),
                    "device": 0.75,
                    "noise": 0.25,
                }
            ),
        }
    )
    plain = served(request())["serving"]["tpot_s"]
    for count in (1, 3, 7):
        told = learn(of_runs(times_as_estimated(2.0, count)), known=known)
        moved = np.log(served(request(), told)["serving"]["tpot_s"] / plain)
        assert moved == pytest.approx(np.log(2) * count / (count + 1 / 3), rel=1e-4)


def test_one_odd_figure_is_cut_until_others_agree():
    plain = served(request())["serving"]["ttft_s"]
    moves = []
    for count in (1, 3):
        runs = [run(f"{k}", ttft_ms=plain * 30e3 * (1 + 1e-6 * k)) for k in range(count)]
        moves.append(served(request(), taught(runs))["serving"]["ttft_s"] / plain)
    assert 1 < moves[0] < 6
    assert moves[1] > 20


def test_each_scale_is_learned_from_its_own_figure():
    plain = served(request())
    first_ms = plain["serving"]["ttft_s"] * 1e3
    told = served(request(), taught([run(ttft_ms=first_ms * 2)]))
    assert 1.5 < told["serving"]["ttft_s"] / plain["serving"]["ttft_s"] < 2
    assert told["serving"]["tpot_s"] == pytest.approx(plain["serving"]["tpot_s"], rel=0.05)
    assert told["basis"]["ttft_s"].startswith("calibrated: 1 own run of this deployment, × ")
    assert told["basis"]["tpot_s"] == "computed"


@pytest.mark.parametrize("mode", ["closed", "static", "offline"])
@pytest.mark.parametrize("figure", ["request_latency_ms", "output_tokens_per_s"])
def test_latency_and_throughput_teach_too(mode, figure):
    load = {"closed": 64, "static": 16, "offline": 400}[mode]
    asked = request(mode, load)
    plain = served(asked)["serving"]
    figures = {
        "request_latency_ms": plain["request_latency_s"] * 2e3,
        "output_tokens_per_s": plain["output_tokens_per_s"] / 2,
    }
    own = run(mode=mode, load=load, **{figure: figures[figure]})
    told = served(asked, taught([own]))["serving"]
    assert 0.5 < told["output_tokens_per_s"] / plain["output_tokens_per_s"] < 0.7


def test_throughput_at_an_arrival_rate_teaches_nothing():
    told = taught([run(mode="open", load=2, output_tokens_per_s=512)])
    assert not told.runs
    assert "nothing that a scale explains" in told.left_out[0].reason


def test_the_order_of_rows_does_not_matter_nor_a_run_given_twice():
    runs = [run(f"{k}", load=8 * k, tpot_ms=10 + k, ttft_ms=50 + 9 * k) for k in range(1, 9)]
    answer = served(request(), taught(runs))
    random.Random(3).shuffle(runs)
    assert served(request(), taught(runs)) == answer
    assert served(request(), taught([*runs, *runs])) == answer


# What stays true


def corrected(asked: dict) -> tuple[dict, dict]:
    runs = [run("a", tpot_ms=30, ttft_ms=400), run("b", load=16, tpot_ms=22, ttft_ms=70)]
    return served(asked), served(asked, taught(runs))


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(load=3000, candidate={"max_num_seqs": 64}),
        request("open", 2.0),
        request("static", 16),
        request("offline", 500),
        request(
            candidate={
                "tp": 2,
                "dp": 1,
                "replicas": 2,
                "prefill": {"tp": 2, "pp": 1, "dp": 1, "ep": 1, "replicas": 1},
            }
        ),
    ],
    ids=["closed", "queued", "open", "static", "offline", "pools"],
)
def test_identities_hold(asked):
    plain, told = corrected(asked)
    figures, workload, times = told["serving"], asked["workload"], told["breakdown_s"]
    tokens = workload["output_tokens"]
    assert figures["ttft_s"] + (tokens - 1) * figures["tpot_s"] == pytest.approx(
        figures["request_latency_s"]
    )
    assert sum(times["prefill"].values()) == pytest.approx(figures["ttft_s"])
    assert sum(times["decode"].values()) == pytest.approx(figures["tpot_s"])
    held = figures["output_tokens_per_s"] / tokens * figures["request_latency_s"]
    before = plain["serving"]["output_tokens_per_s"] / tokens
    if workload["mode"] in ("closed", "static"):  # Little's law
        load = workload.get("concurrency") or workload["batch"]
        assert held == pytest.approx(before * plain["serving"]["request_latency_s"], rel=1e-6)
        assert held == pytest.approx(load, rel=0.03)
    if workload["mode"] == "open":
        assert figures["output_tokens_per_s"] == pytest.approx(2.0 * tokens)
    cost = told["cost"]
    assert cost["usd_per_million_output_tokens"] == pytest.approx(
        cost["usd_per_hour"] / 3600 / figures["output_tokens_per_s"] * 1e6
    )
    assert figures["output_tokens_per_s_per_gpu"] <= figures["output_tokens_per_s"]


def test_an_open_loop_that_slows_down_serves_less():
    most = 0.98 * 1 / 1.0
    rate = 1.0
    while served_at(rate):
        rate, most = rate * 1.1, rate
    told = taught(times_as_estimated(2.0, 3))
    (answer,) = estimate_batch([request("open", most)], told)
    assert not answer["feasible"]
    assert "requests/s arrive; this split serves" in answer["reasons"][0]
    (slower,) = estimate_batch([request("open", most / 4)], told)
    assert slower["feasible"]
    assert slower["serving"]["output_tokens_per_s"] == pytest.approx(most / 4 * 256)


def served_at(rate: float) -> bool:
    return bool(estimate_batch([request("open", rate)])[0]["feasible"])


def test_bands_are_narrower_and_hold_the_estimate():
    plain, told = corrected(request())
    more = served(request(), taught(times_as_estimated(2.0, 8)))
    for name in TIMES:
        (low, high), (own_low, own_high) = (
            np.log(np.array(answer["bands"][name]) / answer["serving"][name])
            for answer in (plain, told)
        )
        assert low < own_low < 0 < own_high < high
    widths = [np.ptp(np.log(answer["bands"]["tpot_s"])) for answer in (plain, told, more)]
    assert widths == sorted(widths, reverse=True)
    assert narrowed((0.5, 2.0), 0.5)[1] == pytest.approx(2**0.5)
    assert narrowed((0.5, 3.0), 1.0)[1] == pytest.approx(3.0)


def test_percentiles_follow_the_means():
    plain_plan, row = plan_candidate(PlanRequest.parse(request(load=8)))
    plain = plain_plan.detailed(row).to_json()["serving"]
    told_plan, row = plan_candidate(
        PlanRequest.parse(request(load=8)),
        corrections=taught(times_as_estimated(2.0, 4, load=8)),
    )
    told = told_plan.detailed(row).to_json()["serving"]
    factor = told["tpot_s"] / plain["tpot_s"]
    for name in ("tpot_p50_s", "tpot_p95_s"):
        assert told[name] / plain[name] == pytest.approx(factor)
    assert told["request_latency_p95_s"] / plain["request_latency_p95_s"] == pytest.approx(
        factor, rel=0.1
    )


# Plans


def test_a_plan_is_judged_by_corrected_figures():
    plain = plan(make_request(QWEN_32B, workload={"concurrency": 64}))
    best = plain.best
    assert best is not None
    candidate = {name: best.candidate[name] for name in ("tp", "pp", "dp", "ep")}
    slow = times_as_estimated(3.0, 3, **candidate)
    told = plan(make_request(QWEN_32B, workload={"concurrency": 64}), corrections=taught(slow))
    assert told.best is not None
    assert told.best.candidate != best.candidate
    row = best.row
    assert told.columns["tpot_s"][row] == pytest.approx(told.estimate(row).tpot_s.value)
    assert told.columns["tpot_s"][row] > 2 * plain.columns["tpot_s"][row]
    # a limit that the formulas keep and the corrected figure does not
    limit = float(plain.columns["tpot_s"][row]) * 1.5e3
    limited = make_request(
        QWEN_32B, workload={"concurrency": 64}, objective={"limits": {"tpot_ms": limit}}
    )
    assert "exceeds the limit" in plan(limited, corrections=taught(slow)).reasons(row)[0]
    assert told.to_json(1)["own_runs"] == {"used": 3, "left_out": []}
    # plans that come of it know the same runs
    assert told.replan(limited).problem.corrections is told.problem.corrections


def test_columns_and_single_cases_agree():
    told = taught([*times_as_estimated(2.0, 2), run("x", tp=8, dp=1, load=16, ttft_ms=300)])
    whole = plan(make_request(QWEN_32B, workload={"concurrency": 64}), corrections=told)
    for row in whole.order[:12].tolist():
        alone, place = plan_candidate(whole.request_of(row), corrections=told)
        for name in TIMES:
            assert alone.columns[name][place] == pytest.approx(whole.columns[name][row], rel=1e-9)


def test_the_library_takes_files_rows_and_what_was_learned(tmp_path):
    runs = times_as_estimated(2.0)
    path = table(tmp_path, runs)
    learned = corrections_of(runs)
    answers = [
        rb.estimate(request(), measured=one).to_json() for one in (runs, path, [path], learned)
    ]
    assert all(answer == answers[0] for answer in answers)
    assert rb.estimate(request()).to_json() != answers[0]
    assert rb.plan(request(), measured=path).problem.corrections is not None


# Runs that teach nothing


def test_runs_that_cannot_be_estimated_are_named_and_the_others_count():
    good = times_as_estimated(2.0)
    bad = [
        run("no model", model="Nobody/Nothing", tpot_ms=20),
        run("too big", model="deepseek-ai/DeepSeek-V3", tp=1, dp=1, per_node=1, tpot_ms=20),
    ]
    told = taught([*bad, *good])
    assert served(request(), told)["serving"] == served(request(), taught(good))["serving"]
    reasons = {left.name: left.reason for left in told.left_out}
    assert "unknown model" in reasons["no model"]
    assert "cannot run by the estimate" in reasons["too big"]


def test_excluded_runs_do_not_count():
    measured = of_runs(times_as_estimated(2.0, 2))
    told = learn([measured[0], replace(measured[1], excluded="warm cache")])
    assert len(told.runs) == 1
    assert told.left_out[0].reason == "warm cache"


def test_too_many_runs_are_refused():
    with pytest.raises(InputError, match=f"at most {MAX_RUNS:,}"):
        taught([run(f"{k}", tpot_ms=k + 1) for k in range(MAX_RUNS + 1)])


def test_other_versions_are_other_deployments():
    now = served(request(), taught(times_as_estimated(2.0)))
    then = served(request(), taught(times_as_estimated(2.0, version="vllm 0.6.1")))
    assert then["serving"]["tpot_s"] < now["serving"]["tpot_s"]
    basis = then["basis"]["tpot_s"]
    assert basis.startswith("calibrated: 1 own run of this model, device and engine, × ")


@pytest.mark.parametrize(
    ("text", "version"),
    [("rocm/dev:vllm-v0.19.0-nightly_2026", "0.19.0"), ("0.5.5.post1", "0.5.5.post1"), ("", "")],
)
def test_versions_are_found_in_texts(text, version):
    assert version_of(text) == version


# Files


COLUMNS = ("id", "model", "device", "per_node", "engine", "tp", "dp", "mode", "input_tokens")
COLUMNS += ("output_tokens", "load", "ttft_ms", "tpot_ms")


def table(folder, runs: list[Run], columns=COLUMNS):
    lines = [",".join(columns)]
    for one in runs:
        values = (getattr(one, name) for name in columns)
        lines.append(",".join("" if value is None else str(value) for value in values))
    path = folder / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_shipped_table_is_a_table_of_own_runs():
    assert len(read_measured(PUBLISHED)) == 400


def test_wrong_files_say_what_is_wrong(tmp_path):
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("id,modell\n1,2\n")
    with pytest.raises(InputError, match="unknown column 'modell'"):
        read_measured(wrong)
    with pytest.raises(InputError, match="table of training runs"):
        read_measured(TRAINING_RUNS)
    with pytest.raises(InputError, match="unknown suffix"):
        read_measured(tmp_path / "own.txt")
    with pytest.raises(InputError, match=r"measured\.1\.load"):
        rows_of([(good := run(tpot_ms=1).model_dump(exclude_none=True)), good | {"load": -1}], 5)
    with pytest.raises(InputError, match="at most 1 runs"):
        rows_of([{}, {}], 1)


def measured_bundle(folder, made, **parts):
    """A bundle's folder, as far as reading what it measured needs it."""
    (folder / "run").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(to_yaml(made.model_dump(mode="json")))
    names = [made.device.names[0] if made.device.names else made.device.name]
    measurement = {
        "created": "2026-10-01T12:00:00+00:00",
        "recipe": made.name,
        "machine": {"runtime": made.device.runtime, "devices": [{"name": name} for name in names]},
        "engine": {"name": made.engine.name, "version": made.engine.version},
        "workload": {
            "mode": "closed",
            "input_tokens": 1023.5,
            "output_tokens": 256.0,
            "concurrency": 64,
            "request_rate": None,
            "wall_s": 12.0,
        },
        "metrics": {"requests": 256, "ttft_p95_s": None} | parts,
    }
    path = folder / "run" / "measurement.json"
    path.write_text(json.dumps(measurement))
    return path


def test_what_a_bundle_measured_is_an_own_run(tmp_path):
    made = recipe_of(QWEN_32B, "h100-sxm", 8, candidate=SPLIT)
    plain = made.estimate["serving"]["tpot_s"]
    path = measured_bundle(tmp_path / "bundle", made, tpot_s=plain * 2)
    for source in (path, path.parent.parent):
        told = corrections_of(source)
        assert not told.left_out
        answer = served(request(), told)
        assert answer["basis"]["tpot_s"].startswith("calibrated: 1 own run of this deployment, × ")
        assert 1.5 < answer["serving"]["tpot_s"] / plain < 2
    alone = tmp_path / "alone.json"
    alone.write_text(path.read_text())
    with pytest.raises(InputError, match="does not lie in its bundle"):
        read_measured(alone)
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a measurement"):
        read_measured(path)


# Doors


def test_the_command_line_corrects_estimates_and_plans(tmp_path):
    runs = [*times_as_estimated(2.0), run("lost", model="Nobody/Nothing", tpot_ms=9)]
    path = table(tmp_path, runs)
    (tmp_path / "r.json").write_text(json.dumps(request()))
    (tmp_path / "r.jsonl").write_text(f"{json.dumps(request())}\nnot json\n")
    told = served(request(), taught(runs))
    done = recipe("estimate", str(tmp_path / "r.json"), "--measured", str(path), "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert "calibrated by 1 own run on h100-sxm" in done.stderr
    assert "lost: unknown model" in done.stderr
    assert answer["serving"]["tpot_s"] == pytest.approx(told["serving"]["tpot_s"])
    assert answer["own_runs"]["left_out"][0]["name"] == "lost"
    lines = recipe("estimate", str(tmp_path / "r.jsonl"), "--measured", str(path)).stdout
    first, second = map(json.loads, lines.splitlines())
    assert first == json.loads(json.dumps(told))
    assert "error" in second
    done = recipe("plan", str(tmp_path / "r.json"), "--measured", str(path), "--json")
    assert json.loads(done.stdout)["own_runs"]["used"] == 1
    text = recipe("estimate", str(tmp_path / "r.json"), "--measured", str(path)).stdout
    assert "calibrated: 1 own run of this deployment" in text


def test_training_is_refused(tmp_path):
    path = table(tmp_path, times_as_estimated(2.0))
    workload = {"kind": "training", "sequence_length": 4096, "global_batch": 64}
    asked = {"model": QWEN_32B, "hardware": {"device": "h100-sxm"}, "workload": workload}
    (tmp_path / "t.json").write_text(json.dumps(asked))
    for command in ("plan", "estimate"):
        done = recipe(command, str(tmp_path / "t.json"), "--measured", str(path))
        assert done.returncode == 2
        assert "correct estimates of serving, not of training" in done.stderr


def test_the_api_takes_runs_beside_a_request():
    runs = times_as_estimated(2.0)
    rows = [one.model_dump(exclude_none=True) for one in runs]
    answers = Answers(folders=False)
    body = {"request": request(), "measured": rows}
    answer = answers.estimate(body)
    assert answer["own_runs"] == {"used": 1, "left_out": []}
    assert answer["serving"]["tpot_s"] == pytest.approx(
        served(request(), taught(runs))["serving"]["tpot_s"]
    )
    assert answers.plan(body, top=1)["own_runs"]["used"] == 1
    with pytest.raises(InputError, match="is not a known field"):
        answers.plan(body | {"extra": 1})
