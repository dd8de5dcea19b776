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
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import ModelError, unknown
from recipe_core.base.provenance import Source
from recipe_core.base.texts import check_name
from recipe_core.base.types import Task
from recipe_core.models.checkpoint import (
    is_model_folder,
    looks_like_path,
    path_of,
    read_folder,
    split_revision,
)
from recipe_core.models.config.read import WRONG, read_model_config
from recipe_core.models.config.shorthand import shape_config
from recipe_core.models.hub import own_config
from recipe_core.models.search import search_models
from recipe_core.models.spec import NO_TOWER, ModelSpec
from recipe_core.models.supplements import (
    Convention,
    model_constants,
    name_meanings,
    other_kind,
    unmodelled_feature,
)
from recipe_core.models.towers import Modality, Tower

FOLDER = Path(__file__).with_name("catalog")

_ALIASES = re.compile(r"^aliases:\n((?: *- .+\n)+)", re.MULTILINE)

# Where weights of an inline config can be: an absolute path, or an id of the hub.
_PLACE = re.compile(r"/[\w./:@%+=,-]{1,510}|\w[\w.-]{0,254}/\w[\w.-]{0,254}")

# Names that the error of an unknown one offers.
ALIKE_NAMES = 3

# Endings without meaning, which names of quantised copies leave out.
_LIKE_NOTHING = ("", "-hf", "-bf16")


class PublishedCount(DataRow):
    """Parameters as their publisher counts them."""

    parameters: Annotated[int, Field(gt=0)]
    active_parameters: Annotated[int, Field(gt=0)] | None = None
    source: str
    note: str | None = None
    of: Literal["all", "language model"] = "all"
    """Whether the figure counts towers, too, or is that of the language model alone."""
    encoders: Mapping[Modality, Annotated[int, Field(gt=0)]] = {}
    """Parameters of the towers whose sizes ``config`` does not give, by what they read."""
    includes: Mapping[str, Annotated[int, Field(gt=0)]] = {}
    """What the figure counts beyond language model and towers, by name: parameters worked out from
    the public shapes of those parts."""

    @property
    def counted(self) -> int:
        """The published figure without what is not counted here: what a model's count must be."""
        return self.parameters - sum(self.includes.values())


class CatalogEntry(DataRow):
    """One file of the catalog: ``owner--name.yaml``, in the letters of its id.

    ``same_as`` borrows the architecture of another entry; ``aliases`` are models that share it.
    ``sources`` says where ``config`` and the published count were read. ``task``: what the
    checkpoint is made for where its config does not say it (a decoder that embeds).
    """

    id: str
    aliases: tuple[str, ...] = ()
    same_as: str | None = None
    config: Mapping[str, Any] = {}
    task: Task | None = None
    published: PublishedCount
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _is_sourced(self) -> CatalogEntry:
        if not self.config and self.same_as is None:
            raise ValueError("give config, or same_as another model of the catalog")
        if "config" not in self.sources:
            raise ValueError("sources.config is missing: where config was read")
        if self.published.source not in self.sources:
            raise ValueError(f"source {self.published.source!r} is not listed under sources")
        return self


@cache
def _catalog_files() -> dict[str, Path]:
    return {
        path.stem.replace("--", "/", 1).casefold(): path for path in sorted(FOLDER.glob("*.yaml"))
    }


def catalog_ids() -> list[str]:
    return [path.stem.replace("--", "/", 1) for path in _catalog_files().values()]


def in_catalog(model_id: str) -> bool:
    return model_id.casefold() in _catalog_files() or model_id.casefold() in _by_alias()


@cache
def catalog_entry(model_id: str) -> CatalogEntry:
    """The catalog's entry for an id, in any case.

    Raises:
        ModelError: names close ids when there is none, or what is wrong with its file.
    """
    path = _catalog_files().get(model_id.casefold()) or _by_alias().get(model_id.casefold())
    if path is None:
        message, _ = unknown("model", model_id, ())
        alike = [model.id for model in search_models(model_id, ALIKE_NAMES)]
        hint = f"Did you mean {' or '.join(map(repr, alike))}?"
        if not alike:
            hint = f"Available: {', '.join(model.id for model in search_models(''))}, …."
        hint = f"{hint} Or set it to a folder with a config.json."
        raise ModelError(message, field="model", hint=hint)
    file = DataFile(path, "model", ModelError)
    entry = file.read_as(CatalogEntry)
    _check_entry(entry, file)
    return entry


def _check_entry(entry: CatalogEntry, file: DataFile) -> None:
    """Raise where a file is found by other names than those it says, or borrows from no model."""
    stem = entry.id.replace("/", "--")
    if stem != file.path.stem:
        hint = f"Rename the file to {stem}.yaml, or correct the id (capital letters count)."
        raise file.problem("id", f"{entry.id!r} is not the name of the file", hint)
    if unread := set(entry.aliases) - set(_aliases_in(file.path)):
        hint = "Write one a line, after `- ` and without quotes, directly below `aliases:`."
        raise file.problem("aliases", f"{min(unread)!r} is not on a line of its own", hint)
    base = _catalog_files().get(entry.same_as.casefold()) if entry.same_as else file.path
    if base is None or (entry.same_as and catalog_entry(entry.same_as).same_as):
        reason = "borrows from another model itself" if base else "is not in the catalog"
        raise file.problem("same_as", f"{entry.same_as!r} {reason}", "Name one with a config.")


@cache
def _by_alias() -> dict[str, Path]:
    """Catalog files by casefolded alias, off those lines alone: parsing all takes a second."""
    return {
        alias.casefold(): path for path in _catalog_files().values() for alias in _aliases_in(path)
    }


def _aliases_in(path: Path) -> list[str]:
    """The aliases of a file, by its lines."""
    lines = _ALIASES.search(path.read_text(encoding="utf-8"))
    return [line.strip().removeprefix("- ") for line in lines[1].splitlines()] if lines else []


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
    config = {**_entry_config(entry), **model_constants().get(name.casefold(), {})}
    model = _with_encoders(read_model_config(config, name), entry)
    return model.pooled(entry.task) if entry.task else model


def _with_encoders(model: ModelSpec, entry: CatalogEntry) -> ModelSpec:
    """The model with the towers of which its entry gives no more than how large they are."""
    missing = {
        modality: parameters
        for modality, parameters in entry.published.encoders.items()
        if model.tower(modality) is None
    }
    if not missing:
        return model
    towers = [Tower.of_size(name, size, model.hidden) for name, size in missing.items()]
    unsized = {f"The {tower.name} {NO_TOWER}" for tower in towers}
    notes = tuple(text for text in model.notes if text not in unsized)
    names = " and ".join(tower.name for tower in towers)
    note = f"The {names} is counted by its published size; encoding takes no time in estimates."
    return replace(model, towers=(*model.towers, *towers), notes=(*notes, note))


def _entry_config(entry: CatalogEntry) -> dict[str, Any]:
    return {**(catalog_entry(entry.same_as).config if entry.same_as else {}), **entry.config}


@lru_cache(256)  # bounded: anybody may ask for any name
def derived_model(model_id: str) -> ModelSpec | None:
    """A model of the catalog under another owner or in another format, by its name; else None."""
    for name, convention in name_meanings(model_id):
        if (read := read_by_name(model_id, name, convention)) is None:
            continue
        model, base = read
        stored = f" with weights in {model.weight_dtype}" if convention else ""
        note = f"{BY_NAME} {base}{stored}. Provide its config.json to be certain."
        return replace(model, notes=(*model.notes, note))
    return None


# How the note begins on a model that is known by its name only.
BY_NAME = "Not in the catalog: its name is read as"


def read_by_name(
    model_id: str, name: str, convention: Convention | None
) -> tuple[ModelSpec, str] | None:
    """A model of the catalog that a name stands for, in the format of a convention.

    With the catalog's name; None where there is none, or models of two owners that differ.
    """
    entries = next(
        (alike for ending in _LIKE_NOTHING if (alike := _entries_by_name(f"{name}{ending}"))), ()
    )
    if len(entries) != 1:
        return None
    base, config = catalog_model(entries[0].id), _entry_config(entries[0])
    model = read_model_config(config, model_id)
    if convention is None:
        return model, base.name
    if not convention.concerns(base):
        return None
    return _in_format(model, convention), base.name


def _in_format(base: ModelSpec, convention: Convention) -> ModelSpec:
    model = read_model_config(convention.applied(base.config, base), base.name)
    if model.quantization is None:
        return model
    return replace(model, quantization=replace(model.quantization, by_name=True))


def _file_convention(model_id: str) -> Convention | None:
    """Read a repository of files, whose format its ``config.json`` does not tell, off its name."""
    return next(
        (
            convention
            for _, convention in name_meanings(model_id)
            if convention and convention.files
        ),
        None,
    )


def _entries_by_name(name: str) -> tuple[CatalogEntry, ...]:
    """Entries with this name under any owner; one of those that share architecture and format."""
    entries = map(catalog_entry, _ids_by_name().get(name.casefold(), ()))
    return tuple(
        {
            (entry.same_as or entry.id, str(entry.config.get("quantization_config"))): entry
            for entry in entries
        }.values()
    )


@cache
def _ids_by_name() -> dict[str, list[str]]:
    """Ids and aliases, casefolded, by their names without owners."""
    out: dict[str, list[str]] = {}
    for model_id in (*_catalog_files(), *_by_alias()):
        out.setdefault(model_id.rpartition("/")[2], []).append(model_id)
    return out


def load_model_spec(model: str | Mapping[str, Any], *, folders: bool = True) -> ModelSpec:
    """The model a request names.

    Without ``folders`` a name is judged by its form alone: neither files nor users of this machine
    are looked up, neither the hub nor its cache is asked, so that no answer tells what they hold.

    Args:
        model: an id of the catalog or the Hugging Face Hub (``owner/name`` or
            ``owner/name@revision``), a folder with a ``config.json`` (or that file), dimensions
            (``shape_config``), or the parsed config.
        folders: whether to read paths and ask the hub; public servers must not.

    Raises:
        ModelError: when it is unknown, unreadable or not a decoder-only language model, and for a
            name that no command could carry.
    """
    if isinstance(model, Mapping):
        weights = checked_weights(model.get("weights"))
        return replace(read_model_config(model, _own_name(model)), stated_weights=weights)
    check_name(model, "model", ModelError)
    if (shape := shape_config(model)) is not None:
        return read_model_config(shape[1], model)
    if not looks_like_path(model) and in_catalog(split_revision(model)[0]):
        return _model_by_name(model, online=folders)
    if folders:
        path = path_of(model)
        return (
            read_folder(path)
            if is_model_folder(model, path)
            else _model_by_name(model, online=True)
        )
    if looks_like_path(model):
        raise ModelError(
            f"{model[:80]!r} is a path; this server does not read paths.",
            field="model",
            hint="Send the config.json inline.",
        )
    return _model_by_name(model, online=False)


def _own_name(config: Mapping[str, Any]) -> str:
    """The name that a config gives itself; raises ModelError for one that no command can carry."""
    field = "model.name" if config.get("name") else "model._name_or_path"
    name = str(config.get("name") or config.get("_name_or_path") or "inline config")
    if name.startswith("~"):
        hint = "Write the folder in full."
        raise ModelError(f"{name[:80]!r} is a folder of an unnamed user.", field=field, hint=hint)
    return check_name(name, field, ModelError)


def is_place(text: str) -> bool:
    return _PLACE.fullmatch(text) is not None


def checked_weights(weights: object) -> str | None:
    """Return where an inline config says that its weights are: nothing, an id, or a folder.

    Raises:
        ModelError: for what no command can carry, and for a path that is not absolute.
    """
    if weights is None:
        return None
    field = "model.weights"
    hint = "Give an id of the hub (owner/name) or an absolute path on the target machine."
    if not isinstance(weights, str) or not is_place(check_name(weights, field, ModelError)):
        raise ModelError(f"{weights!r:.80} is no place of weights.", field=field, hint=hint)
    return weights


def _model_by_name(model: str, *, online: bool) -> ModelSpec:
    """A model of the catalog, else of the hub (``owner/name``), else what its name says."""
    model, revision = split_revision(model)
    try:
        return catalog_model(model)
    except ModelError as unlisted:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", model):
            raise
        broken: ModelError | None = None
        tried = ""
        if online and (machine_config := own_config(model)) is not None:
            return read_model_config(machine_config[1], machine_config[0])
        files = _file_convention(model)
        if files is not None and (derived := derived_model(model)) is not None:
            return derived
        if online:
            # here: its HTTP and TLS take longer to import than this module
            from recipe_core.models.hub import NotOnHubError, hub_config

            try:
                read = read_model_config(hub_config(model.partition(":")[0], revision), model)
                return read if files is None else _in_format(read, files)
            except NotOnHubError as error:
                tried = f" ({error.message})"
            except ModelError as error:
                broken = error
        if (derived := derived_model(model)) is not None:
            return derived
        if (model_kind := other_kind(model)) is not None:
            message = f"{model} is not a language model: it makes {model_kind.makes}."
            raise ModelError(
                message, field="model", hint=f"Not modelled: {model_kind.why}."
            ) from None
        if broken is not None:  # the name is right, and what the hub says of it is wrong
            raise broken from None
        if (feature := unmodelled_feature(model)) is not None:
            message = f"{model}: {feature} not modelled yet."
            raise ModelError(message, field="model", hint=WRONG) from None
        raise ModelError(unlisted.message, field="model", hint=f"{unlisted.hint}{tried}") from None
