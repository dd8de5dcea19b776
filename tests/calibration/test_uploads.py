"""Runs in dropped files: what is read, what is refused, and what they would change."""

import io
import json
import zipfile

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.calibration.evidence import published_evidence, rename_runs, run_name
from recipe_core.calibration.importers.rows import table_text
from recipe_core.calibration.place import VARIABLE
from recipe_core.calibration.residuals import RunsCompared
from recipe_core.calibration.store import Overlay
from recipe_core.calibration.uploads import MAX_FILES, MAX_UPLOAD_BYTES, Upload, preview_uploads
from recipe_core.views.evidence import device_figures, provider_prices
from recipe_core.views.measured import upload_verdict
from tests.calibration.test_own_runs import QWEN_32B, SPLIT, request, run, times_as_estimated, tpot
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import recipe_of
from tests.fixtures.refusals import refusal

IMPORTS = DATA / "imports"
ASKED = request()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where the calibration lies; nothing is written there."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    yield tmp_path
    assert not (tmp_path / "kept").exists() or (tmp_path / "kept" / "calibration.json").exists()


def csv_of(runs):
    return Upload("mine.csv", table_text(runs).encode())


def test_a_table_says_its_columns_its_runs_and_the_answer_before_and_after():
    slow = times_as_estimated(1.5, 3, tp=8, dp=1)  # the best layout
    preview = preview_uploads([csv_of(slow)], ASKED)
    assert {column.origin for column in preview.columns} == {"the file"}
    assert {column.column: column.values for column in preview.columns}["tp"] == "8"
    assert [entry.gate.state for entry in preview.entries] == ["accepted"] * 3
    assert preview.before.startswith("TP 8, ")
    assert preview.after != preview.before
    assert preview.effect.text.startswith("These 3 runs would move the best layout")
    assert upload_verdict(preview) == f"3 of 3 new runs would count. {preview.effect.text}."
    # kept, they are kept already, and the answer is theirs
    Overlay.at(None).add(preview.incoming)
    again = preview_uploads([csv_of(slow)], ASKED)
    assert (again.entries, again.repeated, again.effect) == ((), 3, None)
    assert again.before == preview.after
    assert "3 are kept already" in upload_verdict(again)


def test_a_benchmark_takes_what_it_does_not_state_from_the_request():
    data = (IMPORTS / "vllm_bench_closed.json").read_bytes()
    preview = preview_uploads([Upload("C:\\\\runs\\\\vllm_bench_closed.json", data)], ASKED)
    origins = {column.column: column.origin for column in preview.columns}
    assert (origins["tp"], origins["tpot_ms"]) == ("the request", "the file")
    (entry,) = preview.entries
    assert entry.name == "vllm_bench_closed"
    assert "held until a second run agrees" in entry.gate.reason
    assert "0 of 1 new run would count. The answer stays" in upload_verdict(preview)
    other = {**ASKED, "model": "Qwen/Qwen3-8B"}
    sglang = Upload("s.jsonl", (IMPORTS / "sglang_bench.jsonl").read_bytes())
    error = refusal(preview_uploads, [sglang], other)
    assert "the file is of Qwen/Qwen3.5-397B-A17B-FP8" in str(error)
    assert "Plan what ran first" in error.hint
    guidellm = Upload("g.json", (IMPORTS / "guidellm_closed.json").read_bytes())
    assert len(preview_uploads([guidellm], ASKED).entries) == 1


def bundle_parts():
    made = recipe_of(QWEN_32B, "h100-sxm", 8, candidate=SPLIT)
    measurement = {
        "created": "2026-10-01T12:00:00+00:00",
        "recipe": made.name,
        "machine": {"runtime": made.device.runtime, "devices": [{"name": made.device.names[0]}]},
        "engine": {"name": made.engine.name, "version": made.engine.version},
        "workload": {"mode": "closed", "input_tokens": 1024, "output_tokens": 256}
        | {"concurrency": 64, "request_rate": None, "wall_s": 12.0},
        "metrics": {"requests": 256, "tpot_s": tpot(ASKED) * 1.3},
    }
    recipe = to_yaml(made.model_dump(mode="json")).encode()
    return recipe, json.dumps(measurement).encode()


def archive(parts):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in parts.items():
            out.writestr(name, data)
    return buffer.getvalue()


def test_a_bundle_is_read_as_a_zip_file_or_as_its_two_files_and_named_after_its_folder():
    recipe, measured = bundle_parts()
    zipped = archive({"my-bundle/recipe.yaml": recipe, "my-bundle/run/measurement.json": measured})
    whole = preview_uploads([Upload("b.zip", zipped)], ASKED)
    two = [Upload("recipe.yaml", recipe), Upload("measurement.json", measured)]
    for preview in (whole, preview_uploads(two, ASKED)):
        assert [entry.format for entry in preview.entries] == ["bundle"]
        assert preview.counting == 1
        assert preview.effect is not None
    assert whole.entries[0].name == "my-bundle"
    (entry,) = whole.entries
    long = entry.model_copy(update={"name": "/srv/bundles/mine/run/measurement.json"})
    assert (run_name(entry), run_name(long)) == ("my-bundle", "mine")
    error = refusal(preview_uploads, two[1:], ASKED)
    assert "without the recipe.yaml of its bundle" in str(error)


def test_what_cannot_be_read_is_refused_and_no_path_is_followed(tmp_path):
    bomb = archive({"b/recipe.yaml": b"a: " + b"x" * (64 << 20), "b/run/measurement.json": b"{}"})
    copies = {f"{k}/recipe.yaml": b"a: 1" for k in range(2 * MAX_FILES + 1)}
    many = [csv_of(times_as_estimated(1.0))] * (MAX_FILES + 1)
    for files, said in (
        (many, f"at most {MAX_FILES} are read at a time"),
        ([Upload("x.csv", b"," * (MAX_UPLOAD_BYTES + 1))], "the limit is 16,777,216"),
        ([Upload("x.csv", b"\xff\xfe,")], "is not UTF-8 text"),
        ([Upload("x.zip", b"PK\x03\x04nothing")], "is no readable zip file"),
        ([Upload("x.zip", archive({"a.txt": b"a"}))], "no file holds measured runs"),
        ([Upload("bomb.zip", bomb)], "the limit is 4,194,304"),
        ([Upload("many.zip", archive(copies))], f"more than {MAX_FILES} bundles"),
        ([Upload("x.txt", b"hello")], "is of no known format"),
        ([Upload("x.csv", b"id,modell\n1,2\n")], "unknown column 'modell'"),
        ([Upload("x.json", b'{"a": 1}')], "without the recipe.yaml"),
    ):
        assert said in str(refusal(preview_uploads, files, ASKED)), said
    # a folder of this machine is named, not read
    (tmp_path / "config.json").write_text("{}")
    stolen = run("mine", model=str(tmp_path), tpot_ms=9)
    preview = preview_uploads([csv_of([stolen, *times_as_estimated(1.0)])], ASKED)
    assert len(preview.entries) == 1
    assert list(preview.left_out) == ["mine"]
    assert "path" in preview.left_out["mine"] or "folder" in preview.left_out["mine"]


def test_without_a_serving_request_runs_are_read_and_nothing_is_compared():
    training = {
        "model": QWEN_32B,
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64},
    }
    for asked in (None, training):
        preview = preview_uploads([csv_of(times_as_estimated(1.2))], asked)
        assert (preview.before, preview.after, preview.effect) == ("", "", None)
        assert upload_verdict(preview) == "1 of 1 new run would count."


def test_published_runs_have_names_of_people_and_each_its_own():
    compared = published_evidence()
    names = {figure.run for figure in compared.figures}
    assert len(names) > 300
    keys = [(figure.run, figure.figure) for figure in compared.figures]
    assert len(set(keys)) == len(keys)
    figures = compared.figures[:2]
    assert {figure.run for figure in figures} == {figures[0].run}
    two = RunsCompared(figures, {"b": "unknown"})
    renamed = rename_runs(two, {figures[0].run: "mine", "b": "mine"})
    assert {figure.run for figure in renamed.figures} == {"mine"}
    assert dict(renamed.left_out) == {"mine (2)": "unknown"}


def test_providers_have_dates_and_devices_say_what_their_figures_rest_on():
    providers = {row.provider: row for row in provider_prices()}
    assert len(providers) == 39
    assert sum(row.offers for row in providers.values()) == 1122
    ages = [row.age_days for row in provider_prices()]
    assert ages == sorted(ages)
    devices = {row.device: row for row in device_figures()}
    h100 = devices["NVIDIA H100 SXM5 80 GB"]
    assert h100.speeds == "measured or fitted on it"
    assert h100.counts["fitted"] > 5 < h100.counts["datasheet"]
    assert any("datasheet" in source for source in h100.sources)
    spark = devices["NVIDIA V100 PCIe 16 GB"]
    assert (spark.speeds, spark.counts.get("fitted", 0)) == ("by devices of its kind", 0)
