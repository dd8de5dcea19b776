"""Search of models as people type: parts of names in any order, the most wanted first.

What it shows of a model is data, ``model_facts.csv`` (``scripts/model_facts.py``): no config is
read. Copies of a model in other formats or places are found with it, as one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property, lru_cache
from pathlib import Path

from recipe_core.base.documents import read_document
from recipe_core.base.errors import LONGEST_NAME
from recipe_core.base.types import Task
from recipe_core.base.units import count_text

FACTS = Path(__file__).with_name("model_facts.csv")
POPULAR = Path(__file__).with_name("popular.yaml")
FIELDS = (
    "id",
    "parameters",
    "active_parameters",
    "max_context",
    "weight_dtype",
    "task",
    "original",
    "downloads",
    "released",
)
SHOWN = 12
"""Models that a search shows, and those that stand where nothing is typed."""
ALIKE = 0.72
"""Least likeness, 0 to 1, of a misspelt name that is offered: random letters reach 0.6."""
MOST_WORDS = 16
"""Words of a text that are looked for."""

_TASKS: dict[Task, str] = {"embed": "embeddings", "score": "scores"}
_PARTS = re.compile(r"\d+(?:\.\d+)?(?:[bmkt](?![a-z]))?|[a-z]+")
_UNITS = "bmkt"
_BETWEEN_WORDS = re.compile(r"[\s/_,-]+")


@dataclass(frozen=True)
class ModelFacts:
    """A model of the catalog, or one that shares the architecture of one, as a search shows it.

    ``original``: the model of which it is a copy, empty for an original. ``downloads``: from the
    Hugging Face Hub in 30 days, 0 where not known; ``released``: a date (YYYY-MM-DD) or empty.
    """

    id: str
    parameters: int
    active_parameters: int | None
    max_context: int
    weight_dtype: str
    task: Task
    original: str
    downloads: int
    released: str

    @cached_property
    def title(self) -> str:
        """The name without its owner, as people write it: ``Llama 3.3 70B Instruct``."""
        return re.sub(r"[-_]+", " ", self.id.rpartition("/")[2])

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Words and numbers of the id; a size keeps its unit."""
        return tuple(_PARTS.findall(self.id.casefold()))

    @cached_property
    def tails(self) -> tuple[str, ...]:
        """The parts from each of them on, in one word, so that ``qwen3`` begins one."""
        return tuple("".join(self.parts[n:]) for n in range(len(self.parts)))


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that a search found, and the formats in which the catalog has copies of it."""

    facts: ModelFacts
    formats: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def title(self) -> str:
        return self.facts.title

    @property
    def description(self) -> str:
        """Size, longest context and formats: ``70.6B · 128k · bf16, FP8 and NVFP4 copies``."""
        facts = self.facts
        size = _size_text(facts.parameters)
        if facts.active_parameters is not None:
            size += f" ({_size_text(facts.active_parameters)} active)"
        stored = name_format(facts.weight_dtype)
        if self.formats:
            *first, last = self.formats
            copies = f"{', '.join(first)} and {last}" if first else last
            stored += f", {copies} {'copies' if first else 'copy'}"
        kind = [_TASKS[facts.task]] if facts.task in _TASKS else []
        return " · ".join([size, context_text(facts.max_context), stored, *kind])

    @property
    def label(self) -> str:
        """Title and description in one line, for a list."""
        return f"{self.title} · {self.description}"


def context_text(tokens: int) -> str:
    """A length of context in units of 1,024 tokens: ``512``, ``128k``, ``1M``."""
    if tokens < 1024:
        return str(tokens)
    if tokens < 1 << 20:
        return f"{tokens / 1024:.0f}k"
    return f"{tokens / (1 << 20):.3g}M"


def _size_text(parameters: int) -> str:
    return count_text(float(f"{parameters:.3g}")).replace(" ", "")


def name_format(dtype: str) -> str:
    """Return a format as people write it: ``FP8`` of fp8-block; 16 and 32 bits stay as they are."""
    name = dtype.partition("-")[0]
    return name if name in ("bf16", "fp16", "fp32") else name.upper()


@cache
def model_facts() -> dict[str, ModelFacts]:
    """All models that a search knows, by their ids."""
    with FACTS.open(encoding="utf-8", newline="") as file:
        return {row["id"]: _read_facts(row) for row in csv.DictReader(file)}


def _read_facts(row: dict[str, str]) -> ModelFacts:
    active = row["active_parameters"]
    task: Task = next(kind for kind in ("generate", *_TASKS) if kind == row["task"])
    return ModelFacts(
        id=row["id"],
        parameters=int(row["parameters"]),
        active_parameters=int(active) if active else None,
        max_context=int(row["max_context"]),
        weight_dtype=row["weight_dtype"],
        task=task,
        original=row["original"],
        downloads=int(row["downloads"] or 0),
        released=row["released"],
    )


@cache
def _families() -> list[tuple[ModelFacts, ...]]:
    """Each original with its copies, the most wanted first: by the list, by use, the newest."""
    copies: dict[str, list[ModelFacts]] = {}
    for facts in model_facts().values():
        copies.setdefault(facts.original or facts.id, []).append(facts)
    families = [
        tuple(sorted(rows, key=lambda row: (bool(row.original), -row.downloads)))
        for rows in copies.values()
    ]
    place = {name: n for n, name in enumerate(read_document(POPULAR))}
    families.sort(key=lambda family: family[0].id.casefold())
    families.sort(key=lambda family: family[0].released, reverse=True)
    families.sort(key=lambda family: (place.get(family[0].id, len(place)), -_use(family)))
    return families


def _use(family: Iterable[ModelFacts]) -> int:
    return sum(facts.downloads for facts in family)


def search_models(text: str, limit: int = SHOWN) -> list[FoundModel]:
    """The models that a text means, the best first; the most wanted where it says nothing.

    Every word of the text is the beginning of a word of a name, in any order, with or without
    spaces between letters and numbers; a version that is equal, or the same but for its minor
    number, comes before a longer number. Where no name has all words, those without an owner count
    (``someone/Llama-3.3-70B``), then names that are spelt alike. A copy is found by what only its
    name says (``fp8``), else its original stands for it.

    Args:
        text: what somebody typed.
        limit: the most models to return.
    """
    text = text[:LONGEST_NAME].strip().casefold()
    if not text:
        return [_found(family[0], family) for family in _families()[:limit]]
    return [_found(*match) for match in _matches(text)[:limit]]


@dataclass(frozen=True, slots=True)
class _Word:
    """A word that is looked for: without signs, and its letters and numbers alone."""

    letters: str
    parts: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> list[_Word]:
        """The words of a text, of which the first few count."""
        part_lists = (tuple(_PARTS.findall(word)) for word in _BETWEEN_WORDS.split(text))
        return [cls("".join(parts), parts) for parts in part_lists if parts][:MOST_WORDS]

    def grade(self, facts: ModelFacts) -> int | None:
        """Grade how a name has the word: 0 as a whole, 1 as a beginning, None not at all."""
        starts = [n for n, tail in enumerate(facts.tails) if tail.startswith(self.letters)]
        if starts:
            says_much = len(self.letters) > 2 and self.letters.isalpha()
            return 0 if says_much or any(self._ends_part(facts.parts[n:]) for n in starts) else 1
        if len(self.parts) == 1 and not self.parts[0][0].isdigit():
            return None
        grades = [_part_grade(part, facts.parts) for part in self.parts]
        return None if None in grades else max(grade for grade in grades if grade is not None)

    def _ends_part(self, parts: Sequence[str]) -> bool:
        """Tell if the word ends with a part, or with a number before its unit or minor number."""
        before = 0
        for part in parts:
            stems = (part, part.rstrip(_UNITS), part.partition(".")[0])
            if any(len(self.letters) == before + len(stem) for stem in stems):
                return True
            before += len(part)
            if before > len(self.letters):
                break
        return False


def _part_grade(part: str, name_parts: Sequence[str]) -> int | None:
    """Grade how letters or a number are found; a number may leave out its point or its unit."""
    if not part[0].isdigit():
        return 0 if any(name.startswith(part) for name in name_parts) else None
    numbers = [name for name in name_parts if name[0].isdigit()]
    for name in numbers:
        if part in (name, name.rstrip(_UNITS), name.replace(".", ""), name.partition(".")[0]):
            return 0
    return 1 if any(name.startswith(part) for name in numbers) else None


@lru_cache(512)  # bounded: people type anything
def _matches(text: str) -> list[tuple[ModelFacts, tuple[ModelFacts, ...]]]:
    for part in dict.fromkeys((text, text.rpartition("/")[2])):
        words = _Word.read(part)
        ranked = [
            (*best, family)
            for family in _families()
            if (best := _best_of(family, words, part)) is not None
        ]
        if ranked:
            return [match[1:] for match in sorted(ranked, key=lambda match: match[0])]
    return _misspelt(text)


def _best_of(
    family: Sequence[ModelFacts], words: Sequence[_Word], text: str
) -> tuple[int, ModelFacts] | None:
    """The first of a family that has all words, and how well: 0 best, -1 for its whole name."""
    for facts in family:
        if facts.id.casefold() == text:
            return -1, facts
    for facts in family if words else ():
        worst = 0
        for word in words:
            grade = word.grade(facts)
            if grade is None:
                break
            worst = max(worst, grade)
        else:
            return worst, facts
    return None


def _found(facts: ModelFacts, family: tuple[ModelFacts, ...]) -> FoundModel:
    if facts.original:
        return FoundModel(facts)
    formats = dict.fromkeys(
        name_format(copy.weight_dtype) for copy in family if copy.weight_dtype != facts.weight_dtype
    )
    return FoundModel(facts, tuple(sorted(formats)))


def _misspelt(text: str) -> list[tuple[ModelFacts, tuple[ModelFacts, ...]]]:
    """Models whose names are spelt like a text, the most alike first; empty where none is.

    A name is as alike as the words of the text are to their likest words in it, on average,
    weighted by their length; another owner counts little.
    """
    words, without_owner = (
        _PARTS.findall(part)[:MOST_WORDS] for part in (text, text.rpartition("/")[2])
    )
    tables = {word: _likenesses(word) for word in {*words, *without_owner}}

    def likeness(parts: Sequence[str], facts: ModelFacts) -> float:
        letters = sum(map(len, parts))
        best = (len(p) * max(tables[p][name] for name in facts.parts) for p in parts)
        return sum(best) / letters if letters else 0.0

    ranked = []
    for family in _families():
        facts = family[0]
        alike = max(likeness(words, facts), 0.95 * likeness(without_owner, facts))
        if alike >= ALIKE:
            ranked.append((round(alike, 2), facts, family))
    return [match[1:] for match in sorted(ranked, key=lambda match: -match[0])]


@cache
def _all_parts() -> frozenset[str]:
    """Every word and number of a name."""
    return frozenset(part for facts in model_facts().values() for part in facts.parts)


@lru_cache(64)
def _likenesses(word: str) -> dict[str, float]:
    """Likeness of a word to every other; numbers are equal or not, since 7b is not almost 70b."""
    if word[0].isdigit():  # people leave the unit out
        return {name: 0.95 * (name.rstrip(_UNITS) == word) for name in _all_parts()} | {word: 1.0}
    matcher, likenesses = (
        SequenceMatcher(None, "", word, autojunk=False),
        dict.fromkeys(_all_parts(), 0.0),
    )
    for name in likenesses:
        matcher.set_seq1(name)
        if len(word) >= 3 and name.startswith(word):  # the start of a word, as people shorten
            likenesses[name] = 0.9
        elif matcher.real_quick_ratio() > 0.5 and matcher.quick_ratio() > 0.5:
            likenesses[name] = matcher.ratio()
    return likenesses | {word: 1.0}
