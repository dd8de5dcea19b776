"""How an engine's commands are read, as data: ``engines/options/<engine>.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import InputError
from recipe_core.engines.options import FOLDER, Meaning
from recipe_core.engines.spec import Engine, engine_names


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Gone(_Data):
    """A flag of other versions: how many words it took, and its successor (or "nothing")."""

    takes: Literal[0, 1, "many"] = 1
    use: str
    note: str | None = None


class Unmodelled(_Data):
    """What an option does that estimates ignore, unless it has one of these values."""

    what: str
    unless: tuple[str, ...] = ("0", "1", "0.0", "False")


class Grammar(_Data):
    """How the commands of one engine are read.

    ``launch``: the words that start a server ("-m" before a module). ``other_commands``: words
    after them that start something else. ``positional``: where the model may stand without a flag.
    ``underscores``: whether flags may be written with them for dashes; ``abbreviations``: whether
    the start of a flag is enough; ``nested``: whether JSON may be given as ``--flag.key value``;
    ``glued``: short flags whose value follows without a blank. ``images``: container repositories
    and the words that they start by themselves. ``means``: what options say about a candidate;
    ``words``: their values in this project's words (of a quantisation a list where the weights must
    be quantised already: by whom). ``longer_context``: variables that let a request be longer than
    the model's context. ``rules``: what the engine checks when it starts. ``placed``: options that
    a launch sets for each process by its place. ``rank``: the one that makes a server one
    data-parallel rank, and the switch that says so without a number.
    """

    schema_version: Literal[1]
    engine: str
    source: str
    launch: tuple[tuple[str, ...], ...]
    other_commands: tuple[str, ...] = ()
    positional: Literal["first", "leading", "any"]
    underscores: bool = False
    abbreviations: bool = False
    nested: bool = False
    glued: dict[str, str] = {}
    images: dict[str, tuple[str, ...]] = {}
    means: dict[str, Meaning]
    words: dict[str, dict[str, Any]] = {}
    unmodelled: dict[str, Unmodelled] = {}
    longer_context: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    rank: tuple[str, str] | None = None
    gone: dict[str, Gone] = {}

    @field_validator("unmodelled", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {name: {"what": row} if isinstance(row, str) else row for name, row in value.items()}


@cache
def grammars() -> dict[str, Grammar]:
    """The grammar of every engine whose commands are read, by its name."""
    files = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    return {name: _read(files[name]) for name in engine_names() if name in files}


def meanings(spec: Engine) -> Mapping[str, Meaning]:
    """What options of an engine, or of the one that it wraps, say about a candidate."""
    grammar = grammars().get(spec.wraps or spec.name)
    return grammar.means if grammar else spec.options.means


def placed(spec: Engine) -> tuple[str, ...]:
    """Options of an engine, or of the one it wraps, that differ for each process."""
    grammar = grammars().get(spec.wraps or spec.name)
    return grammar.placed if grammar else ()


def _read(path: Path) -> Grammar:
    try:
        return Grammar.model_validate(read_shipped(path))
    except ValidationError as error:
        raise InputError(f"{path.name} is malformed: {error}.", field="engines") from None


@cache
def programs() -> str:
    """The commands that are read, for a message."""
    return ", ".join(" ".join(words) for name in grammars() for words in grammars()[name].launch)
