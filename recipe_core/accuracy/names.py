"""Names of models: base, generation and size, also of a model that nobody knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import get_args

from recipe_core.accuracy.published import LIKELIHOODS, Benchmark, Kind, published_keys
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE

FILE = DataFile(PACKAGE / "accuracy" / "words.yaml", "technique")


class MadeFrom(DataRow):
    """The generation of the base, by the start of a model's name."""

    source: str
    names: dict[str, str]


class KindWords(DataRow):
    """Parts of names that tell the kind of a benchmark."""

    kind: Kind
    words: tuple[str, ...]


class MethodClass(DataRow):
    """The class of a method by how it rounds, told by words of its name."""

    name: str
    words: tuple[str, ...]


class Items(DataRow):
    """Sizes of test sets by the start of a benchmark's name."""

    source: str
    by_name: dict[str, int]


class Words(Sourced):
    """All of the file."""

    made_from: MadeFrom
    method_classes: tuple[MethodClass, ...]
    endings: tuple[str, ...]
    benchmark_kinds: tuple[KindWords, ...]
    generated: tuple[str, ...]
    other_natures: tuple[str, ...]
    long_chains: tuple[str, ...]
    items: Items
    mean_over: tuple[str, ...]


@cache
def naming_words() -> Words:
    return FILE.read_as(Words)


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

    @property
    def generated(self) -> bool:
        """Return whether answers are generated text; else one of several is chosen."""
        return self.kind in naming_words().generated


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


_SIZE = re.compile(
    r"(?<![\w.])(?:(?P<experts>\d+)x)?(?P<count>\d+(?:[._]\d+)?)"
    r"(?P<unit>[bm])(?P<rest>\d)?(?![a-z])",
    re.IGNORECASE,
)
_ACTIVE = re.compile(r"(?<![a-z])a(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+(?:-(?:oss|j|neox)(?![a-z]))?")
_VERSION = re.compile(r"[-.]?v?(\d+(?:\.\d+)?)")
_CHAT = re.compile(
    r"instruct|chat|(?<![a-z])it(?![a-z])|zephyr|dpo|sft|distill|thinking|reason|qwq|oss", re.I
)
# Versions of first generations, whose names do not say it.
_FIRST = {"llama": "1"}
# Parameters of N experts of M billion over N · M: attention is shared (Mixtral 8x7B: 46.7 B).
_SHARED = 0.77


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as its name tells it.

    name: of the base, without what a quantised copy adds. generation ("llama-3.1"), series
    ("llama-3") and line ("llama") are what it was trained with; of a model made from another, those
    of its base. parameters_b: billions, None where nothing tells. published: whether figures of
    this model are published.
    """

    name: str
    generation: str
    series: str
    line: str
    parameters_b: float | None
    chat: bool
    published: bool


def named_model(name: str, parameters_b: float | None = None) -> NamedModel:
    """The model of a name: of a published table, of the catalog, or by the name alone.

    Args:
        name: an id or any other name; that of a quantised copy is led back to its base.
        parameters_b: billions of parameters; goes before what the name tells.
    """
    base = base_name(name)
    published_name = _published_names().get(_spelling_key(base))
    base = published_name or base
    generation = _model_generation(base)
    series = re.sub(r"\.\d+$", "", generation)
    return NamedModel(
        name=base,
        generation=generation,
        series=series,
        line=re.sub(r"-\d+$", "", series),
        parameters_b=parameters_b
        or (
            _model_size_b(base)
            if published_name is None
            else published_keys().models[published_name].parameters_b
        ),
        chat=bool(_CHAT.search(base.rpartition("/")[2])),
        published=published_name is not None,
    )


@lru_cache(4096)
def base_name(name: str) -> str:
    """A name without the endings of quantised copies: ``Qwen3-8B-FP8`` is ``Qwen3-8B``."""
    owner, slash, last = name.strip().rpartition("/")
    if _spelling_key(name.strip()) in _published_names():
        return _published_names()[_spelling_key(name.strip())]
    parts = re.split(r"([-_.])", last)
    while len(parts) > 2 and _is_ending(parts[-1]):
        parts = parts[:-2]
    return f"{owner}{slash}{''.join(parts)}"


def _is_ending(word: str) -> bool:
    word = word.casefold()
    return (
        not word
        or word in naming_words().endings
        or bool(re.fullmatch(r"i?q\d\w*|[kmsl]|\d?bpw", word))
    )


def _spelling_key(name: str) -> str:
    """Say what two spellings of one model share: no owner, no case, no ``meta-`` and ``-hf``."""
    last = name.rpartition("/")[2].casefold().replace("_", "-")
    return re.sub(r"-hf$", "", re.sub(r"^meta-", "", last))


@cache
def _published_names() -> dict[str, str]:
    return {_spelling_key(name): name for name in published_keys().models}


@cache
def published_series() -> frozenset[str]:
    return frozenset(named_model(name).series for name in published_keys().models)


@lru_cache(4096)
def _model_size_b(name: str) -> float | None:
    """Billions of parameters by the catalog, or by the name."""
    # Looked up late: the catalog takes longer to import than all else here.
    from recipe_core.models.catalog import catalog_entry, in_catalog

    if in_catalog(name):
        published = catalog_entry(name).published
        if published is not None:
            return published.parameters / 1e9
    return size_in(name)


def size_in(name: str) -> float | None:
    """Billions of parameters as a name states them: 8B, 0.6B, 1_8B, 1b7, 8x7B, 30B-A3B, 270m."""
    sizes = [_match_billions(match) for match in _SIZE.finditer(name.rpartition("/")[2])]
    return max(sizes, default=None)


def _match_billions(match: re.Match[str]) -> float:
    count = float(match["count"].replace("_", ".") + (f".{match['rest']}" if match["rest"] else ""))
    if match["experts"]:
        count *= int(match["experts"]) * _SHARED
    return count / 1000 if match["unit"].casefold() == "m" else count


@lru_cache(4096)
def _model_generation(name: str) -> str:
    """``llama-3.1``: the word that a name starts with, and the version after it."""
    last = name.rpartition("/")[2].casefold()
    last = re.sub(r"^(meta|nvidia|google|ibm|openai)-", "", last)
    last = re.sub(r"(?<=\d)_(?=\d)", ".", last).replace("_", "-")
    for start, generation in naming_words().made_from.names.items():
        if last.startswith(start):
            return generation
    last = _ACTIVE.sub("", re.sub(r"\d+x\d+b|\d+(?:\.\d+)?[bm](?:\d)?(?![a-z])", "", last))
    word = _WORD.match(last)
    if word is None:
        return last
    version = _VERSION.match(last[word.end() :])
    number = version[1] if version else _FIRST.get(word[0], "")
    return f"{word[0]}-{number}" if number else word[0]
