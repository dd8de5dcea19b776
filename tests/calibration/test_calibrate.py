"""The calibration: what is kept, what counts, how long, that every door uses and shows it; and runs
beside their predictions.
"""

import datetime
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import recipe_core as rb
from recipe_core.base.documents import to_json
from recipe_core.bundle.verify import read_bundle
from recipe_core.calibration import run_checks
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.lessons import Knowledge
from recipe_core.calibration.place import VARIABLE, calibration_stamp, default_path
from recipe_core.calibration.residuals import compare_runs, measured_of_rows
from recipe_core.calibration.store import Incoming, Overlay
from recipe_core.doors import answers
from recipe_core.doors.worker import answer_calibrated
from recipe_core.estimates.columns.scopes import (
    correct_by_default,
    standing_corrections,
    without_corrections,
)
from recipe_core.estimates.measured.runs import published_runs
from recipe_core.plans.plans import estimate_batch
from recipe_core.recipe.build import redecide
from recipe_core.sizing.answer import Answer
from recipe_core.views import measured as view
from recipe_core.views.charts.measured import measured_against, parts_against, ratios_by_group
from tests.calibration.test_own_runs import request, run, times_as_estimated, tpot
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal

DAY = datetime.date(2026, 11, 1)
NOW = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)
PUBLISHED = [run for run in published_runs() if run.device == "h100-sxm" and not run.exclude]
RUNS = measured_of_rows([run for run in PUBLISHED if run.tpot_ms and run.mode == "closed"][:12])


def incoming(runs):
    return [Incoming(own, "runs.csv", "table") for own in runs]


def measured(factor, count=1, **values):
    """Runs whose time per token is ``factor`` times the estimate."""
    return measured_of_rows(times_as_estimated(factor, count, **values))


def holding(path, *additions, today=DAY):
    overlay = Overlay.at(path, today=today)
    for runs in additions:
        overlay = overlay.add(incoming(runs), now=NOW).overlay
    return overlay


def states(overlay):
    return [entry.gate.state for entry in overlay.entries]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """This machine's calibration: three runs that take 1.3 times as long as estimated."""
    path = tmp_path / "calibration"
    monkeypatch.setenv(VARIABLE, str(path))
    Overlay.at(path).add(incoming(measured(1.3, 3)))
    return path


def test_where_it_lies_and_without_one_answers_are_the_same(tmp_path, monkeypatch):
    assert default_path({VARIABLE: ""}) is None
    assert default_path({VARIABLE: "/a/b.json"}) == Path("/a/b.json")
    assert default_path({"XDG_DATA_HOME": "/data"}) == Path("/data/recipe-builder/calibration")
    assert default_path({}) == Path("~/.local/share/recipe-builder/calibration").expanduser()
    assert (Overlay.open(), os.environ[VARIABLE]) == (None, ""), "tests have none"
    plain = to_json(rb.plan(request()).to_json())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none-here"))
    assert calibration_stamp() == ""
    assert to_json(rb.plan(request()).to_json()) == plain


@pytest.mark.parametrize("name", ["folder", "file.json"])
def test_what_is_added_is_there_and_can_be_taken_back(tmp_path, name):
    path = tmp_path / name
    first = holding(path, measured(1.2, 2))
    both = holding(path, measured(1.25, 1, load=32))
    assert (len(first.entries), len(both.entries)) == (2, 3)
    entry = both.entries[0]
    assert (entry.source, entry.format, entry.engine) == ("runs.csv", "table", "vllm")
    assert (entry.device, bool(entry.ran)) == ("h100-sxm", True)
    assert entry.expires == DAY + datetime.timedelta(days=180)
    again = Overlay.at(path, today=DAY).add(incoming(measured(1.2, 2)), now=NOW)
    assert (len(again.entries), len(again.repeated_ids)) == (0, 2), "the same runs count once"
    shorter, removed = both.undo()
    assert [own.name for own in removed] == ["run 0"]
    assert len(shorter.entries) == len(Overlay.open(path, today=DAY).entries) == 2
    assert "1 additions; 2 cannot" in str(refusal(shorter.undo, 2))
    assert not Overlay.cleared(path).entries
    dry = Overlay.at(tmp_path / "store").add(incoming(measured(1.2)), now=NOW, dry=True)
    assert (len(dry.entries), (tmp_path / "store").exists()) == (1, False)


def test_a_damaged_file_is_named_with_the_fix_and_a_later_version_is_not_damaged(tmp_path):
    file = tmp_path / "calibration.json"
    for content, said in (
        ("{", "not valid JSON"),
        ('{"schema_version": 1, "additions": [{"added": "x", "runs": []}]}', "additions.0.added"),
        ('{"schema_version": 1}', "additions"),
        ("[]", "damaged"),
    ):
        file.write_text(content)
        error = refusal(Overlay.open, tmp_path)
        assert all(part in str(error) for part in (said, str(file)))
        assert "--clear" in error.hint
        assert Overlay.cleared(tmp_path).entries == ()
    file.write_text('{"schema_version": 2, "additions": []}')
    error = refusal(Overlay.open, tmp_path)
    assert ("reads 1" in str(error), error.hint) == (True, "Update recipe-builder.")
    own = measured(1.2)[0]
    secret = {**own.request, "options": {"environment": {"HF_TOKEN": "hf_" + "a" * 34}}}
    runs = incoming([replace(own, request=secret)])
    assert "secret" in str(refusal(Overlay.at(tmp_path / "other").add, runs))


def test_what_is_odd_unsound_or_of_another_version_is_held_until_a_second_run_agrees(tmp_path):
    sound = holding(tmp_path, measured(1.1, 3))
    odd = holding(tmp_path, measured(3.0, 1, load=60))
    agreed = holding(tmp_path, measured(3.05, 1, load=66))
    assert states(sound) == ["accepted"] * 3
    assert states(odd) == ["accepted"] * 3 + ["held"]
    assert states(agreed) == ["accepted"] * 5
    for said in ("3 times the estimate", "second run agrees"):
        assert said in odd.entries[-1].gate.reason
    before, held, after = (
        tpot(request(), overlay.corrections()) for overlay in (sound, odd, agreed)
    )
    assert held == before, "what is held changes no bit"
    assert after > before
    contradicted = holding(tmp_path / "two", measured(1.0), measured(2.5, 1, load=65))
    assert states(contradicted) == ["accepted", "held"]
    three = holding(tmp_path / "two", measured(2.45, 1, load=63))
    assert states(three)[1:] == ["accepted", "accepted"]
    # beyond all measure, unsound or of another version
    (own,) = measured(1.2)
    versions = [replace(run, version="0.9.9") for run in measured(1.2, 2)]
    for held, reason in (
        (measured(1000.0), "no other run"),
        ([replace(own, requests=100, failed=5)], "5 of 105 requests failed"),
        ([replace(own, requests=7, failed=0)], "7 requests were measured"),
        ([replace(own, excluded="prompts from a cache")], "prompts from a cache"),
        (versions[:1], "0.9.9"),
    ):
        overlay = holding(tmp_path / reason, held)
        assert states(overlay) == ["held"]
        assert reason in overlay.entries[0].gate.reason
        assert overlay.corrections() is None
    for n, counted in enumerate((measured(4.0), [replace(own, requests=8)], versions)):
        assert states(holding(tmp_path / f"counted {n}", counted)) == ["accepted"] * len(counted)


def test_runs_expire_by_age_version_and_driver(tmp_path, monkeypatch):
    first, second = (replace(own, machine="a", driver="550") for own in measured(1.2, 2))
    overlay = holding(tmp_path / "age", [first])
    later = Overlay.open(tmp_path / "age", today=DAY + datetime.timedelta(days=181))
    assert (states(overlay), states(later)) == (["accepted"], ["expired"])
    assert "180 days" in later.entries[0].expired
    assert later.corrections() is None
    dated = replace(first, date=datetime.date(2026, 1, 1))
    assert states(holding(tmp_path / "old", [dated])) == ["expired"], "by its own day"
    newer = replace(second, driver="570", date=DAY + datetime.timedelta(days=1))
    driver = holding(tmp_path / "driver", [first], [newer])
    assert states(driver) == ["expired", "accepted"]
    assert "570 now" in driver.entries[0].expired
    other = replace(newer, machine="b")
    assert states(holding(tmp_path / "machines", [first], [other])) == ["accepted"] * 2
    monkeypatch.setattr(run_checks, "pinned_version", lambda _run: "99.1")
    moved = Overlay.open(tmp_path / "age", today=DAY)
    assert states(moved) == ["expired"]
    assert "99.1 now" in moved.entries[0].expired


def test_each_number_says_its_scope_its_runs_and_its_weight(tmp_path):
    answer = Knowledge(holding(tmp_path, measured(1.3, 4))).to_json()
    steps = {number["scope"]: number for number in answer["numbers"] if number["scale"] == "steps"}
    assert set(steps) == {"device", "version", "model", "deployment"}
    for number in steps.values():
        assert set(number["runs"]) == {own["id"] for own in answer["runs"]}
        assert 0 < number["weight"] < 1
        assert number["low"] < number["factor"] < number["high"]
    assert steps["device"]["of"] == ("h100-sxm",)
    assert steps["deployment"]["factor"] > steps["device"]["factor"] > 1
    error = {row["figure"]: row for row in answer["left_one_out"]}["tpot_s"]
    assert (error["before"], error["runs"]) == (pytest.approx(0.3 / 1.3, rel=0.01), 4)
    assert error["after"] < error["before"] / 2


def test_the_library_uses_it_and_shows_it(store):
    plain, told = rb.estimate(request(), measured="none"), rb.estimate(request())
    assert told.tpot_s.value > 1.1 * plain.tpot_s.value
    assert told.tpot_s.basis.startswith("calibrated: 3 own runs of this deployment, × 1.2")
    assert plain.tpot_s.basis == "computed"
    counts = {"used": 3, "held": 0, "expired": 0}
    assert rb.plan(request()).to_json(1)["own_runs"]["calibration"] == counts
    assert "own_runs" not in rb.plan(request(), measured="none").to_json(1)
    for calibrated_too, basis in ((True, "calibrated"), (False, "computed")):
        checked = rb.check(request(), calibrated=calibrated_too)
        assert checked["estimate"]["basis"]["tpot_s"].startswith(basis)
    assert "goes with no other" in str(refusal(rb.plan, request(), measured=["none", "runs.csv"]))
    own = rb.plan(request(), measured=[run("another", tpot_ms=30, load=32)]).to_json(1)["own_runs"]
    assert (own["used"], own["calibration"]["used"]) == (4, 3)
    sized = {**request(), "hardware": {"any": {"devices": ["h100-sxm"]}}}
    del sized["candidate"]
    assert Answer(rb.size(sized)).to_json()["own_runs"]["used"] == 3
    assert "own_runs" not in Answer(rb.size(sized, measured="none")).to_json()
    # runs are held against the formulas alone
    overlay = Overlay.open(store)
    with correct_by_default(overlay.corrections):
        assert standing_corrections() is not None
        again = overlay.corrections()
        with without_corrections():
            assert standing_corrections() is None
    alone = overlay.corrections()
    assert [each.residuals for each in again.runs] == [each.residuals for each in alone.runs]
    Overlay.at(store).undo()  # changes the next answer
    assert rb.estimate(request()).tpot_s.value < told.tpot_s.value


def test_the_api_uses_the_servers_own_and_says_of_a_damaged_one_no_path(store, capsys):
    estimate = answer_calibrated(lambda: answers.answer_estimate(request()))
    assert estimate["basis"]["tpot_s"].startswith("calibrated: 3 own runs")
    assert estimate["own_runs"]["calibration"]["used"] == 3
    row = run("x", tpot_ms=30, load=32).model_dump(exclude_none=True)
    body = {"request": request(), "measured": [row]}
    for asked, used in ((request(), 3), (body, 4)):
        answer = answer_calibrated(lambda asked=asked: answers.answer_plan(asked, top=1))
        assert answer["own_runs"]["used"] == used
    (store / "calibration.json").write_text("{")
    error = str(refusal(answer_calibrated, lambda: answers.answer_estimate(request())))
    assert "of this server cannot be read" in error
    assert str(store) not in error
    assert str(store) in capsys.readouterr().err


def test_the_command_line_learns_shows_and_takes_back(tmp_path, monkeypatch):
    store, path, file = (tmp_path / name for name in ("store", "runs.csv", "request.yaml"))
    monkeypatch.setenv(VARIABLE, str(store))
    path.write_text(
        table_text([run(f"{load}", load=load, tpot_ms=tpot(request()) * 1300) for load in (64, 32)])
    )
    file.write_text(to_json(request()))
    plain = recipe("estimate", str(file))
    assert (plain.stderr, "calibrated" in plain.stdout) == ("", False)
    dry = recipe("calibrate", str(path), "--dry-run")
    assert (dry.returncode, "would add 2 runs" in dry.stdout) == (0, True)
    assert not store.exists()
    done = json.loads(recipe("calibrate", str(path), "--json").stdout)
    assert done["counts"] == {"used": 2, "held": 0, "expired": 0}
    assert {run["source"] for run in done["added"]} == {"runs.csv"}
    assert {row["figure"] for row in done["left_one_out"]} == {"tpot_s"}
    listed = recipe("calibrate", "--list", columns=200).stdout
    shown = ("2 runs count", "Credibility", "32 %")
    assert [text for text in shown if text not in listed] == []
    told = recipe("estimate", str(file))
    assert "calibrated: 2 own runs of this deployment, ×" in told.stdout
    assert "in the calibration: 2" in told.stderr
    assert "calibrated by 2 own runs" in recipe("plan", str(file)).stdout
    assert "calibrated: 2 own runs" in recipe("check", str(file)).stdout
    for off in (["--no-calibration"], ["--measured", "none"]):
        assert recipe("estimate", str(file), *off).stdout == plain.stdout
    assert "calibrated" not in recipe("check", str(file), "--no-calibration").stdout
    assert "took back 2" in recipe("calibrate", "--undo").stdout
    assert recipe("estimate", str(file)).stdout == plain.stdout
    for words in (["--undo", "2"], [], ["--list", "--clear"]):
        assert recipe("calibrate", *words).returncode == 2
    assert recipe("calibrate", "--clear").returncode == 0
    monkeypatch.setenv(VARIABLE, "")
    assert "switched off" in recipe("calibrate", str(path)).stderr


def test_a_recipe_keeps_what_it_was_made_with(store, tmp_path):
    """A bundle is written, read and started again where nothing was learned, or other things."""
    limits = {"limits": {"tpot_ms": tpot(request()) * 1050}, "confidence": 0.5}
    slow = rb.build(request(objective=limits), calibrated=False)
    assert redecide(slow).candidate == slow.candidate, "later runs do not refuse an old recipe"
    refusal(rb.build, request(objective=limits), kind=rb.RecipeError)
    path = rb.write(rb.build(request()), tmp_path / "bundle")
    expected = json.loads((path / "expected.json").read_text())
    assert expected["basis"]["tpot_s"].startswith("calibrated: 3 own runs")
    assert read_bundle(path).recipe.estimate == expected
    # one that holds its limits by own runs is built elsewhere
    Overlay.cleared(store)
    Overlay.at(store).add(incoming(measured(0.7, 3)))
    bound = {"limits": {"tpot_ms": tpot(request()) * 900}, "confidence": 0.5}
    built = rb.build(request(objective=bound))
    Overlay.cleared(store)
    assert redecide(built).candidate == built.candidate
    assert rb.write(built, tmp_path / "elsewhere").is_dir()


@pytest.fixture(scope="module")
def compared():
    return compare_runs(RUNS)


def test_runs_are_compared_with_what_formulas_say_and_with_each_other_but_not_themselves(compared):
    for own in RUNS:
        row = next(r for r in compared.figures if (r.run, r.figure) == (own.name, "tpot_s"))
        (estimate,) = estimate_batch([dict(own.request)])
        assert row.formulas.value == estimate["serving"]["tpot_s"]
        assert row.measured == own.tpot_s
        assert sum(row.parts.values()) == pytest.approx(row.formulas.value, rel=1e-6)
    good, other = RUNS[:2]
    unknown = replace(other, name="odd", request={**other.request, "model": "nobody/nothing"})
    compared = compare_runs([good, unknown])
    assert {row.run for row in compared.figures} == {good.name}
    assert "nobody/nothing" in compared.left_out["odd"]
    own = RUNS[0]
    assert all(row.corrected == row.formulas for row in compare_runs([own]).figures)
    unknown = dict.fromkeys(("ttft_s", "request_latency_s", "output_tokens_per_s"))
    slow = []
    for load in (4, 8, 16):
        asked = {**own.request, "workload": {**own.request["workload"], "concurrency": load}}
        times = unknown | {"tpot_s": 1.5 * tpot(asked)}
        slow.append(replace(own, name=f"{load}", request=asked, **times))
    rows = [row for row in compare_runs(slow).figures if row.figure == "tpot_s"]
    assert len(rows) == 3
    for row in rows:
        assert row.error == pytest.approx(1 / 3)
        assert row.corrected_error < 0.7 * row.error
        assert "own run" in row.corrected.basis


def test_charts_and_tables_show_every_run_its_group_its_parts_and_what_counts(compared, tmp_path):
    rows = view.rows_of_figure(compared, "tpot_s")
    for which in ("formulas", "corrected"):
        _, inside, outside = measured_against(rows, which).data
        assert len(inside.x) + len(outside.x) == len(rows)
        for trace in (inside, outside):
            ends = (trace.error_x.array, trace.error_x.arrayminus)
            for x, y, plus, minus in zip(trace.x, trace.y, *ends, strict=True):
                assert (x - minus <= y <= x + plus) == (trace is inside)
    groups = [view.GROUPS["Model"](row) for row in rows]
    points, medians, *_ = ratios_by_group(rows, groups).data
    assert sorted(medians.y) == sorted(set(groups))
    assert list(points.x) == [row.measured / row.formulas.value for row in rows]
    *parts, whole = (trace.x[0] / 1e3 for trace in parts_against(rows[0]).data)
    assert [sum(parts), whole] == pytest.approx([rows[0].formulas.value, rows[0].measured])
    added = Overlay.at(tmp_path).add(incoming(RUNS)).overlay
    *_, source = view.run_columns(sources=True)
    assert [source.get(entry) for entry in added.entries] == ["runs.csv"] * len(RUNS)
    assert len(view.run_columns(sources=False)) == len(view.run_columns(sources=True)) - 1
    counting = sum(entry.counts for entry in added.entries)
    assert view.calibration_verdict(added, compared).startswith(
        f"{counting} of {len(RUNS)} runs count;"
    )
    errors = view.figure_errors(compared)
    assert [error.figure for error in errors] == view.measured_figures(compared)
    assert all(0 < error.before < 1 for error in errors)
