"""An uploaded or pasted ``config.json``, which is untrusted, reduced to what shapes an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import ModelError
from recipe_core.base.uploads import text_of
from recipe_core.model.config.read import read_config

MAX_BYTES = 1 << 20
"""The largest file that is read; configs have a few thousand bytes, those that list quantised
modules up to some hundred thousand."""


def uploaded_config(data: bytes, name: str) -> dict[str, Any]:
    """The config of a file as plain values, named ``name``, without fields that change nothing.

    Raises:
        ModelError: when it is too large, not text, not a JSON object or not a readable model.
    """
    text = text_of(
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
    label = config.get("_name_or_path") or name.rsplit("/", 1)[-1].removesuffix(".json")
    return essential(config, str(label)[:100])


def essential(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config without the fields that change nothing, so that it fits a link.

    Raises:
        ModelError: when it cannot be read.
    """
    fields = dict(config)
    spec = read_config(fields, name)
    for field in sorted(set(config) - {"model_type"}):
        rest = {key: value for key, value in fields.items() if key != field}
        try:
            without = read_config(rest, name)
        except ModelError:
            continue
        if (without.digest, without.notes) == (spec.digest, spec.notes):
            fields = rest
    fields.pop("_name_or_path", None)
    return {"_name_or_path": name, **fields}
