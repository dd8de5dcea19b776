"""Recipes of older forms, step by step to the present one; newer ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from recipe_core.base.errors import BundleError

SCHEMA_VERSION: Final[Literal[1]] = 1


def recipe_schema_version(value: Any) -> int:
    """The schema version of a recipe's plain values.

    The form before ``kind`` existed counts as 0, though it said 1.

    Raises:
        BundleError: when it is not a recipe, or newer than this version reads.
    """
    version = value.get("schema_version") if isinstance(value, Mapping) else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BundleError(
            f"recipe.yaml: schema_version: {version!r} is not a version of a recipe.",
            hint="Build the bundle again with `recipe build`.",
        )
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"recipe.yaml has schema_version {version}; this version reads up to {SCHEMA_VERSION}.",
            hint="Use the version of Recipe Builder that wrote it, or a newer one.",
        )
    return version if "kind" in value else 0


def migrate(value: Any) -> tuple[dict[str, Any], list[str]]:
    """The values in the present form, and a sentence for each step that changed them."""
    version = recipe_schema_version(value)
    migrated, notes = dict(value), []
    for step in range(version, SCHEMA_VERSION):
        change, note = _STEPS[step]
        migrated = change(migrated)
        notes.append(note)
    return migrated, notes


def _add_kind(value: dict[str, Any]) -> dict[str, Any]:
    """Other splits become fallbacks of that kind."""
    device, splits = value.get("device"), value.pop("alternatives", ())
    name = device.get("name") if isinstance(device, Mapping) else None
    if isinstance(splits, list | tuple):  # anything else the schema refuses by name
        splits = [_other_split(split, name) for split in splits]
    return {**value, "fallbacks": splits, "kind": "serving"}


def _other_split(value: Any, device: Any) -> Any:
    if not isinstance(value, Mapping):
        return value  # refused by the schema, which names it
    figures = {name: value[name] for name in ("output_tokens_per_s", "tpot_s") if name in value}
    rest = {name: item for name, item in value.items() if name not in figures}
    return rest | {"kind": "other-split", "changes": {}, "device": device, "figures": figures}


_STEPS: dict[int, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    0: (
        _add_kind,
        "recipe.yaml predates recipe kinds: it is read as a serving recipe, without a lock.",
    ),
}
