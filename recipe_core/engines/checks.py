"""Checks of a serving engine's file beyond its schema, each with what to change.

An engine is added as files; a file that lacks something is refused when it is read, not where the
figure or the option is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from recipe_core.base.data_files import DataFile
from recipe_core.engines import options

if TYPE_CHECKING:
    from recipe_core.engines.spec import Engine


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
    """Return what an engine's file says, with what it takes over; not yet held to the schema.

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


# A field, what is wrong with it, and the fix.
Flaw = tuple[str, str, str]

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VERSION = re.compile(r"\d+\.\d+\.\d+|b\d+")  # llama.cpp numbers its builds


def check_engine_files(engine: Engine, file: DataFile) -> None:
    """Raise InputError for the first thing that an engine's files lack."""
    for rule in (_identity_flaws, _runtime_flaws, _batching_flaws):
        for where, text, hint in rule(engine, file):
            raise file.problem(where, text, hint)
    _check_options(engine)


def _identity_flaws(engine: Engine, file: DataFile) -> Iterator[Flaw]:
    """Files are found by name, options by version: both have to be said once and for all."""
    if not NAME.fullmatch(engine.name):
        hint = "Use small letters and digits, with dashes between them."
        yield "name", f"{engine.name!r} is not a name of an engine", hint
    if engine.name != file.path.stem:
        hint = f"Rename the file to {engine.name}.yaml, or set `name: {file.path.stem}`."
        yield "name", f"{engine.name!r} is not the name of the file", hint
    if not VERSION.fullmatch(engine.version):
        yield "version", f"{engine.version!r} is not a release", "Give one, such as 1.2.0."
    commands = [install.command for installs in engine.installs.values() for install in installs]
    if any("latest" in command for command in (engine.install, *commands)):
        yield "install", "names a version that moves (latest)", f"Install {engine.version}."


def _runtime_flaws(engine: Engine, _file: DataFile) -> Iterator[Flaw]:
    runtimes = ", ".join(engine.runtimes)
    by_runtime = (
        ("default_on", engine.default_on),
        ("images", engine.images),
        ("installs", engine.installs),
    )
    for field, used in by_runtime:
        for runtime in sorted(set(used) - set(engine.runtimes)):
            hint = f"Add it to `runtimes` ({runtimes}), or leave it out here."
            yield field, f"{runtime!r} is not a runtime of this engine", hint
    for runtime in engine.runtimes:
        if runtime not in engine.overheads:
            hint = f"Give its step_s, sequence_s, layer_s … under `overheads: {runtime}:`."
            yield f"overheads.{runtime}", "is missing", hint


def _batching_flaws(engine: Engine, _file: DataFile) -> Iterator[Flaw]:
    if not any(b.memory_at_least_bytes == 0 and not b.not_on for b in engine.batching):
        hint = "Add an entry with memory_at_least_bytes: 0 and without not_on."
        yield "batching", "has no limits for a device of any size", hint


def _check_options(engine: Engine) -> None:
    """Raise where the table of options is missing, or nothing says what its options mean.

    Of an engine whose commands are read its grammar says that, of a wrapper the engine inside.
    """
    table = options.table_file(engine.table or engine.name, engine.version)
    if not table.path.is_file():
        hint = f"Add it, with every option of {engine.title} {engine.version} that a launch states."
        raise table.problem("", "is missing", hint)
    has_grammar = (options.FOLDER / f"{engine.name}.yaml").is_file()
    if not has_grammar and engine.wraps is None and not engine.options.means:
        hint = "Say which option (by name, with _ for -) is the candidate's: `means: {OPTION: tp}`."
        raise table.problem("means", "is missing", hint)
