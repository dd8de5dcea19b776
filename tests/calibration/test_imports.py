"""Files of other programs: each format by its content, its figures, and its way into estimates;
and compressed checkpoints that were measured.
"""

import csv
import datetime
import io
import json
import math
from contextlib import suppress

import pytest

from recipe_core.accuracy.checkpoints import (
    own_figure,
    parse_compression,
    read_compression,
    with_own_figure,
)
from recipe_core.accuracy.published import Retained
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers.formats import (
    all_formats,
    import_file,
    read_imported,
    recognise_format,
)
from recipe_core.calibration.importers.measurement import Content, parse_number
from recipe_core.calibration.importers.rows import (
    build_imported_row,
    build_imported_table,
    table_text,
)
from recipe_core.calibration.residuals import learn_corrections
from recipe_core.calibration.run_files import read_measured
from recipe_core.estimates.measured.runs import Run, read_runs, read_training_runs
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says

IMPORTS = DATA / "imports"
REQUEST = table("imports", "request")
FIGURES = table("imports", "figures")


def first(name):
    return import_file(IMPORTS / name)[0]


def in_bytes(figures):
    return {
        key.replace("_gib", "_bytes"): value * (GIB if key.endswith("_gib") else 1)
        for key, value in figures.items()
    }


def test_every_file_is_known_by_its_content_alone():
    assert {path.name for path in IMPORTS.iterdir()} - {"README.md"} == set(FIGURES)
    read = set()
    for name in FIGURES:
        content = Content("x", (IMPORTS / name).read_text())
        (matching,) = (known.name for known in all_formats() if known.recognises(content))
        assert recognise_format(Content.of_file(IMPORTS / name)).name == matching
        read.add(matching)
    assert read == {known.name for known in all_formats()}


@over("name", sorted(FIGURES))
def test_figures_are_read_in_their_units(name):
    imported, (format_name, stated) = first(name), FIGURES[name]
    assert imported.format == format_name
    figures = in_bytes(stated)
    assert {key: imported.figures[key] for key in figures} == pytest.approx(figures, rel=1e-3)
    assert all(value > 0 for value in imported.figures.values())
    json.dumps(imported.to_json(), allow_nan=False)


@over("name, place, stated", table("imports", "stated"))
def test_files_state_loads_and_splits_or_say_what_is_missing(name, place, stated):
    assert_says(import_file(IMPORTS / name)[place].to_json(), stated)


@over("text, figures, settings", table("imports", "pasted"))
def test_pasted_lines_of_a_start_need_no_name_of_the_engine(text, figures, settings):
    (imported,) = read_imported(Content("x", text))
    assert imported.format == "vllm-log"
    assert imported.figures == pytest.approx(in_bytes(figures), rel=1e-5)
    assert imported.settings.items() >= settings.items()


@over("before, inside, load", table("imports", "printed"))
def test_a_printed_result_says_how_requests_were_sent_inside_or_before(before, inside, load):
    figures = ["Total input tokens: 6400", "Total generated tokens: 1600", "Mean TPOT (ms): 12.5"]
    head = ["==== Serving Benchmark Result ====", "Successful requests: 100"]
    lines = [*before, *head, *inside, *figures, "=" * 50]
    (imported,) = read_imported(Content("x", "\n".join(lines)))
    assert imported.load == load | {"input_tokens": 64, "output_tokens": 16}
    assert imported.figures == pytest.approx({"tpot_s": 0.0125})


@over("field, value, message", table("imports", "bad_figures"))
def test_bad_figures_are_refused_by_name(field, value, message):
    known = json.loads((IMPORTS / "vllm_bench_closed.json").read_text())
    content = Content("run.json", json.dumps(known | {field: json.loads(value)}))
    error = str(refusal(read_imported, content))
    for part in ("run.json", field, message):
        assert part in error


def test_files_that_are_no_measurement_say_so_and_have_a_limit(tmp_path, monkeypatch):
    for text, said in (
        *table("imports", "texts_that_are_no_measurement_say"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
        (f'{{"a": {"9" * 5000}}}', "more than 300 digits"),
    ):
        assert said in str(refusal(read_imported, Content("x", text)))
    path = tmp_path / "big.json"
    path.write_text("{}" + " " * 100)
    monkeypatch.setattr("recipe_core.calibration.importers.measurement.MAX_BYTES", 50)
    assert "the limit is 50" in str(refusal(import_file, path))
    assert "cannot read" in str(refusal(import_file, tmp_path / "none.json"))
    assert parse_number(" 1,234.5 ") == 1234.5
    for wrong in ("1" * 400, *table("imports", "no_numbers")):
        with pytest.raises(ValueError, match="not"):
            parse_number(wrong)


@over("text, times", table("imports", "hostile"))
def test_hostile_lines_are_read_in_linear_time(text, times):
    """A megabyte of what starts a match and never ends it: seconds would be minutes."""
    with suppress(InputError):
        read_imported(Content("x", "\n".join([f"{text * times}tps: 1"] * 60)))


def test_import_makes_a_row_that_teaches(tmp_path):
    request, path = tmp_path / "request.yaml", tmp_path / "runs.csv"
    request.write_text(to_yaml(REQUEST))
    files = [str(IMPORTS / name) for name in ("vllm_bench_closed.json", "guidellm_closed.json")]
    asked = ("--request", str(request), "-o", str(path))
    done = recipe("import", *files, *asked)
    assert done.returncode == 0, done.stderr
    for origin in ("the request", "the file"):
        assert origin in done.stderr
    rows = read_runs(path)
    assert [row.id for row in rows] == ["vllm_bench_closed", "guidellm_closed-benchmarks-0"]
    assert rows[0].tpot_ms == pytest.approx(141.891, rel=1e-4)
    assert (rows[0].model, rows[0].tp, rows[0].per_node) == ("Qwen/Qwen3-32B", 4, 4)
    assert {run.name for run in learn_corrections(read_measured(path)).runs} == {
        row.id for row in rows
    }
    assert recipe("import", files[0], *asked).returncode == 0
    assert [row.id for row in read_runs(path)][-1] == "vllm_bench_closed-2"


def test_an_import_prints_a_table_and_options_go_before_the_file_and_the_request():
    done = recipe("import", str(IMPORTS / "inferencex.json"))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["device"] for row in rows] == ["b200-sxm", "b200-sxm"]
    assert "speculative" in rows[1]["exclude"]
    logs = recipe("import", str(IMPORTS / "vllm_gpu_boot.log"))  # start-ups give no row
    assert (logs.returncode, "recipe reconcile" in logs.stderr) == (1, True)
    # a file that states everything is a measured source
    runs = read_measured(IMPORTS / "inferencex.json")
    assert [bool(run.excluded) for run in runs] == [False, True]
    assert runs[0].tpot_s == pytest.approx(0.0163767)
    for name, said in (
        ("vllm_bench_closed.json", "nobody states"),
        ("vllm_bench_closed.json", "recipe import"),
        ("vllm_gpu_boot.log", "no measured run"),
    ):
        assert said in str(refusal(read_measured, IMPORTS / name))
    imported = import_file(IMPORTS / "sglang_bench.jsonl")[1]
    columns = {"model": "Qwen/Qwen3.5-397B-A17B", "device": "mi355x", "tp": 8, "per_node": 8}
    made = build_imported_row(imported, "a", columns, {"weight_dtype": "fp8", "source": "me"})
    assert isinstance(made.row, Run)
    # the file's model, which the catalog has
    found = (made.row.model, made.row.tp, made.row.device)
    assert found == ("Qwen/Qwen3.5-397B-A17B-FP8", 4, "mi355x")
    origins = {"tp": "the file", "device": "the request", "weight_dtype": "an option"}
    assert made.origins.items() >= origins.items()
    assert "'tpp'" in str(refusal(build_imported_row, imported, "a", columns, {"tpp": "8"}))
    assert "nobody states device" in str(refusal(build_imported_row, imported, "a", {}, {}))
    content = Content.of_file(IMPORTS / "inferencex.json")
    other = refusal(build_imported_table, [content], REQUEST, {})
    assert "the file is of Qwen/Qwen3.5-397B-A17B-FP8" in str(other)


def test_training_logs_become_training_rows(tmp_path):
    path = tmp_path / "training.csv"
    words = "--set model=gpt-177b --set device=a100-sxm-80gb --set nodes=48 --set per_node=8"
    done = recipe("import", str(IMPORTS / "megatron.log"), *words.split(), "-o", str(path))
    assert done.returncode == 0, done.stderr
    (row,) = read_training_runs(path)
    assert (row.step_s, row.layers, row.tp, row.pp, row.dp) == (129.42, 96, 8, 6, 8)
    assert recipe("validate", "--training", str(path)).returncode == 0
    both = [Content.of_file(IMPORTS / name) for name in ("megatron.log", "inferencex.json")]
    assert "of serving and of training" in str(refusal(build_imported_table, both, None, {}))
    # a table keeps what was there
    row = build_imported_row(first("inferencex.json"), "a", {}, {}).row
    path = tmp_path / "runs.csv"
    path.write_text(table_text([row]))
    assert read_runs(path) == [row]


def test_a_measured_checkpoint_speaks_for_its_own_model_and_stands_first(tmp_path):
    assert read_compression(tmp_path) is None
    document, newer = table("imports", "compression"), {"created": "2026-11-25T10:00:00+00:00"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "compression.json").write_text(json.dumps(document))
    measured = read_compression(tmp_path)
    assert (measured.model, measured.retained, measured.tokens) == ("owner/model", 0.98, 2048)
    for month, expired in ((datetime.date(2026, 12, 1), False), (datetime.date(2027, 12, 1), True)):
        assert measured.expired(month) == expired
    for changes, said in (({"verification": {}}, "verification"), ({"kind": "serving"}, "serving")):
        assert said in str(refusal(parse_compression, document | changes))
    runs = [measured, parse_compression(document | newer)]
    assert own_figure(runs, "Owner/Model", "int4_weight_only").date == datetime.date(2026, 11, 25)
    assert own_figure(runs, "owner/other", "int4_weight_only") is None
    assert own_figure(runs, "owner/model", "int4_weight_only", "AWQ") is None
    measured = parse_compression(table("imports", "compression"))
    own = ([measured], "owner/model", "int4_weight_only")
    expected = Retained(0.97, 0.93, 0.99, "the model of published figures")
    moved = with_own_figure(expected, *own)
    assert moved.value == 0.98
    assert 0.93 < moved.low <= moved.value <= moved.high
    assert moved.nearest[0].source == "measured here"
    assert moved.basis.startswith("measured here")
    assert with_own_figure(expected, [], *own[1:]) is expected
    # and is the answer where nothing was known
    unknown = Retained(math.nan, math.nan, math.nan, "nothing near", is_known=False)
    answer = with_own_figure(unknown, *own)
    assert (answer.is_known, answer.value) == (True, 0.98)
