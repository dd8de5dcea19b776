"""The page of measured runs."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from recipe_core.calibration.own_runs import of_runs
from recipe_core.measured.compression import MeasuredCompression
from recipe_core.measured.serving_runs import published_runs
from recipe_core.recipe.overlay import VARIABLE, Incoming, Overlay
from tests.fixtures.opening import figure, opened, words


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overlay:
    """Twelve published runs as one's own."""
    rows = [run for run in published_runs() if run.device == "mi300x" and not run.exclude][:12]
    runs = [Incoming(run, "runs.csv", "table") for run in of_runs(rows)]
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Overlay.at(tmp_path).add(runs).overlay


def test_without_runs_it_says_how_to_begin_and_shows_published_ones() -> None:
    app = opened("measured.py")
    assert "No runs of your own yet" in words(app)
    assert any("recipe calibrate" in code.value for code in app.code)
    assert figure(app, "measured-scatter")["data"]


def test_own_runs_stand_beside_their_predictions(calibration: Overlay) -> None:
    app = opened("measured.py")
    assert "of 12 runs count; median error" in words(app)
    points = figure(app, "measured-scatter")["data"][1:]
    assert sum(len(trace["x"]) for trace in points) > 0
    before = figure(app, "measured-scatter")
    app.get_by_key("measured-which").set_value("formulas").run()
    assert figure(app, "measured-scatter") != before
    app.get_by_key("measured-group").set_value("Model").run()
    assert not app.exception
    factors = app.dataframe[-2].value
    assert set(factors["time"]) <= {"Decode steps", "Prompts"}
    assert factors["weight"].between(1, 100).all()
    assert set(app.dataframe[-1].value["run"]) == {e.id for e in calibration.entries}


def test_published_runs_are_a_click_away(calibration: Overlay) -> None:
    app = opened("measured.py")
    app.get_by_key("measured-whose").set_value("Published").run()
    assert not app.exception
    assert "runs count" not in words(app)


def test_a_damaged_calibration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calibration.json").write_text("{")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    app = opened("measured.py")
    assert "is damaged" in words(app)


def test_checkpoints_that_were_made_stand_beside_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    today = datetime.datetime.now(datetime.UTC).date()
    run = MeasuredCompression(
        "Qwen/Qwen3-8B", "int4_weight_only", "GPTQ", 0.97, None, 2048, today, text="own.txt"
    )
    Overlay.at(tmp_path).add([Incoming(run, "bundle", "bundle")])
    app = opened("measured.py")
    assert not app.exception
    assert "No runs of your own yet" in words(app)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["state"], row["measured"], row["tokens"]) == ("counts", 97.0, 2048)
    assert "–" in row["expected"]
    assert row["held"] in ("yes", "no")
