"""Files of other programs: each format by its content, its figures, and its way into estimates."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

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

IMPORTS = DATA / "imports"
QWEN = "Qwen/Qwen3-32B"
REQUEST = {
    "model": QWEN,
    "hardware": {"device": "h100-sxm", "per_node": 4},
    "workload": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2},
    "candidate": {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1},
}
FIGURES = {
    # what the README of the files says of each, in SI units
    "vllm_bench_closed.json": ("vllm-bench", {"tpot_s": 0.14189, "ttft_s": 0.42492}),
    "vllm_bench_open.json": ("vllm-bench", {"tpot_s": 0.068609, "output_tokens_per_s": 31.235}),
    "sglang_bench.jsonl": ("sglang-bench", {"tpot_s": 0.01395, "request_latency_s": 12.985}),
    "guidellm_closed.json": ("guidellm", {"tpot_s": 0.182075, "output_tokens_per_s": 8.7304}),
    "guidellm_open.json": ("guidellm", {"ttft_s": 0.311679}),
    "guidellm_0.2.json": ("guidellm", {"tpot_s": 0.0252, "ttft_p95_s": 0.176}),
    "aiperf_closed.json": ("aiperf", {"tpot_s": 0.728991, "ttft_p99_s": 4.660134}),
    "aiperf_open.json": ("aiperf", {"tpot_s": 0.383762}),
    "aiperf_closed.csv": ("aiperf", {"tpot_s": 0.72899, "output_tokens_per_s": 2.56}),
    "genai_perf.json": ("genai-perf", {"ttft_s": 1.14631, "output_tokens_per_s": 261.25}),
    "genai_perf.csv": ("aiperf", {"ttft_s": 1.14631, "tpot_p50_s": 0.03013}),
    "inferencex.json": ("inferencex", {"ttft_s": 0.97844, "total_tokens_per_s": 4 * 1834.2}),
    "mlperf_log_summary.txt": ("mlperf-summary", {"output_tokens_per_s": 98607.7}),
    "mlperf_log_summary_server.txt": ("mlperf-summary", {"tpot_s": 0.061403731}),
    "mlperf_log_detail.txt": ("mlperf-detail", {"ttft_s": 0.200849949}),
    "mlperf_training.log": ("mlperf-training", {"step_s": 199.434 / 384 * 8}),
    "torchtitan.log": ("torchtitan", {"tokens_per_s_per_gpu": 7076, "mfu": 0.41435}),
    "megatron.log": ("megatron", {"step_s": 129.42}),
    "vllm_cpu_boot.log": ("vllm-log", {"kv_cache_bytes": GIB, "kv_cache_tokens": 87296}),
    "vllm_gpu_boot.log": ("vllm-log", {"weights_bytes": 14.9888 * GIB, "kv_cache_tokens": 31232}),
    "sglang_boot.log": ("sglang-log", {"kv_cache_bytes": 2.84 * GIB, "kv_cache_tokens": 46611}),
    "tensorrt_llm_boot.log": (
        "tensorrt-llm-log",
        {"weights_bytes": 63.52 * GIB, "kv_cache_tokens": 86720},
    ),
    "vllm_metrics.txt": ("prometheus", {"tpot_s": 0.105018, "kv_cache_tokens": 87296}),
    "sglang_metrics.txt": ("prometheus", {"tpot_s": 0.025, "ttft_s": 0.24}),
    "tensorrt_llm_metrics.txt": ("prometheus", {"tpot_s": 0.02, "ttft_s": 0.3}),
}


def first(name: str) -> Imported:
    return import_file(IMPORTS / name)[0]


def test_every_file_is_known_by_its_content_alone() -> None:
    files = {path.name for path in IMPORTS.iterdir()} - {"README.md"}
    assert files == set(FIGURES)
    for name in files:
        content = Content("x", (IMPORTS / name).read_text())
        matching = [one.name for one in FORMATS if one.recognises(content)]
        assert len(matching) == 1, (name, matching)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_are_read_in_their_units(name: str) -> None:
    one, (format_name, figures) = first(name), FIGURES[name]
    assert one.format == format_name
    assert {key: one.figures[key] for key in figures} == pytest.approx(figures, rel=1e-3)
    assert all(value > 0 for value in one.figures.values())
    json.dumps(one.to_json(), allow_nan=False)


def test_every_format_has_a_file() -> None:
    read = {format_of(Content.of_file(IMPORTS / name)).name for name in FIGURES}
    assert read == {one.name for one in FORMATS}


def test_loads_are_those_that_ran() -> None:
    lengths = {"input_tokens": 64, "output_tokens": 16}
    assert first("vllm_bench_closed.json").load == {"mode": "closed", "concurrency": 2} | lengths
    assert first("vllm_bench_open.json").load == {"mode": "open", "request_rate": 2.0} | lengths
    assert first("guidellm_closed.json").load == {"mode": "closed", "concurrency": 2} | lengths
    assert first("guidellm_open.json").load == {"mode": "open", "request_rate": 2.0} | lengths
    assert first("guidellm_0.2.json").load["concurrency"] == 8
    assert first("aiperf_closed.json").load["concurrency"] == 2
    assert first("aiperf_open.json").load["request_rate"] == 2
    assert first("genai_perf.json").load["concurrency"] == 10
    assert first("mlperf_log_summary.txt").load == {
        "mode": "offline",
        "requests": 244960,
        "output_tokens": 273,
    }
    assert first("mlperf_log_summary_server.txt").load["request_rate"] == 265
    assert first("vllm_metrics.txt").load["concurrency"] == 2
    assert "mode" not in first("aiperf_closed.csv").load


def test_a_file_states_its_split_or_says_what_is_missing() -> None:
    sglang = import_file(IMPORTS / "sglang_bench.jsonl")
    assert [one.place for one in sglang] == ["line 1", "line 2"]
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


def test_the_median_step_leaves_the_start_out() -> None:
    torchtitan = first("torchtitan.log")
    tokens = 8 * 8192
    assert torchtitan.figures["step_s"] == pytest.approx(tokens / (7076 * 8))
    assert torchtitan.figures["peak_memory_bytes"] == pytest.approx(49.59 * GIB)
    assert first("mlperf_training.log").load == {"global_batch": 8, "sequence_length": 8192}


def test_the_newest_cache_of_tensorrt_llm_counts() -> None:
    one = first("tensorrt_llm_boot.log")
    assert one.figures["kv_cache_bytes"] == pytest.approx(5.95 * GIB)
    assert one.split["memory_fraction"] == pytest.approx(0.9)


# what cannot be used


def changed(name: str, **values: object) -> Content:
    known = json.loads((IMPORTS / name).read_text())
    return Content("run.json", json.dumps(known | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean_tpot_ms": float("nan")}, "mean_tpot_ms is not a finite number"),
        ({"mean_ttft_ms": float("inf")}, "mean_ttft_ms is not a finite number"),
        ({"mean_ttft_ms": -1}, "mean_ttft_ms is not a finite number of 0 or more"),
        ({"output_throughput": "fast"}, "output_throughput is not a number"),
        ({"completed": 0}, "completed no request"),
        ({"completed": 3.5}, "completed is not a whole number"),
        ({"max_concurrency": True}, "max_concurrency is not a number"),
    ],
)
def test_bad_figures_are_refused_by_name(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_imported(changed("vllm_bench_closed.json", **values))
    assert "run.json" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no known format"),
        ("hello", "no known format"),
        ("{}", "no known format"),
        ("{", "not valid JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "more than 300 digits"),
        ('{"completed": 1}\nnot json\n', "line 2, is not valid JSON"),
        (":::MLLOG {broken", "no known format"),
        (':::MLLOG {"key": "run_start"', "is no JSON"),
        ("vLLM API server version 0.1\n", "has no figure"),
        ("KV Cache is allocated. #tokens: ...., K size: 1 GB\n", "line 1: kv_cache_tokens"),
        ("Metric,avg\nRequest Latency (ms),many\n", "row 2: 'many' is not a number"),
    ],
)
def test_texts_that_are_no_measurement_say_so(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_imported(Content("x", text))


def test_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.json"
    path.write_text("{}" + " " * 100)
    monkeypatch.setattr("recipe_core.measured.imports.content.MAX_BYTES", 50)
    with pytest.raises(InputError, match="the limit is 50"):
        import_file(path)
    with pytest.raises(InputError, match="cannot read"):
        import_file(tmp_path / "none.json")


def test_hostile_lines_are_read_in_linear_time() -> None:
    """A megabyte of what starts a match and never ends it: seconds would be minutes."""
    lines = (
        "Load weight end." * 1000,
        "step: 1 loss: " * 1000 + "tps: 1",
        "iteration 1/ 2 | " * 1000,
        "KV Cache is allocated." * 700,
        "Memory used after loading model weights (inside torch)" * 300,
    )
    for line in lines:
        text = "\n".join([line] * 60)
        try:
            read_imported(Content("x", text))
        except InputError:
            continue


def test_numbers_of_logs() -> None:
    assert number_of(" 1,234.5 ") == 1234.5
    for wrong in ("", ".", "1e999", "nan", "inf", "0x10", "1" * 400, "--1"):
        with pytest.raises(ValueError, match="not"):
            number_of(wrong)


# into the table and back


def test_import_makes_a_row_that_teaches(tmp_path: Path) -> None:
    request, table = tmp_path / "request.yaml", tmp_path / "runs.csv"
    request.write_text(to_yaml(REQUEST))
    files = [str(IMPORTS / name) for name in ("vllm_bench_closed.json", "guidellm_closed.json")]
    done = recipe("import", *files, "--request", str(request), "-o", str(table))
    assert done.returncode == 0, done.stderr
    assert "the request" in done.stderr
    assert "the file" in done.stderr
    rows = read_runs(table)
    assert [row.id for row in rows] == ["vllm_bench_closed", "guidellm_closed-benchmarks-0"]
    assert rows[0].tpot_ms == pytest.approx(141.891, rel=1e-4)
    assert (rows[0].model, rows[0].tp, rows[0].per_node) == (QWEN, 4, 4)
    learned = learn(read_measured(table))
    assert {run.name for run in learned.runs} == {row.id for row in rows}
    again = recipe("import", files[0], "--request", str(request), "-o", str(table))
    assert again.returncode == 0
    assert [row.id for row in read_runs(table)][-1] == "vllm_bench_closed-2"


def test_import_prints_a_table_without_an_output() -> None:
    done = recipe("import", str(IMPORTS / "inferencex.json"))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["device"] for row in rows] == ["b200-sxm", "b200-sxm"]
    assert "speculative" in rows[1]["exclude"]


def test_a_file_that_states_everything_is_a_measured_source() -> None:
    runs = read_measured(IMPORTS / "inferencex.json")
    assert [bool(run.excluded) for run in runs] == [False, True]
    assert runs[0].tpot_s == pytest.approx(0.0163767)
    with pytest.raises(InputError, match="nobody states") as raised:
        read_measured(IMPORTS / "vllm_bench_closed.json")
    assert "recipe import" in str(raised.value)
    with pytest.raises(InputError, match="no measured run"):
        read_measured(IMPORTS / "vllm_gpu_boot.log")


def test_options_go_before_the_file_and_the_file_before_the_request() -> None:
    one = import_file(IMPORTS / "sglang_bench.jsonl")[1]
    columns = {"model": "Qwen/Qwen3.5-397B-A17B", "device": "mi355x", "tp": 8, "per_node": 8}
    made = row_of(one, "a", columns, {"weight_dtype": "fp8", "source": "me"})
    assert isinstance(made.row, Run)
    assert made.row.model == "Qwen/Qwen3.5-397B-A17B-FP8"  # the file's, which the catalog has
    assert (made.row.tp, made.row.device) == (4, "mi355x")
    assert made.origins["tp"] == "the file"
    assert made.origins["device"] == "the request"
    assert made.origins["weight_dtype"] == "an option"
    with pytest.raises(InputError, match="unknown column 'tpp'"):
        row_of(one, "a", columns, {"tpp": "8"})
    with pytest.raises(InputError, match="nobody states device"):
        row_of(one, "a", {}, {})


def test_start_up_logs_give_no_row() -> None:
    done = recipe("import", str(IMPORTS / "vllm_gpu_boot.log"))
    assert done.returncode == 1
    assert "recipe reconcile" in done.stderr


def test_another_model_than_the_requests_is_refused() -> None:
    content = Content.of_file(IMPORTS / "inferencex.json")
    with pytest.raises(InputError, match=r"the file is of Qwen/Qwen3\.5-397B-A17B-FP8"):
        imported_table([content], REQUEST, {})


def test_training_logs_become_training_rows(tmp_path: Path) -> None:
    table = tmp_path / "training.csv"
    words = ("--set", "model=gpt-177b", "--set", "device=a100-sxm-80gb", "--set", "nodes=48")
    done = recipe(
        "import", str(IMPORTS / "megatron.log"), *words, "--set", "per_node=8", "-o", str(table)
    )
    assert done.returncode == 0, done.stderr
    (row,) = read_training_runs(table)
    assert (row.step_s, row.layers, row.tp, row.pp, row.dp) == (129.42, 96, 8, 6, 8)
    assert recipe("validate", "--training", str(table)).returncode == 0
    both = [Content.of_file(IMPORTS / name) for name in ("megatron.log", "inferencex.json")]
    with pytest.raises(InputError, match="of serving and of training"):
        imported_table(both, None, {})


def test_a_table_keeps_what_was_there(tmp_path: Path) -> None:
    row = row_of(first("inferencex.json"), "a", {}, {}).row
    path = tmp_path / "runs.csv"
    path.write_text(table_text([row]))
    assert read_runs(path) == [row]
