"""Requests as a format hands them over, and the trace that they make."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.scaling.traces.formats.columns import (
    LARGEST_TOKENS,
    SINCE_1970_S,
    UNITS,
    guess_time_unit,
)
from recipe_core.scaling.traces.formats.content import MOST_REQUESTS, Content, quote_value, wrong
from recipe_core.scaling.traces.trace import Blocks, Trace


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order of the file; every array has one number a request.

    origin_s: seconds since 1970 at which ``arrival_s`` is 0, None where the file has no dates.
    failed: requests that are known to have failed. note: how something was read, for people.
    """

    arrival_s: Float
    input_tokens: Int
    output_tokens: Int
    blocks: Blocks | None = None
    sessions: Int | None = None
    failed: Bool | None = None
    origin_s: float | None = None
    note: str = ""


def build_trace(requests: Requests, title: str, content: Content) -> Trace:
    """The trace: sorted by arrival, without failed requests, counted from the first one.

    A request without tokens in its prompt or its answer failed, unless no answer of the whole file
    has any: then it is of embeddings or scores.

    Raises:
        InputError: when there are no requests, too many, or all failed.
    """
    count = len(requests.arrival_s)
    if not count:
        raise wrong(f"{content.title} has no requests.", "Give a file with some lines.")
    if count > MOST_REQUESTS:
        raise wrong(
            f"{content.title} has {count:,} requests; the limit is {MOST_REQUESTS:,}.",
            "Give a part of it.",
        )
    failed = requests.input_tokens == 0
    if requests.output_tokens.any():
        failed |= requests.output_tokens == 0
    if requests.failed is not None:
        failed |= requests.failed
    if failed.all():
        raise wrong(
            f"all {count:,} requests of {content.title} failed or have no tokens.",
            "Give a file with the lengths of prompts and answers.",
        )
    order = np.flatnonzero(~failed)
    order = order[np.argsort(requests.arrival_s[order], kind="stable")]
    arrival = requests.arrival_s[order]
    dated = requests.origin_s is not None
    return Trace(
        arrival_s=arrival - arrival[0],
        input_tokens=requests.input_tokens[order],
        output_tokens=requests.output_tokens[order],
        blocks=_select_blocks(requests.blocks, order),
        sessions=_number_sessions(requests.sessions, order),
        failed=int(failed.sum()),
        source=", ".join(filter(None, (content.name, title, requests.note))),
        began_s=float(arrival[0]) + (requests.origin_s or 0.0) if dated else None,
    )


def _select_blocks(blocks: Blocks | None, order: Int) -> Blocks | None:
    if blocks is None:
        return None
    counts = np.diff(blocks.starts)[order]
    starts = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(int(starts[-1])) - np.repeat(starts[:-1], counts)
    ids = blocks.ids[np.repeat(blocks.starts[:-1][order], counts) + within]
    return Blocks(ids, starts, blocks.tokens)


def _number_sessions(sessions: Int | None, order: Int) -> Int | None:
    """Sessions as numbers from 0 on; a request without one is a session of its own."""
    if sessions is None:
        return None
    numbers = sessions[order].copy()
    alone = numbers < 0
    if alone.all():
        return None
    numbers[alone] = int(numbers.max()) + 1 + np.arange(int(alone.sum()))
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


@dataclass(slots=True)
class Gathered:
    """Requests so far. Times are numbers of one kind: as they stand, or seconds since 1970."""

    times: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    failed: array[int] = field(default_factory=lambda: array("b"))
    sessions: array[int] = field(default_factory=lambda: array("q"))
    names: dict[Hashable, int] = field(default_factory=dict)
    dated: bool = False

    def add(
        self, line: int, time: Any, inputs: Any, outputs: Any, *, session: Any, failed: bool
    ) -> None:
        """One request; an answer that is not there has no tokens.

        Raises:
            InputError: naming the line, for a time or a length that is none.
        """
        if len(self.times) >= MOST_REQUESTS:
            raise wrong(f"the trace has more than {MOST_REQUESTS:,} requests.", "Give a part.")
        self.times.append(self._time(line, time))
        self.inputs.append(_parse_token_count(line, "the prompt", inputs))
        self.outputs.append(_parse_token_count(line, "the answer", outputs))
        self.failed.append(failed)
        has_session = isinstance(session, str | int) and session != ""
        self.sessions.append(self.names.setdefault(session, len(self.names)) if has_session else -1)

    def _time(self, line: int, value: Any) -> float:
        number = _parse_request_number(value)
        if number is not None:
            if not 0 <= number < math.inf:
                raise wrong(
                    f"line {line:,}: the time is {quote_value(value)}.", "Correct the line."
                )
            return number
        try:
            stamp = datetime.fromisoformat(_to_iso_date(str(value)))
        except ValueError:
            raise wrong(
                f"line {line:,}: the time is {quote_value(value)}, not a date or a number.",
                "Correct the line.",
            ) from None
        self.dated = True
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()

    def requests(self, unit: str | None = None) -> Requests:
        """All of them; ``unit`` of times that are numbers, guessed by their size if left out."""
        values = np.asarray(self.times, dtype=np.float64)
        unit = "s" if self.dated else unit or guess_time_unit(values)
        arrival = values * UNITS[unit]
        origin = float(np.floor(arrival.min())) if len(arrival) else 0.0
        since_1970 = origin >= SINCE_1970_S
        sessions = np.asarray(self.sessions, dtype=np.int64)
        return Requests(
            arrival_s=arrival - origin if since_1970 else arrival,
            input_tokens=np.asarray(self.inputs, dtype=np.int64),
            output_tokens=np.asarray(self.outputs, dtype=np.int64),
            sessions=sessions if len(self.names) else None,
            failed=np.asarray(self.failed, dtype=np.bool_),
            origin_s=origin if since_1970 else None,
        )


def _to_iso_date(text: str) -> str:
    """A date with at most six digits after the second, which is what Python reads."""
    until_second, dot, rest = text.strip().partition(".")
    if not dot:
        return until_second
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return f"{until_second}.{rest[: min(digits, 6)]:0<6}{rest[digits:]}"


def _parse_request_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_token_count(line: int, part: str, value: Any) -> int:
    if value in (None, "", "-"):
        return 0
    number = _parse_request_number(value)
    if number is None or not 0 <= number <= LARGEST_TOKENS or number != int(number):
        raise wrong(
            f"line {line:,}: {part} has {quote_value(value)} tokens, "
            f"not a whole number up to {LARGEST_TOKENS:,}.",
            "Correct the line.",
        )
    return int(number)
