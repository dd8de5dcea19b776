"""Models of folders on disk: which names are paths, and what a ``config.json`` there describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import ModelError
from recipe_core.base.units import gib
from recipe_core.models.checkpoint import safetensors_bytes, split_revision
from recipe_core.models.config.read import read_model_config
from recipe_core.models.spec import ModelSpec

# Files that deviate from the counted size by more than this share get a note: they hold draft
# heads, parts that are not counted or other formats.
CHECKPOINT_TOLERANCE = 0.02


def looks_like_path(model: str) -> bool:
    """Whether a name can only be a path, by its form."""
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
