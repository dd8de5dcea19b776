"""Requests that are gathered one by one from nested objects."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from recipe_core.scaling.traces.formats.columns import (
    LARGEST_TOKENS,
    SINCE_1970_S,
    UNITS,
    guess_time_unit,
)
from recipe_core.scaling.traces.formats.content import MOST_REQUESTS, quote_value, wrong
from recipe_core.scaling.traces.formats.requests import Requests


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
