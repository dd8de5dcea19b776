"""The formats, and the one that a file is of."""

from __future__ import annotations

from pathlib import Path

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers import (
    aiperf,
    bench_text,
    boot_sglang,
    boot_tensorrt_llm,
    boot_vllm,
    exposition,
    guidellm,
    inferencex,
    megatron,
    mllog,
    mlperf,
    sglang_bench,
    torchtitan,
    vllm_bench,
)
from recipe_core.calibration.importers.content import Content
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported

# Documents before logs, and of logs those first that others may quote.
FORMATS: tuple[Format, ...] = (
    inferencex.FORMAT,
    sglang_bench.FORMAT,
    vllm_bench.FORMAT,
    guidellm.FORMAT,
    aiperf.JSON,
    aiperf.TABLE,
    mlperf.SUMMARY,
    mlperf.DETAILS,
    mllog.FORMAT,
    torchtitan.FORMAT,
    megatron.FORMAT,
    exposition.FORMAT,
    bench_text.FORMAT,
    boot_sglang.FORMAT,
    boot_tensorrt_llm.FORMAT,
    boot_vllm.FORMAT,
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
