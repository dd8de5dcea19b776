"""The formats, and the one that a file is of."""

from __future__ import annotations

from pathlib import Path

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers import (
    aiperf,
    bench_serving,
    boot_logs,
    exposition,
    guidellm,
    inferencex,
    mlperf,
    training_logs,
)
from recipe_core.calibration.importers.measurement import Content, Format, Imported

# Documents before logs, and of logs those first that others may quote.
FORMATS: tuple[Format, ...] = (
    inferencex.FORMAT,
    bench_serving.SGLANG_BENCH,
    bench_serving.VLLM_BENCH,
    guidellm.FORMAT,
    aiperf.JSON,
    aiperf.TABLE,
    mlperf.SUMMARY,
    mlperf.DETAILS,
    mlperf.FORMAT,
    training_logs.TORCHTITAN_LOG,
    training_logs.MEGATRON_LOG,
    exposition.FORMAT,
    bench_serving.BENCH_TEXT,
    boot_logs.SGLANG_LOG,
    boot_logs.TENSORRT_LLM_LOG,
    boot_logs.VLLM_LOG,
)


def recognise_format(content: Content) -> Format | None:
    return next((format_ for format_ in FORMATS if format_.recognises(content)), None)


def read_imported(content: Content) -> list[Imported]:
    """The measurements of a content.

    Raises:
        InputError: for a content of no known format, or naming the line or field that is wrong.
    """
    format_ = recognise_format(content)
    if format_ is None:
        titles = ", ".join(known_format.title for known_format in FORMATS)
        raise InputError(
            f"{content.name} is of no known format.", field="file", hint=f"Known: {titles}."
        )
    measurements = format_.read(content)
    if not any(measurement.figures for measurement in measurements):
        raise InputError(
            f"{content.name} looks like a {format_.title}, but has no figure.",
            field="file",
            hint="Give the whole file, from the start of the run to its end.",
        )
    return measurements


def import_file(path: Path) -> list[Imported]:
    """The measurements of a file; raises InputError as ``read_imported``, or for a bad file."""
    return read_imported(Content.of_file(path))
