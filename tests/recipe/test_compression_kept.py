"""A bundle's measured checkpoint in the calibration: kept, used, compared, taken back, expired."""

import datetime
import json

import pytest

from recipe_core.accuracy.accuracy import answer_lines
from recipe_core.calibration.lessons import Knowledge, calibrate_from_files
from recipe_core.calibration.place import VARIABLE
from recipe_core.calibration.run_files import (
    corrections_from_sources,
    measured_checkpoints,
    read_own_measurements,
)
from recipe_core.calibration.store import Overlay
from recipe_core.compression.advisor.advise import advise
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.plans.plans import plan_splits
from recipe_core.views.measured import calibration_text
from recipe_core.views.verdict import calibrated_lines, calibrated_sentence
from tests.conftest import make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.training import training_request

MODEL = "Qwen/Qwen3-8B"
TODAY = datetime.datetime.now(datetime.UTC)
MADE = {"technique": "int4_weight_only", "method": "GPTQ"}
KEPT = 0.9995


def bundle(folder, age_days=0, **changes):
    """A bundle's folder with what it measured of its checkpoint."""
    retained = {"perplexity": KEPT, "agreement": 0.9}
    document = {
        **{"schema_version": 1, "kind": "compression", "recipe": "small", "text": ""},
        "created": (TODAY - datetime.timedelta(days=age_days)).isoformat(timespec="seconds"),
        **{"recipe_digest": "sha256:0123", "source": MODEL, "tool": "LLM Compressor 0.14.0.1"},
        "verification": {"retained": retained, "tokens": 2048, "passed": True},
    }
    path = folder / "run" / "compression.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document | MADE | changes))
    return folder


def request(method="auto", **objective):
    """A plan whose bundle makes the checkpoint."""
    options = {"weight_dtypes": ["int4"], "engines": ["vllm"]}
    options["compression"] = {"technique": "int4_weight_only", "method": method}
    return make_request(MODEL, options=options, objective=objective)


def accuracy(own, method="auto", **objective):
    made = plan_splits(request(method, **objective), corrections=own)
    answer = made.estimate(made.best_row).to_json()["accuracy"]
    assert answer["value"] == made.columns["accuracy"][made.best_row]
    return answer


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "calibration"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_a_plan_says_what_was_measured_until_it_is_taken_back(store, tmp_path):
    before = accuracy(corrections_from_sources(None))
    assert before["value"] < KEPT
    knowledge = calibrate_from_files([bundle(tmp_path / "bundle")])
    assert "added 1 measured checkpoint\n" in calibration_text(knowledge)
    own = corrections_from_sources(None)
    assert (own.title, own.to_json()["compressions"]) == ("1 measured checkpoint", 1)
    after = accuracy(own)
    assert after["value"] == KEPT
    assert after["basis"].startswith(f"measured here on {TODAY.date()}: 99.95 %")
    shown = plan_splits(request(), corrections=own)
    near = accuracy_of(shown.setting(shown.best_row), nearest=2).nearest
    assert [figure.source == "measured here" for figure in near] == [True, False, False]
    # a calibration is no bar to training, a bundle's own measurement is
    training = training_request(nodes=1, model="Qwen/Qwen3-0.6B", sequence_length=1024)
    assert len(plan_splits(training, corrections=own))
    again, removed = Overlay.at(store).undo()
    assert [entry.name for entry in removed] == [f"{MODEL} int4_weight_only"]
    assert not again.compressions
    assert accuracy(corrections_from_sources(None)) == before
    store.joinpath("calibration.json").unlink()
    alone = corrections_from_sources(tmp_path / "bundle")
    assert "not of training" in str(refusal(plan_splits, training, corrections=alone))


def test_times_stay_those_of_the_formulas_and_accuracy_that_of_the_measurement(tmp_path):
    own = corrections_from_sources(bundle(tmp_path / "bundle"))
    alone, moved = (plan_splits(request(), corrections=known) for known in (None, own))
    assert alone.to_frame()["tpot_s"].equals(moved.to_frame()["tpot_s"])
    assert calibrated_lines(own)[0].startswith("calibrated by 1 measured checkpoint;")
    assert "accuracy: measured here on" in calibrated_sentence(moved, moved.best_row)
    estimates = [made.estimate(made.best_row).to_json() for made in (alone, moved)]
    assert estimates[0]["basis"] == estimates[1]["basis"]
    limits = {"limits": {"accuracy_recovery": 0.99}}
    alone, moved = (plan_splits(request(**limits), corrections=known) for known in (None, own))
    assert alone.best_row is None, "by published figures INT4 keeps less"
    assert moved.best_row is not None
    assert not moved.rules["limit-accuracy"].any()
    # another method than the one asked for does not count
    for method, counts in (("AWQ", False), ("GPTQ", True)):
        assert accuracy(own, method)["basis"].startswith("measured here") == counts
    # perplexity is answered by the measurement
    measured = {"retained": {"perplexity": 0.91}, "tokens": 512, "passed": False}
    own = corrections_from_sources(bundle(tmp_path / "a", verification=measured))
    assert accuracy(own, accuracy_of="perplexity")["value"] == 0.91
    assert accuracy(own)["value"] == accuracy(None)["value"], "a floor lowers nothing"


def test_the_advisor_and_lines_use_it(tmp_path):
    path = bundle(tmp_path / "bundle")
    names = ["int4_weight_only", "kv_fp8"]
    advice = advise(request(), names=names, corrections=corrections_from_sources(path))
    assert advice.row("int4_weight_only").accuracy.basis.startswith("measured here")
    assert "measured here" not in advice.row("kv_fp8").accuracy.basis
    line = {"model": MODEL, **MADE}
    other = line | {"method": "AWQ"}
    found, unmoved = answer_lines([line, other], measured_checkpoints([path]))
    assert (found["retained"]["value"], found["nearest"][0]["source"]) == (KEPT, "measured here")
    assert unmoved == answer_lines([other])[0]


def test_it_stands_beside_what_was_expected_and_older_ones_stay_readable(store, tmp_path):
    store.mkdir()
    old = {"schema_version": 1, "additions": [{"added": "2026-11-01T12:00:00Z", "runs": []}]}
    (store / "calibration.json").write_text(json.dumps(old))
    path = bundle(tmp_path / "bundle")
    answer = calibrate_from_files([path]).to_json()["compressions"][0]
    assert (answer["retained"], answer["agreement"], answer["tokens"]) == (KEPT, 0.9, 2048)
    assert answer["tool"] == "LLM Compressor 0.14.0.1"
    assert answer["bundle_digest"] == "sha256:0123"
    expected = answer["expected"]
    band = expected["perplexity"]
    assert band["low"] < band["value"] < band["high"]
    assert expected["in_band"] == (band["low"] <= KEPT <= band["high"])
    assert expected["accuracy"]["value"] < expected["accuracy_with_it"]["value"] == KEPT
    twice = calibrate_from_files([path])
    assert len(twice.overlay.compressions) == 1, "the same is stored once"
    assert twice.to_json()["known"] == [answer["id"]]
    first, second = json.loads((store / "calibration.json").read_text())["additions"]
    assert first == old["additions"][0]
    assert len(second["compressions"]) == 1
    # an expired one is listed and does not count
    knowledge = calibrate_from_files([bundle(tmp_path / "old", age_days=181)])
    assert [entry.counts for entry in knowledge.overlay.compressions] == [True, False]
    text = calibration_text(Knowledge(knowledge.overlay), every_run=True)
    assert "1 measured checkpoint counts, 1 expired" in text
    assert len(measured_checkpoints(None)) == 1


def test_a_broken_file_is_named(store, tmp_path):
    path = bundle(tmp_path / "bundle", verification={"tokens": 3})
    assert "run/compression.json: verification.retained" in str(
        refusal(calibrate_from_files, [path])
    )
    assert not store.exists()
    (path / "run" / "compression.json").write_text("{")
    assert "compression.json" in str(refusal(read_own_measurements, path))
    assert "measurement.json" in str(refusal(read_own_measurements, tmp_path))
