"""Words that an option table lacks: which release had them, what they took, what is nearest."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    option_replacement,
    release_of_change,
    releases,
)
from recipe_core.engines.options import Option, OptionTable, option_table

# Least likeness, 0 to 1, of a word that is taken for another misspelt; of a second one that is
# less alike by so much.
MISSPELT, CLEARLY = 0.85, 0.02
_NUMBERS = re.compile(r"\d+")

# More words than any command has.
_ALL = 1 << 20


class UnknownFlag(NamedTuple):
    """Words about a flag; how many it ``takes``; ``when`` it came or went, to end a sentence."""

    takes: int
    when: str
    message: str
    hint: str | None


def options_begun_by(table: OptionTable, flag: str) -> list[Option]:
    """The options that a flag begins, by their spellings."""
    spellings = sorted(word for word in table.by_spelling if word.startswith(flag))
    options = {table.by_spelling[word].flag: table.by_spelling[word] for word in spellings}
    return list(options.values())


@lru_cache(maxsize=4096)
def explain_unknown(name: str, version: str, flag: str, suggest: bool) -> UnknownFlag:
    """Explain a flag that a release lacks; ``suggest``: whether to look for the nearest one."""
    table, grammar = option_table(name, version), grammars()[name]
    when = release_of_change(name, version, flag)
    if (gone := grammar.gone.get(flag)) is not None:
        words = _ALL if gone.takes == "many" else gone.takes
        message = f"{'has no' if when else 'no longer has'} {flag}{when}."
        return UnknownFlag(words, when, message, option_replacement(name, flag, table))
    abbreviated = grammar.abbreviations and flag.startswith("--")
    options = options_begun_by(table, flag) if abbreviated else []
    if len(options) > 1:
        message = f"has several options that begin with {flag[:80]}."
        hint = f"Write one in full: {', '.join(option.flag for option in options[:5])}."
        return UnknownFlag(1, when, message, hint)
    nearest = closest(flag, tuple(table.by_spelling)) if suggest and not when else None
    return UnknownFlag(_words_elsewhere(name, flag), when, f"has no {flag[:80]}{when}.", nearest)


def _words_elsewhere(name: str, flag: str) -> int:
    """Count the words of an option that only other releases have; one for an unknown one."""
    tables = (option_table(name, version).by_spelling for version in reversed(releases(name)))
    option = next((table[flag] for table in tables if flag in table), None)
    if option is not None and option.type == "switch":
        return 0
    return _ALL if option is not None and option.many else 1


def closest(text: str, names: Sequence[str]) -> str | None:
    """The nearest of the known words; dashes and underscores are one."""
    if len(text) > 100:
        return None
    folded = {word.casefold().replace("_", "-"): word for word in names}
    word = text.casefold().replace("_", "-")
    close = difflib.get_close_matches(word, list(folded), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(folded[match] for match in close)}?" if close else None


def nearest_word(text: str, names: Sequence[str]) -> str | None:
    """The known word of which a text is surely a misspelling; None where there is none, or two.

    Numbers in it are equal: int8 is no misspelt int4.
    """
    if len(text) > 100:
        return None
    folded = {word.casefold().replace("_", "-"): word for word in names}
    word = text.casefold().replace("_", "-")
    matches = difflib.get_close_matches(word, list(folded), n=2, cutoff=MISSPELT)
    matches = [name for name in matches if _NUMBERS.findall(name) == _NUMBERS.findall(word)]
    likeness = [difflib.SequenceMatcher(None, name, word).ratio() for name in matches]
    if not matches or (len(matches) > 1 and likeness[0] - likeness[1] < CLEARLY):
        return None
    return folded[matches[0]]
