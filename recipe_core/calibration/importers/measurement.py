"""One measurement of another program: what its untrusted file states, in SI units.

A file's content is read within limits: JSON of benchmarks holds a list per request: larger than any
document of ours, so that size bounds it. ``Infinity`` stands for an unlimited rate there; NaN is a
figure that nobody measured, and refused where one is used.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from recipe_core.base.documents import MAX_DIGITS, read_text
from recipe_core.base.errors import InputError
from recipe_core.request.serving_workload import LOADS

# Bytes of a file: a benchmark of ten thousand requests with every token's time is about that.
MAX_BYTES = 64 << 20
MOST_LINES = 500_000
# Characters of a line that are searched; all arguments of a server have some 8,000.
LONGEST_LINE = 16_000
# Measurements of one file: own runs of one question are no more.
MOST_RECORDS = 1000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Record = TypeVar("Record")
_NUMBER = re.compile(r"[+-]?(\d[\d,]*)?(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Content:
    """A file's text by its name, parsed in the ways that formats need, each once."""

    name: str
    text: str

    @staticmethod
    def of_file(path: Path) -> Content:
        """The content of a file; raises InputError where it cannot be read or is too large."""
        return Content(str(path), read_text(path, field="file", limit=MAX_BYTES))

    @cached_property
    def head(self) -> str:
        """The start, without colours and ends of long lines, in which logs are recognised."""
        start = _COLOUR.sub("", self.text[: 1 << 20])
        return "\n".join(line[:LONGEST_LINE] for line in start.splitlines())

    @cached_property
    def log(self) -> list[str]:
        lines = _COLOUR.sub("", self.text).splitlines()
        if len(lines) > MOST_LINES:
            raise InputError(
                f"{self.name} has {len(lines):,} lines; the limit is {MOST_LINES:,}.",
                field="file",
                hint="Cut the part out that was measured.",
            )
        return lines

    @cached_property
    def document(self) -> Mapping[str, Any] | None:
        """The JSON object that the file is; None where it is none.

        Raises:
            InputError: for JSON that is cut off, too deep, or repeats a key.
        """
        start = self._json_start
        if not start.startswith("{"):
            return None
        try:
            value = _parse_benchmark_json(start)
        except ValueError as error:
            if isinstance(_parse_or_none(start.split("\n", 1)[0]), dict):
                return None  # JSON lines
            raise InputError(f"{self.name} is not valid JSON: {error}.", field="file") from None
        return value if isinstance(value, dict) else None

    @property
    def _json_start(self) -> str:
        return self.text.lstrip("\ufeff \t\r\n")

    @cached_property
    def records(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The objects of a JSON document, of a list, or of JSON lines, each with its place.

        Raises:
            InputError: naming the line that is no object.
        """
        if self.document is not None:
            return [("", self.document)]
        if self._json_start.startswith("["):
            # a log line may start with a bracket
            values = _parse_or_none(self._json_start) or []
            records: list[tuple[str, Mapping[str, Any]]] = [
                (f"entry {n}", value) for n, value in enumerate(values) if isinstance(value, dict)
            ]
            return self._bounded(records) if len(records) == len(values) else []
        if not self._json_start.startswith("{"):
            return []
        lines = [(n, line) for n, line in enumerate(self.text.splitlines(), 1) if line.strip()]
        return [(f"line {n}", self._object(n, line)) for n, line in self._bounded(lines)]

    def _object(self, number: int, line: str) -> Mapping[str, Any]:
        try:
            value = _parse_benchmark_json(line.lstrip("\ufeff"))
        except ValueError as error:
            message = f"{self.name}, line {number}, is not valid JSON: {error}."
            raise InputError(message, field="file") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.name}, line {number}, is not an object.", field="file")
        return value

    def _bounded(self, records: list[Record]) -> list[Record]:
        if len(records) > MOST_RECORDS:
            raise InputError(
                f"{self.name} has {len(records):,} measurements; the limit is {MOST_RECORDS:,}.",
                field="file",
                hint="Split the file.",
            )
        return records

    def line_number(self, text: str, line: int, title: str, field: str = "") -> float:
        """A number in a line of the log; raises InputError naming both where it is none."""
        try:
            return parse_number(text)
        except ValueError as error:
            message = f"{self.name}, line {line}: {title}: {error}."
            raise InputError(message, field=field or title) from None

    def fields(self, values: Mapping[str, Any], place: str = "") -> Fields:
        return Fields(values, f"{self.name}, {place}" if place else self.name)

    @cached_property
    def rows(self) -> list[list[str]]:
        """The rows of a CSV file; empty where it is none."""
        try:
            return [row for row in csv.reader(io.StringIO(self.text[: 1 << 20])) if row]
        except csv.Error:
            return []


def _parse_or_none(text: str) -> Any:
    try:
        return _parse_benchmark_json(text)
    except ValueError:
        return None


def _parse_benchmark_json(text: str) -> Any:
    """JSON with ``Infinity`` and ``NaN``; raises ValueError for anything else that is not JSON."""
    try:
        return json.loads(text, parse_int=_parse_bounded_int, object_pairs_hook=_object_of)
    except RecursionError:
        raise ValueError("it has too many levels") from None


def _parse_bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is there twice in one object")
    return values


def parse_number(text: str) -> float:
    """A number as logs write it, with commas between thousands.

    Raises:
        ValueError: for what is no finite number.
    """
    plain = text.strip()
    if len(plain) > MAX_DIGITS or not plain or not _NUMBER.fullmatch(plain):
        raise ValueError(f"{plain[:40]!r} is not a number")
    value = float(plain.replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(f"{plain[:40]} is not finite")
    return value


@dataclass(frozen=True)
class Fields:
    """The fields of an object by their paths (``a.b``), and where it stands: errors name both."""

    values: Mapping[str, Any]
    place: str

    def number(self, path: str, scale: float = 1.0) -> float | None:
        """A measured figure above 0, times ``scale``; None where it is missing, null or 0.

        Raises:
            InputError: for a figure that is no number, NaN, infinite or negative.
        """
        value = self._value(path)
        if value is None or value == 0:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(path, value, "is not a number")
        if not math.isfinite(value) or value < 0:
            raise self._wrong(path, value, "is not a finite number of 0 or more")
        return float(value) * scale

    def count(self, path: str) -> int | None:
        """A whole number above 0; None where it is missing, null or 0."""
        value = self.number(path)
        if value is None:
            return None
        if not value.is_integer():
            raise self._wrong(path, value, "is not a whole number")
        return int(value)

    def text(self, path: str) -> str:
        """A short text in one line; empty where there is none."""
        value = self._value(path)
        return one_line(value) if isinstance(value, str) else ""

    def day(self, path: str) -> str:
        """The day of ``20261123-200543``, an ISO time or seconds since 1970; empty for others."""
        value = self._value(path)
        if isinstance(value, int | float) and 0 < value < 1e11:
            return datetime.datetime.fromtimestamp(value, datetime.UTC).date().isoformat()
        digits = self.text(path)[:10].replace("-", "")[:8]
        dated = len(digits) == 8 and digits.isdecimal()
        return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}" if dated else ""

    def flag(self, path: str) -> bool | None:
        """A yes or no, also one that is written as a text; None where there is none."""
        value = self._value(path)
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.casefold())
        return value if isinstance(value, bool) else None

    def has(self, path: str) -> bool:
        *names, last = path.split(".")
        return last in self.inside(".".join(names)).values

    def inside(self, path: str) -> Fields:
        """The fields of an object inside this one; without any where it is missing."""
        if not path:
            return self
        values: Any = self.values
        for name in path.split("."):
            values = values.get(name) if isinstance(values, Mapping) else None
        inner = values if isinstance(values, Mapping) else {}
        return Fields(inner, f"{self.place}, field {path}")

    def list(self, name: str) -> Iterator[Fields]:
        """The objects of a list inside this one, each with its place."""
        values = self.values.get(name)
        for n, value in enumerate(values if isinstance(values, list) else []):
            if isinstance(value, Mapping):
                yield Fields(value, f"{self.place}, {name}[{n}]")

    def _value(self, path: str) -> Any:
        parent, _, name = path.rpartition(".")
        return self.inside(parent).values.get(name)

    def _wrong(self, path: str, value: Any, problem: str) -> InputError:
        return InputError(
            f"{self.place}: {path} {problem} (got {value!r:.40}).",
            field=path.rpartition(".")[2],
            hint="Leave this measurement out, or measure again.",
        )


def one_line(text: str, limit: int = 200) -> str:
    """A text without line breaks and controls, of bounded length."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(plain.split())[:limit]


# Means over requests, in seconds; percentiles are named like ``ttft_p95_s``.
TIMES = ("ttft_s", "tpot_s", "request_latency_s")
# Of the whole deployment.
RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
# Of a training run: a step, tokens per second and device, a share of the peak.
STEPS = ("step_s", "tokens_per_s_per_gpu", "mfu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The statements of another program's file; what it does not state is left out.

    ``figures`` are `TIMES` and their percentiles, `RATES`, `STEPS`, and memory of the fullest
    device or of a replica's cache, in bytes and tokens (``weights_bytes``, ``kv_cache_tokens``).
    ``load`` has fields of a request's workload (``mode`` and its load, lengths in tokens; of
    training ``global_batch`` and ``sequence_length``). ``split`` has fields of a candidate and
    ``nodes`` and ``per_node``, ``settings`` other facts of how the engine ran, ``shape`` the
    dimensions of a trained model. ``place`` says where in the file it stands, ``excluded`` why it
    is not to be learned from.
    """

    format: str
    place: str = ""
    kind: str = "serving"
    engine: str = ""
    version: str = ""
    model: str = ""
    device: str = ""
    date: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    excluded: str = ""

    @property
    def teaches(self) -> bool:
        """Return whether it measured what a table of runs can hold."""
        if self.kind == "training":
            return any(name in self.figures for name in (*STEPS[:2], "peak_memory_bytes"))
        return any(name in self.figures for name in (*TIMES, *RATES[:2]))

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what the user must state before it is a run of a table."""
        lacking = [name for name in ("model", "device", "engine") if not getattr(self, name)]
        lacking += [] if "tp" in self.split else ["split"]
        if self.kind == "training":
            needed: tuple[str, ...] = ("global_batch", "sequence_length")
        else:
            needed = ("input_tokens", "output_tokens")
        lacking += [name for name in needed if name not in self.load]
        load = LOADS.get(str(self.load.get("mode")), "")
        unstated_load = self.kind == "serving" and load not in self.load
        return (*lacking, *(("load",) if unstated_load else ()))

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        plain = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if value
        }
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {**plain, "missing": list(self.missing), **notes}


@dataclass
class Draft:
    """A measurement while it is taken from a file; ``facts`` are texts of `Imported` by name."""

    format: str
    place: str
    kind: str
    facts: dict[str, Any]
    notes: list[str]
    figures: dict[str, float] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)

    def put(self, target: str, value: Any) -> None:
        """Take a value over (``figures.ttft_s``, ``model``); what is not stated is left out."""
        part, _, name = target.rpartition(".")
        if value is not None and value != "" and (part != "figures" or value > 0):
            (getattr(self, part) if part else self.facts)[name] = value

    def exclude(self, reason: str) -> None:
        """Say why it is not to be learned from; the first reason stays."""
        self.facts.setdefault("excluded", reason)

    def imported(self) -> Imported:
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        facts = parts.pop("facts")
        return Imported(**{**parts, **facts, "notes": tuple(self.notes)})
