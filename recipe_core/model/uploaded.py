"""A ``config.json`` that somebody pastes or uploads: read with suspicion, and reduced to what shapes an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import ModelError
from recipe_core.base.uploads import text_of
from recipe_core.model.config.read import read_config

MAX_BYTES = 1 << 20
"""The largest file that is read; configs have a few thousand bytes, those that list quantised modules up to some hundred thousand."""


def uploaded_config(data: bytes, name: str) -> dict[str, Any]:
    """The config of a file as plain values, named ``name``, without what no estimate depends on.

    Raises:
        ModelError: when it is too large, not text, not a JSON object or not a language model that can be read; says which.
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
            hint="Give the model's config.json.",
        )
    return essential(
        config,
        str(config.get("_name_or_path") or name.rsplit("/", 1)[-1].removesuffix(".json"))[:100],
    )


def essential(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config without the fields that change nothing, so that it fits a link.

    Raises:
        ModelError: when it cannot be read.
    """
    kept = dict(config)
    digest, notes = (spec := read_config(kept, name)).digest, spec.notes
    for field in sorted(set(config) - {"model_type"}):
        rest = {key: value for key, value in kept.items() if key != field}
        try:
            without = read_config(rest, name)
        except ModelError:
            continue
        if (without.digest, without.notes) == (digest, notes):
            kept = rest
    return {
        "_name_or_path": name,
        **{key: value for key, value in kept.items() if key != "_name_or_path"},
    }
