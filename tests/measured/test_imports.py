"""Files of other programs: each format by its content, its figures, and its way into estimates."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.own_runs import learn
from recipe_core.measured.imports.content import Content, number_of
from recipe_core.measured.imports.imported import Imported
from recipe_core.measured.imports.registry import FORMATS, format_of, import_file, read_imported
from recipe_core.measured.imports.rows import row_of, table_text
from recipe_core.measured.serving_runs import Run, read_runs
from recipe_core.measured.training_runs import read_training_runs
from recipe_core.recipe.imports import imported_table
from recipe_core.recipe.own_runs import read_measured
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

IMPORTS = DATA / "imports"
QWEN = "Qwen/Qwen3-32B"
REQUEST = {
    "model": QWEN,
    "hardware": {"device": "h100-sxm", "per_node": 4},
    "workload": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2},
    "candidate": {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1},
}
FIGURES = table("imports", "figures")


def first(name: str) -> Imported:
    return import_file(IMPORTS / name)[0]


def test_every_file_is_known_by_its_content_alone():
    files = {path.name for path in IMPORTS.iterdir()} - {"README.md"}
    assert files == set(FIGURES)
    for name in files:
        content = Content("x", (IMPORTS / name).read_text())
        matching = [known.name for known in FORMATS if known.recognises(content)]
        assert len(matching) == 1, (name, matching)
    read = {format_of(Content.of_file(IMPORTS / name)).name for name in FIGURES}
    assert read == {known.name for known in FORMATS}


@over("name", sorted(FIGURES))
def test_figures_are_read_in_their_units(name):
    imported, (format_name, stated) = first(name), FIGURES[name]
    assert imported.format == format_name
    figures = {
        key.replace("_gib", "_bytes"): value * (GIB if key.endswith("_gib") else 1)
        for key, value in stated.items()
    }
    assert {key: imported.figures[key] for key in figures} == pytest.approx(figures, rel=1e-3)
    assert all(value > 0 for value in imported.figures.values())
    json.dumps(imported.to_json(), allow_nan=False)


def test_loads_are_those_that_ran():
    lengths = {"input_tokens": 64, "output_tokens": 16}
    for tool in ("vllm_bench", "guidellm"):
        closed, opened = (first(f"{tool}_{mode}.json").load for mode in ("closed", "open"))
        assert closed == {"mode": "closed", "concurrency": 2} | lengths
        assert opened == {"mode": "open", "request_rate": 2.0} | lengths
    for name, field, value in (
        ("guidellm_0.2.json", "concurrency", 8),
        ("aiperf_closed.json", "concurrency", 2),
        ("aiperf_open.json", "request_rate", 2),
        ("genai_perf.json", "concurrency", 10),
        ("mlperf_log_summary_server.txt", "request_rate", 265),
        ("vllm_metrics.txt", "concurrency", 2),
    ):
        assert first(name).load[field] == value
    offline = {"mode": "offline", "requests": 244960, "output_tokens": 273}
    assert first("mlperf_log_summary.txt").load == offline
    assert "mode" not in first("aiperf_closed.csv").load


def test_a_file_states_its_split_or_says_what_is_missing():
    sglang = import_file(IMPORTS / "sglang_bench.jsonl")
    assert [each.place for each in sglang] == ["line 1", "line 2"]
    assert sglang[0].missing == ("model", "device", "split")
    assert (sglang[1].split["tp"], sglang[1].version) == (4, "0.5.10")
    assert sglang[1].figures["weights_bytes"] == pytest.approx(93.4 * GIB)
    infer = import_file(IMPORTS / "inferencex.json")
    assert infer[0].missing == ()
    assert infer[0].split["ep"] == 4
    assert "speculative" in infer[1].excluded
    assert {key: infer[1].split[key] for key in ("tp", "dp", "ep")} == {"tp": 1, "dp": 8, "ep": 8}
    assert first("vllm_bench_closed.json").missing == ("device", "engine", "split")
    boot = first("vllm_gpu_boot.log")
    assert (boot.version, boot.model) == ("0.6.4", "meta-llama/Llama-3.1-8B-Instruct")
    assert boot.settings["max_context"] == 20000
    assert first("megatron.log").shape["layers"] == 96


def test_the_median_step_leaves_the_start_out():
    torchtitan = first("torchtitan.log")
    tokens = 8 * 8192
    assert torchtitan.figures["step_s"] == pytest.approx(tokens / (7076 * 8))
    assert torchtitan.figures["peak_memory_bytes"] == pytest.approx(49.59 * GIB)
    assert first("mlperf_training.log").load == {"global_batch": 8, "sequence_length": 8192}
    # the newest cache of TensorRT-LLM counts
    newest = first("tensorrt_llm_boot.log")
    assert newest.figures["kv_cache_bytes"] == pytest.approx(5.95 * GIB)
    assert newest.split["memory_fraction"] == pytest.approx(0.9)


@over("field, value, message", table("imports", "bad_figures"))
def test_bad_figures_are_refused_by_name(field, value, message):
    known = json.loads((IMPORTS / "vllm_bench_closed.json").read_text())
    content = Content("run.json", json.dumps(known | {field: json.loads(value)}))
    error = str(refusal(read_imported, content))
    for part in ("run.json", field, message):
        assert part in error


@over("text, message", table("imports", "texts_that_are_no_measurement_say"))
def test_texts_that_are_no_measurement_say_so(text, message):
    assert message in str(refusal(read_imported, Content("x", text)))


def test_files_have_a_limit(tmp_path, monkeypatch):
    levels, digits = Content("x", '{"a": ' + "[" * 100_000), Content("x", f'{{"a": {"9" * 5000}}}')
    assert "not valid JSON" in str(refusal(read_imported, levels))
    assert "more than 300 digits" in str(refusal(read_imported, digits))
    path = tmp_path / "big.json"
    path.write_text("{}" + " " * 100)
    monkeypatch.setattr("recipe_core.measured.imports.content.MAX_BYTES", 50)
    assert "the limit is 50" in str(refusal(import_file, path))
    assert "cannot read" in str(refusal(import_file, tmp_path / "none.json"))
    # numbers of logs
    assert number_of(" 1,234.5 ") == 1234.5
    for wrong in ("", ".", "1e999", "nan", "inf", "0x10", "1" * 400, "--1"):
        with pytest.raises(ValueError, match="not"):
            number_of(wrong)


def test_hostile_lines_are_read_in_linear_time():
    """A megabyte of what starts a match and never ends it: seconds would be minutes."""
    lines = (
        "Load weight end." * 1000,
        "step: 1 loss: " * 1000 + "tps: 1",
        "iteration 1/ 2 | " * 1000,
        "KV Cache is allocated." * 700,
        "Memory used after loading model weights (inside torch)" * 300,
    )
    for line in lines:
        with suppress(InputError):
            read_imported(Content("x", "\n".join([line] * 60)))


def test_import_makes_a_row_that_teaches(tmp_path):
    request, path = tmp_path / "request.yaml", tmp_path / "runs.csv"
    request.write_text(to_yaml(REQUEST))
    files = [str(IMPORTS / name) for name in ("vllm_bench_closed.json", "guidellm_closed.json")]
    done = recipe("import", *files, "--request", str(request), "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "the request" in done.stderr
    assert "the file" in done.stderr
    rows = read_runs(path)
    assert [row.id for row in rows] == ["vllm_bench_closed", "guidellm_closed-benchmarks-0"]
    assert rows[0].tpot_ms == pytest.approx(141.891, rel=1e-4)
    assert (rows[0].model, rows[0].tp, rows[0].per_node) == (QWEN, 4, 4)
    learned = learn(read_measured(path))
    assert {run.name for run in learned.runs} == {row.id for row in rows}
    again = recipe("import", files[0], "--request", str(request), "-o", str(path))
    assert again.returncode == 0
    assert [row.id for row in read_runs(path)][-1] == "vllm_bench_closed-2"


def test_import_prints_a_table_without_an_output():
    done = recipe("import", str(IMPORTS / "inferencex.json"))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["device"] for row in rows] == ["b200-sxm", "b200-sxm"]
    assert "speculative" in rows[1]["exclude"]
    logs = recipe("import", str(IMPORTS / "vllm_gpu_boot.log"))  # start-ups give no row
    assert logs.returncode == 1
    assert "recipe reconcile" in logs.stderr
    # a file that states everything is a measured source
    runs = read_measured(IMPORTS / "inferencex.json")
    assert [bool(run.excluded) for run in runs] == [False, True]
    assert runs[0].tpot_s == pytest.approx(0.0163767)
    error = str(refusal(read_measured, IMPORTS / "vllm_bench_closed.json"))
    assert "nobody states" in error
    assert "recipe import" in error
    assert "no measured run" in str(refusal(read_measured, IMPORTS / "vllm_gpu_boot.log"))


def test_options_go_before_the_file_and_the_file_before_the_request():
    imported = import_file(IMPORTS / "sglang_bench.jsonl")[1]
    columns = {"model": "Qwen/Qwen3.5-397B-A17B", "device": "mi355x", "tp": 8, "per_node": 8}
    made = row_of(imported, "a", columns, {"weight_dtype": "fp8", "source": "me"})
    assert isinstance(made.row, Run)
    assert made.row.model == "Qwen/Qwen3.5-397B-A17B-FP8"  # the file's, which the catalog has
    assert (made.row.tp, made.row.device) == (4, "mi355x")
    origins = {"tp": "the file", "device": "the request", "weight_dtype": "an option"}
    assert {name: made.origins[name] for name in origins} == origins
    assert "'tpp'" in str(refusal(row_of, imported, "a", columns, {"tpp": "8"}))
    assert "nobody states device" in str(refusal(row_of, imported, "a", {}, {}))
    content = Content.of_file(IMPORTS / "inferencex.json")
    other = refusal(imported_table, [content], REQUEST, {})
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
    assert "of serving and of training" in str(refusal(imported_table, both, None, {}))
    # a table keeps what was there
    row = row_of(first("inferencex.json"), "a", {}, {}).row
    path = tmp_path / "runs.csv"
    path.write_text(table_text([row]))
    assert read_runs(path) == [row]
