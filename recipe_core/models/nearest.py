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


def nearest_models(text: str, model_ids: Sequence[str] | None = None) -> list[str]:
    """Up to five ids of the catalog that read like a text, the most alike first.

    Words and numbers are compared one by one, so that ``llama70b`` finds
    ``meta-llama/Llama-3.1-70B-Instruct``: a name is as alike as the words of the text are to their
    likest words in it, on average, weighted by their length; another owner counts little. Among
    equals come those with fewer words beside, then the newer ones. Empty where nothing is alike.

    Args:
        text: what somebody typed.
        model_ids: the ids to look among; left out, the catalog's.
    """
    text = text[:LONGEST_NAME]
    text_words, without_owner = _split_name(text), _split_name(text.rpartition("/")[2])
    ranked = []
    for name in catalog_ids() if model_ids is None else model_ids:
        name_words = _split_name(name)
        alike = max(
            _name_likeness(text_words, name_words), 0.95 * _name_likeness(without_owner, name_words)
        )
        if alike >= ALIKE:
            ranked.append((round(alike, 2), -len(_split_name(name.rpartition("/")[2])), name))
    return [name for *_, name in sorted(ranked, reverse=True)[:NAMES]]


@lru_cache(2048)  # bounded: people type anything
def _split_name(name: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(name.casefold()))


def _name_likeness(words: Sequence[str], name_words: Sequence[str]) -> float:
    """0 to 1: how well each word is found among others."""
    if not words:
        return 0.0
    alike = [
        max((_word_likeness(word, name_word) for name_word in name_words), default=0.0)
        for word in words
    ]
    letters = [len(word) for word in words]
    return sum(a * n for a, n in zip(alike, letters, strict=True)) / sum(letters)


def _word_likeness(word: str, name_word: str) -> float:
    """Likeness of two words; numbers are equal or not, since 7b is not almost 70b."""
    if word == name_word:
        return 1.0
    if word[0].isdigit() or name_word[0].isdigit():
        return 0.95 if name_word.rstrip("bmk") == word else 0.0  # people leave the unit out
    if len(word) >= 3 and name_word.startswith(word):  # the start of a word, as people shorten
        return 0.9
    matcher = SequenceMatcher(None, word, name_word, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() > 0.5 else 0.0
