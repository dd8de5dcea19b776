"""Verdicts on the engines of deployment files, and of all files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_text
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.context import CommandContext
from recipe_core.commands.files import SUFFIXES, check_items, items_of
from recipe_core.commands.judge import Item, judge_items
from recipe_core.engines.grammar import grammars
from recipe_core.models.catalog import catalog_ids, in_catalog
from recipe_core.targets.deployments.deployment import DeployedEngine, DeploymentFile
from recipe_core.targets.deployments.documents import MAX_BYTES
from recipe_core.targets.deployments.read import DOCUMENTS, SCRIPTS, read_deployment

_HOLDERS = "models--"

# Files of a folder that are read.
MAX_FILES = 20_000
# Engines of a folder that are judged.
MAX_ENGINES = 5_000
# Folders that hold other people's files, or none that are read.
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__"})
# Words of deployment files besides those that start an engine, and its images.
_WORDS = ("modelURL", "InferenceService")


def check_deployment(
    file: DeploymentFile, overrides: Mapping[str, Any], *, folders: bool = True
) -> dict[str, Any]:
    """Verdicts on every engine of a file: ``{"ok", "kind", "engines", "left"}``.

    Args:
        file: the file as it was read.
        overrides: what the user says of hardware and load, before what the file says.
        folders: whether models may be read from paths and asked of the hub.

    Raises:
        InputError: when ``overrides`` is wrong.
    """
    if "hardware" in overrides:
        CommandContext.of(**overrides)
    items = [engine_item(engine, engine.where, file.kind, overrides) for engine in file.engines]
    verdicts = judge_items(items, {}, folders=folders)
    answers = [
        {**engine_facts(engine), **_add_model_hint(verdict[0])}
        for engine, verdict in zip(file.engines, verdicts, strict=True)
    ]
    return {
        "ok": verdict_of(answers),
        "kind": file.kind,
        "engines": answers,
        "left": [part.to_json() for part in file.unread],
    }


def verdict_of(answers: Sequence[Mapping[str, Any]]) -> bool | None:
    """True where all run, False where one cannot, None where one is not known to."""
    verdicts = [answer.get("ok") for answer in answers]
    if any(ok is False for ok in verdicts):
        return False
    return True if verdicts and all(verdicts) else None


def engine_item(
    engine: DeployedEngine, source: str, kind: str, overrides: Mapping[str, Any]
) -> Item:
    """An engine as an item of many; ``source`` is its file and line."""
    return Item(
        source, engine.launch, engine.ground(overrides), {"kind": kind, **engine_facts(engine)}
    )


def engine_facts(engine: DeployedEngine) -> dict[str, Any]:
    """The place of an engine in its file."""
    values: dict[str, Any] = {
        "where": engine.where,
        "engine": {"name": engine.launch.engine},
        "line": engine.line,
        "image": engine.launch.image,
        "replicas": engine.replicas,
        "unset": list(engine.unset),
        "file_notes": list(engine.place.notes),
    }
    return {name: value for name, value in values.items() if value not in (None, [], 1)}


def _add_model_hint(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose model is an unknown folder, with the model that it is called like."""
    error = answer.get("error")
    if "verdict" not in answer:
        answer = {"ok": None, "verdict": "unknown", **answer}
    if error and error.get("field") == "model" and (hint := model_hint(str(answer.get("model")))):
        answer = {**answer, "error": {**error, "hint": hint}}
    return answer


def model_hint(name: str) -> str | None:
    """Return which model to state for a folder that is called like one; None for no such folder."""
    if not name.startswith(("/", ".", "~")):
        return None
    parts = [part for part in name.split("/") if part]
    for part in parts:
        if part.startswith(_HOLDERS):  # a folder of the hub's cache: models--owner--name
            parts = part.removeprefix(_HOLDERS).split("--", 1)
    model = "/".join(parts[-2:])
    if len(parts) < 2 or not in_catalog(model):
        matches = [
            model_id for model_id in catalog_ids() if parts and model_id.endswith(f"/{parts[-1]}")
        ]
        if len(matches) != 1:
            return None
        model = matches[0]
    return f"The folder is called like {model}: state it with --model {model}."


def check_folder(folder: Path, overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A short verdict on every engine in a folder, in the order of the files.

    Raises:
        InputError: when there is no such folder, or it holds no file that may start an engine.
    """
    entries = islice(deployment_entries(folder, overrides), MAX_ENGINES)
    return list(check_items(list(entries), dict(overrides)))


def deployment_entries(folder: Path, overrides: Mapping[str, Any]) -> Iterator[Item]:
    """The engines of a folder's files; what cannot be read is its place and an error."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", field="dir", hint="Check the path.")
    files = list(_command_files(folder))
    if not files:
        suffixes = ", ".join((*SCRIPTS, *DOCUMENTS, *SUFFIXES))
        message = f"{folder} holds no file of commands."
        raise InputError(message, field="dir", hint=f"Known suffixes: {suffixes}.")
    for file in files:
        source = str(file.relative_to(folder))
        try:
            yield from _file_entries(file, source, overrides)
        except RecipeError as error:
            yield Item(source, error=error)


def _command_files(folder: Path) -> Iterator[Path]:
    """Files that may hold commands, sorted; no link is followed, to a folder or to a file."""
    suffixes, number = {*SCRIPTS, *DOCUMENTS, *SUFFIXES}, 0
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            file = Path(place, name)
            if file.suffix.casefold() not in suffixes or file.is_symlink() or not file.is_file():
                continue
            if file.suffix != ".jsonl" and file.stat().st_size > MAX_BYTES:
                continue
            number += 1
            if number > MAX_FILES:
                return
            yield file


def _file_entries(file: Path, source: str, overrides: Mapping[str, Any]) -> Iterable[Item]:
    if file.suffix.casefold() in SUFFIXES:
        kind = file.suffix.removeprefix(".")
        for item in items_of(file, source):
            yield item if item.error else replace(item, about={"kind": kind})
        return
    text = read_text(file, field="dir", limit=MAX_BYTES)
    if not any(word in text for word in _engine_words()):
        return
    deployment = read_deployment(text, file.name)
    for engine in deployment.engines:
        place = f"{source}:{engine.line}" if engine.line else source
        yield engine_item(engine, place, deployment.kind, overrides)
    for part in deployment.unread:
        place = f"{source}:{part.line}" if part.line else source
        yield Item(place, error=InputError(f"{part.where}: {part.why}", field="file"))


@cache
def _engine_words() -> tuple[str, ...]:
    """Words of files that may start an engine."""
    images = (name for grammar in grammars().values() for name in grammar.images)
    programs = (start.program for grammar in grammars().values() for start in grammar.launch)
    return (*_WORDS, *dict.fromkeys(programs), *images)
