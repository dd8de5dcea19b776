"""The calibration: what is kept, what counts, how long, and that every door uses and shows it."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

import recipe_core as rb
from recipe_core.base.documents import to_json
from recipe_core.bundle.verify import read_bundle
from recipe_core.calibration import gates
from recipe_core.calibration.own_runs import Measured, of_runs
from recipe_core.doors.answers import Answers
from recipe_core.doors.worker import calibrated
from recipe_core.recipe.build import redecide
from recipe_core.recipe.calibrate import Knowledge
from recipe_core.recipe.overlay import VARIABLE, Incoming, Overlay, default_path, stamp
from recipe_core.search.plans import estimate_batch
from recipe_core.sizing.answer import Answer
from recipe_core.space.standing import by_default, standing, uncorrected
from tests.calibration.test_own_runs import request, run, times_as_estimated, tpot
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal

DAY = datetime.date(2026, 11, 1)
NOW = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)


def incoming(runs: list[Measured]) -> list[Incoming]:
    return [Incoming(one, "runs.csv", "table") for one in runs]


def measured(factor: float, count: int = 1, **values) -> list[Measured]:
    """Runs whose time per token is ``factor`` times the estimate."""
    return of_runs(times_as_estimated(factor, count, **values))


def holding(path: Path, *additions: list[Measured], today: datetime.date = DAY) -> Overlay:
    overlay = Overlay.at(path, today=today)
    for runs in additions:
        overlay = overlay.add(incoming(runs), now=NOW).overlay
    return overlay


def states(overlay: Overlay) -> list[str]:
    return [entry.gate.state for entry in overlay.entries]


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """This machine's calibration: three runs that take 1.3 times as long as estimated."""
    path = tmp_path / "calibration"
    monkeypatch.setenv(VARIABLE, str(path))
    Overlay.at(path).add(incoming(measured(1.3, 3)))
    return path


def test_where_it_lies_and_without_one_answers_are_the_same(tmp_path, monkeypatch):
    assert default_path({VARIABLE: ""}) is None
    assert default_path({VARIABLE: "/a/b.json"}) == Path("/a/b.json")
    assert default_path({"XDG_DATA_HOME": "/data"}) == Path("/data/recipe-builder/calibration")
    home = Path("~/.local/share/recipe-builder/calibration").expanduser()
    assert default_path({}) == home
    assert Overlay.open() is None, "tests have none"
    assert os.environ[VARIABLE] == ""
    (answer,) = estimate_batch([request()])
    assert answer["basis"]["tpot_s"] == "computed"
    plain = to_json(rb.plan(request()).to_json())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none-here"))
    assert stamp() == ""
    assert to_json(rb.plan(request()).to_json()) == plain


@pytest.mark.parametrize("name", ["folder", "file.json"])
def test_what_is_added_is_there_and_can_be_taken_back(tmp_path, name):
    path = tmp_path / name
    first = holding(path, measured(1.2, 2))
    both = holding(path, measured(1.25, 1, load=32))
    assert len(first.entries) == 2
    assert len(both.entries) == 3
    entry = both.entries[0]
    assert (entry.source, entry.format, entry.engine) == ("runs.csv", "table", "vllm")
    assert entry.device == "h100-sxm"
    assert entry.version
    assert entry.expires == DAY + datetime.timedelta(days=180)
    again = Overlay.at(path, today=DAY).add(incoming(measured(1.2, 2)), now=NOW)
    assert not again.entries, "the same runs count once"
    assert len(again.known) == 2
    shorter, removed = both.undo()
    assert [one.name for one in removed] == ["run 0"]
    assert len(shorter.entries) == 2
    assert len(Overlay.open(path, today=DAY).entries) == 2
    assert "1 additions; 2 cannot" in str(refusal(shorter.undo, 2))
    assert not Overlay.cleared(path).entries
    dry = Overlay.at(tmp_path / "store").add(incoming(measured(1.2)), now=NOW, dry=True)
    assert len(dry.entries) == 1
    assert not (tmp_path / "store").exists()


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
        assert said in str(error)
        assert str(file) in str(error)
        assert "--clear" in (error.hint or "")
        assert Overlay.cleared(tmp_path).entries == ()
    file.write_text('{"schema_version": 2, "additions": []}')
    error = refusal(Overlay.open, tmp_path)
    assert "reads 1" in str(error)
    assert error.hint == "Update recipe-builder."


def test_a_run_with_a_secret_is_not_kept(tmp_path):
    own = measured(1.2)[0]
    secret = {**own.request, "options": {"environment": {"HF_TOKEN": "hf_" + "a" * 34}}}
    runs = incoming([replace(own, request=secret)])
    assert "secret" in str(refusal(Overlay.at(tmp_path).add, runs))


def _add(path: str, number: int) -> None:
    own = Measured(f"run {number}", request(), tpot_s=0.01 + number * 1e-5)
    Overlay.at(Path(path)).add([Incoming(own, "x", "table")], dry=False)


def test_writers_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(str(tmp_path), n)) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 6
    stored = json.loads((tmp_path / "calibration.json").read_text())
    names = [run["name"] for addition in stored["additions"] for run in addition["runs"]]
    assert sorted(names) == [f"run {n}" for n in range(6)]


def test_one_odd_run_spoils_nothing_until_a_second_agrees(tmp_path):
    sound = holding(tmp_path, measured(1.1, 3))
    assert states(sound) == ["accepted"] * 3
    odd = holding(tmp_path, measured(3.0, 1, load=60))
    assert states(odd) == ["accepted"] * 3 + ["held"]
    assert "3 times the estimate" in odd.entries[-1].gate.reason
    assert "second run agrees" in odd.entries[-1].gate.reason
    agreed = holding(tmp_path, measured(3.05, 1, load=66))
    assert states(agreed) == ["accepted"] * 5
    before, held, after = (
        tpot(request(), overlay.corrections()) for overlay in (sound, odd, agreed)
    )
    assert held == before, "what is held changes no bit"
    assert after > before
    contradicted = holding(tmp_path / "two", measured(1.0), measured(2.5, 1, load=65))
    assert states(contradicted) == ["accepted", "held"]
    three = holding(tmp_path / "two", measured(2.45, 1, load=63))
    assert states(three)[1:] == ["accepted", "accepted"]


def test_what_is_beyond_all_measure_unsound_or_of_another_version_is_held(tmp_path):
    (own,) = measured(1.2)
    versions = [replace(run, version="0.9.9") for run in measured(1.2, 2)]
    for n, (held, reason) in enumerate(
        (
            (measured(1000.0), "no other run"),
            ([replace(own, requests=100, failed=5)], "5 of 105 requests failed"),
            ([replace(own, requests=7, failed=0)], "7 requests were measured"),
            ([replace(own, excluded="prompts from a cache")], "prompts from a cache"),
            (versions[:1], "0.9.9"),
        )
    ):
        overlay = holding(tmp_path / f"{n}", held)
        assert states(overlay) == ["held"]
        assert reason in overlay.entries[0].gate.reason
        assert overlay.corrections() is None
    for n, counted in enumerate((measured(4.0), [replace(own, requests=8)], versions)):
        overlay = holding(tmp_path / f"counted {n}", counted)
        assert states(overlay) == ["accepted"] * len(counted)


def test_runs_expire_by_age_version_and_driver(tmp_path, monkeypatch):
    one, two = (replace(x, machine="a", driver="550") for x in measured(1.2, 2))
    overlay = holding(tmp_path / "age", [one])
    later = Overlay.open(tmp_path / "age", today=DAY + datetime.timedelta(days=181))
    assert states(overlay) == ["accepted"]
    assert states(later) == ["expired"]
    assert "180 days" in later.entries[0].expired
    assert later.corrections() is None
    dated = replace(one, date=datetime.date(2026, 1, 1))
    assert states(holding(tmp_path / "old", [dated])) == ["expired"], "by its own day"
    newer = replace(two, driver="570", date=DAY + datetime.timedelta(days=1))
    driver = holding(tmp_path / "driver", [one], [newer])
    assert states(driver) == ["expired", "accepted"]
    assert "570 now" in driver.entries[0].expired
    other = replace(newer, machine="b")
    assert states(holding(tmp_path / "machines", [one], [other])) == ["accepted"] * 2
    monkeypatch.setattr(gates, "pinned_version", lambda _run: "99.1")
    moved = Overlay.open(tmp_path / "age", today=DAY)
    assert states(moved) == ["expired"]
    assert "99.1 now" in moved.entries[0].expired


def test_each_number_says_its_scope_its_runs_and_its_weight(tmp_path):
    answer = Knowledge(holding(tmp_path, measured(1.3, 4))).to_json()
    ids = {run["id"] for run in answer["runs"]}
    steps = {number["scope"]: number for number in answer["numbers"] if number["scale"] == "steps"}
    assert set(steps) == {"device", "version", "model", "deployment"}
    for number in steps.values():
        assert set(number["runs"]) == ids
        assert 0 < number["weight"] < 1
        assert number["low"] < number["factor"] < number["high"]
    assert steps["device"]["of"] == ("h100-sxm",)
    assert steps["deployment"]["factor"] > steps["device"]["factor"] > 1
    error = {row["figure"]: row for row in answer["left_one_out"]}["tpot_s"]
    assert error["before"] == pytest.approx(0.3 / 1.3, rel=0.01)
    assert error["after"] < error["before"] / 2
    assert error["runs"] == 4


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
    twice = refusal(rb.plan, request(), measured=["none", "runs.csv"])
    assert "goes with no other" in str(twice)
    beside = run("another", tpot_ms=30, load=32)
    own = rb.plan(request(), measured=[beside]).to_json(1)["own_runs"]
    assert (own["used"], own["calibration"]["used"]) == (4, 3)
    sized = {**request(), "hardware": {"any": {"devices": ["h100-sxm"]}}}
    del sized["candidate"]
    assert Answer(rb.size(sized)).to_json()["own_runs"]["used"] == 3
    assert "own_runs" not in Answer(rb.size(sized, measured="none")).to_json()
    Overlay.at(store).undo()  # changes the next answer
    assert rb.estimate(request()).tpot_s.value < told.tpot_s.value


def test_runs_are_held_against_the_formulas_alone(store):
    with by_default(lambda: Overlay.open(store).corrections()):
        assert standing() is not None
        again = Overlay.open(store).corrections()
        with uncorrected():
            assert standing() is None
    plain = Overlay.open(store).corrections()
    assert [run.residuals for run in again.runs] == [run.residuals for run in plain.runs]


def test_the_api_uses_the_servers_own_and_says_of_a_damaged_one_no_path(store, capsys):
    answers = Answers(folders=False)
    estimate = calibrated(lambda: answers.estimate(request()))
    assert estimate["basis"]["tpot_s"].startswith("calibrated: 3 own runs")
    assert estimate["own_runs"]["calibration"]["used"] == 3
    plan = calibrated(lambda: answers.plan(request(), top=1))
    assert plan["own_runs"]["used"] == 3
    row = run("x", tpot_ms=30, load=32).model_dump(exclude_none=True)
    body = {"request": request(), "measured": [row]}
    assert calibrated(lambda: answers.plan(body, top=1))["own_runs"]["used"] == 4
    (store / "calibration.json").write_text("{")
    error = refusal(calibrated, lambda: answers.estimate(request()))
    assert "of this server cannot be read" in str(error)
    assert str(store) not in str(error)
    assert str(store) in capsys.readouterr().err


def test_the_command_line_learns_shows_and_takes_back(tmp_path, monkeypatch):
    store, table = tmp_path / "store", tmp_path / "runs.csv"
    monkeypatch.setenv(VARIABLE, str(store))
    columns = "id,model,device,per_node,engine,tp,dp,mode,input_tokens,output_tokens,load,tpot_ms"
    row = f"Qwen/Qwen3-32B,h100-sxm,8,vllm,4,2,closed,1024,256,%s,{tpot(request()) * 1300}"
    rows = [f"r{n},{row % load}" for n, load in enumerate((64, 32))]
    table.write_text("\n".join([columns, *rows]) + "\n")
    file = tmp_path / "request.yaml"
    file.write_text(to_json(request()))
    plain = recipe("estimate", str(file))
    assert plain.stderr == ""
    assert "calibrated" not in plain.stdout

    dry = recipe("calibrate", str(table), "--dry-run")
    assert dry.returncode == 0
    assert "would add 2 runs" in dry.stdout
    assert not store.exists()
    done = json.loads(recipe("calibrate", str(table), "--json").stdout)
    assert done["counts"] == {"used": 2, "held": 0, "expired": 0}
    assert {run["source"] for run in done["added"]} == {"runs.csv"}
    assert {row["figure"] for row in done["left_one_out"]} == {"tpot_s"}
    listed = recipe("calibrate", "--list", columns=200).stdout
    assert all(said in listed for said in ("2 runs count", "credibility", "→"))

    told = recipe("estimate", str(file))
    assert "calibrated: 2 own runs of this deployment, ×" in told.stdout
    assert "in the calibration: 2" in told.stderr
    assert "calibrated by 2 own runs" in recipe("plan", str(file)).stdout
    assert "calibrated: 2 own runs" in recipe("check", str(file)).stdout
    for off in (["--no-calibration"], ["--measured", "none"]):
        assert recipe("estimate", str(file), *off).stdout == plain.stdout
    assert "calibrated" not in recipe("check", str(file), "--no-calibration").stdout

    undone = recipe("calibrate", "--undo")
    assert "took back 2" in undone.stdout
    assert recipe("estimate", str(file)).stdout == plain.stdout
    for words in (["--undo", "2"], [], ["--list", "--clear"]):
        assert recipe("calibrate", *words).returncode == 2
    assert recipe("calibrate", "--clear").returncode == 0
    monkeypatch.setenv(VARIABLE, "")
    assert "switched off" in recipe("calibrate", str(table)).stderr


def test_a_recipe_keeps_what_it_was_made_with(store, tmp_path):
    """A bundle is written, read and started again where nothing was learned, or other things."""
    limits = {"limits": {"tpot_ms": tpot(request()) * 1050}}
    slow = rb.build(request(objective=limits), calibrated=False)
    assert redecide(slow).candidate == slow.candidate, "later runs do not refuse an old recipe"
    refusal(rb.build, request(objective=limits), kind=rb.RecipeError)
    path = rb.write(rb.build(request()), tmp_path / "bundle")
    expected = json.loads((path / "expected.json").read_text())
    assert expected["basis"]["tpot_s"].startswith("calibrated: 3 own runs")
    assert read_bundle(path).recipe.estimate == expected


def test_a_recipe_that_holds_its_limits_by_own_runs_is_built_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    Overlay.at(tmp_path / "store").add(incoming(measured(0.7, 3)))
    plain = rb.estimate(request(), measured="none").tpot_s.value
    built = rb.build(request(objective={"limits": {"tpot_ms": plain * 900}}))
    monkeypatch.setenv(VARIABLE, "")
    assert redecide(built).candidate == built.candidate
    assert rb.write(built, tmp_path / "bundle").is_dir()
