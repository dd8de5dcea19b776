"""Finding a model: in the catalog, on the Hub, in a folder with a ``config.json``, or inline.

The catalog is data: one file a model under ``model/catalog/`` named ``org--name.yaml``, holding the
architecture fields of its ``config.json``, the published parameter counts, and where each was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.base.documents import parse_json, read_shipped, read_text
from recipe_core.base.errors import ModelError, unknown
from recipe_core.base.provenance import Source
from recipe_core.base.units import gib
from recipe_core.model.checkpoint import checkpoint_bytes
from recipe_core.model.config.read import read_config
from recipe_core.model.config.shorthand import shape_config
from recipe_core.model.derived import meanings
from recipe_core.model.hub import hub_config
from recipe_core.model.revision import split_revision
from recipe_core.model.spec import ModelSpec

CHECKPOINT_TOLERANCE = 0.02
"""Files that deviate from the counted size by more than this share get a note: they hold a vision
tower, draft heads or other formats."""

FOLDER = Path(__file__).with_name("catalog")

_ALIASES = re.compile(r"^aliases:\n((?:- .+\n)+)", re.MULTILINE)

_LIKE_NOTHING = ("", "-hf", "-bf16")
"""Endings without meaning, which names of quantised copies leave out."""


class PublishedCount(BaseModel):
    """Parameters as their publisher counts them."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    parameters: Annotated[int, Field(gt=0)]
    active_parameters: Annotated[int, Field(gt=0)] | None = None
    source: str
    note: str | None = None
    includes: dict[str, Annotated[int, Field(gt=0)]] = {}
    """What the figure counts beyond the language model, by name: parameters worked out from the
    public shapes of those parts."""

    @property
    def language_model(self) -> int:
        """The published figure without what it counts beyond the language model."""
        return self.parameters - sum(self.includes.values())


class CatalogEntry(BaseModel):
    """One file of the catalog.

    ``same_as`` borrows the architecture of another entry; ``aliases`` are models that share it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    id: str
    aliases: tuple[str, ...] = ()
    same_as: str | None = None
    config: dict[str, Any] = {}
    published: PublishedCount
    sources: dict[str, Source]


@cache
def _files() -> dict[str, Path]:
    """Catalog files by casefolded model id, from the file names, so that listing parses nothing."""
    return {
        path.stem.replace("--", "/", 1).casefold(): path for path in sorted(FOLDER.glob("*.yaml"))
    }


def catalog_ids() -> list[str]:
    """The ids in the catalog, sorted."""
    return [path.stem.replace("--", "/", 1) for path in _files().values()]


def in_catalog(model_id: str) -> bool:
    """Whether the catalog has this id or alias."""
    return model_id.casefold() in _files() or model_id.casefold() in _by_alias()


@cache
def catalog_entry(model_id: str) -> CatalogEntry:
    """The catalog's entry for an id, in any case.

    Raises:
        ModelError: names close ids when there is none.
    """
    path = _files().get(model_id.casefold()) or _by_alias().get(model_id.casefold())
    if path is None:
        message, hint = unknown("model", model_id, catalog_ids())
        raise ModelError(
            message, field="model", hint=f"{hint} Or set it to a folder with a config.json."
        )
    try:
        return CatalogEntry.model_validate(read_shipped(path))
    except ValidationError as error:
        raise ModelError(
            f"the catalog file {path.name} is malformed: {error}.", field="model"
        ) from None


@cache
def _by_alias() -> dict[str, Path]:
    """Catalog files by casefolded alias.

    Reads only the lines of that list: parsing every file takes a second.
    """
    lists = (
        (path, _ALIASES.search(path.read_text(encoding="utf-8"))) for path in _files().values()
    )
    return {
        line.removeprefix("- ").casefold(): path
        for path, match in lists
        if match
        for line in match[1].splitlines()
    }


@cache
def catalog_model(model_id: str) -> ModelSpec:
    """A model of the catalog, named by the id or alias that was requested.

    Raises:
        ModelError: when it is not in the catalog.
    """
    entry = catalog_entry(model_id)
    name = next(
        name for name in (entry.id, *entry.aliases) if name.casefold() == model_id.casefold()
    )
    return read_config(_config(entry), name)


def _config(entry: CatalogEntry) -> dict[str, Any]:
    return {**(catalog_entry(entry.same_as).config if entry.same_as else {}), **entry.config}


@lru_cache(256)  # bounded: anybody may ask for any name
def derived_model(model_id: str) -> ModelSpec | None:
    """A model of the catalog under another owner or in another format, by its name; else None."""
    for name, convention in meanings(model_id):
        entries = next(
            (alike for ending in _LIKE_NOTHING if (alike := _called(f"{name}{ending}"))), ()
        )
        if len(entries) != 1:  # none, or models of two owners that are not the same
            continue
        base, config = catalog_model(entries[0].id), _config(entries[0])
        if convention is not None:
            config = convention.applied(config, experts=base.is_moe)
        model = read_config(config, model_id)
        stored = f" with weights in {model.weight_dtype}" if convention else ""
        note = (
            f"Not in the catalog: its name is read as {base.name}{stored}. "
            "Provide its config.json to be certain."
        )
        return replace(model, notes=(*model.notes, note))
    return None


def _called(name: str) -> tuple[CatalogEntry, ...]:
    """Entries with this name under any owner; one of those that share architecture and format."""
    entries = map(catalog_entry, _by_name().get(name.casefold(), ()))
    return tuple(
        {
            (entry.same_as or entry.id, str(entry.config.get("quantization_config"))): entry
            for entry in entries
        }.values()
    )


@cache
def _by_name() -> dict[str, list[str]]:
    """Ids and aliases, casefolded, by their names without owners."""
    out: dict[str, list[str]] = {}
    for model_id in (*_files(), *_by_alias()):
        out.setdefault(model_id.rpartition("/")[2], []).append(model_id)
    return out


def load_model(model: str | Mapping[str, Any], *, folders: bool = True) -> ModelSpec:
    """The model a request names.

    Args:
        model: an id of the catalog or the Hugging Face Hub (``owner/name`` or
            ``owner/name@revision``), a folder with a ``config.json`` (or that file), dimensions
            (``shape_config``), or the parsed config.
        folders: whether to read paths and ask the hub; public servers must not.

    Raises:
        ModelError: when it is unknown, unreadable or not a decoder-only language model.
    """
    if isinstance(model, Mapping):
        return read_config(model, str(model.get("_name_or_path") or "inline config"))
    if (shape := shape_config(model)) is not None:
        return read_config(shape[1], model)
    path = _path(model)
    if model.casefold() in _files() or not (
        path.is_absolute() or model.startswith(".") or path.exists()
    ):
        return _named(model, online=folders)
    if not folders:
        raise ModelError(
            f"{model!r} is a path; this server does not read paths.",
            field="model",
            hint="Send the config.json inline.",
        )
    return read_folder(path)


def _path(text: str) -> Path:
    """The path of a text.

    Raises:
        ModelError: when it cannot be a path.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"{text[:80]!r} is not a model: {error}.",
            field="model",
            hint="Set `model` to a catalog id, a folder or a config.",
        ) from None
    return path


def _named(model: str, *, online: bool) -> ModelSpec:
    """A model of the catalog, else of the hub (``owner/name``), else what its name says."""
    model, revision = split_revision(model)
    try:
        return catalog_model(model)
    except ModelError as unlisted:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
            raise
        tried = ""
        if online:
            try:
                return read_config(hub_config(model, revision), model)
            except ModelError as error:
                tried = f" ({error.message})"
        if (derived := derived_model(model)) is not None:
            return derived
        raise ModelError(unlisted.message, field="model", hint=f"{unlisted.hint}{tried}") from None


def read_folder(path: Path) -> ModelSpec:
    """The model of a folder on disk, named by its absolute path.

    Raises:
        ModelError: when there is no ``config.json``.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(
            f"no config.json in {str(path)!r}.",
            field="model",
            hint="Set `model` to a folder with one, or to a catalog id.",
        )
    model = read_config(
        parse_json(read_text(file, field="model"), str(file)), str(file.parent.resolve())
    )
    size = checkpoint_bytes(file.parent)
    notes = model.notes
    if size is not None and abs(size / model.counted_bytes - 1) > CHECKPOINT_TOLERANCE:
        counted = gib(model.counted_bytes)
        notes = (*notes, f"The files on disk hold {gib(size)}; estimates count {counted}.")
    return replace(model, checkpoint_bytes=size, notes=notes)
