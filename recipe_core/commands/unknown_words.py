"""What to say of a flag, a key or a value that an option table does not have."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache

from recipe_core.engines.grammar import grammars
from recipe_core.engines.history import release_key
from recipe_core.engines.option_releases import (
    first_release_with,
    first_release_without,
    option_replacement,
    releases,
)
from recipe_core.engines.options import Option, OptionTable, option_table


@cache
def _sorted_flags(name: str, version: str) -> list[str]:
    return sorted(option_table(name, version).by_spelling)


def beginning(table: OptionTable, flag: str) -> list[Option]:
    """The options that a flag begins."""
    flags = _sorted_flags(table.engine, table.version)
    options: dict[str, Option] = {}
    for n in range(bisect_left(flags, flag), len(flags)):
        if not flags[n].startswith(flag):
            break
        option = table.by_spelling[flags[n]]
        options[option.flag] = option
    return list(options.values())


@lru_cache(maxsize=4096)
def explained(name: str, version: str, flag: str, suggest: bool) -> tuple[int, str, str | None]:
    """How many words an unknown flag takes, the message about it, and a hint."""
    table, grammar = option_table(name, version), grammars()[name]
    when = since(name, version, flag)
    gone = grammar.gone.get(flag)
    if gone is not None:
        takes = 1 << 20 if gone.takes == "many" else gone.takes
        hint = option_replacement(name, flag, table)
        return takes, f"{'has no' if when else 'no longer has'} {flag}{when}.", hint
    options = beginning(table, flag) if grammar.abbreviations and flag.startswith("--") else []
    if len(options) > 1:
        hint = f"Write one in full: {', '.join(option.flag for option in options[:5])}."
        return 1, f"has several options that begin with {flag[:80]}.", hint
    takes = _words_of(name, flag)
    nearest = closest(flag, tuple(table.by_spelling)) if suggest and not when else None
    return takes, f"has no {flag[:80]}{when}.", nearest


def _words_of(name: str, flag: str) -> int:
    """How many words an option takes that only other releases have; one of an unknown one."""
    for version in reversed(releases(name)):
        option = option_table(name, version).by_spelling.get(flag)
        if option is not None:
            many = 1 << 20 if option.many else 1
            return 0 if option.type == "switch" else many
    return 1


def since(name: str, version: str, flag: str, key: str | None = None) -> str:
    """When a flag or key that a release lacks came or went, to end a sentence; empty if unknown."""
    first, last = first_release_with(name, flag, key), first_release_without(name, flag, key)
    if first is not None and release_key(version) < release_key(first):
        return f"; it came with {first}"
    if last is not None and release_key(version) >= release_key(last):
        return f"; it went with {last}"
    return ""


def closest(text: str, names: Sequence[str]) -> str | None:
    """The nearest of the known words; dashes and underscores are one."""
    if len(text) > 100:
        return None
    folded = {word.casefold().replace("_", "-"): word for word in names}
    word = text.casefold().replace("_", "-")
    close = difflib.get_close_matches(word, list(folded), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(folded[match] for match in close)}?" if close else None
