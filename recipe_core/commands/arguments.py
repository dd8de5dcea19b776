"""Words after an engine's program, read by its option table, and what the engine would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.commands.words import beginning, closest, explained, since
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    ReleaseTable,
    option_replacement,
    pinned_release_table,
)
from recipe_core.engines.options import Option
from recipe_core.engines.spec import engine

_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SCALES = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


def parse_option_value(option: Option, text: str) -> Any:
    """The text as the option's type; None when it is not one."""
    if option.choices and text not in option.choices:
        folded = text.lower().replace("-", "_")
        return folded if option.folded and folded in option.choices else None
    try:
        if option.type == "json":
            return parse_json(text)
        if option.type == "float":
            return float(text)
        if option.type == "int":
            scaled = _SCALED.fullmatch(text) if option.scaled else None
            return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else int(text)
    except (ValueError, OverflowError, InputError):
        return None
    return text


def json_or_text(text: str) -> Any:
    """Return what JSON says, or the text itself where it is none."""
    try:
        return parse_json(text)
    except InputError:
        return text


Level = Literal["error", "warning", "note"]

# Unknown names of one command for which the nearest known one is looked for.
SUGGESTIONS = 40

_OPEN = re.compile(r"\$[\w{(]|`|^<[A-Za-z][^<>]*>$|\{\{")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a command.

    ``error``: the engine refuses to start; ``warning``: it starts, but not as meant. ``key``: the
    one of a JSON option that it is about.
    """

    level: Level
    code: str
    option: str | None
    message: str
    hint: str | None = None
    key: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a flag among the words: from ``start`` to before ``end``, its value too.

    ``flag`` as findings name it; ``option``: the name of its option, None where there is none.
    """

    start: int
    end: int
    flag: str
    option: str | None = None


@dataclass(slots=True)
class Arguments:
    """The statements of a command: values by option name, and in ``open`` the text left open.

    ``positional``: words without a flag; ``unread``: words of no option; ``places``: where flags
    stand. ``judged``: the release that runs, and the table that they were read by.
    """

    engine: str
    judged: ReleaseTable
    values: dict[str, Any] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def refusal(self) -> Level:
        """Return how heavy an objection to a word is: another release may take it."""
        return "error" if self.judged.exact else "warning"

    def say(
        self, level: Level, code: str, option: str | None, message: str, hint: str | None = None
    ) -> None:
        self.findings.append(Finding(level, code, option, message, hint))


def read_arguments(
    name: str,
    words: Sequence[str],
    judged: ReleaseTable | None = None,
    program: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Arguments:
    """The words after an engine's program, by default at its pinned version; it never raises.

    Where the table is not that of the release that runs, all that it lacks or refuses is a warning.
    ``env``: variables of the server, of which some stand for options.
    """
    return _Reader(name, words, judged or pinned_release_table(name), program).read(env or {})


def is_open(text: str) -> bool:
    """Return whether a value is left to be filled in: ``$TP``, ``<model>``, ``{{ tp }}``."""
    return _OPEN.search(text) is not None


class _Reader:
    def __init__(
        self, name: str, words: Sequence[str], judged: ReleaseTable, program: Sequence[str]
    ) -> None:
        self.table, self.grammar = judged.table, grammars()[name]
        self.start = self.grammar.start_of(program)
        around = self.start.around if self.start else None
        self.added = engine(around).options.by_spelling if around else {}
        self.title = f"{engine(name).title} {self.table.version}"
        self.words, self.at = words, 0
        self.suggested = 0
        self.out = Arguments(name, judged)
        self.flag, self.option = "", ""  # that was read last
        # Parts of JSON values (``--flag.key value``), laid over the whole ones at the end.
        self.nested: dict[str, dict[str, Any]] = {}

    def read(self, env: Mapping[str, str]) -> Arguments:
        bare: list[int] = []
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
                bare.append(self.at - 1)
            elif word == "--":
                bare += range(self.at, len(self.words))
                self.at = len(self.words)
            else:
                start = self.at - 1
                self.flag, self.option = word.partition("=")[0], ""
                self._flag(word)
                self.out.places.append(Place(start, self.at, self.flag, self.option or None))
        for name, value in self.nested.items():
            flat = self.out.values.get(name)
            self.out.values[name] = {**flat, **value} if isinstance(flat, dict) else value
        self.out.positional = [self.words[n] for n in bare]
        self._check_model(bare)
        self._take_variables(env)
        return self.out

    def _take_variables(self, env: Mapping[str, str]) -> None:
        """Options that no word states, from the variables that stand for them."""
        named_options = {**self.out.values, **self.out.open}
        for variable, name in self.grammar.set_by.items():
            text, option = env.get(variable), self.table.by_name.get(name)
            if not text or option is None or name in named_options:
                continue
            if option.type == "switch":
                self.out.values[name] = text.casefold() in ("1", "true", "on", "yes")
            elif (value := self._value(option, text)) is not None:
                self.out.values[name] = value

    def _check_model(self, bare: Sequence[int]) -> None:
        """Say where a model stands as a word that its program does not look for there."""
        name = next((name for name, means in self.grammar.means.items() if means == "model"), "")
        option = self.table.by_name.get(name)
        if self.start is None or self.start.model == "any" or option is None or not bare:
            return
        first = self.start.model == "first"
        if name in {**self.out.values, **self.out.open} or (first and bare[0] == 0):
            return
        program = " ".join(("python", *self.start.words)[self.start.words[0] != "-m" :])
        places = f"its first word or {option.flag}" if first else f"{option.flag} alone"
        message = f"{program} takes its model as {places}; it refuses or passes over the word"
        hint = f"Write {option.flag} before it."
        message = f"{message} {self.words[bare[0]][:80]!r}."
        self.out.say("error", "model-place", option.flag, message, hint)
        self.out.places.append(Place(bare[0], bare[0] + 1, option.flag))

    def _flag(self, word: str) -> None:
        flag, equals, text = word.partition("=")
        base, dot, path = flag.partition(".")
        if self.grammar.underscores and base.startswith("--"):
            base = base.replace("_", "-")
        if self.grammar.nested and dot and (option := self._option(base)) is not None:
            return self._nested(option, flag, path, text if equals else None)
        flag = base + dot + path
        if flag not in self.table.by_spelling and (glued := self._glued(word)) is not None:
            flag, text = glued
            equals = "=" if text else ""
        if flag in self.added and flag not in self.table.by_spelling:
            return self._added(self.added[flag], word, equals != "")
        option = self._option(flag)
        if option is None:
            return self._unknown(flag, word, equals != "")
        return self._known(option, flag, text if equals else None)

    def _glued(self, word: str) -> tuple[str, str] | None:
        """A short flag and the value that follows without a blank: ``-O3``, ``-qfp8``."""
        short = word[:2]
        flag = self.grammar.glued.get(short)
        if not flag and len(word) > 2 and short in self.table.by_spelling:
            flag = short
        return (flag, word[2:].removeprefix("=")) if flag else None

    def _option(self, flag: str) -> Option | None:
        """The option of a flag: itself, or the only one that it begins."""
        exact = self.table.by_spelling.get(flag)
        may_be_short = self.grammar.abbreviations and flag.startswith("--") and len(flag) >= 3
        if exact is not None or not may_be_short:
            return exact
        options = beginning(self.table, flag)
        return options[0] if len(options) == 1 else None

    def _known(self, option: Option, flag: str, glued: str | None) -> None:
        self.flag, self.option = option.flag, option.name
        if option.deprecated:
            message = f"{option.flag} is deprecated in {self.title}."
            hint = option_replacement(self.out.engine, option.flag, self.table)
            self.out.say("warning", "deprecated", option.flag, message, hint)
        if option.type == "switch":
            self._switch(option, flag, glued)
            return
        texts = [glued] if glued is not None else self._following(option)
        if not texts and not option.optional:
            message = f"{option.flag} needs a value: {option.takes}."
            self.out.say(self.out.refusal, "no-value", option.flag, message)
            return
        values = [self._value(option, text) for text in texts]
        if any(value is None for value in values):
            return
        single = values[0] if values else True
        value = values if option.many else single
        if self.out.values.get(option.name, value) != value:
            message = f"{option.flag} is given more than once; the last, {value}, counts."
            self.out.say("warning", "repeated", option.flag, message)
        self.out.values[option.name] = value

    def _following(self, option: Option) -> list[str]:
        """The words that an option takes."""
        start = self.at
        end = len(self.words) if option.many else min(start + 1, len(self.words))
        while self.at < end and self._is_value(self.words[self.at]):
            self.at += 1
        return list(self.words[start : self.at])

    @staticmethod
    def _is_value(word: str) -> bool:
        is_flag = word.startswith("-") and word != "-" and " " not in word
        return not is_flag or _NEGATIVE.fullmatch(word) is not None

    def _switch(self, option: Option, flag: str, glued: str | None) -> None:
        on = flag in (option.flag, *option.also)
        off = not on and any(word.startswith(flag) for word in option.turned_off_by)
        self.out.values[option.name] = not off
        stray = glued
        if stray is None:
            stray = self.words[self.at] if self.at < len(self.words) else ""
            if stray.casefold() not in ("true", "false"):
                return
            self.at += 1
        self.out.values[option.name] = stray.casefold() != "false"
        message = f"{option.flag} is a switch and takes no value, not {stray!r}"
        if self.out.judged.exact:
            instead = f"write --no-{option.flag[2:]}" if option.negated else "leave it out"
            message = f"{message}; {instead} to turn it off"
        self.out.say(self.out.refusal, "switch-value", option.flag, f"{message}.")

    def _value(self, option: Option, text: str) -> Any:
        """A value in its type; None when it has another or is left open."""
        free_text = option.type == "str" and not option.choices
        if is_open(text) and (not free_text or option.name in self.grammar.means):
            self.out.open[option.name] = text
            self.out.say("warning", "open", option.flag, f"{option.flag} is left open: {text}.")
            return None
        if text in option.words:
            return text
        value = parse_option_value(option, text)
        if value is None:
            message = f"{option.flag} takes {_shortened_choices(option)}, not {text[:80]!r}."
            hint = option_replacement(self.out.engine, option.flag, self.table, value=text)
            if hint is None and self._may_suggest():
                hint = closest(text, option.choices)
            self.out.say(self.out.refusal, "value", option.flag, message, hint)
        elif isinstance(value, dict):
            self._check_keys(option, value)
        elif option.keys:
            message = f"{option.flag} takes a JSON object, not {text[:80]!r}."
            self.out.say(self.out.refusal, "value", option.flag, message)
        return value

    def _check_keys(self, option: Option, keys: Iterable[str]) -> None:
        for key in keys if option.keys else ():
            if key in option.keys:
                continue
            message = f"{option.flag} has no key {key[:80]!r} in {self.title}"
            hint = option_replacement(self.out.engine, option.flag, self.table, key=key)
            when = since(self.out.engine, self.table.version, option.flag, key)
            if hint is None and not when and self._may_suggest():
                hint = closest(key, option.keys)
            level = self._level(when)
            finding = Finding(level, "key", option.flag, f"{message}{when}.", hint, key)
            self.out.findings.append(finding)

    def _nested(self, option: Option, flag: str, path: str, text: str | None) -> None:
        """``--flag.key.sub value``: a part of a JSON value; ``key+`` is a list."""
        self.flag, self.option = flag, option.name
        if text is None:
            texts = self._following(option.model_copy(update={"many": False}))
            if not texts:
                self.out.say(self.out.refusal, "no-value", flag, f"{flag} needs a value.")
                return
            text = texts[0]
        if option.type != "json" and not (option.type == "str" and not option.choices):
            message = f"{option.flag} takes {option.takes}; it has no part {path!r}."
            self.out.say(self.out.refusal, "value", flag, message)
            return
        keys = path.removesuffix("+").split(".")
        part: Any = text.split(",") if path.endswith("+") else json_or_text(text)
        self._check_keys(option, keys[:1])
        inner = self.nested.setdefault(option.name, {})
        for key in keys[:-1]:
            deeper = inner.setdefault(key, {})
            inner = deeper if isinstance(deeper, dict) else {}
        inner[keys[-1]] = part

    def _added(self, option: Option, word: str, glued: bool) -> None:
        """An option of the program around the engine, which says nothing about that."""
        self.flag = option.flag
        self.out.unread.append(word)
        if option.type != "switch" and not glued:
            self.out.unread += self._following(option)

    def _unknown(self, flag: str, word: str, glued: bool) -> None:
        self.flag = flag
        version = self.table.version
        takes, message, hint = explained(self.out.engine, version, flag, self._may_suggest())
        self.out.unread.append(word)
        last = 0 if glued else min(self.at + takes, len(self.words))
        while self.at < last and self._is_value(self.words[self.at]):
            self.out.unread.append(self.words[self.at])
            self.at += 1
        when = since(self.out.engine, version, flag)
        self.out.say(self._level(when), "unknown", flag, f"{self.title} {message}", hint)

    def _level(self, when: str) -> Level:
        """Return what lacking a word means: a tag that moves may still be a release that has it."""
        return "warning" if when and self.out.judged.moving else self.out.refusal

    def _may_suggest(self) -> bool:
        """Return whether to look for the nearest name again; thousands would take minutes."""
        self.suggested += 1
        return self.suggested <= SUGGESTIONS


def _shortened_choices(option: Option, limit: int = 8) -> str:
    if len(option.choices) <= limit:
        return option.takes
    return f"{', '.join(option.choices[:limit])} or {len(option.choices) - limit} others"
