"""Models of this machine made anew: from a folder of configs, or from the hub by their ids.

Configs are untrusted: sizes, depth and numbers of files are limited, links are not followed, and
each is read as a model before it is kept. Weights are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import InputError, ModelError
from recipe_core.models.config.read import read_model_config
from recipe_core.models.hub import MAX_BYTES, hub_config, is_id, keep_own_model, own_ids

# Files of a folder that are looked at.
MAX_FILES = 20_000
# Ids that are asked of the hub at once.
MAX_IDS = 5_000
CONFIG, QUANTIZED = "config.json", "hf_quant_config.json"


@dataclass(slots=True)
class Refreshed:
    """The findings of a refresh, by id; ``refused`` with the reason."""

    folder: str
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        refused = [{"id": name, "reason": why} for name, why in sorted(self.refused.items())]
        return {
            "folder": self.folder,
            "new": sorted(self.new),
            "changed": sorted(self.changed),
            "same": len(self.same),
            "not_modelled": refused,
        }


def refresh_configs(
    origin: str,
    out: Path,
    *,
    only: str | None = None,
    fetch: Callable[[str], Mapping[str, Any]] = hub_config,
) -> Refreshed:
    """Keep the configs that ``origin`` has.

    Args:
        origin: a folder of configs, a text file of ids (one a line), or ``hub``: the models that
            are kept in ``out`` already, or ``only``.
        out: the folder to keep them in.
        only: the one model that is meant.
        fetch: asks the hub for the config of an id.

    Raises:
        InputError: for an origin that is none of these, and a folder that cannot be written.
    """
    if only is not None and not is_id(only):
        hint = "Give an id of the hub, such as Qwen/Qwen3-8B."
        raise InputError(f"{only!r:.80} is no id of a model.", field="name", hint=hint)
    result = Refreshed(str(out))
    for model_id, config in _read_configs(origin, out, only, fetch):
        if only is not None and model_id.casefold() != only.casefold():
            continue
        if isinstance(config, InputError):
            result.refused[model_id] = str(config)
            continue
        try:
            read_model_config(config, model_id)
        except ModelError as error:
            result.refused[model_id] = str(error)
            continue
        states = {"new": result.new, "changed": result.changed, "same": result.same}
        states[
            keep_own_model(out, model_id, config, "hub" if origin == "hub" else "folder")
        ].append(model_id)
    return result


Read = tuple[str, Mapping[str, Any] | InputError]


def _read_configs(
    origin: str, out: Path, only: str | None, fetch: Callable[[str], Mapping[str, Any]]
) -> Iterator[Read]:
    """Ids with their configs, or with what is wrong with them."""
    path = Path(origin).expanduser()
    if origin == "hub":
        ids = [only] if only is not None else own_ids(out)
        if not ids:
            hint = "Name a model, or give a file of ids."
            raise InputError(f"{out} holds no models to refresh.", field="refresh", hint=hint)
        yield from _fetch_configs(ids, fetch)
    elif path.is_dir():
        yield from _in_folder(path)
    elif path.is_file():
        lines = read_text(path, field="refresh", limit=MAX_BYTES).splitlines()
        ids = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        yield from _fetch_configs(ids, fetch)
    else:
        hint = "Give hub, a folder of configs, or a text file of ids."
        raise InputError(f"{origin!r:.200} does not exist.", field="refresh", hint=hint)


def _fetch_configs(ids: Iterable[str], fetch: Callable[[str], Mapping[str, Any]]) -> Iterator[Read]:
    listed = list(dict.fromkeys(ids))
    if len(listed) > MAX_IDS:
        message = f"{len(listed):,} ids; at most {MAX_IDS:,} are asked of the hub at once."
        raise InputError(message, field="refresh")
    for model_id in listed:
        if not is_id(model_id):
            yield model_id[:80], InputError("is no id of a model (owner/name).")
            continue
        try:
            yield model_id, fetch(model_id)
        except ModelError as error:
            yield model_id, error


def _in_folder(folder: Path) -> Iterator[Read]:
    """Configs of a folder: ``owner--name/config.json``, ``owner/name/config.json``, and files.

    Files are ``owner--name_config.json`` or ``owner--name.json``, with a quantisation beside them
    in ``owner--name_hf_quant_config.json``.
    """
    looked_at = 0
    for path in sorted(folder.rglob("*.json")):
        looked_at += 1
        if looked_at > MAX_FILES:
            message = f"{folder} has more than {MAX_FILES:,} files."
            raise InputError(message, field="refresh", hint="Give a smaller folder.")
        parts = path.relative_to(folder).parts
        model_id = _id_of(parts)
        if model_id is None or path.is_symlink() or not path.is_file():
            continue
        try:
            yield model_id, _read_local_config(path)
        except InputError as error:
            yield model_id, error


def _id_of(parts: tuple[str, ...]) -> str | None:
    """The id that the place of a config says; None for a file that is no config of a model."""
    name = parts[-1]
    if name == CONFIG and len(parts) > 1:
        words = parts[-2] if "--" in parts[-2] or len(parts) < 3 else "--".join(parts[-3:-1])
    elif name == CONFIG or name.endswith(QUANTIZED) or len(parts) > 1:
        return None
    else:
        words = name.removesuffix(".json").removesuffix("_config")
    model_id = words.removeprefix("models--").replace("--", "/", 1)
    return model_id if is_id(model_id) else None


def _read_local_config(path: Path) -> Mapping[str, Any]:
    """A config, with the quantisation that NVIDIA's tools write beside it."""
    config = _read_object(path)
    beside = path.with_name(path.name.removesuffix(CONFIG) + QUANTIZED)
    if path.name.endswith(CONFIG) and beside.is_file() and not beside.is_symlink():
        stored = _read_object(beside).get("quantization")
        if isinstance(stored, Mapping) and not config.get("quantization_config"):
            return {**config, "quantization_config": {"quant_method": "modelopt", **stored}}
    return config


def _read_object(path: Path) -> dict[str, Any]:
    value = parse_json(read_text(path, limit=MAX_BYTES), path.name, constants=True)
    if not isinstance(value, dict):
        raise InputError(f"{path.name} is not an object.")
    return value
