"""What differs between an answer as it was recorded and as it is now."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

RELATIVE = 1e-9
"""Part of a number by which it may differ."""
ABSOLUTE = 1e-15
"""Difference that counts for nothing beside any number of an answer: what is left of a zero."""
LONGEST_SHOWN = 90


class _Nothing:
    def __repr__(self) -> str:
        return "(nothing)"


NOTHING = _Nothing()
"""What stands where one of the two answers has no value at all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not what it was, and where in the answer it stands."""

    path: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        change = _change(self.recorded, self.now)
        return f"{self.path or 'answer'}: {_shown(self.recorded)} -> {_shown(self.now)}{change}"


def differences(recorded: Any, now: Any, path: str = "") -> Iterator[Difference]:
    """Every difference of two plain values, by the paths to them."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in sorted(recorded.keys() | now.keys()):
            inner = f"{path}.{name}" if path else name
            yield from differences(recorded.get(name, NOTHING), now.get(name, NOTHING), inner)
    elif isinstance(recorded, list) and isinstance(now, list):
        yield from _in_lists(recorded, now, path)
    elif not _same(recorded, now):
        yield Difference(path, recorded, now)


def _in_lists(recorded: list[Any], now: list[Any], path: str) -> Iterator[Difference]:
    """Texts that came and went; of other lists, entries at the same place."""
    if recorded == now:
        return
    if all(isinstance(entry, str) for entry in [*recorded, *now]):
        matcher = difflib.SequenceMatcher(None, recorded, now, autojunk=False)
        for tag, start, end, start_now, end_now in matcher.get_opcodes():
            if tag != "equal":
                gone, new = recorded[start:end] or NOTHING, now[start_now:end_now] or NOTHING
                yield Difference(f"{path}[{start}]", gone, new)
        return
    for place in range(max(len(recorded), len(now))):
        was = recorded[place] if place < len(recorded) else NOTHING
        becomes = now[place] if place < len(now) else NOTHING
        yield from differences(was, becomes, f"{path}[{place}]")


def _same(recorded: Any, now: Any) -> bool:
    if _is_number(recorded) and _is_number(now):
        return math.isclose(recorded, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (
            math.isnan(recorded) and math.isnan(now)
        )
    return type(recorded) is type(now) and bool(recorded == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _change(recorded: Any, now: Any) -> str:
    if not (_is_number(recorded) and _is_number(now)) or not recorded:
        return ""
    return f" ({100 * (now - recorded) / abs(recorded):+.3g} %)"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
