"""A trace from the bytes of a file, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from recipe_core.base.errors import unknown
from recipe_core.scaling.traces.formats import rate_table, records, table
from recipe_core.scaling.traces.formats.columns import UNITS
from recipe_core.scaling.traces.formats.content import Content, unpack_trace_file, wrong
from recipe_core.scaling.traces.formats.requests import Requests, build_trace
from recipe_core.scaling.traces.formats.table import has_request_columns
from recipe_core.scaling.traces.trace import Rates, Trace


@dataclass(frozen=True, slots=True)
class Format:
    """A module of this folder. ``read``: with the unit of times that do not say theirs."""

    title: str
    recognises: Callable[[Content], bool]
    read: Callable[[Content, str | None], Requests]


def _is_published(title: str, content: Content) -> bool:
    return table.published_title(content) == title


FORMATS = (
    *(
        Format(title, partial(_is_published, title), table.read_request_table)
        for title in table.column_names().published
    ),
    Format(records.SPANS_TITLE, records.has_genai_spans, records.read_genai_spans),
    Format(table.TITLE, table.is_request_table, table.read_request_table),
    Format(records.BENCH_TITLE, records.is_benchmark_trace, records.read_benchmark_trace),
    Format(records.LOG_TITLE, records.is_access_log, records.read_access_log),
)
PICKLE = b"\x80"


def find_trace_format(content: Content) -> Format:
    """The format of a file.

    Raises:
        InputError: when no format knows it; says what its first line holds.
    """
    trace_format = next((candidate for candidate in FORMATS if candidate.recognises(content)), None)
    if trace_format is not None:
        return trace_format
    if content.data.startswith(PICKLE):
        raise wrong(
            f"{content.title} is a pickle, which could run anything.",
            "Write its requests as JSON lines: timestamp, input_tokens, output_tokens.",
        )
    if not content.data.strip():
        raise wrong(f"{content.title} is empty.", "Give a trace of requests.")
    begins = content.first_line[:80] or "bytes that are no text"
    raise wrong(
        f"{content.title} is no trace that is known; it begins {begins!r}.",
        "Give columns or fields timestamp, input_tokens and output_tokens; "
        "docs/guide/scale.md has all formats.",
    )


def read_trace(data: bytes, name: str = "", *, unit: str | None = None) -> Trace:
    """The requests in a file (gzip or not), in one of the formats of docs/guide/scale.md.

    name: of the file, for messages and ``source``. unit: of times that are numbers and do not say
    their unit (``s``, ``ms``, ``us``, ``ns``).

    Raises:
        InputError: for an unknown format, a file over the limits, or the first line that is wrong.
    """
    content = _unpack_content(data, name)
    if rate_table.is_rate_table(content) and not _has_requests(content):
        raise wrong(
            f"{content.title} has rates and no single requests.",
            "Use it for rates: recipe trace FILE, or workload.over_time.rates.",
        )
    return _parse_trace(content, _check_time_unit(unit))


def read_load(
    data: bytes, name: str = "", *, unit: str | None = None, model: str | None = None
) -> Trace | Rates:
    """The requests in a file, or its rates where it has no single requests.

    model: whose rates, of a table with several.

    Raises:
        InputError: as ``read_trace``.
    """
    content = _unpack_content(data, name)
    if rate_table.is_rate_table(content) and not _has_requests(content):
        return rate_table.read_rate_table(content, model, _check_time_unit(unit))
    return _parse_trace(content, _check_time_unit(unit))


def _unpack_content(data: bytes, name: str) -> Content:
    return Content(unpack_trace_file(data), name)


def _parse_trace(content: Content, unit: str | None) -> Trace:
    trace_format = find_trace_format(content)
    return build_trace(trace_format.read(content, unit), trace_format.title, content)


def _has_requests(content: Content) -> bool:
    return has_request_columns(content.head)


def _check_time_unit(unit: str | None) -> str | None:
    if unit is not None and unit not in UNITS:
        message, hint = unknown("unit", unit, list(UNITS))
        raise wrong(message, hint)
    return unit
