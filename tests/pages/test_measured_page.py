"""The page of measured runs."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import pytest

from recipe_core.calibration.own_runs import of_runs
from recipe_core.measured import serving_runs
from recipe_core.measured.compression import MeasuredCompression
from recipe_core.recipe.overlay import VARIABLE, Incoming, Overlay
from tests.fixtures.opening import figure, opened, put, words

PUBLISHED = serving_runs.published_runs()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the calibration lies."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def calibration(place: Path) -> Overlay:
    """Twelve published runs as one's own."""
    rows = [run for run in PUBLISHED if run.device == "mi300x" and not run.exclude][:12]
    runs = [Incoming(run, "runs.csv", "table") for run in of_runs(rows)]
    return Overlay.at(place).add(runs).overlay


def test_without_runs_it_says_how_to_begin_and_shows_published_ones() -> None:
    app = opened("measured.py")
    assert "No runs of your own yet" in words(app)
    assert any("recipe calibrate" in code.value for code in app.code)
    assert figure(app, "measured-scatter")["data"]


@pytest.mark.nightly
@pytest.mark.usefixtures("calibration")
def test_all_published_runs_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_runs, "published_runs", lambda: PUBLISHED)
    app = put(opened("measured.py"), "measured-whose", "Published")
    points = figure(app, "measured-scatter")["data"][1:]
    assert sum(len(trace["x"]) for trace in points) > 100


def test_own_runs_stand_beside_their_predictions(calibration: Overlay) -> None:
    app = opened("measured.py")
    assert "of 12 runs count; median error" in words(app)
    before = figure(app, "measured-scatter")
    assert sum(len(trace["x"]) for trace in before["data"][1:]) > 0
    answers = sys.modules["_measured_answer"].compared_runs
    calculated = answers.cache_info().misses
    assert figure(put(app, "measured-which", "formulas"), "measured-scatter") != before
    assert not put(app, "measured-group", "Model").exception
    assert answers.cache_info().misses == calculated
    factors = app.dataframe[-2].value
    assert set(factors["time"]) <= {"Decode steps", "Prompts"}
    assert factors["weight"].between(1, 100).all()
    assert set(app.dataframe[-1].value["run"]) == {e.id for e in calibration.entries}
    assert not put(app, "measured-whose", "Published").exception
    assert "runs count" not in words(app)


def test_a_damaged_calibration_is_named(place: Path) -> None:
    (place / "calibration.json").write_text("{")
    assert "is damaged" in words(opened("measured.py"))


def test_checkpoints_that_were_made_stand_beside_what_was_expected(place: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    run = MeasuredCompression(
        "Qwen/Qwen3-8B", "int4_weight_only", "GPTQ", 0.97, None, 2048, today, text="own.txt"
    )
    Overlay.at(place).add([Incoming(run, "bundle", "bundle")])
    app = opened("measured.py")
    assert "No runs of your own yet" in words(app)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["state"], row["measured"], row["tokens"]) == ("counts", 97.0, 2048)
    assert "–" in row["expected"]
    assert row["held"] in ("yes", "no")
