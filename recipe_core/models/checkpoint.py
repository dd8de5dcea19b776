"""Checkpoints on disk: size and digest from their headers, and the models of folders."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import ModelError
from recipe_core.base.units import gib
from recipe_core.models.config.read import read_model_config
from recipe_core.models.spec import ModelSpec

_REVISED = re.compile(r"([\w.-]+/[\w.-]+)@([\w][\w./-]{0,127})")
_SNAPSHOT = re.compile(
    r"(?:^|[\\/])models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]?$"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's id on the hub and the revision that a folder holds."""

    id: str
    revision: str


def split_revision(model: str) -> tuple[str, str | None]:
    """A model without its revision, and the revision (commit, tag or branch) or None."""
    match = _REVISED.fullmatch(model)
    return (match[1], match[2]) if match else (model, None)


def snapshot_of(folder: str) -> Snapshot | None:
    """The snapshot that a folder of the hub's cache is; None for any other folder."""
    match = _SNAPSHOT.search(folder)
    return Snapshot(f"{match[1]}/{match[2]}", match[3]) if match else None


MAX_HEADER_BYTES = 64 << 20
# What reading an index or a header of any content raises.
_DAMAGED = (
    OSError,
    ValueError,
    AttributeError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
    struct.error,
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def safetensors_bytes(folder: Path) -> int | None:
    """Bytes of all tensors in a model folder, or None when it holds no readable safetensors files.

    The index's ``total_size`` when there is one, else the offsets in each file's header; no tensor
    is read.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file() and index.stat().st_size <= MAX_HEADER_BYTES:
            metadata = json.loads(index.read_text(encoding="utf-8")).get("metadata", {})
            total = metadata.get("total_size")
            if isinstance(total, int | float) and total > 0:
                return int(total)
        files = sorted(folder.glob("*.safetensors"))
        return sum(map(_tensor_bytes, files)) if files else None
    except _DAMAGED:
        # A damaged checkpoint is for the engine to report; planning does not need its size.
        return None


def _tensor_bytes(file: Path) -> int:
    """Bytes of the tensors of one file: the last offset in its header."""
    with file.open("rb") as stream:
        header: dict[str, Any] = json.loads(_read_header(stream))
    return max(
        (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"),
        default=0,
    )


def _read_header(stream: BinaryIO) -> bytes:
    """The header of a safetensors file (format: 8-byte length, JSON, data)."""
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > MAX_HEADER_BYTES:
        raise ValueError("header too long")
    return stream.read(length)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a folder's weights: ``sha256:…`` over ``files`` files.

    ``of``: "content" (the hub's cache names files by the SHA-256 of what they hold, so nothing is
    read), or "headers" (name, size, and the header of each safetensors file: every tensor's name,
    format, shape and place, but not its values).
    """

    digest: str
    of: Literal["content", "headers"]
    files: int


def checkpoint_digest(folder: Path) -> Fingerprint | None:
    """The fingerprint of a folder's weights; None without readable safetensors files."""
    try:
        files = sorted(folder.glob("*.safetensors"))
        blobs = {file.name: file.resolve().name for file in files if file.is_symlink()}
        linked = bool(files) and len(blobs) == len(files)
        content = linked and all(_SHA256.fullmatch(blob) for blob in blobs.values())
        rows = [
            [file.name, blobs[file.name]]
            if content
            else [file.name, file.stat().st_size, _header_digest(file)]
            for file in files
        ]
    except (OSError, ValueError, struct.error):
        return None
    if not files:
        return None
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return Fingerprint(f"sha256:{digest}", "content" if content else "headers", len(files))


def _header_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.sha256(_read_header(stream)).hexdigest()


# Files that deviate from the counted size by more than this share get a note: they hold draft
# heads, parts that are not counted or other formats.
CHECKPOINT_TOLERANCE = 0.02


def looks_like_path(model: str) -> bool:
    """Return whether a name can only be a path, by its form."""
    name = split_revision(model)[0]
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1


def is_model_folder(model: str, path: Path) -> bool:
    return path.is_absolute() or model.startswith(".") or path.exists()


def path_of(text: str) -> Path:
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
    model = read_model_config(
        parse_json(read_text(file, field="model"), str(file)), str(file.parent.resolve())
    )
    size = safetensors_bytes(file.parent)
    notes = model.notes
    if size is not None and abs(size / model.counted_bytes - 1) > CHECKPOINT_TOLERANCE:
        counted = gib(model.counted_bytes)
        notes = (*notes, f"The files on disk hold {gib(size)}; estimates count {counted}.")
    return replace(model, checkpoint_bytes=size, notes=notes)
