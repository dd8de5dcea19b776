"""A repository's deployment files and lists of commands, each engine with its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_text
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.commands.files import SUFFIXES, Item, check_items, items_of
from recipe_core.engines.grammar import grammars
from recipe_core.targets.deployments.documents import MAX_BYTES
from recipe_core.targets.deployments.judge import item_of
from recipe_core.targets.deployments.read import DOCUMENTS, SCRIPTS, read_deployment

Entry = Item | tuple[str, RecipeError]

MAX_FILES = 20_000
"""Files of a folder that are read."""
MAX_ENGINES = 5_000
"""Engines of a folder that are judged."""
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__"})
"""Folders that hold other people's files, or none that are read."""
_LISTS = tuple(suffix for suffix in SUFFIXES if suffix not in SCRIPTS)
_WORDS = ("modelURL", "InferenceService")
"""What deployment files say besides the words that start an engine, and its images."""


def check_folder(folder: Path, stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A short verdict on every engine in a folder, in the order of the files.

    Raises:
        InputError: when there is no such folder, or it holds no file that may start an engine.
    """
    entries: list[Entry] = []
    for entry in entries_of(folder, stated):
        entries.append(entry)
        if len(entries) >= MAX_ENGINES:
            break
    return list(check_items(entries, dict(stated)))


def entries_of(folder: Path, stated: Mapping[str, Any]) -> Iterator[Entry]:
    """The engines of a folder's files; what cannot be read is its place and an error."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", field="dir", hint="Check the path.")
    files = list(_files(folder))
    if not files:
        known = ", ".join((*SCRIPTS, *DOCUMENTS, *_LISTS))
        message = f"{folder} holds no file of commands."
        raise InputError(message, field="dir", hint=f"Known suffixes: {known}.")
    for file in files:
        source = str(file.relative_to(folder))
        try:
            yield from _entries(file, source, stated)
        except RecipeError as error:
            yield source, error


def _files(folder: Path) -> Iterator[Path]:
    """Files that may hold commands, sorted; no link is followed, to a folder or to a file."""
    suffixes, number = {*SCRIPTS, *DOCUMENTS, *_LISTS}, 0
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


def _entries(file: Path, source: str, stated: Mapping[str, Any]) -> Iterable[Entry]:
    if file.suffix.casefold() in _LISTS:
        kind = file.suffix.removeprefix(".")
        for entry in items_of(file, source):
            if isinstance(entry, Item):
                yield Item(entry.source, entry.command, entry.ground, {"kind": kind})
            else:
                yield entry
        return
    text = read_text(file, field="dir", limit=MAX_BYTES)
    if not any(word in text for word in _signs()):
        return
    deployment = read_deployment(text, file.name)
    for engine in deployment.engines:
        place = f"{source}:{engine.line}" if engine.line else source
        yield item_of(engine, place, deployment.kind, stated)
    for left in deployment.left:
        place = f"{source}:{left.line}" if left.line else source
        yield place, InputError(f"{left.where}: {left.why}", field="file")


@cache
def _signs() -> tuple[str, ...]:
    """What a file says that may start an engine."""
    images = (name for grammar in grammars().values() for name in grammar.images)
    programs = (
        start.words[1] if start.words[0] == "-m" else start.words[0]
        for grammar in grammars().values()
        for start in grammar.launch
    )
    return (*_WORDS, *dict.fromkeys(programs), *images)
