"""An uploaded or pasted ``config.json``, which is untrusted, reduced to what shapes an estimate.

What is left is an inline config with a ``name`` and, where it is known, the place of its
``weights``: an id of the hub or an absolute path on the machine that will run it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import ModelError
from recipe_core.base.texts import check_name, read_upload_text
from recipe_core.models.catalog import checked_weights
from recipe_core.models.config.read import read_model_config

# The largest file that is read; configs have a few thousand bytes, those that list quantised
# modules up to some hundred thousand.
MAX_BYTES = 1 << 20
# Characters of a model's name.
LONGEST_NAME = 100
# Fields that an inline config has beside those of a ``config.json``.
ADDED = ("name", "weights")
# Names of files that say nothing about the model in them.
_NAMELESS = ("config", "the pasted config", "generation_config", "params", "")


def uploaded_config(data: bytes, name: str) -> dict[str, Any]:
    """The config of a file as plain values, without fields that change nothing.

    It is named after the folder or id that the config states, else after the file, else after its
    architecture and size. Where its weights are is not known by that: trained models state the id
    of the model that they were trained from.

    Raises:
        ModelError: when it is too large, not text, not a JSON object or not a readable model.
    """
    text = read_upload_text(
        data,
        name,
        MAX_BYTES,
        "the model's config.json; weights are never read",
        ModelError,
        "model",
    )
    config = parse_json(text, name)
    if not isinstance(config, Mapping):
        raise ModelError(
            f"{name} holds {type(config).__name__}, not an object.",
            field="model",
            hint="Upload the model's config.json.",
        )
    stated_name = str(config.get("name") or config.get("_name_or_path") or "").rstrip("/")
    file = name.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".json")
    label = stated_name.rsplit("/", 1)[-1].lstrip("-.~") or ("" if file in _NAMELESS else file)
    return essential_config(config, label or _kind_and_size(config), weights=config.get("weights"))


def _kind_and_size(config: Mapping[str, Any]) -> str:
    """``llama-8.03b``: what a config is called that says no name."""
    spec = read_model_config(config, "the config")
    kind = re.sub(r"[^\w.-]+", "-", str(config.get("model_type") or "model"))
    billions = f"{spec.parameters / 1e9:.3g}b"
    return f"{kind}-{billions if spec.parameters >= 1e8 else f'{spec.parameters / 1e6:.3g}m'}"


def essential_config(
    config: Mapping[str, Any], name: str, *, weights: object = None
) -> dict[str, Any]:
    """A config without the fields that change nothing, so that it fits a link.

    Raises:
        ModelError: when it cannot be read, and for a name or a place that no command can carry.
    """
    place = checked_weights(weights)
    label = check_name(name.strip()[:LONGEST_NAME], "model.name", ModelError)
    fields = {key: value for key, value in config.items() if key not in ADDED}
    spec = read_model_config(fields, label)
    for field in sorted(set(fields) - {"model_type"}):
        rest = {key: value for key, value in fields.items() if key != field}
        try:
            without = read_model_config(rest, label)
        except ModelError:
            continue
        if (without.digest, without.notes) == (spec.digest, spec.notes):
            fields = rest
    fields.pop("_name_or_path", None)
    added = {"name": label} | ({"weights": place} if place else {})
    return {**added, **fields}


def rename_config(config: Mapping[str, Any], name: str, weights: str) -> dict[str, Any]:
    """An inline config with another name and another place of its weights; empty leaves it open.

    Raises:
        ModelError: for an empty name, and for a name or a place that no command can carry.
    """
    label, place = name.strip(), weights.strip()
    if not label:
        raise ModelError("the name is empty.", field="model.name", hint="Give the model one.")
    fields = {key: value for key, value in config.items() if key not in ("_name_or_path", *ADDED)}
    checked_weights(place or None)
    added = {"name": check_name(label[:LONGEST_NAME], "model.name", ModelError)}
    return {**added, **({"weights": place} if place else {}), **fields}
