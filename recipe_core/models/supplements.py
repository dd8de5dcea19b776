"""Supplements of the catalog: constants, models that are not modelled, known checkpoints.

``nvidia/Qwen3-14B-FP4`` is Qwen3-14B as NVIDIA quantises; ``unsloth/Llama-3.3-70B-Instruct`` is
Llama-3.3-70B-Instruct. A derived model says so in its notes: only its own ``config.json`` is
certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import ModelError
from recipe_core.base.provenance import Source
from recipe_core.models.config.quantization import LEFT_OUT
from recipe_core.models.config.read import not_modelled
from recipe_core.models.spec import LinearAttention, ModelSpec

CONSTANTS = DataFile(Path(__file__).with_name("constants.yaml"), "model", ModelError)


class ConstantsGroup(DataRow):
    """Models, by id or alias, that share these fields of their ``config.json``."""

    models: tuple[str, ...]
    config: dict[str, Any]
    source: str


class _ConstantsFile(DataRow):
    schema_version: Literal[1]
    sources: dict[str, Source]
    groups: tuple[ConstantsGroup, ...]

    @model_validator(mode="after")
    def _names_each_once(self) -> _ConstantsFile:
        names = [name.casefold() for group in self.groups for name in group.models]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"{twice[0]!r} is listed twice")
        for group in self.groups:
            if group.source not in self.sources:
                raise ValueError(f"source {group.source!r} is not listed under sources")
        return self


@cache
def model_constants() -> dict[str, dict[str, Any]]:
    """Fields by the casefolded id or alias of a model.

    Raises:
        ModelError: naming what is wrong with the file.
    """
    groups = CONSTANTS.read_as(_ConstantsFile).groups
    return {name.casefold(): group.config for group in groups for name in group.models}


class OtherKind(DataRow):
    """Models of another kind: what they make, why that is not modelled, and their ids."""

    makes: str
    why: str
    models: tuple[str, ...]


class _File(DataRow):
    schema_version: Literal[1]
    kinds: dict[str, OtherKind]
    architectures: dict[str, str]

    @model_validator(mode="after")
    def _is_refused(self) -> _File:
        if odd := sorted(set(self.architectures) - set(not_modelled())):
            raise ValueError(f"architectures: {odd[0]!r} is no field that is refused")
        return self


@cache
def _other_kinds_file() -> _File:
    path = Path(__file__).with_name("other_kinds.yaml")
    return DataFile(path, "model", ModelError).read_as(_File)


def other_kinds() -> dict[str, OtherKind]:
    return _other_kinds_file().kinds


def unmodelled_feature(model_id: str) -> str | None:
    """Say what of a model's architecture is not modelled, by its name: ``…layers are``; else None.

    Names are all that is known of a model whose ``config.json`` is not at hand.
    """
    name = model_id.rpartition("/")[2]
    for field, names in _other_kinds_file().architectures.items():
        if re.fullmatch(names, name, re.IGNORECASE):
            return not_modelled()[field]
    return None


@cache
def _by_id() -> dict[str, OtherKind]:
    return {name.casefold(): kind for kind in other_kinds().values() for name in kind.models}


def other_kind(model_id: str) -> OtherKind | None:
    """Return what a model makes instead of text; None for one that is not known to."""
    return _by_id().get(model_id.casefold())


CONVENTIONS = Path(__file__).with_name("conventions.yaml")


# A part of the ending in a quantisation: ``{inside|file|Q4_K_M}`` is the first group that was
# there, or the last word where none was.
_PART = re.compile(r"\{(\w+(?:\|\w+)*)\}")


class Convention(DataRow):
    """The meaning of a name's ending; ``like`` is a model of the catalog that follows it.

    ``hybrid``: only for models with layers of linear attention. ``experts`` and ``linear``: modules
    that are left out too where a model has routed experts or linear attention. ``files``: such a
    repository holds files in this format, beside the ``config.json`` of the base.
    """

    ending: str
    publishers: tuple[str, ...] = ()
    like: str | None = None
    hybrid: bool = False
    quantization: dict[str, Any] | None
    experts: tuple[str, ...] = ()
    linear: tuple[str, ...] = ()
    files: bool = False

    def concerns(self, base: ModelSpec) -> bool:
        return not self.hybrid or _is_hybrid(base)

    def read(self, owner: str, name: str) -> tuple[str, Convention] | None:
        """The name without the ending, and what this one says: its bits, groups or file.

        None without the ending, or under another publisher's convention.
        """
        if self.publishers and owner.casefold() not in map(str.casefold, self.publishers):
            return None
        match = re.fullmatch(f"(.+?)(?:{self.ending})", name, re.IGNORECASE)
        if match is None:
            return None
        parts = {part: text for part, text in match.groupdict().items() if text}
        if self.quantization is None or not match.re.groupindex:
            return match[1], self
        filled = _fill_parts(self.quantization, parts)
        return match[1], self.model_copy(update={"quantization": filled})

    def applied(self, config: Mapping[str, Any], base: ModelSpec) -> dict[str, Any]:
        """The base's configuration with this quantisation in place of its own."""
        if self.quantization is None:
            return {name: value for name, value in config.items() if name != "quantization_config"}
        out = self.quantization
        more = (*(self.experts if base.is_moe else ()), *(self.linear if _is_hybrid(base) else ()))
        if more:
            left_out = next(name for name in LEFT_OUT if name in out)
            out = {**out, left_out: [*out[left_out], *more]}
        return {**config, "quantization_config": out}


def _is_hybrid(base: ModelSpec) -> bool:
    return any(isinstance(attention, LinearAttention) for attention, _ in base.mixers)


def _fill_parts(value: Any, parts: Mapping[str, str]) -> Any:
    """A quantisation with what the name says in place of its parts; digits are numbers."""
    if isinstance(value, Mapping):
        return {key: _fill_parts(item, parts) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_parts(item, parts) for item in value]
    match = _PART.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    *names, usual = match[1].split("|")
    text = next((parts[name] for name in names if name in parts), usual)
    return int(text) if text.isdigit() else text


@cache
def naming_conventions() -> tuple[Convention, ...]:
    """All conventions, in the order in which they are tried."""
    return tuple(TypeAdapter(list[Convention]).validate_python(read_shipped(CONVENTIONS)))


def name_meanings(model_id: str) -> list[tuple[str, Convention | None]]:
    """The models that an id may stand for, most likely first, with the convention it follows.

    First what its publisher's conventions say, then a copy of another owner's model (None), then
    what such endings mean elsewhere.
    """
    owner, _, name = model_id.partition("/")
    publishers: list[tuple[str, Convention | None]] = []
    general: list[tuple[str, Convention | None]] = []
    for convention in naming_conventions():
        if read := convention.read(owner, name):
            (publishers if convention.publishers else general).append(read)
    return [*publishers, (name, None), *general]
