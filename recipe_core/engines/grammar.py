"""The grammar of an engine's commands, as data: ``engines/options/<engine>.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import field_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.engines.memory import Through
from recipe_core.engines.options import FOLDER, Meaning
from recipe_core.engines.spec import Engine, engine_names


class Gone(DataRow):
    """A flag of other versions: how many words it took, and its successor (or "nothing").

    Also a key of a JSON option (``--flag.key``), or a value (``--flag=value``). ``use`` may name a
    key (``--flag.key``). ``values``: what the successor says in place of values, by their text;
    where there are any, a value that is not among them has nothing in its place. ``source``: where
    the engine says so. The tables of releases tell when it went.
    """

    takes: Literal[0, 1, "many"] = 1
    use: str
    values: Mapping[str, Any] = {}
    note: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """The word that takes the place of a gone option, key or value.

    ``option``: by name; ``flag``: as it is written, which may turn a switch off; ``path``: the key
    in its JSON, with dots. ``values``: new values by the text of old ones (empty: the same value).
    """

    option: str
    flag: str
    path: str | None
    values: Mapping[str, Any]
    note: str | None

    def value(self, before: Any) -> Any:
        """The new value for an old one; None where nothing takes its place."""
        return self.values.get(str(before)) if self.values else before


class ImageFolder(DataRow):
    """The folder that a container starts in, and what of it the image holds."""

    workdir: str
    holds: tuple[str, ...] = ()


Moved = Literal["memory", "time", "start"]
# What options say that estimates count besides the split (``space.own_options``).
Counted = Literal[
    "host_weights_gib",
    "cache_bytes",
    "cache_blocks",
    "cache_tokens",
    "adapters",
    "adapter_slots",
    "adapter_rank",
    "device_layers",
    "host_expert_layers",
    "host_experts",
]


class Unmodelled(DataRow):
    """An option that estimates ignore, unless it has one of these values.

    ``moves``: the quantities that are less certain with it.
    """

    what: str
    moves: tuple[Moved, ...] = ("memory", "time")
    unless: tuple[str, ...] = ("0", "1", "0.0", "False", "None", "[]", "{}")


class OffloadWords(DataRow):
    """The words that ask for tiers below the devices' cache.

    ``when``: the option that must be there, with one of ``values`` where there are any (of a JSON
    option those of its ``key``), and none of ``unless`` under the option of that name. ``size``:
    the option with the host's memory, in ``unit_bytes``; or the ``variable`` with it, and its
    ``usual`` value. ``of``: whether that is of a server or of each rank. ``also``: options that
    only say how.
    """

    through: Through
    when: str
    key: str | None = None
    values: tuple[str, ...] = ()
    unless: Mapping[str, tuple[str, ...]] = {}
    size: str | None = None
    variable: str | None = None
    usual: float | None = None
    unit_bytes: float
    of: Literal["server", "rank"]
    also: tuple[str, ...] = ()

    def asked_by(self, options: Mapping[str, Any]) -> bool:
        """Return whether options by name ask for it."""
        value = options.get(self.when)
        if self.key is not None:
            value = value.get(self.key) if isinstance(value, Mapping) else None
        if value in (None, False) or (self.values and value not in self.values):
            return False
        return all(options.get(name) not in excluded for name, excluded in self.unless.items())


class Start(DataRow):
    """The words that start a server ("-m" before a module), and where its model may stand.

    ``model``: as the first word without a flag (any), only as the first word of all (first), or
    only as the value of its option (option). ``around``: the engine of the
    project whose program this is, which adds options of its own and chooses the release inside.
    """

    words: tuple[str, ...]
    model: Literal["any", "first", "option"]
    around: str | None = None

    @property
    def program(self) -> str:
        """The word that tells it from other programs: of a module its name."""
        return self.words[1] if self.words[0] == "-m" else self.words[0]


class OlderStart(DataRow):
    """The words that the project's images of releases ``before`` one started by themselves."""

    before: str
    words: tuple[str, ...]


class Slots(DataRow):
    """Options of a server that holds a place for each request: tokens of all places, their count.

    ``shared``: the switch that lets one request take the places of others, which a server without
    a stated count does by itself with ``usual`` places.
    """

    context: str
    count: str
    shared: str
    usual: int


class Automatic(DataRow):
    """Options whose value the engine fits to the memory where it is missing, or one of these.

    ``unless``: values of options that turn it off. ``weights``: the option by which it leaves
    layers in the host's memory.
    """

    options: dict[str, tuple[str, ...]]
    unless: Mapping[str, tuple[str, ...]] = {}
    weights: str | None = None

    def leaves(self, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether an option is left to the engine."""
        if name not in self.options or any(
            str(values.get(option)) in off for option, off in self.unless.items()
        ):
            return False
        return name not in values or str(values[name]) in self.options[name]


class Grammar(DataRow):
    """The grammar of one engine's commands.

    ``launch``: what starts a server. ``other_commands``: words after it that start something else.
    ``underscores``: whether flags may be written with them for dashes; ``abbreviations``: whether
    the start of a flag is enough; ``nested``: whether JSON may be given as ``--flag.key value``;
    ``glued``: short flags whose value follows without a blank. ``images``: container repositories
    and the words that they start by themselves; ``official``: those of the engine's own project,
    whose tags are its releases; ``older_images``: what these started by themselves, oldest first.
    ``means``: what options say about a candidate;
    ``words``: their values in this project's words (of a quantisation a list where the weights must
    be quantised already: by whom). ``longer_context``: variables that let a request be longer than
    the model's context. ``rules``: what the engine checks when it starts. ``placed``: options that
    a launch sets for each process by its place. ``rank``: the one that makes a server one
    data-parallel rank, and the switch that says so without a number. ``offload``: ways to ask for
    tiers below the devices' cache. ``files``: options whose value
    may be a file, with what the engine does where it is missing. ``folders``: of container
    repositories the folder that servers start in. ``set_by``: variables that stand for options.
    ``all_devices``: where it is there, a server takes every device that it sees, unless an option
    has one of these values.
    """

    schema_version: Literal[1]
    engine: str
    source: str
    launch: tuple[Start, ...]
    other_commands: tuple[str, ...] = ()
    underscores: bool = False
    abbreviations: bool = False
    nested: bool = False
    glued: Mapping[str, str] = {}
    images: Mapping[str, tuple[str, ...]] = {}
    official: tuple[str, ...] = ()
    older_images: tuple[OlderStart, ...] = ()
    means: dict[str, Meaning]
    words: Mapping[str, dict[str, Any]] = {}
    unmodelled: Mapping[str, Unmodelled] = {}
    variables: Mapping[str, Unmodelled] = {}
    counted: Mapping[str, Counted] = {}
    longer_context: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    rank: tuple[str, str] | None = None
    gone: Mapping[str, Gone] = {}
    offload: tuple[OffloadWords, ...] = ()
    files: Mapping[str, str] = {}
    folders: Mapping[str, ImageFolder] = {}
    set_by: Mapping[str, str] = {}
    slots: Slots | None = None
    automatic: Automatic | None = None
    all_devices: dict[str, tuple[str, ...]] | None = None

    def start_of(self, program: Sequence[str]) -> Start | None:
        """Return what a program is started by, wherever its file lies; None for no known one."""
        words = tuple(program)
        if words[:1] != ("-m",):
            words = tuple(word.rsplit("/", 1)[-1] for word in words[:1]) + words[1:]
        return next((start for start in self.launch if start.words == words), None)

    def gone_word(self, flag: str, key: str | None = None, value: str | None = None) -> Gone | None:
        """The entry of a gone flag, of a key of its JSON or of one of its values."""
        if key is not None:
            return self.gone.get(f"{flag}.{key}")
        return self.gone.get(flag if value is None else f"{flag}={value}")

    @field_validator("unmodelled", "variables", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {name: {"what": row} if isinstance(row, str) else row for name, row in value.items()}


@cache
def grammars() -> dict[str, Grammar]:
    """The grammar of every engine whose commands are read, by its name."""
    files = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    return {
        name: DataFile(files[name], "engines").read_as(Grammar)
        for name in engine_names()
        if name in files
    }


def option_meanings(spec: Engine) -> Mapping[str, Meaning]:
    """Return what options of an engine, or of the one that it wraps, say about a candidate."""
    grammar = grammars().get(spec.wraps or spec.name)
    return grammar.means if grammar else spec.options.means


# Meanings of options that also say more than an estimate needs, which people may pass on.
LIMITS: tuple[Meaning, ...] = ("media_limits", "encoder_mode")


def placed_options(spec: Engine) -> tuple[str, ...]:
    """Options of an engine, or of the one it wraps, that differ for each process."""
    grammar = grammars().get(spec.wraps or spec.name)
    return grammar.placed if grammar else ()


@cache
def programs() -> str:
    """The commands that are read, for a message."""
    starts = (start for grammar in grammars().values() for start in grammar.launch)
    return ", ".join(" ".join(start.words) for start in starts)
