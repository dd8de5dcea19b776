"""Words after an engine's program against its option table: values by option, and what the engine would refuse."""

from __future__ import annotations

import difflib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

from recipe_core.engines.grammar import Gone, grammars
from recipe_core.engines.options import Option
from recipe_core.engines.spec import engine

Level = Literal["error", "warning", "note"]

_OPEN = re.compile(r"\$[\w{(]|`|^<[A-Za-z][^<>]*>$|\{\{")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a command. ``error``: the engine refuses to start; ``warning``: it starts, but not as meant."""

    level: Level
    code: str
    option: str | None
    message: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is left out."""
        named = {
            "level": self.level,
            "code": self.code,
            "option": self.option,
            "message": self.message,
            "hint": self.hint,
        }
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


@dataclass(slots=True)
class Arguments:
    """What was said: values by option name (those left open as text in ``open``), the words without a flag, the words of no option."""

    engine: str
    values: dict[str, Any] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def say(
        self, level: Level, code: str, option: str | None, message: str, hint: str | None = None
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, code, option, message, hint))


def read_arguments(name: str, words: Sequence[str]) -> Arguments:
    """The words after an engine's program, at the pinned version of the engine; never raises for what they say."""
    return _Reader(name, words).read()


def is_open(text: str) -> bool:
    """Whether a value is left to be filled in: ``$TP``, ``<model>``, ``{{ tp }}``."""
    return _OPEN.search(text) is not None


class _Reader:
    def __init__(self, name: str, words: Sequence[str]) -> None:
        spec = engine(name)
        self.title = f"{spec.title} {spec.version}"
        self.table, self.grammar = spec.options, grammars()[name]
        self.words, self.at = words, 0
        self.found = Arguments(name)
        self.nested: dict[str, dict[str, Any]] = {}

    def read(self) -> Arguments:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
                self.found.positional.append(word)
            elif word == "--":
                self.found.positional += self.words[self.at :]
                self.at = len(self.words)
            else:
                self._flag(word)
        for name, value in self.nested.items():
            given = self.found.values.get(name)
            self.found.values[name] = {**given, **value} if isinstance(given, dict) else value
        return self.found

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
        option = self._option(flag)
        if option is None:
            return self._unknown(flag, word, equals != "")
        return self._known(option, flag, text if equals else None)

    def _glued(self, word: str) -> tuple[str, str] | None:
        """A short flag and the value that follows without a blank: ``-O3``, ``-qfp8``."""
        short = word[:2]
        flag = self.grammar.glued.get(short) or (
            short if len(word) > 2 and short in self.table.by_spelling else None
        )
        return None if flag is None else (flag, word[2:].removeprefix("="))

    def _option(self, flag: str) -> Option | None:
        """The option of a flag: itself, or the only one that it begins."""
        exact = self.table.by_spelling.get(flag)
        if (
            exact is not None
            or not self.grammar.abbreviations
            or not flag.startswith("--")
            or len(flag) < 3
        ):
            return exact
        options = _beginning(self.found.engine, flag)
        return options[0] if len(options) == 1 else None

    def _known(self, option: Option, flag: str, glued: str | None) -> None:
        if option.deprecated:
            instead = self.grammar.gone.get(option.flag)
            self.found.say(
                "warning",
                "deprecated",
                option.flag,
                f"{option.flag} is deprecated in {self.title}.",
                _instead(instead),
            )
        if option.type == "switch":
            self._switch(option, flag, glued)
            return
        texts = [glued] if glued is not None else self._following(option)
        if not texts and not option.optional:
            self.found.say(
                "error", "no-value", option.flag, f"{option.flag} needs a value: {option.takes}."
            )
            return
        values = [self._value(option, text) for text in texts]
        if any(value is None for value in values):
            return
        value = values if option.many else values[0] if values else True
        if self.found.values.get(option.name, value) != value:
            self.found.say(
                "warning",
                "repeated",
                option.flag,
                f"{option.flag} is given more than once; the last, {value}, counts.",
            )
        self.found.values[option.name] = value

    def _following(self, option: Option) -> list[str]:
        """The words that an option takes."""
        most = len(self.words) if option.many else 1
        start = self.at
        while (
            self.at < len(self.words)
            and self.at - start < most
            and self._is_value(self.words[self.at])
        ):
            self.at += 1
        return list(self.words[start : self.at])

    @staticmethod
    def _is_value(word: str) -> bool:
        return (
            not word.startswith("-")
            or word == "-"
            or " " in word
            or _NEGATIVE.fullmatch(word) is not None
        )

    def _switch(self, option: Option, flag: str, glued: str | None) -> None:
        self.found.values[option.name] = flag == option.flag or not flag.startswith("--no-")
        after = self.words[self.at] if self.at < len(self.words) else ""
        stray = (
            glued if glued is not None else after if after.casefold() in ("true", "false") else None
        )
        if stray is None:
            return
        self.at += glued is None
        self.found.values[option.name] = stray.casefold() != "false"
        off = (
            f"write --no-{option.flag[2:]} to turn it off"
            if option.negated
            else "leave it out to turn it off"
        )
        self.found.say(
            "error",
            "switch-value",
            option.flag,
            f"{option.flag} is a switch and takes no value, not {stray!r}; {off}.",
        )

    def _value(self, option: Option, text: str) -> Any:
        """A value in its type; None when it has another or is left open."""
        if is_open(text) and (
            option.type != "str" or option.choices or option.name in self.grammar.means
        ):
            self.found.open[option.name] = text
            self.found.say("warning", "open", option.flag, f"{option.flag} is left open: {text}.")
            return None
        if text in option.words:
            return text
        value = _typed(option, text)
        if value is None:
            hint = _closest(text, option.choices)
            self.found.say(
                "error",
                "value",
                option.flag,
                f"{option.flag} takes {_shortened(option)}, not {text[:80]!r}.",
                hint,
            )
        elif isinstance(value, dict):
            self._check_keys(option, value)
        elif option.keys:
            self.found.say(
                "error",
                "value",
                option.flag,
                f"{option.flag} takes a JSON object, not {text[:80]!r}.",
            )
        return value

    def _check_keys(self, option: Option, keys: Iterable[str]) -> None:
        for key in keys if option.keys else ():
            if key not in option.keys:
                message = f"{option.flag} has no key {key[:80]!r} in {self.title}."
                self.found.say("error", "key", option.flag, message, _closest(key, option.keys))

    def _nested(self, option: Option, flag: str, path: str, text: str | None) -> None:
        """``--flag.key.sub value``: a part of a JSON value; ``key+`` is a list."""
        if text is None:
            texts = self._following(option.model_copy(update={"many": False}))
            if not texts:
                self.found.say("error", "no-value", flag, f"{flag} needs a value.")
                return
            text = texts[0]
        if option.type != "json" and not (option.type == "str" and not option.choices):
            self.found.say(
                "error",
                "value",
                flag,
                f"{option.flag} takes {option.takes}; it has no part {path!r}.",
            )
            return
        keys = path.removesuffix("+").split(".")
        part: Any = text.split(",") if path.endswith("+") else _json_or_text(text)
        self._check_keys(option, keys[:1])
        inner = self.nested.setdefault(option.name, {})
        for key in keys[:-1]:
            deeper = inner.setdefault(key, {})
            inner = deeper if isinstance(deeper, dict) else {}
        inner[keys[-1]] = part

    def _unknown(self, flag: str, word: str, glued: bool) -> None:
        takes, message, hint = _explained(self.found.engine, flag)
        self.found.unread.append(word)
        last = 0 if glued else min(self.at + takes, len(self.words))
        while self.at < last and self._is_value(self.words[self.at]):
            self.found.unread.append(self.words[self.at])
            self.at += 1
        self.found.say("error", "unknown", flag, f"{self.title} {message}", hint)


@cache
def _sorted_flags(name: str) -> list[str]:
    return sorted(engine(name).options.by_spelling)


def _beginning(name: str, flag: str) -> list[Option]:
    """The options that a flag begins."""
    flags, table = _sorted_flags(name), engine(name).options.by_spelling
    found: dict[str, Option] = {}
    for n in range(bisect_left(flags, flag), len(flags)):
        if not flags[n].startswith(flag):
            break
        found[table[flags[n]].flag] = table[flags[n]]
    return list(found.values())


@lru_cache(maxsize=4096)
def _explained(name: str, flag: str) -> tuple[int, str, str | None]:
    """How many words a flag that is not there takes, and what to say of it."""
    spec, grammar = engine(name), grammars()[name]
    gone = grammar.gone.get(flag)
    if gone is not None:
        return (
            1 << 20 if gone.takes == "many" else gone.takes,
            f"has no {flag} any more.",
            _instead(gone),
        )
    begun = _beginning(name, flag) if grammar.abbreviations and flag.startswith("--") else []
    if len(begun) > 1:
        return (
            1,
            f"has several options that begin with {flag[:80]}.",
            f"Write one in full: {', '.join(o.flag for o in begun[:5])}.",
        )
    return 1, f"has no {flag[:80]}.", _closest(flag, tuple(spec.options.by_spelling))


def _instead(gone: Gone | None) -> str | None:
    if gone is None:
        return None
    note = f" ({gone.note})" if gone.note else ""
    return f"Leave it out{note}." if gone.use == "nothing" else f"Use {gone.use}{note}."


def _closest(text: str, known: Sequence[str]) -> str | None:
    """The nearest of the known words; dashes and underscores are one."""
    if len(text) > 100:
        return None
    folded = {word.casefold().replace("_", "-"): word for word in known}
    close = difflib.get_close_matches(
        text.casefold().replace("_", "-"), list(folded), n=2, cutoff=0.6
    )
    return f"Did you mean {' or '.join(folded[each] for each in close)}?" if close else None


def _shortened(option: Option, most: int = 8) -> str:
    if len(option.choices) <= most:
        return option.takes
    return f"{', '.join(option.choices[:most])} or {len(option.choices) - most} others"


def _typed(option: Option, text: str) -> Any:
    """The text as the option's type; None when it is not one."""
    if option.choices and text not in option.choices:
        folded = text.lower().replace("-", "_")
        return folded if option.folded and folded in option.choices else None
    try:
        if option.type == "json":
            return json.loads(text, parse_constant=_no_constant)
        if option.type == "float":
            return float(text)
        if option.type == "int":
            scaled = _SCALED.fullmatch(text) if option.scaled else None
            return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else int(text)
    except (ValueError, RecursionError, OverflowError):
        return None
    return text


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
