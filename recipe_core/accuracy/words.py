"""``words.yaml``: how names of models, methods and benchmarks are read."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict

from recipe_core.accuracy.published import Kind
from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE

FILE = DataFile(PACKAGE / "accuracy" / "words.yaml", "technique")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class MadeFrom(_Data):
    """The generation of the base, by the start of a model's name."""

    source: str
    names: dict[str, str]


class KindWords(_Data):
    """Parts of names that tell the kind of a benchmark."""

    kind: Kind
    words: tuple[str, ...]


class MethodClass(_Data):
    """What a method does about rounding, by words of its name."""

    name: str
    words: tuple[str, ...]


class Items(_Data):
    """Sizes of test sets by the start of a benchmark's name."""

    source: str
    by_name: dict[str, int]


class Words(Sourced):
    """All of the file."""

    made_from: MadeFrom
    method_classes: tuple[MethodClass, ...]
    endings: tuple[str, ...]
    benchmark_kinds: tuple[KindWords, ...]
    other_natures: tuple[str, ...]
    long_chains: tuple[str, ...]
    items: Items
    mean_over: tuple[str, ...]


@cache
def naming_words() -> Words:
    return FILE.read_as(Words)
