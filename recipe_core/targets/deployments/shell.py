"""Shell scripts: the servers that they start, and the release that they install."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from recipe_core.base.errors import InputError
from recipe_core.commands.launches import Launch, find_launches
from recipe_core.commands.words import read_script
from recipe_core.targets.deployments.containers import starts_engine
from recipe_core.targets.deployments.deployed import DeployedEngine, Left, Place
from recipe_core.targets.deployments.variables import unset_in

_PINNED = re.compile(r"(?<![\w-])(vllm|sglang|tensorrt-llm)(?:\[[\w,-]*\])?==(\d[\w.+]{0,30})")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)


def read_shell(text: str) -> Iterator[DeployedEngine | Left]:
    """The engines that a script starts."""
    for engine in engines_of(text, "script", Place(), {}, text):
        if isinstance(engine, DeployedEngine) and (seen := engine.launch.visible_devices):
            yield replace(engine, place=replace(engine.place, per_node=seen))
        else:
            yield engine


def engines_of(
    text: str,
    where: str,
    place: Place,
    env: Mapping[str, str],
    installs: str,
    *,
    line: int | None = 1,
    image: str | None = None,
) -> Iterator[DeployedEngine | Left]:
    """The engines of a text of a shell.

    Args:
        text: the commands.
        where: its name in messages.
        place: the devices that it runs on.
        env: variables that are set before it runs.
        installs: the text that installs engines.
        line: where it begins.
        image: the container that it runs in.
    """
    try:
        launches = find_launches(read_script(text, env))[0]
    except InputError as error:
        if starts_engine(_COMMENT.sub("", text)):
            yield Left(where, line, error.message)
        return
    at = 0
    for number, launch in enumerate(launches, 1):
        found = _place_of(text, launch, at)
        at = max(at, found + 1)
        name = where if len(launches) == 1 else f"{where} #{number}"
        inside = launch if launch.image or not image else replace(launch, image=image)
        yield DeployedEngine(
            name,
            (line or 1) + text.count("\n", 0, found) if found >= 0 else line,
            inside,
            place,
            release=_release(installs, launch.engine),
            unset=unset_in((*launch.args, *launch.program)),
        )
    if not launches and starts_engine(_COMMENT.sub("", text)):
        yield Left(where, line, "names an engine, but no command of it could be read.")


def _place_of(text: str, launch: Launch, start: int) -> int:
    """Where the program of a server stands, from ``start`` on; -1 where it does not."""
    words = launch.program[1:] if launch.program[:1] == ("-m",) else launch.program
    pattern = r"\s+".join(map(re.escape, words))
    match = re.compile(rf"(?<![\w.]){pattern}(?!\w)").search(text, start) if words else None
    return match.start() if match else -1


def _release(text: str, engine: str) -> str | None:
    """The release of an engine that a text installs (``pip install vllm==0.9.1``)."""
    return next((match[2] for match in _PINNED.finditer(text) if match[1] == engine), None)
