"""Files that a command names by a relative path, which a container does not have by itself."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from recipe_core.base import quoting
from recipe_core.commands.arguments import Arguments, Finding, is_open
from recipe_core.commands.images import image_folder
from recipe_core.commands.launches import Launch
from recipe_core.engines.grammar import grammars

_ENDING = re.compile(r"\.(jinja2?|json|ya?ml|toml|py|txt|csv|pem|crt|key|model|bin|pt)$")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def named_files(launch: Launch, arguments: Arguments) -> Iterator[Finding]:
    """A warning for each relative path of a file that has to be where the server runs.

    Silent where a mount of the container covers the path, or its image is known to hold it.
    """
    table = arguments.judged.table
    for name, missing in grammars()[launch.engine].files.items():
        if name not in table.by_name:
            continue
        flag = table.by_name[name].flag
        for path in _relative_paths(arguments.values.get(name)):
            place = _missing_place(launch, path)
            if place is not None:
                message = f"{flag} names the file {path}, {place}: {missing}."
                yield Finding("warning", "file", flag, message, _mount_remedy(launch, path))


def _relative_paths(value: Any) -> Iterator[str]:
    """Relative paths of files in a value: text, or several texts, each may be ``name=path``."""
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or len(text) > 1024 or is_open(text):
            continue
        path = text.partition("=")[2] if re.fullmatch(r"[\w.-]+=[^={}\s]+", text) else text
        if path.startswith(("/", "~")) or _SCHEME.match(path) or "\n" in path or "{" in path:
            continue
        if path.startswith(("./", "../")) or _ENDING.search(path):
            yield path


def _missing_place(launch: Launch, path: str) -> str | None:
    """Where a server looks for a relative path; None where the file is known to be there."""
    if launch.image is None:
        return "in the folder that the command runs in"
    start_folder = image_folder(launch.engine, launch.image)
    workdir = launch.workdir or (start_folder.workdir if start_folder else None)
    if workdir is None:
        # where the image starts is not known: any mount may be what holds the file
        return None if launch.mounts else "in the folder that the container starts in"
    full = posixpath.normpath(posixpath.join(workdir, path))
    if any(_folder_holds(mount, full) for mount in launch.mounts):
        return None
    inside = (
        [posixpath.join(start_folder.workdir, name) for name in start_folder.holds]
        if start_folder
        else []
    )
    if any(_folder_holds(folder, full) for folder in inside):
        return None
    return f"{full} in the container, which the image does not hold"


def _folder_holds(folder: str, path: str) -> bool:
    folder = posixpath.normpath(folder)
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _mount_remedy(launch: Launch, path: str) -> str:
    """How the file gets there."""
    if launch.image is None:
        return "Run the command where the file is, or give its whole path."
    start_folder = image_folder(launch.engine, launch.image)
    workdir = launch.workdir or (start_folder.workdir if start_folder else "/workspace")
    target = posixpath.normpath(posixpath.join(workdir, path))
    local = posixpath.normpath(path)
    source = (
        quoting.quote_shell(local)
        if local.startswith("..")
        else f'"$PWD"/{quoting.quote_shell(local)}'
    )
    return f"Mount it: -v {source}:{quoting.quote_shell(target)}:ro."
