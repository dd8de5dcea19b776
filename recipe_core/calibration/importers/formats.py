"""Formats of other programs' files: ``formats.yaml`` says where facts stand; here they are taken.

What a format does beyond that table is a function of its own in ``clients.py``, ``logs.py`` and
``exposition.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.calibration.importers import clients, exposition, logs
from recipe_core.calibration.importers.measurement import (
    LONGEST_LINE,
    Content,
    Draft,
    Fields,
    Imported,
    one_line,
)

PERCENTILES = (50, 90, 95, 99)
UNITS = {"ms": 1e-3, "ns": 1e-9}
# Units of figures in logs; of ``whole`` numbers the fraction is dropped.
LOGGED_UNITS = {"GiB": GIB, "MiB": float(1 << 20), "percent": 0.01}
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNIT = re.compile(r"[_ ](ms|ns)\b")
# A number, a bounded gap (strangers may write these lines), and what stands before a value.
_MACROS = {
    "<n>": r"([\d.,]{1,40}(?:[eE][+-]?\d{1,4})?)",
    "<gap>": r".{0,300}?",
    "<is>": r"['\"]?[=:] ?",
}
_REDUCERS: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
Rows = list[tuple[str, Mapping[str, Any]]]
Paths = Mapping[str, tuple[str, ...]]

# Readers of rows that are no JSON, by their name in the table.
READERS: dict[str, Callable[[Content], Rows]] = {
    "printed results": clients.read_printed_results,
    "metric tables": clients.read_metric_tables,
    "titled lines": logs.read_titled_lines,
    "events": logs.read_mlperf_events,
    "torchtitan steps": logs.read_torchtitan_steps,
    "megatron steps": logs.read_megatron_steps,
    "exposition": exposition.read_engine_exposition,
}
# What is done with the draft of a row beyond the table.
FINISHERS: dict[str, Callable[[Fields, Draft], None]] = {
    "inferencex": clients.finish_inferencex,
    "sglang-bench": clients.finish_sglang_bench,
    "vllm-bench": clients.finish_bench,
    "bench-text": clients.finish_printed_bench,
    "guidellm": clients.finish_guidellm,
    "aiperf": clients.finish_aiperf,
    "aiperf-csv": clients.finish_aiperf_csv,
    "mlperf-summary": logs.finish_mlperf,
    "mlperf-detail": logs.finish_mlperf,
    "mlperf-training": logs.finish_mlperf_training,
    "torchtitan": logs.finish_torchtitan,
    "megatron": logs.finish_megatron,
    "prometheus": exposition.finish_exposition,
    "sglang-log": logs.finish_sglang_log,
    "tensorrt-llm-log": logs.finish_tensorrt_llm_log,
    "vllm-log": logs.finish_vllm_log,
}


class Format(DataRow):
    """One format; ``formats.yaml`` says what its fields mean."""

    name: str
    title: str
    kind: str = "serving"
    engine: str = ""
    keys: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    rows: str = "records"
    times: Paths = Field(default_factory=dict)
    mean: str = ""
    percentile: str = ""
    median: str = ""
    unit: str = ""
    numbers: Paths = Field(default_factory=dict)
    counts: Paths = Field(default_factory=dict)
    rounded: Paths = Field(default_factory=dict)
    texts: Paths = Field(default_factory=dict)
    flags: Paths = Field(default_factory=dict)
    lines: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def recognises(self, content: Content) -> bool:
        """Return whether a content is of this format.

        Raises:
            InputError: for JSON that is cut off.
        """
        if self.patterns:
            return all(re.search(pattern, content.head) for pattern in self.patterns)
        first = self._json_rows(content)[:1]
        return any(all(content.fields(row).has(key) for key in self.keys) for _, row in first)

    def read(self, content: Content) -> list[Imported]:
        """Return what such a content states.

        Raises:
            InputError: naming the line or field that is wrong.
        """
        if self.lines:
            return [self._finish(content.fields({"head": content.head}), self._log_draft(content))]
        reader = READERS.get(self.rows, self._json_rows)
        imports = []
        for place, row in reader(content):
            fields = content.fields(row, place)
            imports.append(self._finish(fields, self._row_draft(fields, place)))
        return imports

    def _json_rows(self, content: Content) -> Rows:
        if self.rows == "records":
            return content.records
        document = content.document
        if document is None or self.rows == "document":
            return [] if document is None else [("", document)]
        rows = document.get(self.rows)
        return [
            (f"{self.rows}[{n}]", {**row, "report": document})
            for n, row in enumerate(rows if isinstance(rows, list) else [])
            if isinstance(row, Mapping)
        ]

    def _finish(self, fields: Fields, draft: Draft) -> Imported:
        FINISHERS[self.name](fields, draft)
        return draft.imported()

    def _draft(self, place: str = "") -> Draft:
        return Draft(self.name, place, self.kind, {"engine": self.engine}, list(self.notes))

    def _row_draft(self, fields: Fields, place: str) -> Draft:
        draft = self._draft(place)
        for figure, value in self._times(fields):
            draft.put(f"figures.{figure}", value)
        for target, paths in self.numbers.items():
            draft.put(target, _first(_scaled_number(fields, path) for path in paths))
        for target, paths in self.counts.items():
            draft.put(target, _first(fields.count(path) for path in paths))
        for target, paths in self.rounded.items():
            mean = _first(fields.number(path) for path in paths)
            draft.put(target, None if mean is None else max(round(mean), 1))
        for target, paths in self.texts.items():
            read = fields.day if target == "date" else fields.text
            draft.put(target, next(filter(None, map(read, paths)), ""))
        for target, (path, yes) in self.flags.items():
            flag = fields.flag(path)
            draft.put(target, None if flag is None else flag == (yes == "True"))
        return draft

    def _times(self, fields: Fields) -> Iterator[tuple[str, float | None]]:
        for figure, names in self.times.items():
            for name in names:
                unit = fields.text(self.unit.format(name)) or "ms" if self.unit else "s"
                if unit not in SECONDS:
                    raise InputError(
                        f"{fields.place}, {name}: {unit!r} is no unit of time.",
                        field="unit",
                        hint=f"Known: {', '.join(SECONDS)}.",
                    )
                scale = SECONDS[unit]
                yield figure, _scaled_number(fields, self.mean.format(name), scale)
                for p in PERCENTILES if self.percentile else ():
                    at = _scaled_number(fields, self.percentile.format(name, p=p), scale)
                    if at is None and p == 50 and self.median:
                        at = _scaled_number(fields, self.median.format(name), scale)
                    yield f"{figure.removesuffix('_s')}_p{p}_s", at

    @cached_property
    def _expressions(self) -> list[tuple[str, str, re.Pattern[str]]]:
        return [
            (target, unit, _compile_expression(text))
            for target, (_, *patterns) in self.lines.items()
            for unit, text in patterns
        ]

    def _log_draft(self, content: Content) -> Draft:
        """Return what a log's lines state, of the last start in it."""
        values: dict[str, list[float]] = {}
        for number, line in enumerate(content.log, 1):
            for target, unit, expression in self._expressions:
                if match := expression.search(line[:LONGEST_LINE]):
                    name = target.rpartition(".")[2]
                    value = content.line_number(match[1].rstrip(".,"), number, name)
                    values.setdefault(target, []).append(value * LOGGED_UNITS.get(unit, 1.0))
        draft = self._draft()
        units = {target: unit for target, unit, _ in self._expressions}
        for target, ranks in values.items():
            value = _REDUCERS[self.lines[target][0]](ranks)
            draft.put(target, round(value) if units[target] == "whole" else value)
        for target, texts in self.texts.items():
            draft.put(target, one_line(_first(_search(text, content) for text in texts) or ""))
        for target, (text, yes) in self.flags.items():
            word = _search(text, content)
            draft.put(target, None if word is None else yes in ("", word))
        return draft


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _scaled_number(fields: Fields, path: str, scale: float = 1.0) -> float | None:
    unit = _UNIT.search(path)
    return fields.number(path.partition(" ")[0], scale * UNITS[unit[1]] if unit else scale)


def _compile_expression(text: str) -> re.Pattern[str]:
    for name, expression in _MACROS.items():
        text = text.replace(name, expression)
    return re.compile(text)


def _search(text: str, content: Content) -> str | None:
    match = _compile_expression(text).search(content.head)
    return match[1] if match else None


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format, in the order in which they are tried."""
    file = DataFile(Path(__file__).with_suffix(".yaml"), "file")
    table = file.read()
    rows = []
    for name, row in table.items():
        base = table[row.pop("like")] if "like" in row else {}
        same = {key: value for key, value in base.items() if key not in ("keys", "rows")}
        merged = same | {
            key: {**same.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in row.items()
        }
        rows.append(file.validated({"name": name, **merged}, Format))
    return tuple(rows)


def recognise_format(content: Content) -> Format | None:
    return next((format_ for format_ in all_formats() if format_.recognises(content)), None)


def read_imported(content: Content) -> list[Imported]:
    """The measurements of a content.

    Raises:
        InputError: for a content of no known format, or naming the line or field that is wrong.
    """
    format_ = recognise_format(content)
    if format_ is None:
        titles = ", ".join(format_.title for format_ in all_formats())
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
