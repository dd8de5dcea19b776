"""What the name of a benchmark tells: its kind, its relatives, and how many items it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from recipe_core.accuracy.published import LIKELIHOODS, Benchmark, Kind, published_keys
from recipe_core.accuracy.words import naming_words

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class NamedBenchmark:
    """A benchmark as its name tells it.

    stem: what variants of one benchmark share ("GSM8K" of "GSM8K (strict)"). of_kind: no benchmark
    but a whole kind is meant. items: None where the size of the test set is unknown. long_chain:
    its answers are long chains of tokens. published: whether figures of it are.
    """

    name: str
    stem: str
    kind: Kind
    items: int | None
    long_chain: bool
    of_kind: bool = False
    published: bool = False

    @property
    def likelihood(self) -> bool:
        return self.kind in LIKELIHOODS


@lru_cache(4096)
def named_benchmark(name: str) -> NamedBenchmark | None:
    """The benchmark of a name, or of a kind's name; None where the name is of another nature.

    A name that tells no kind is taken for a mixture of tasks.
    """
    plain = name.strip()
    if plain in KINDS:
        return NamedBenchmark(plain, "", plain, None, long_chain=False, of_kind=True)
    listed = _published_spellings().get(plain.casefold())
    if listed is not None:
        return published_benchmark(listed)
    kind = _kind_by_words(plain.casefold())
    return None if kind is None else _build_named_benchmark(plain, kind, None)


def published_benchmark(name: str) -> NamedBenchmark:
    """A benchmark of the published figures."""
    entry = published_keys().benchmarks[name]
    return _build_named_benchmark(name, entry.kind, entry)


def _build_named_benchmark(name: str, kind: Kind, entry: Benchmark | None) -> NamedBenchmark:
    lower = re.sub(r"[\s_]+", "-", name.casefold())
    return NamedBenchmark(
        name=name,
        stem=benchmark_stem(name),
        kind=kind,
        items=_test_set_items(entry, lower),
        long_chain=any(word in lower for word in naming_words().long_chains),
        published=entry is not None,
    )


@lru_cache(1)
def _published_spellings() -> dict[str, str]:
    return {name.casefold(): name for name in published_keys().benchmarks}


def benchmark_stem(name: str) -> str:
    """``GSM8K (strict)`` is ``GSM8K``; averages over tasks are one, as are parts of LongBench."""
    plain = re.sub(r"\s*\(.*?\)|_avg$", "", name)
    if plain.startswith("avg"):
        return "average"
    return "LongBench" if plain.startswith("LongBench") else plain


def _kind_by_words(name: str) -> Kind | None:
    for entry in naming_words().benchmark_kinds:
        if any(word in name for word in entry.words):
            return entry.kind
    tokens = set(re.split(r"[^a-z0-9]+", name))
    return None if tokens & set(naming_words().other_natures) else "composite"


def _test_set_items(entry: Benchmark | None, name: str) -> int | None:
    if entry is not None and entry.items is not None:
        return entry.items
    starts = naming_words().items.by_name
    return next((count for start, count in starts.items() if name.startswith(start)), None)
