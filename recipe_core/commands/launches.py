"""Launches in a command: words that start an engine, in wrappers, containers and shells too.

Nothing is executed.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise

from recipe_core.commands.images import engine_by_name, image_start
from recipe_core.commands.words import Command, Script, Words, read_script
from recipe_core.engines.grammar import grammars

# Shells inside shells that are read.
MAX_DEPTH = 3

Env = MutableMapping[str, str]

# Programs that name an engine without starting it.
_MENTIONED = frozenset(  # split: a word a line would fill the page
    "echo printf pip pip3 grep pgrep pkill cat man which curl apt conda #".split()  # noqa: SIM905
)
_KEYWORDS = frozenset(
    "do done then else elif if fi while until for ! { } time $ sudo".split()  # noqa: SIM905
)
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_SANDBOXES = frozenset({"apptainer", "singularity"})
_SANDBOX_FILES = (".sif", ".simg")
_SANDBOX_PLACES = ("docker://", "oras://", "library://")
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)

# Options of ``docker run`` without a value; every other one takes one.
_SWITCHES = frozenset(
    f"--{name}"
    for name in (  # noqa: SIM905
        "detach interactive tty rm init privileged read-only publish-all no-healthcheck"
        " oom-kill-disable sig-proxy disable-content-trust quiet help replace no-hosts rmi"
    ).split()
)
_SHORT_SWITCHES = frozenset("ditPq")

_MODEL_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The container around a server; nothing is known of one outside.

    ``shares_memory``: whether processes may use the host's shared memory; ``gpus`` as ``docker run
    --gpus`` takes them; ``workdir``: the folder that it starts in, where it says so; ``mounts``:
    the places that it mounts.
    """

    image: str | None = None
    shares_memory: bool | None = None
    gpus: str | None = None
    workdir: str | None = None
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Container(Surroundings):
    """A container and the words given to it; ``entrypoint`` stands in for the image's own."""

    entrypoint: Words = ()
    args: Words = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch(Surroundings):
    """A server that a command starts: engine, words after the program, and what surrounds them.

    ``program``: the words that start it; ``repeated``: whether they repeat what the image starts by
    itself; ``image_by_name``: whether only the name of an image that no table has tells what it
    starts. ``before``: all words of the command before ``args``, empty inside the text of a shell;
    ``assigned``: variables that stand before those.
    """

    engine: str
    program: Words
    args: Words
    env: Mapping[str, str]
    repeated: bool = False
    image_by_name: bool = False
    before: Words = ()
    assigned: Mapping[str, str] = field(default_factory=dict)

    @property
    def visible_devices(self) -> int | None:
        """Devices that environment or container show the server; None where neither says."""
        for name in _VISIBLE:
            text = self.env.get(name, "")
            devices = text.split(",")
            if text in ("all", "void", "none") or "$" in text:
                continue
            if all(device.strip() for device in devices):
                return len(devices)
        gpus = (self.gpus or "").strip("\"'").removeprefix("count=")
        if gpus.isdecimal():
            return int(gpus) if len(gpus) < 6 else None
        return gpus.count(",") + 1 if gpus.startswith("device=") else None


def find_launches(script: Script, depth: int = 0) -> tuple[list[Launch], list[str]]:
    """The servers that a script starts, and the programs of its other commands."""
    launches: list[Launch] = []
    programs: list[str] = []
    for command in script.commands:
        servers = list(_command_servers(command, script.env, depth))
        launches += servers
        if not servers and command.words[0] not in _KEYWORDS:
            programs.append(command.words[0])
    return launches, programs


def first_launch(words: Words, env: Mapping[str, str] | None = None) -> Launch | None:
    """The server that words start, None when they start none."""
    return next(_command_servers(Command(words, dict(env or {})), {}, 0), None)


def _command_servers(command: Command, script_env: dict[str, str], depth: int) -> Iterator[Launch]:
    words = _skip_keywords(command.words)
    if not words or _program_name(words[0]) in _MENTIONED:
        return
    env = ChainMap(command.env, script_env)
    if words[0] == "eval" and depth < MAX_DEPTH:
        yield from find_launches(read_script(" ".join(words[1:]), env), depth + 1)[0]
        return
    for n, word in enumerate(words[:-1]):
        run = words[n + 1 : n + 3]
        # of `docker compose run` a service follows, whose words are matched below
        if _program_name(word) in _CONTAINERS and "run" in run and "compose" not in run:
            for launch in _container_servers(words[words.index("run", n) + 1 :], env, depth):
                yield _place_in_command(launch, words, command.env)
            return
    sandboxed = list(_sandbox_servers(words, env, depth))
    if sandboxed:
        yield from sandboxed
    elif (plain := _match_program(words, env)) is not None:
        yield _place_in_command(replace(plain, image=_step_image(words)), words, command.env)
    else:
        yield from _shell_servers(words, env, depth)


def _sandbox_servers(words: Words, env: Env, depth: int) -> Iterator[Launch]:
    """The servers in an image that Apptainer runs, with the variables around it."""
    start = next(
        (n for n, word in enumerate(words) if _program_name(word) in _SANDBOXES), len(words)
    )
    for n, word in enumerate(words[start:], start):
        if word.endswith(_SANDBOX_FILES) or word.startswith(_SANDBOX_PLACES):
            entrypoint, args = words[n + 1 : n + 2], words[n + 2 :]
            if "run" in words[start:n]:  # of an instance its name stands before the words
                entrypoint, args = (), words[n + 1 + ("instance" in words[start:n]) :]
            image = _sandbox_image(word)
            container = Container(image=image, entrypoint=entrypoint, args=args, env=env)
            yield from launches_in(container, depth)
            return


def _sandbox_image(word: str) -> str:
    """The image that a file of Apptainer was made of, as such files are called by custom."""
    place, scheme, name = word.partition("://")
    if scheme:
        return name
    stem = _program_name(place).rpartition(".")[0]
    name, mark, tag = stem.rpartition("_")
    return f"{name}:{tag}" if mark else stem


def _step_image(words: Words) -> str | None:
    """The image that ``srun`` starts a step in (pyxis writes # after a registry)."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name == "--container-image":
            return (value if equals else following).replace("#", "/").removeprefix("docker://")
    return None


def _place_in_command(launch: Launch, words: Words, assigned: Mapping[str, str]) -> Launch:
    """With the words and variables of its command before its own, where these are its last."""
    size = len(words) - len(launch.args)
    if words[size:] != launch.args:
        return launch
    return replace(launch, before=words[:size], assigned=dict(assigned))


def _skip_keywords(words: Words) -> Words:
    """Without keywords of the shell that may stand before a command."""
    skip = next((n for n, word in enumerate(words) if word not in _KEYWORDS), 0)
    return words[skip:]


def _program_name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


@cache
def _start_patterns() -> dict[str, list[tuple[str, Words]]]:
    """Engines and the words that start them, by the word that is looked for; the longest first."""
    starts = [(name, start) for name, grammar in grammars().items() for start in grammar.launch]
    patterns: dict[str, list[tuple[str, Words]]] = {}
    for name, start in sorted(starts, key=lambda row: -len(row[1].words)):
        patterns.setdefault(start.program, []).append((name, start.words))
    return patterns


def _match_program(words: Words, env: Env) -> Launch | None:
    """The first engine's program among the words, with the variables assigned before it."""
    set_before: dict[str, str] = {}
    for n, word in enumerate(words):
        for name, pattern in _start_patterns().get(_program_name(word), ()):
            module = pattern[0] == "-m"
            first = n - 1 if module else n
            program, args = words[first : first + len(pattern)], words[first + len(pattern) :]
            if first < 0 or (program if module else (_program_name(word), *program[1:])) != pattern:
                continue
            if not args or args[0] not in grammars()[name].other_commands:
                return Launch(name, program, args, ChainMap(set_before, env))
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            set_before[name] = value
    return None


def _shell_servers(words: Words, env: Env, depth: int) -> Iterator[Launch]:
    """Servers in the text that a shell is given: ``bash -c "…"``."""
    shell = next((n for n, word in enumerate(words) if _program_name(word) in _SHELLS), None)
    if shell is None or depth >= MAX_DEPTH:
        return
    for word, text in pairwise(words[shell + 1 :]):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            for launch in find_launches(read_script(text, env), depth + 1)[0]:
                yield replace(launch, env=ChainMap(dict(launch.env), env))
            return


def _container_servers(words: Words, env: Env, depth: int) -> Iterator[Launch]:
    """The servers in a container of ``docker run``."""
    options, image, args = _run_options(words)
    if image is None:
        return
    pairs = [pair.partition("=") for pair in options.get("--env", [])]
    names = (*_VISIBLE, *(name for name, equals, _ in pairs if not equals))  # taken from outside
    passed = {name: value for name in names if (value := env.get(name)) is not None}
    container = Container(
        image=image,
        entrypoint=tuple(options.get("--entrypoint", [])[-1:]),
        args=args,
        env=passed | {name: value for name, equals, value in pairs if equals},
        shares_memory="--shm-size" in options or options.get("--ipc", [""])[-1] == "host",
        gpus=options["--gpus"][-1] if "--gpus" in options else None,
        workdir=options.get("--workdir", [None])[-1],
        mounts=tuple(_mounted_places(options)),
    )
    yield from launches_in(container, depth)


def launches_in(container: Container, depth: int = 0) -> Iterator[Launch]:
    """The servers in a container: what its words start, or what the image starts by itself."""
    env, words = dict(container.env), (*container.entrypoint, *container.args)
    image = container.image or ""
    engine, start = image_start(image)
    launch = _match_program(words, env)
    if start and not container.entrypoint:
        if launch is None:
            launch = Launch(engine, start, container.args, env)
        else:
            launch = replace(launch, repeated=True)
    elif not (engine or launch or container.entrypoint) and _is_arguments(container.args):
        image_program = engine_by_name(image)
        launch = image_program and Launch(*image_program, container.args, env, image_by_name=True)
    around = {part.name: getattr(container, part.name) for part in fields(Surroundings)}
    for server in [launch] if launch else _shell_servers(words, env, depth):
        yield replace(server, **around)


def _is_arguments(args: Words) -> bool:
    return bool(args) and (args[0].startswith("-") or _MODEL_ID.fullmatch(args[0]) is not None)


def _mounted_places(options: Mapping[str, list[str]]) -> Iterator[str]:
    """Places in a container that ``-v`` and ``--mount`` fill from outside."""
    for text in options.get("--volume", []):
        parts = text.split(":")
        yield parts[1] if len(parts) > 1 else parts[0]
    for text in options.get("--mount", []):
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name in ("target", "destination", "dst"):
                yield value


def _run_options(
    words: Words,
) -> tuple[dict[str, list[str]], str | None, Words]:
    """Options of ``docker run`` by name, the image, and the words after it."""
    options: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("{{"):
            continue  # a template's place for options
        if not word.startswith("-"):
            return options, word, tuple(rest)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            name, equals, value = _split_short_options(word)
        if name and name not in _SWITCHES:
            value = value if equals else next(rest, "")
            options.setdefault(_LONG.get(name, name), []).append(value)
    return options, None, ()


_LONG = {"-e": "--env", "-v": "--volume", "-p": "--publish", "-w": "--workdir", "-u": "--user"}


def _split_short_options(word: str) -> tuple[str, str, str]:
    """Short options in one word: switches (``-it``), then one with its value (``-p8000:8000``).

    Without a value in the word the next one is it.
    """
    rest = word[1:].lstrip("".join(_SHORT_SWITCHES))
    if not rest:
        return "", "", ""
    value = rest[1:].removeprefix("=")
    return f"-{rest[0]}", "=" if value else "", value
