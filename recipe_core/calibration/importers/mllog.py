"""Logs of MLPerf training: ``:::MLLOG`` lines of a submission's run.

Keys as ``mlperf_logging`` has them. A step's time follows from the samples and times at the ends of
training blocks, evaluations between them left out; the first block warms up. ``throughput`` in
``tracked_stats`` is samples per second in some submissions and tokens in others, and not read.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.content import Content, one_line
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported, drop_unstated
from recipe_core.calibration.importers.mlperf import parse_mlperf_event
from recipe_core.calibration.importers.training_steps import steady_median

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
