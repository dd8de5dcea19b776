"""Checkpoints of one model in several formats, as the catalog has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from recipe_core.base.errors import LONGEST_NAME
from recipe_core.models.catalog import catalog_entry, catalog_ids, catalog_model, in_catalog
from recipe_core.models.supplements import name_meanings

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


def model_variants(model_id: str) -> dict[str, str]:
    """Ids of the catalog that hold the same model, with the format of their weights.

    The unquantised one first; empty for models outside the catalog.

    The same model: the same architecture (``same_as``) and context, and a name that contains the
    shortest such name in it: an FP8 copy does, a model distilled into the same architecture or made
    for longer texts does not.
    """
    if not in_catalog(model_id):
        return {}
    tail, root = _name_tail(catalog_entry(model_id).id), _root_architecture(model_id)
    context = catalog_model(model_id).max_context

    def alike(candidate: str) -> bool:
        return (
            _root_architecture(candidate) == root
            and catalog_model(candidate).max_context == context
        )

    # Names first: what they rule out is not read.
    base = min(
        (
            _name_tail(candidate)
            for candidate in catalog_ids()
            if _name_tail(candidate) in tail and alike(candidate)
        ),
        key=len,
    )
    same = [
        candidate
        for candidate in catalog_ids()
        if base in _name_tail(candidate) and alike(candidate)
    ]
    return {
        candidate: catalog_model(candidate).weight_dtype
        for candidate in sorted(
            same, key=lambda candidate: (_name_tail(candidate) != base, _name_tail(candidate))
        )
    }


@lru_cache(256)  # bounded: anybody may ask for any name
def base_checkpoint(model_id: str) -> str | None:
    """The checkpoint that another was quantised from; None for one that is no copy.

    The catalog's, unquantised or as it was published first; where the catalog has none, what the
    ending of the name leaves of it.
    """
    first = next(iter(model_variants(model_id)), None)
    if first is not None and first.casefold() != catalog_entry(model_id).id.casefold():
        return first
    for name, convention in name_meanings(model_id):
        if convention is not None:
            catalog_bases = (
                candidate for candidate in catalog_ids() if _name_tail(candidate) == name.casefold()
            )
            return next(catalog_bases, name)
    return None


@lru_cache(256)
def stored_as(model_id: str, dtype: str) -> str | None:
    """The first checkpoint of the catalog that holds the same model in a format; None without."""
    return next(
        (name for name, stored in model_variants(model_id).items() if stored == dtype), None
    )


def _name_tail(model_id: str) -> str:
    return model_id.split("/")[-1].casefold()


def _root_architecture(model_id: str) -> str:
    entry = catalog_entry(model_id)
    return (entry.same_as or entry.id).casefold()
