"""Runs of one's own: what they teach estimates and plans, and what they leave as it is."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import recipe_core as rb
from recipe_core.base.documents import to_yaml
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.residuals import (
    MAX_RUNS,
    learn_corrections,
    measured_of_rows,
    shipped_prior,
)
from recipe_core.calibration.run_files import (
    bundle_run,
    corrections_from_sources,
    parse_run_rows,
    read_measured,
)
from recipe_core.doors import answers
from recipe_core.estimates.bands import narrow_interval
from recipe_core.estimates.columns.corrections import version_in_text
from recipe_core.estimates.measured.runs import PUBLISHED, TRAINING_RUNS, Run
from recipe_core.plans.plan_json import measure_text
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_splits
from recipe_core.plans.splits import row_reasons, row_request
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_name
from recipe_core.views.plans import plan_text
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures import rows
from tests.fixtures.command_line import recipe
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.fixtures.refusals import refusal

QWEN_32B = "Qwen/Qwen3-32B"
SPLIT = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 2}
LOADS = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}
TIMES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")


def request(mode="closed", load=64, **values):
    workload = {"mode": mode, LOADS[mode]: load, "input_tokens": 1024, "output_tokens": 256}
    return {
        "model": QWEN_32B,
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": workload | values.pop("workload", {}),
        "candidate": SPLIT | values.pop("candidate", {}),
    } | values


def run(name="one", **values):
    plain = {"model": QWEN_32B, "device": "h100-sxm", "per_node": 8, "mode": "closed", "load": 64}
    plain |= {"engine": "vllm", "tp": 4, "dp": 2, "input_tokens": 1024, "output_tokens": 256}
    return Run.model_validate({"id": name} | plain | values)


def served(asked, corrections=None):
    (answer,) = estimate_batch([asked], corrections)
    assert answer["feasible"], answer["reasons"]
    return answer


def times_as_estimated(factor, count=1, **values):
    """Runs whose time per token is ``factor`` times the estimate; no two are the same."""
    tpot_ms = tpot(run(tpot_ms=1, **values).request()) * 1e3 * factor
    return [run(f"run {k}", tpot_ms=tpot_ms * (1 + 1e-6 * k), **values) for k in range(count)]


def taught(runs):
    return learn_corrections(measured_of_rows(runs))


def tpot(asked, corrections=None):
    return served(asked, corrections)["serving"]["tpot_s"]


def test_without_runs_and_on_another_device_answers_are_the_same_to_the_bit():
    asked = [request(), request("open", 2.0), request("static", 16), request("offline", 500)]
    assert estimate_batch(asked, corrections_from_sources([])) == estimate_batch(asked)
    assert corrections_from_sources(None) is None
    plain = plan_splits(PlanRequest.parse(asked[0]))
    assert plain.setting(0).correction is None
    assert "own_runs" not in plain.to_json(1)
    other = request(hardware={"device": "mi300x", "per_node": 8})
    plain, told = served(other), served(other, taught(times_as_estimated(2.0, 2)))
    assert (told["serving"], told["bands"]) == (plain["serving"], plain["bands"])
    assert told["basis"]["tpot_s"] == "computed: none of 2 own runs is on this device"
    plain, told = served(request()), served(request(), taught(times_as_estimated(1.0)))
    figures = {name: plain["serving"][name] for name in TIMES}
    assert {name: told["serving"][name] for name in TIMES} == pytest.approx(figures, rel=1e-9)
    assert told["bands"]["tpot_s"][1] < plain["bands"]["tpot_s"][1]


def test_more_runs_move_further_by_buhlmann_credibility_and_one_odd_figure_is_cut():
    plain = served(request())["serving"]
    times = [tpot(request(), taught(times_as_estimated(2.0, count))) for count in (1, 2, 5, 20)]
    steps = [plain["tpot_s"], *times, 2 * plain["tpot_s"]]
    assert all(few < many for few, many in pairwise(steps))
    runs = [run(f"{k}", ttft_ms=plain["ttft_s"] * 30e3 * (1 + 1e-6 * k)) for k in range(3)]
    alone, all_ = (served(request(), taught(some))["serving"] for some in (runs[:1], runs))
    assert 1 < alone["ttft_s"] / plain["ttft_s"] < 6
    assert all_["ttft_s"] / plain["ttft_s"] > 20
    # one scope is Bühlmann credibility
    none = dict.fromkeys(("version", "model", "deployment", "load"), 0.0)
    steps = shipped_prior().steps
    shares = steps.shares.model_copy(update={**none, "device": 0.75, "noise": 0.25})
    one_scope = steps.model_copy(update={"shares": shares})
    known = shipped_prior().model_copy(update={"cap": 1e9, "steps": one_scope})
    plain = tpot(request())
    for count in (1, 3, 7):
        told = learn_corrections(
            measured_of_rows(times_as_estimated(2.0, count)), prior_belief=known
        )
        moved = np.log(tpot(request(), told) / plain)
        assert moved == pytest.approx(np.log(2) * count / (count + 1 / 3), rel=1e-4)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_what_is_less_alike_moves_less(factor):
    told = taught(times_as_estimated(factor))
    tp8, load = {"tp": 8, "dp": 1}, {"concurrency": 32}
    asked = [
        request(),
        request(workload=load),
        request(model=LLAMA_70B, candidate=tp8),
        request(model=LLAMA_70B, candidate=tp8 | {"engine": "sglang"}),
    ]
    moves = [moved(case, told) for case in asked]
    assert all(a > b > 0 for a, b in pairwise(moves))
    assert moves[0] < abs(np.log(factor))


def test_a_time_to_the_first_token_tells_less_of_other_lengths_than_a_time_per_token():
    plain = served(request())["serving"]
    late = {f"{name}_ms": 1.4e3 * plain[f"{name}_s"] for name in ("tpot", "ttft")}
    told = taught([run(**late)])
    kept = {}
    for change in ("input_tokens", "output_tokens", "concurrency"):
        other = request(workload={change: 16 * request()["workload"][change]})
        for figure in ("tpot_s", "ttft_s"):
            kept[change, figure] = moved(other, told, figure) / moved(request(), told, figure)
    assert all(0 < share < 1 for share in kept.values())
    assert kept["input_tokens", "ttft_s"] < 0.8 * kept["input_tokens", "tpot_s"]
    prior = shipped_prior()
    assert prior.prompts.prompt_fades > prior.steps.prompt_fades
    for scale in prior.scales:
        assert sum(scale.shares.model_dump().values()) == pytest.approx(1)


def moved(asked, told, figure="tpot_s"):
    plain, corrected = served(asked), served(asked, told)
    return abs(np.log(corrected["serving"][figure] / plain["serving"][figure]))


def width(asked, told, figure="tpot_s"):
    """A figure's band with own runs, as a share of that without, on a log scale."""
    widths = [np.ptp(np.log(served(asked, c)["bands"][figure])) for c in (told, None)]
    return widths[0] / widths[1]


@pytest.mark.parametrize("factor", [0.87, 1.15])
def test_untried_layouts_share_the_correction_of_their_neighbours_with_a_wider_band(factor):
    tp2 = {"tp": 2, "dp": 2}
    told = taught([*times_as_estimated(factor, 2), *times_as_estimated(2.0, **tp2)])
    known = request()
    for alike in ({"pp": 2, "dp": 1}, {"dp": 1}, {"kv_dtype": "fp8"}):
        untried = request(candidate=alike)
        # of their tp first: the runs of tp 2 say another thing
        assert moved(untried, told) == pytest.approx(moved(known, told), rel=1e-6), alike
        assert width(known, told) < 0.5 < 0.75 < width(untried, told) <= 1 + 1e-9
    slower = np.sign(factor - 1) * moved(known, told)
    others = moved(request(candidate={"tp": 8, "dp": 1}), told)
    assert slower < others < moved(request(candidate=tp2), told)
    prompts = taught([run(ttft_ms=served(known)["serving"]["ttft_s"] * 2e3)])
    pp2 = request(candidate={"pp": 2, "dp": 1})
    own, lent = (moved(asked, prompts, "ttft_s") for asked in (known, pp2))
    assert 0.6 * own < lent < 0.9 * own


def test_an_untried_layout_does_not_win_by_lacking_a_correction_and_what_moved_is_said():
    asked = make_request(QWEN_32B, objective={"limits": {"tpot_ms": 40.0}})
    plain = plan_splits(asked)
    best, second = (plain.label(row) for row in plain.order[:2])
    degrees = [
        {name: plain.candidate(row)[name] for name in ("tp", "pp", "dp", "ep")}
        for row in plain.order[:2].tolist()
    ]
    for factor in (1.15, 1.3):
        slow = times_as_estimated(factor, 3, **degrees[0])
        told = plan_splits(asked, corrections=taught(slow))
        assert told.label(told.best_row) == best
        effect = told.own_runs_effect
        assert effect.text.startswith("3 own runs moved the best layout's throughput: ")
        assert (effect.moved, effect.measure) == (False, "output")
        assert effect.after < effect.before == plain.raw("output")[plain.best_row]
    # measured, the second is really the faster one
    more = [*slow, *times_as_estimated(1.0, 3, **degrees[1])]
    told = plan_splits(asked, corrections=taught(more))
    values = [measure_text(plan, "output", plan.best_row) for plan in (plain, told)]
    answer = told.to_json(1)["own_runs"]["effect"]
    said = f"6 own runs moved the best layout from {best} to {second} ({' → '.join(values)})"
    assert answer["sentence"] == said
    assert answer["after"]["candidate"] == told.best.candidate
    assert said in plan_text(told, 5)
    # a load that nothing keeps any more
    limits = {"objective": {"limits": {"tpot_ms": 20.0}}, "workload": {"concurrency": 64}}
    limited = make_request(QWEN_32B, **limits)
    told = plan_splits(limited, corrections=taught(times_as_estimated(3.0, 3)))
    best = plan_splits(limited).best
    said = (
        f"3 own runs ruled every layout out; without them {split_name(best.candidate)} is the best"
    )
    assert (told.own_runs_effect.text, told.own_runs_effect.after) == (said, None)
    assert plain.own_runs_effect is None


def test_each_scale_is_learned_from_its_own_figure_or_from_latency_and_throughput():
    plain = served(request())
    first_ms = plain["serving"]["ttft_s"] * 1e3
    told = served(request(), taught([run(ttft_ms=first_ms * 2)]))
    assert 1.5 < told["serving"]["ttft_s"] / plain["serving"]["ttft_s"] < 2
    assert told["serving"]["tpot_s"] == pytest.approx(plain["serving"]["tpot_s"], rel=0.05)
    assert told["basis"]["ttft_s"].startswith("calibrated: 1 own run of this deployment, × ")
    assert told["basis"]["tpot_s"] == "computed"
    for mode, load in {"closed": 64, "static": 16, "offline": 400}.items():
        asked = request(mode, load)
        plain = served(asked)["serving"]
        rate = plain["output_tokens_per_s"]
        slower = {"request_latency_ms": plain["request_latency_s"] * 2e3}
        for figure in (slower, {"output_tokens_per_s": rate / 2}):
            told = served(asked, taught([run(mode=mode, load=load, **figure)]))["serving"]
            assert 0.5 < told["output_tokens_per_s"] / rate < 0.7
    told = taught([run(mode="open", load=2, output_tokens_per_s=512)])
    assert not told.runs
    assert "nothing that a scale explains" in told.left_out[0].reason


def test_neither_the_order_of_rows_nor_runs_given_twice_or_excluded_matter():
    runs = [run(f"{k}", load=8 * k, tpot_ms=10 + k, ttft_ms=50 + 9 * k) for k in range(1, 9)]
    answer = served(request(), taught(runs))
    random.Random(3).shuffle(runs)
    for same in (runs, [*runs, *runs]):
        assert served(request(), taught(same)) == answer
    measured = measured_of_rows(times_as_estimated(2.0, 2))
    told = learn_corrections([measured[0], replace(measured[1], excluded="warm cache")])
    assert (len(told.runs), told.left_out[0].reason) == (1, "warm cache")
    many = [run(f"{k}", tpot_ms=k + 1) for k in range(MAX_RUNS + 1)]
    assert f"at most {MAX_RUNS:,}" in str(refusal(taught, many))


def corrected(asked):
    runs = [run("a", tpot_ms=30, ttft_ms=400), run("b", load=16, tpot_ms=22, ttft_ms=70)]
    return served(asked), served(asked, taught(runs))


@rows.over("name, parts", rows.table("calibration", "asked").items())
def test_identities_hold(name, parts):
    asked = request(**parts)
    plain, told = corrected(asked)
    figures, times, cost = (told[name] for name in ("serving", "breakdown_s", "cost"))
    workload, rate = asked["workload"], figures["output_tokens_per_s"]
    tokens = workload["output_tokens"]
    latency = figures["ttft_s"] + (tokens - 1) * figures["tpot_s"]
    assert latency == pytest.approx(figures["request_latency_s"])
    assert sum(times["prefill"].values()) == pytest.approx(figures["ttft_s"])
    assert sum(times["decode"].values()) == pytest.approx(figures["tpot_s"])
    held, before = (
        answer["output_tokens_per_s"] / tokens * answer["request_latency_s"]
        for answer in (figures, plain["serving"])
    )
    if workload["mode"] in ("closed", "static"):  # Little's law
        load = workload.get("concurrency") or workload["batch"]
        assert held == pytest.approx(before, rel=1e-6)
        assert held == pytest.approx(load, rel=0.03)
    if workload["mode"] == "open":
        assert rate == pytest.approx(2.0 * tokens)
    per_million = cost["usd_per_hour"] / 3600 / rate * 1e6
    assert cost["usd_per_million_output_tokens"] == pytest.approx(per_million)
    assert figures["output_tokens_per_s_per_gpu"] <= rate


def test_an_open_loop_that_slows_down_serves_less():
    rate = most = 1.0
    while estimate_batch([request("open", rate)])[0]["feasible"]:
        rate, most = rate * 1.1, rate
    told = taught(times_as_estimated(2.0, 3))
    (answer,) = estimate_batch([request("open", most)], told)
    assert not answer["feasible"]
    assert "requests a second arrive; this layout serves" in answer["reasons"][0]
    slower = served(request("open", most / 4), told)
    assert slower["serving"]["output_tokens_per_s"] == pytest.approx(most / 4 * 256)


def test_bands_are_narrower_and_hold_the_estimate_and_percentiles_follow_the_means():
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
    assert narrow_interval((0.5, 2.0), 0.5)[1] == pytest.approx(2**0.5)
    assert narrow_interval((0.5, 3.0), 1.0)[1] == pytest.approx(3.0)
    asked = PlanRequest.parse(request(load=8))
    own = taught(times_as_estimated(2.0, 4, load=8))
    plans = [plan_candidate(asked), plan_candidate(asked, corrections=own)]
    plain, told = (table.spec.detailed(table, row).to_json()["serving"] for table, row in plans)
    factor = told["tpot_s"] / plain["tpot_s"]
    for name in ("tpot_p50_s", "tpot_p95_s"):
        assert told[name] / plain[name] == pytest.approx(factor)
    latency = "request_latency_p95_s"
    assert told[latency] / plain[latency] == pytest.approx(factor, rel=0.1)


def test_a_plan_is_judged_by_corrected_figures():
    asked = make_request(QWEN_32B)
    plain = plan_splits(asked)
    best, row = plain.best, plain.best.row
    candidate = {name: best.candidate[name] for name in ("tp", "pp", "dp", "ep")}
    (other_tp, other_dp) = (4, 2) if candidate["tp"] == 8 else (8, 1)
    other = times_as_estimated(1.0, 3, tp=other_tp, dp=other_dp)
    slow = taught([*times_as_estimated(3.0, 3, **candidate), *other])
    told = plan_splits(asked, corrections=slow)
    tpot_s, slower_s = (table.columns["tpot_s"][row] for table in (plain, told))
    assert told.best.candidate["tp"] == other_tp
    assert slower_s == pytest.approx(told.estimate(row).tpot_s.value)
    assert slower_s > 2 * tpot_s
    # a limit that the formulas keep and the corrected figure does not
    limited = make_request(QWEN_32B, objective={"limits": {"tpot_ms": float(tpot_s) * 1.5e3}})
    assert "exceeds the limit" in row_reasons(plan_splits(limited, corrections=slow), row)[0]
    answer = told.to_json(1)["own_runs"]
    assert answer.pop("effect")["moved"]
    assert answer == {"used": 6, "left_out": []}
    # plans that come of it know the same runs
    assert told.replan(limited).problem.corrections is told.problem.corrections


def test_columns_and_single_cases_agree_and_the_library_takes_files_and_rows(tmp_path):
    told = taught([*times_as_estimated(2.0, 2), run("x", tp=8, dp=1, load=16, ttft_ms=300)])
    whole = plan_splits(make_request(QWEN_32B), corrections=told)
    for row in whole.order[:12].tolist():
        alone, place = plan_candidate(row_request(whole, row), corrections=told)
        for name in TIMES:
            assert alone.columns[name][place] == pytest.approx(whole.columns[name][row], rel=1e-9)
    runs = times_as_estimated(2.0)
    path = table(tmp_path, runs)
    first, *others, uncorrected = (
        rb.estimate(request(), measured=source).to_json()
        for source in (runs, path, [path], corrections_from_sources(runs), None)
    )
    assert others == [first] * 3
    assert uncorrected != first
    assert rb.plan(request(), measured=path).problem.corrections is not None


def test_runs_of_other_versions_are_others_and_what_cannot_be_estimated_is_named():
    good = times_as_estimated(2.0)
    odd = run("no model", model="Nobody/Nothing", tpot_ms=20)
    large = run("too big", model="deepseek-ai/DeepSeek-V3", tp=1, dp=1, per_node=1, tpot_ms=20)
    told = taught([odd, large, *good])
    assert served(request(), told)["serving"] == served(request(), taught(good))["serving"]
    reasons = {left.name: left.reason for left in told.left_out}
    assert "unknown model" in reasons["no model"]
    assert "cannot run by the estimate" in reasons["too big"]
    now = served(request(), taught(times_as_estimated(2.0)))
    then = served(request(), taught(times_as_estimated(2.0, version="vllm 0.6.1")))
    assert then["serving"]["tpot_s"] < now["serving"]["tpot_s"]
    basis = then["basis"]["tpot_s"]
    assert basis.startswith("calibrated: 1 own run of this model, device and engine, × ")
    versions = {"rocm/dev:vllm-v0.19.0-nightly_2026": "0.19.0", "0.5.5.post1": "0.5.5.post1"}
    versions[""] = ""
    assert {text: version_in_text(text) for text in versions} == versions


def table(folder, runs):
    path = folder / "own.csv"
    path.write_text(table_text(runs))
    return path


def test_the_shipped_table_is_one_of_own_runs_and_wrong_files_say_what_is_wrong(tmp_path):
    assert len(read_measured(PUBLISHED)) == 400
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("id,modell\n1,2\n")
    for file, said in (
        (wrong, "unknown column 'modell'"),
        (TRAINING_RUNS, "table of training runs"),
        (tmp_path / "own.txt", "unknown suffix"),
    ):
        assert said in str(refusal(read_measured, file))
    good = run(tpot_ms=1).model_dump(exclude_none=True)
    assert refusal(parse_run_rows, [good, good | {"load": -1}], 5).field == "measured.1.load"
    assert "at most 1 runs" in str(refusal(parse_run_rows, [{}, {}], 1))


def test_what_a_bundle_measured_is_an_own_run(tmp_path):
    made = recipe_of(QWEN_32B, "h100-sxm", 8, candidate=SPLIT)
    plain = made.estimate["serving"]["tpot_s"]
    path = tmp_path / "bundle" / "run" / "measurement.json"
    path.parent.mkdir(parents=True)
    (tmp_path / "bundle" / "recipe.yaml").write_text(to_yaml(made.model_dump(mode="json")))
    workload = {"mode": "closed", "input_tokens": 1023.5, "output_tokens": 256.0}
    measurement = {
        "created": "2026-10-01T12:00:00+00:00",
        "recipe": made.name,
        "machine": {"runtime": made.device.runtime, "devices": [{"name": made.device.names[0]}]},
        "engine": {"name": made.engine.name, "version": made.engine.version},
        "workload": workload | {"concurrency": 64, "request_rate": None, "wall_s": 12.0},
        "metrics": {"requests": 256, "ttft_p95_s": None, "tpot_s": plain * 2},
    }
    path.write_text(json.dumps(measurement))
    for source in (path, path.parent.parent):
        told = corrections_from_sources(source)
        assert not told.left_out
        answer = served(request(), told)
        assert answer["basis"]["tpot_s"].startswith("calibrated: 1 own run of this deployment, × ")
        assert 1.5 < answer["serving"]["tpot_s"] / plain < 2
    alone = tmp_path / "alone.json"
    alone.write_text(path.read_text())
    path.write_text("{}")
    for file, said in ((alone, "does not lie in its bundle"), (path, "is not a measurement")):
        assert said in str(refusal(read_measured, file))


@rows.over(
    "stated, measured, told",
    [
        ({}, {}, {}),  # results of before do not say
        (
            {},
            {"input_spread": 0.1, "output_spread": 0.0},
            {"input_spread": 0.1, "output_spread": 0.0},
        ),
        (
            {"output_lengths": {"shape": "lognormal", "cv": 1.2}},
            {"input_spread": 0.1, "output_cv": 1.13},
            {"input_spread": 0.1, "output_lengths": {"shape": "lognormal", "cv": 1.2}},
        ),
        (
            {"input_lengths": {"quantiles": {"p50": 900, "p90": 2000}}, "input_tokens": 1093},
            {"input_cv": 0.7, "output_spread": 0.1},
            {"input_lengths": {"shape": "lognormal", "cv": 0.7}, "output_spread": 0.1},
        ),
    ],
)
def test_a_measurement_of_a_bundle_says_how_lengths_varied(stated, measured, told):
    workload = {"output_tokens": 256, "concurrency": 64, "input_tokens": 1024} | stated
    request = make_request(QWEN_32B, "h100-sxm", 8, workload=workload, candidate=SPLIT)
    made = recipe_for_request(request)
    measurement = {
        "created": "2026-10-01T12:00:00+00:00",
        "recipe": made.name,
        "machine": {"runtime": made.device.runtime, "devices": [{"name": made.device.names[0]}]},
        "engine": {"name": made.engine.name, "version": made.engine.version},
        "workload": {"mode": "closed", "input_tokens": 1030.2, "output_tokens": 259.1}
        | {"concurrency": 64}
        | measured,
        "metrics": {"requests": 256, "tpot_s": 0.02},
    }
    run = bundle_run(json.dumps(measurement), "measurement.json", lambda: made)
    varied = ("spread", "lengths")
    work = {name: value for name, value in run.request["workload"].items() if name.endswith(varied)}
    assert work == told
    parsed = PlanRequest.parse({**run.request, "candidate": dict(run.request["candidate"])})
    assert parsed.workload.exact == (measured.get("input_spread") == 0)
    assert learn_corrections([run]).runs


def test_the_command_line_and_the_api_correct_estimates_and_plans(tmp_path):
    runs = [*times_as_estimated(2.0), run("lost", model="Nobody/Nothing", tpot_ms=9)]
    measured = ("--measured", str(table(tmp_path, runs)))
    file, lines = tmp_path / "r.json", tmp_path / "r.jsonl"
    file.write_text(json.dumps(request()))
    lines.write_text(f"{json.dumps(request())}\nnot json\n")
    told = served(request(), taught(runs))
    done = recipe("estimate", str(file), *measured, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    for said in ("calibrated by 1 own run on h100-sxm", "lost: unknown model"):
        assert said in done.stderr
    assert answer["serving"]["tpot_s"] == pytest.approx(told["serving"]["tpot_s"])
    assert answer["own_runs"]["left_out"][0]["name"] == "lost"
    first, second = map(json.loads, recipe("estimate", str(lines), *measured).stdout.splitlines())
    assert (first, "error" in second) == (json.loads(json.dumps(told)), True)
    done = recipe("plan", str(file), *measured, "--json")
    assert json.loads(done.stdout)["own_runs"]["used"] == 1
    text = recipe("estimate", str(file), *measured).stdout
    assert "calibrated: 1 own run of this deployment" in text
    workload = {"kind": "training", "sequence_length": 4096, "global_batch": 64}
    asked = {"model": QWEN_32B, "hardware": {"device": "h100-sxm"}, "workload": workload}
    file.write_text(json.dumps(asked))
    for command in ("plan", "estimate"):
        done = recipe(command, str(file), *measured)
        assert done.returncode == 2
        assert "correct estimates of serving, not of training" in done.stderr
    runs = times_as_estimated(2.0)
    body = {"request": request(), "measured": [row.model_dump(exclude_none=True) for row in runs]}
    answer = answers.answer_estimate(body)
    assert answer["own_runs"] == {"used": 1, "left_out": []}
    assert answer["serving"]["tpot_s"] == pytest.approx(tpot(request(), taught(runs)))
    assert answers.answer_plan(body, top=1)["own_runs"]["used"] == 1
    assert "is not a known field" in str(refusal(answers.answer_plan, body | {"extra": 1}))
