"""Results of MLPerf inference: ``mlperf_log_summary.txt`` and ``mlperf_log_detail.txt``.

Lines as LoadGen writes them (``loadgen/results.cc``): the summary in words, the detail a JSON line
each. Neither says what ran where; lengths of answers follow from tokens and samples per second.
"""

from __future__ import annotations

import json
import re
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.measurement import (
    Content,
    Format,
    Imported,
    drop_unstated,
    one_line,
    parse_number,
)
from recipe_core.calibration.importers.training_logs import steady_median

SUMMARY_SIGN = "MLPerf Results Summary"
_LINE = re.compile(r"^\s*([^:=]{2,80}?)\s*:\s*(.+?)\s*$")
NS = 1e-9
# Lines of a summary by their name in one case.
FIGURES = {
    "mean latency (ns)": ("request_latency_s", NS),
    "mean first token latency (ns)": ("ttft_s", NS),
    "mean time per output token (ns)": ("tpot_s", NS),
    "mean time to output token (ns)": ("tpot_s", NS),
    "completed tokens per second": ("output_tokens_per_s", 1.0),
    "tokens per second": ("output_tokens_per_s", 1.0),
    "tokens per second (inferred)": ("output_tokens_per_s", 1.0),
    "completed samples per second": ("requests_per_s", 1.0),
    "samples per second": ("requests_per_s", 1.0),
    "target_qps": ("target_qps", 1.0),
    "samples_per_query": ("samples", 1.0),
    "min_query_count": ("queries", 1.0),
}
_PERCENTILE = re.compile(
    r"^(50|90|95|99)\.00 percentile (latency|first token latency|time to output token) \(ns\)$"
)
_OF = {"latency": "request_latency", "first token latency": "ttft", "time to output token": "tpot"}
# Keys of a detail log by the line of a summary that says the same.
DETAIL = {
    "effective_scenario": "scenario",
    "sut_name": "sut",
    "loadgen_version": "version",
    "result_validity": "valid",
    "result_mean_latency_ns": "mean latency (ns)",
    "result_first_token_mean_latency_ns": "mean first token latency (ns)",
    "result_time_per_output_token_mean": "mean time per output token (ns)",
    "result_token_throughput": "tokens per second",
    "result_tokens_per_second": "tokens per second",
    "result_completed_tokens_per_second": "completed tokens per second",
    "result_completed_samples_per_sec": "completed samples per second",
    "result_samples_per_second": "samples per second",
    "effective_target_qps": "target_qps",
    "effective_samples_per_query": "samples_per_query",
    "effective_min_query_count": "min_query_count",
}


def _is_mlperf_summary(content: Content) -> bool:
    return SUMMARY_SIGN in content.head


def _read_mlperf_summary(content: Content) -> list[Imported]:
    lines: dict[str, str] = {}
    for line in content.log:
        if match := _LINE.match(line[:400]):
            lines.setdefault(match[1].strip().casefold(), match[2])
    # "Result is : VALID"
    return [_parse_mlperf_result(content, "mlperf-summary", lines, lines.get("result is", "VALID"))]


def _is_mlperf_detail(content: Content) -> bool:
    return ":::MLLOG" in content.head and '"effective_scenario"' in content.head


def _read_mlperf_detail(content: Content) -> list[Imported]:
    lines: dict[str, str] = {}
    for number, line in enumerate(content.log, 1):
        event = parse_mlperf_event(line, content, number)
        name = DETAIL.get(str(event.get("key"))) if event else None
        if event and name and isinstance(event.get("value"), str | int | float):
            lines[name] = str(event["value"])
    return [_parse_mlperf_result(content, "mlperf-detail", lines, lines.get("valid", "VALID"))]


def parse_mlperf_event(line: str, content: Content, number: int) -> dict[str, Any] | None:
    """The event of a line of MLPerf's logs; None for other lines.

    Raises:
        InputError: naming the line whose event is no JSON.
    """
    start = line.find(":::MLLOG ")
    if start < 0:
        return None
    try:
        value = json.loads(line[start + len(":::MLLOG ") :])
    except (ValueError, RecursionError) as error:
        message = f"{content.name}, line {number}: its event is no JSON: {error}."
        raise InputError(message, field="file") from None
    return value if isinstance(value, dict) else None


def _parse_mlperf_result(
    content: Content, name: str, lines: dict[str, str], result: str
) -> Imported:
    quantities = _parse_mlperf_figures(content, lines)
    scenario = lines.get("scenario", "").casefold().replace(" ", "")
    rate, tokens = quantities.get("requests_per_s"), quantities.get("output_tokens_per_s")
    load: dict[str, Any] = _mlperf_load(scenario, quantities)
    if rate and tokens:
        load["output_tokens"] = max(round(tokens / rate), 1)
    mode = lines.get("mode", "PerformanceOnly")
    excluded = ""
    if result.strip().upper().startswith("INVALID"):
        excluded = "MLPerf calls the result invalid"
    elif "accuracy" in mode.casefold():
        excluded = "an accuracy run, whose speed says nothing"
    figures = {key: value for key, value in quantities.items() if key.endswith("_s") and value > 0}
    return Imported(
        format=name,
        figures=figures,
        load=load,
        settings=drop_unstated(sut=one_line(lines.get("sut name", lines.get("sut", "")))),
        notes=(
            f"scenario {lines.get('scenario', 'unstated')}; prompts' lengths are the data set's",
        ),
        excluded=excluded,
    )


def _parse_mlperf_figures(content: Content, lines: dict[str, str]) -> dict[str, float]:
    quantities: dict[str, float] = {}
    for title, text in lines.items():
        name, scale = FIGURES.get(title, ("", 1.0))
        if match := _PERCENTILE.match(title):
            name, scale = f"{_OF[match[2]]}_p{match[1]}_s", NS
        if not name:
            continue
        try:
            quantities[name] = parse_number(text) * scale
        except ValueError as error:
            raise InputError(f"{content.name}: {title}: {error}.", field=title) from None
    return quantities


def _mlperf_load(scenario: str, quantities: dict[str, float]) -> dict[str, Any]:
    if scenario == "offline":
        count = (
            quantities.get("samples", 0.0)
            if quantities.get("samples", 0.0) > 1
            else quantities.get("queries")
        )
        return drop_unstated(mode="offline", requests=round(count) if count else None)
    if scenario in ("server", "interactive"):
        rate = quantities.get("target_qps") or quantities.get("requests_per_s")
        return drop_unstated(mode="open", request_rate=rate)
    if scenario == "singlestream":
        return {"mode": "closed", "concurrency": 1}
    return {}


SUMMARY = Format(
    "mlperf-summary", "summary of MLPerf inference", _is_mlperf_summary, _read_mlperf_summary
)
DETAILS = Format(
    "mlperf-detail", "detail log of MLPerf inference", _is_mlperf_detail, _read_mlperf_detail
)


NAME = "mlperf-training"
LENGTHS = ("max_sequence_length", "sequence_length", "seq_length")
DEGREES = {
    "tensor_parallelism": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallelism": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallelism": "cp",
    "context_parallel_size": "cp",
    "micro_batch_size": "micro_batch",
}


def _is_mlperf_training_log(content: Content) -> bool:
    keys = ('"run_start"', '"global_batch_size"', '"submission_benchmark"', '"block_stop"')
    return ":::MLLOG" in content.head and any(f'"key": {key}' in content.head for key in keys)


def _read_mlperf_training_log(content: Content) -> list[Imported]:
    values, blocks, status = _read_mlperf_events(content)
    batch, length = _parse_count_value(values, "global_batch_size"), None
    for key in LENGTHS:
        length = length or _parse_count_value(values, key)
    split: dict[str, Any] = {}
    for theirs, ours in DEGREES.items():
        split |= drop_unstated(**{ours: _parse_count_value(values, theirs)})
    step = (
        steady_median([seconds * batch / samples for samples, seconds in blocks]) if batch else None
    )
    figures = drop_unstated(step_s=step)
    platform = one_line(str(values.get("submission_platform", "")))
    return [
        Imported(
            format=NAME,
            kind="training",
            model=one_line(str(values.get("submission_benchmark", ""))),
            figures=figures,
            load=drop_unstated(global_batch=batch, sequence_length=length),
            split=split,
            settings=drop_unstated(platform=platform) | {"blocks": len(blocks)},
            notes=() if blocks else ("no training block ended in the log",),
            excluded="" if status in ("", "success") else f"the run ended with status {status}",
        )
    ]


def _read_mlperf_events(content: Content) -> tuple[dict[str, Any], list[tuple[float, float]], str]:
    """Values by key, samples and seconds of every block, and how the run ended."""
    values: dict[str, Any] = {}
    blocks: list[tuple[float, float]] = []
    started: tuple[float, float] | None = None
    status = ""
    for number, line in enumerate(content.log, 1):
        event = parse_mlperf_event(line, content, number)
        if event is None:
            continue
        key, metadata = event.get("key"), event.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if key in ("block_start", "block_stop"):
            at = _parse_event_moment(event, metadata, content, number)
            if key == "block_start":
                started = at
            elif started is not None and at is not None:
                samples, seconds = at[0] - started[0], at[1] - started[1]
                blocks += [(samples, seconds)] if samples > 0 and seconds > 0 else []
                started = None
        elif key == "run_stop":
            status = one_line(str(metadata.get("status", "")))
        elif isinstance(key, str) and event.get("value") is not None:
            values.setdefault(key, event["value"])
    return values, blocks, status


def _parse_event_moment(
    event: dict[str, Any], metadata: dict[str, Any], content: Content, number: int
) -> tuple[float, float] | None:
    """Samples so far, and the time in seconds; None where the event does not count samples."""
    samples, at = metadata.get("samples_count"), event.get("time_ms")
    for value in (samples, at):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            message = f"{content.name}, line {number}: {value!r:.40} is not a number."
            raise InputError(message, field="file")
    return None if samples is None or at is None else (float(samples), float(at) / 1e3)


def _parse_count_value(values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 < value < 1 << 30 else None  # type: ignore[operator,arg-type]


FORMAT = Format(NAME, "log of MLPerf training", _is_mlperf_training_log, _read_mlperf_training_log)
