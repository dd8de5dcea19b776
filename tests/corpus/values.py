"""Answers reduced to numbers, keys, names and sums of long lists, and compared with others."""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

WORDS = "…"  # stands for a text that is there, whatever it says
DIGITS = 12  # significant ones that are recorded; RELATIVE says which of them count
LONG = 12  # entries of a list of numbers, or of objects, from which on it is recorded as sums
IN_FULL = 3  # first objects of a long list that are recorded all the same
FEW = 40  # values of a name in a long list that are counted one by one
LONGEST_NAME = 128
# Keys of texts that keep their spaces (commands, splits, names), and that change with each digit
KEPT = frozenset({"argv", "change", "command", "commands", "install", "split", "label"})
KEPT |= {"kind", "state", "verdict", "provider", "instance", "region", "aliases"}
UNSTABLE = frozenset({"recipe_digest", "built_by"})
_SPACE = re.compile(r"\s")


def reduced(value, key="", *, lists=True):
    """A plain value without its words; with ``lists`` long lists as sums over all entries."""
    if isinstance(value, Mapping):
        return {str(name): reduced(item, str(name), lists=lists) for name, item in value.items()}
    if isinstance(value, list | tuple):
        entries = [reduced(item, key, lists=lists) for item in value]
        is_long = len(entries) > LONG and not all(isinstance(entry, str) for entry in entries)
        return _summary(entries) if lists and is_long else entries
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, str) and key not in KEPT:
        is_name = len(value) <= LONGEST_NAME and not _SPACE.search(value)
        return value if is_name and key not in UNSTABLE else WORDS
    return value


def _rounded(number):
    return float(f"{number:.{DIGITS}g}") + 0.0 if math.isfinite(number) else str(number)


def _summary(entries):
    """The first of many entries, and sums of all; ``by_place`` shows which change places."""
    numbers, names = {}, {}
    for place, entry in enumerate(entries, 1):
        for path, leaf in _leaves(entry):
            if isinstance(leaf, int | float) and not isinstance(leaf, bool):
                numbers.setdefault(path, []).append((place, leaf))
            else:
                names.setdefault(path, Counter())[str(leaf)] += 1
    sums = {
        path: {
            "known": len(found),
            "sum": _rounded(math.fsum(number for _, number in found)),
            "by_place": _rounded(math.fsum(place * number for place, number in found)),
        }
        for path, found in numbers.items()
    }
    counts = {
        path: dict(count) if len(count) <= FEW else {"different": len(count)}
        for path, count in names.items()
    }
    return {"entries": len(entries), "first": entries[:IN_FULL], "sums": sums, "counts": counts}


def _leaves(value, path=""):
    """Every value that holds no others, with the names that lead to it."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value


# Comparing

RELATIVE = 1e-9  # part of a number by which it may differ
ABSOLUTE = 1e-15  # what is left of a zero
LONGEST_SHOWN = 90


class _Nothing:
    """What stands where one of the two answers has no value at all."""

    def __repr__(self):
        return "(nothing)"


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not what it was, and where in the answer it stands."""

    path: str
    recorded: Any
    now: Any

    def __str__(self):
        change = _change(self.recorded, self.now)
        return f"{self.path or 'answer'}: {_shown(self.recorded)} -> {_shown(self.now)}{change}"


def differences(recorded, now, path=""):
    """Every difference of two plain values, by the paths to them."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in sorted(recorded.keys() | now.keys()):
            inner = f"{path}.{name}" if path else name
            yield from differences(recorded.get(name, NOTHING), now.get(name, NOTHING), inner)
    elif isinstance(recorded, list) and isinstance(now, list):
        yield from _in_lists(recorded, now, path)
    elif not _same(recorded, now):
        yield Difference(path, recorded, now)


def _in_lists(recorded, now, path):
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
    for place, (was, becomes) in enumerate(zip_longest(recorded, now, fillvalue=NOTHING)):
        yield from differences(was, becomes, f"{path}[{place}]")


def _same(recorded, now):
    if _is_number(recorded) and _is_number(now):
        return math.isclose(recorded, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (
            math.isnan(recorded) and math.isnan(now)
        )
    return type(recorded) is type(now) and bool(recorded == now)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _change(recorded, now):
    if not (_is_number(recorded) and _is_number(now)) or not recorded:
        return ""
    return f" ({100 * (now - recorded) / abs(recorded):+.3g} %)"


def _shown(value):
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
