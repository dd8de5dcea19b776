"""Models that this machine knows beside the catalog: configs that ``recipe models --refresh`` kept.

One JSON file a model, ``owner--name.json``, in a folder of the user's data. Public servers never
read it (``load_model_spec`` without ``folders``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_core.base.documents import make_lasting_folder, parse_json, read_text, write_whole
from recipe_core.base.errors import InputError, ModelError

# The variable of the environment that names the folder; empty switches it off.
VARIABLE = "RECIPE_MODELS"
# The largest config that is read: some list each of their quantised modules.
MAX_BYTES = 4 << 20
_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


def is_id(text: str) -> bool:
    """Whether a text is an id of the hub (``owner/name``), which is safe as part of a path."""
    return _ID.fullmatch(text) is not None and ".." not in text and "--" not in text.split("/")[0]


def default_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the models of this machine lie, or would; None where that is switched off."""
    environment = os.environ if environment is None else environment
    if (configured := environment.get(VARIABLE)) is not None:
        return Path(configured).expanduser() if configured else None
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "recipe-builder" / "models"


def own_model_file(folder: Path, model_id: str) -> Path:
    return folder / f"{model_id.replace('/', '--', 1).casefold()}.json"


def own_config(model_id: str, folder: Path | None = None) -> tuple[str, dict[str, Any]] | None:
    """Id and config of a model that this machine knows; None for one that it does not.

    Raises:
        ModelError: for a file that cannot be read, naming the file.
    """
    folder = folder or default_folder()
    if folder is None or not is_id(model_id):
        return None
    path = own_model_file(folder, model_id)
    if not path.is_file():
        return None
    try:
        value = parse_json(read_text(path, limit=2 * MAX_BYTES), str(path))
    except InputError as error:
        raise ModelError(error.message, field="model", hint="Refresh it, or delete it.") from None
    stored_id = value.get("id") if isinstance(value, dict) else None
    config = value.get("config") if isinstance(value, dict) else None
    same = isinstance(stored_id, str) and stored_id.casefold() == model_id.casefold()
    if not same or not isinstance(config, dict):
        message = f"{path} does not hold the config of {model_id}."
        raise ModelError(message, field="model", hint="Refresh it, or delete it.")
    return str(stored_id), config


def own_ids(folder: Path | None = None) -> list[str]:
    """The ids that this machine knows, sorted, by their files."""
    folder = folder or default_folder()
    if folder is None or not folder.is_dir():
        return []
    names = (path.stem for path in folder.glob("*--*.json"))
    return sorted(name.replace("--", "/", 1) for name in names)


def keep_own_model(folder: Path, model_id: str, config: Mapping[str, Any], origin: str) -> str:
    """Write a model's config, and say whether it is "new", "changed" or the "same".

    Raises:
        InputError: where the folder cannot be written.
    """
    content = {"schema_version": 1, "id": model_id, "origin": origin, "config": config}
    data = (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    path, state = own_model_file(folder, model_id), "new"
    if path.is_file():
        try:
            before = own_config(model_id, folder)
        except ModelError:
            before = None  # what cannot be read is written anew
        state = "same" if before == (model_id, dict(config)) else "changed"
    if state != "same":
        try:
            make_lasting_folder(folder)
        except OSError as error:
            raise InputError(f"cannot make {folder}: {error.strerror}.", field="out") from None
        write_whole(path, data)
    return state
