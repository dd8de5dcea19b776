"""Fetching a ``config.json`` from the Hugging Face Hub, with the user's settings.

Of the hub's client library the settings are used (``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HUB_OFFLINE``) and the snapshots that it has downloaded, which are only read: what the hub
answers is not trusted with a place on the disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cachetools import TTLCache

from recipe_core.base.documents import (
    MAX_DOCUMENT_BYTES,
    make_lasting_folder,
    parse_json,
    read_text,
    write_whole,
)
from recipe_core.base.errors import InputError, ModelError
from recipe_core.base.web import Answer, Deadline, FetchError, UnreachableError, fetch_url

# The variable of the environment that names the folder; empty switches it off.
VARIABLE = "RECIPE_MODELS"
# The largest config that is read: some list each of their quantised modules.
MAX_BYTES = 4 << 20
_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


def is_id(text: str) -> bool:
    """Return whether a text is an id of the hub (``owner/name``), safe as part of a path."""
    return _ID.fullmatch(text) is not None and ".." not in text and "--" not in text.split("/")[0]


def default_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return where the models of this machine lie, or would; None where that is switched off."""
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


# Time for all that is asked of the hub about a model; one that can be reached needs a tenth.
SECONDS = 10.0
MOST_REDIRECTS = 5
# Configs that are kept in memory.
MOST_CONFIGS = 1000
FILE = "config.json"
# Why hubs cannot be reached, by their addresses, so that many unknown ids cost a single wait.
_SILENT: TTLCache[str, str] = TTLCache(maxsize=8, ttl=60.0)
_FOLDER_HINT = "Go online, or set `model` to a folder with its config.json."


class NotOnHubError(ModelError):
    """The hub knows no such model, or cannot be asked: its name may be wrong."""


@lru_cache(MOST_CONFIGS)
def hub_config(model_id: str, revision: str | None = None) -> dict[str, Any]:
    """The configuration of a model on the hub, downloaded (a few kB, never weights).

    Where the hub cannot be reached, refuses or answers what is no config, that of a snapshot in the
    cache of its client library.

    Raises:
        NotOnHubError: when the hub has no such model, or cannot be reached.
        ModelError: when it wants a licence to be accepted first, or answers what is no config.
    """
    try:
        return _parse_hub_config(_request_config(model_id, revision), model_id)
    except ModelError as error:
        path = _snapshot_config(model_id, revision)
        if path is None:
            raise error from None
    return _parse_hub_config(_read_cached_text(path), model_id)


def _parse_hub_config(text: str, model_id: str) -> dict[str, Any]:
    name = f"the {FILE} of {model_id}"
    try:
        config = parse_json(text, name, constants=True)
    except InputError as error:
        hint = "Set `model` to a folder with a correct one."
        raise ModelError(error.message, field="model", hint=error.hint or hint) from None
    if not isinstance(config, dict):
        raise ModelError(
            f"{name} is not an object but {type(config).__name__}.",
            field="model",
            hint="Set `model` to a folder with a correct one.",
        )
    return config


def _read_cached_text(path: Path) -> str:
    try:
        return read_text(path, field="model")
    except InputError as error:
        raise ModelError(error.message, field="model", hint=error.hint) from None


def _request_config(model_id: str, revision: str | None) -> str:
    """The text of a model's config.json, as the hub has it now."""
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT.rstrip("/")
    if not is_id(model_id):
        message = f"{model_id!r:.100} is no id of the hub."
        raise NotOnHubError(message, field="model", hint="Check the id.")
    if constants.HF_HUB_OFFLINE or endpoint in _SILENT:
        raise _unreachable_error(model_id, _SILENT.get(endpoint))
    url = f"{endpoint}/{quote(model_id)}/resolve/{quote(revision or 'main', safe='')}/{FILE}"
    try:
        answer = _fetch_from_hub(url)
    except UnreachableError as error:
        _SILENT[endpoint] = str(error)
        raise _unreachable_error(model_id, str(error)) from None
    except FetchError as error:
        raise ModelError(
            f"{endpoint} gives no {FILE} of {model_id}: {error}.",
            field="model",
            hint=f"Check the network and HF_ENDPOINT. {_FOLDER_HINT}",
        ) from None
    if answer.status != HTTPStatus.OK:
        raise _hub_error(model_id, revision, answer)
    try:
        return answer.body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(
            f"the {FILE} of {model_id} is not UTF-8 text.", field="model", hint=_FOLDER_HINT
        ) from None


def _fetch_from_hub(url: str) -> Answer:
    deadline = Deadline(SECONDS)
    token = None
    with suppress(Exception):  # it may ask for a new token, in ways of its own
        from huggingface_hub import get_token

        token = deadline.run(get_token)
    return fetch_url(
        url,
        deadline=deadline,
        most_bytes=MAX_DOCUMENT_BYTES,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        redirects=MOST_REDIRECTS,
        plain=True,
    )


def _unreachable_error(model_id: str, reason: str | None) -> NotOnHubError:
    because = f": {reason}" if reason else ""
    return NotOnHubError(
        f"{model_id} is not in the catalog, and the hub cannot be reached{because}.",
        field="model",
        hint=_FOLDER_HINT,
    )


def _hub_error(model_id: str, revision: str | None, answer: Answer) -> ModelError:
    """The error for what is no success: the hub says why in a header."""
    code = answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        hint = "Accept its licence on the hub and set HF_TOKEN."
        return ModelError(f"{model_id} is gated.", field="model", hint=hint)
    causes = {
        "EntryNotFound": f"the hub has no {FILE} for {model_id}",
        "RevisionNotFound": f"the hub has no revision {revision!r:.100} of {model_id}",
    }
    unknown = f"the hub has no model {model_id} for everybody to see"
    hint = "Check the id; for a private one set HF_TOKEN."
    if code in causes or answer.status in (401, 403, 404, 410):
        message = f"{causes.get(code, unknown)} (status {answer.status})."
        return NotOnHubError(message, field="model", hint=hint)
    often = ": it was asked too often" if answer.status == HTTPStatus.TOO_MANY_REQUESTS else ""
    return ModelError(
        f"the hub answers with status {answer.status} for {model_id}{often}.",
        field="model",
        hint=f"Try again later. {_FOLDER_HINT}",
    )


def _snapshot_config(model_id: str, revision: str | None) -> Path | None:
    """The config.json of a snapshot that the hub's client library has downloaded; None without."""
    from huggingface_hub import try_to_load_from_cache

    try:
        cached_path = try_to_load_from_cache(model_id, FILE, revision=revision)
    except (OSError, ValueError):
        return None
    return Path(cached_path) if isinstance(cached_path, str) else None
