"""All formats, the most particular first; a file is read by the first that knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipe_core.scaling.traces.formats import (
    access_log,
    azure,
    bench,
    burstgpt,
    mooncake,
    spans,
    table,
)
from recipe_core.scaling.traces.formats.content import Content, wrong
from recipe_core.scaling.traces.formats.requests import Requests


@dataclass(frozen=True, slots=True)
class Format:
    """A module of this folder. ``read``: with the unit of times that do not say theirs."""

    title: str
    recognises: Callable[[Content], bool]
    read: Callable[[Content, str | None], Requests]


FORMATS = (
    Format(azure.TITLE, azure.is_azure_trace, azure.read_azure_trace),
    Format(burstgpt.TITLE, burstgpt.is_burstgpt_trace, burstgpt.read_burstgpt_trace),
    Format(mooncake.TITLE, mooncake.is_mooncake_trace, mooncake.read_mooncake_trace),
    Format(spans.TITLE, spans.has_genai_spans, spans.read_genai_spans),
    Format(table.TITLE, table.is_request_table, table.read_request_table),
    Format(bench.TITLE, bench.is_benchmark_trace, bench.read_benchmark_trace),
    Format(access_log.TITLE, access_log.is_access_log, access_log.read_access_log),
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
