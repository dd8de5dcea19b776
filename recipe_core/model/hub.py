"""Fetching a ``config.json`` from the Hugging Face Hub, online and with the user's settings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import InputError, ModelError

TIMEOUT_S = 5.0  # a hub that can be reached answers well within it


@cache
def hub_config(model_id: str, revision: str | None = None) -> dict[str, Any]:
    """The configuration of a model on the hub, cached or downloaded (a few kB, never weights).

    Raises:
        ModelError: when the hub cannot be reached, does not have it, wants a licence to be accepted
            first, or answers what is no config.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        file = hf_hub_download(
            model_id,
            "config.json",
            revision=revision,
            etag_timeout=TIMEOUT_S,
            local_files_only=not _reachable(),
        )
    except GatedRepoError:
        raise ModelError(
            f"{model_id} is gated.",
            field="model",
            hint="Accept its licence on the hub and set HF_TOKEN.",
        ) from None
    except LocalEntryNotFoundError:
        hint = "Go online, or set `model` to a folder with its config.json."
        raise ModelError(
            f"{model_id} is not in the catalog, and the hub cannot be reached.",
            field="model",
            hint=hint,
        ) from None
    except (
        RepositoryNotFoundError,
        EntryNotFoundError,
        HfHubHTTPError,
        ValueError,
        OSError,
    ) as error:
        raise ModelError(
            f"the hub has no config.json for {model_id} ({type(error).__name__}).",
            field="model",
            hint="Check the id.",
        ) from None
    try:
        config = parse_json(read_text(Path(file)), f"the config.json of {model_id}", constants=True)
    except InputError as error:
        raise ModelError(error.message, field="model", hint=error.hint) from None
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of {model_id} is not an object.", field="model")
    return config


@cache
def _reachable() -> bool:
    """Whether the hub answers: asked once, so that many unknown ids cost a single wait."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies().get("https"):
        return True  # only the proxy can resolve the hub
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection(
            (address.hostname or "", address.port or 443), timeout=TIMEOUT_S
        ).close()
    except OSError:
        return False
    return True
