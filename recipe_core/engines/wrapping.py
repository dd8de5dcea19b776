"""The file of an engine that wraps another: it says what differs, and the rest is the other's."""

from __future__ import annotations

from typing import Any

from recipe_core.base.data_files import DataFile

# What a wrapper does not take over from the engine inside.
_OWN: dict[str, Any] = {
    "default_on": [],
    "images": {},
    "installs": {},
    "metrics": None,
    "api_key": None,
    "table": None,
    "launcher": None,
    "intervals": None,
    "batcher": None,
    "kv_offload": {},
    "history": None,
    "tasks": ["generate"],
    "front_s": None,
}


def complete_engine(file: DataFile) -> Any:
    """What an engine's file says, with what it takes over; not yet held to the schema.

    Raises:
        InputError: for a file that cannot be read, or wraps what cannot be wrapped.
    """
    document = file.read()
    if not isinstance(document, dict) or "wraps" not in document:
        return document
    inner = _wrapped_document(document["wraps"], file)
    merged = {part: inner[part] | document.get(part, {}) for part in ("sources", "split")}
    return inner | _OWN | document | merged


def _wrapped_document(name: Any, file: DataFile) -> dict[str, Any]:
    """The document of the engine inside; raises where there is none or it wraps another itself."""
    path = file.path.with_name(f"{name}.yaml")
    inner = DataFile(path, file.field).read() if path.is_file() else None
    if isinstance(inner, dict) and "wraps" not in inner:
        return inner
    reason = "wraps another engine itself" if inner else f"is not an engine ({path.name})"
    raise file.problem("wraps", f"{name!r} {reason}", "Name the engine that does the work.")
