"""All formats, the most particular first; a file is read by the first that knows it."""

from __future__ import annotations

from typing import Protocol

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


class Format(Protocol):
    """A module of this folder."""

    TITLE: str

    def is_one(self, content: Content) -> bool: ...

    def read(self, content: Content, unit: str | None = None) -> Requests:
        """Its requests; ``unit`` of times that do not say theirs."""
        ...


FORMATS: tuple[Format, ...] = (azure, burstgpt, mooncake, spans, table, bench, access_log)
PICKLE = b"\x80"


def find_trace_format(content: Content) -> Format:
    """The format of a file.

    Raises:
        InputError: when no format knows it; says what its first line holds.
    """
    trace_format = next((candidate for candidate in FORMATS if candidate.is_one(content)), None)
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
