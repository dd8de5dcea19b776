"""Models of the catalog whose names are like a text that names none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from recipe_core.base.errors import LONGEST_NAME
from recipe_core.models.catalog import catalog_ids

# Names that are offered.
NAMES = 5
# Least likeness, 0 to 1, of a name that is offered: random letters reach 0.6.
ALIKE = 0.72

_WORDS = re.compile(r"\d+(?:\.\d+)?(?:[bmk](?![a-z]))?|[a-z]+")


def nearest_models(text: str, known: Sequence[str] | None = None) -> list[str]:
    """Up to five ids of the catalog that read like a text, the most alike first.

    Words and numbers are compared one by one, so that ``llama70b`` finds
    ``meta-llama/Llama-3.1-70B-Instruct``: a name is as alike as the words of the text are to their
    likest words in it, on average, weighted by their length; another owner counts little. Among
    equals come those with fewer words beside, then the newer ones. Empty where nothing is alike.

    Args:
        text: what somebody typed.
        known: the ids to look among; left out, the catalog's.
    """
    text = text[:LONGEST_NAME]
    whole, without_owner = _words(text), _words(text.rpartition("/")[2])
    ranked = []
    for name in catalog_ids() if known is None else known:
        others = _words(name)
        alike = max(_likeness(whole, others), 0.95 * _likeness(without_owner, others))
        if alike >= ALIKE:
            ranked.append((round(alike, 2), -len(_words(name.rpartition("/")[2])), name))
    return [name for *_, name in sorted(ranked, reverse=True)[:NAMES]]


@lru_cache(2048)  # bounded: people type anything
def _words(name: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(name.casefold()))


def _likeness(words: Sequence[str], others: Sequence[str]) -> float:
    """0 to 1: how well each word is found among others."""
    if not words:
        return 0.0
    alike = [max((_alike(word, other) for other in others), default=0.0) for word in words]
    letters = [len(word) for word in words]
    return sum(a * n for a, n in zip(alike, letters, strict=True)) / sum(letters)


def _alike(word: str, other: str) -> float:
    """Likeness of two words; numbers are equal or not, since 7b is not almost 70b."""
    if word == other:
        return 1.0
    if word[0].isdigit() or other[0].isdigit():
        return 0.95 if other.rstrip("bmk") == word else 0.0  # people leave the unit out
    if len(word) >= 3 and other.startswith(word):  # the start of a word, as people shorten
        return 0.9
    matcher = SequenceMatcher(None, word, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() > 0.5 else 0.0
