"""Words after an engine's program, read by its option table, and what the engine would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.commands.findings import Findings, Level
from recipe_core.commands.unknown_words import (
    closest,
    explain_unknown,
    options_begun_by,
)
from recipe_core.commands.words import Words
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    ReleaseTable,
    option_replacement,
    pinned_release_table,
    release_of_change,
)
from recipe_core.engines.options import Option
from recipe_core.engines.spec import engine

# Unknown names of one command for which the nearest known one is looked for.
SUGGESTIONS = 40

_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_OPEN = re.compile(r"\$[\w{(]|`|^<[A-Za-z][^<>]*>$|\{\{")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")


def is_open(text: str) -> bool:
    """Return whether a value is left to be filled in: ``$TP``, ``<model>``, ``{{ tp }}``."""
    return _OPEN.search(text) is not None


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
            return _expand_number(*scaled.groups()) if scaled else int(text)
    except (ValueError, OverflowError, InputError):
        return None
    return text


def _expand_number(number: str, letter: str) -> int:
    """A number of thousands (k), of kibis (K), and so on."""
    base = 1000 if letter.islower() else 1024
    return int(float(number) * base ** ("kmgt".index(letter.lower()) + 1))


def json_or_text(text: str) -> Any:
    """Return what JSON says, or the text itself where it is none."""
    try:
        return parse_json(text)
    except InputError:
        return text


@dataclass(frozen=True, slots=True)
class Part:
    """Words of a command that belong together: a flag with its values, or one word alone.

    ``flag`` as findings name it, empty for a word alone; ``option``: the name of its option, None
    where there is none.
    """

    words: Words
    flag: str = ""
    option: str | None = None

    @property
    def texts(self) -> Words:
        """The values of the flag."""
        _, equals, text = self.words[0].partition("=")
        return (text,) if equals else self.words[1:]


class Arguments:
    """The statements of a command: values by option name, and in ``open`` the text left open.

    The words after an engine's program are read by the table of a release, by default the pinned
    one; nothing is raised. Where that table is not the release's own (``judged``), all that it
    lacks or refuses is a warning. Variables of the server (``env``) stand for some options.

    ``parts``: all words, in order; ``positional``: words without a flag; ``unread``: words of no
    option. ``findings``: about the whole command, to which all that judge it add theirs.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        judged: ReleaseTable | None = None,
        program: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.engine, self.judged = name, judged or pinned_release_table(name)
        self.values: dict[str, Any] = {}
        self.open: dict[str, str] = {}
        self.parts: list[Part] = []
        self.unread: list[str] = []
        self.findings = Findings()
        self.table, self.grammar = self.judged.table, grammars()[name]
        self.start = self.grammar.start_of(program)
        around = self.start.around if self.start else None
        self._added_options = engine(around).options.by_spelling if around else {}
        self._title = f"{engine(name).title} {self.table.version}"
        self._words, self._at, self._suggested = words, 0, 0
        self._flag, self._option = "", ""  # that was read last
        # Parts of JSON values (``--flag.key value``), laid over the whole ones at the end.
        self._nested_values: dict[str, dict[str, Any]] = {}
        bare = self._read_parts()
        for option, value in self._nested_values.items():
            flat = self.values.get(option)
            self.values[option] = {**flat, **value} if isinstance(flat, dict) else value
        self.positional = [self.parts[n].words[0] for n in bare]
        self._check_model(bare)
        self._take_variables(env or {})

    @property
    def refusal(self) -> Level:
        """Return how heavy an objection to a word is: another release may take it."""
        return "error" if self.judged.exact else "warning"

    def _read_parts(self) -> list[int]:
        """Read all words; return the numbers of parts without a flag."""
        bare, no_more_flags = list[int](), False
        while self._at < len(self._words):
            start, word = self._at, self._words[self._at]
            self._at += 1
            self._flag, self._option = "", ""
            if no_more_flags or not self._is_flag(word):
                bare.append(len(self.parts))
            elif word == "--":
                no_more_flags = True
            else:
                self._flag = word.partition("=")[0]
                self._read_flag(word)
            words = tuple(self._words[start : self._at])
            self.parts.append(Part(words, self._flag, self._option or None))
        return bare

    @staticmethod
    def _is_flag(word: str) -> bool:
        return word.startswith("-") and word != "-" and _NEGATIVE.fullmatch(word) is None

    def _refuse(self, code: str, flag: str, message: str, hint: str | None = None) -> None:
        self.findings.say(self.refusal, code, message, hint, option=flag)

    def _take_variables(self, env: Mapping[str, str]) -> None:
        """Options that no word states, from the variables that stand for them."""
        named_options = {**self.values, **self.open}
        for variable, name in self.grammar.set_by.items():
            text, option = env.get(variable), self.table.by_name.get(name)
            if not text or option is None or name in named_options:
                continue
            if option.type == "switch":
                self.values[name] = text.casefold() in ("1", "true", "on", "yes")
            elif (value := self._value(option, text)) is not None:
                self.values[name] = value

    def _check_model(self, bare: Sequence[int]) -> None:
        """Say where a model stands as a word that its program does not look for there."""
        name = next((name for name, means in self.grammar.means.items() if means == "model"), "")
        option = self.table.by_name.get(name)
        if self.start is None or self.start.model == "any" or option is None or not bare:
            return
        first = self.start.model == "first"
        if name in {**self.values, **self.open} or (first and bare[0] == 0):
            return
        program = " ".join(("python", *self.start.words)[self.start.words[0] != "-m" :])
        places = f"its first word or {option.flag}" if first else f"{option.flag} alone"
        message = f"{program} takes its model as {places}; it refuses or passes over the word"
        part = self.parts[bare[0]]
        message = f"{message} {part.words[0][:80]!r}."
        hint = f"Write {option.flag} before it."
        self.findings.say("error", "model-place", message, hint, option=option.flag)
        self.parts[bare[0]] = Part(part.words, option.flag)

    def _read_flag(self, word: str) -> None:
        flag, equals, text = word.partition("=")
        base, dot, path = flag.partition(".")
        if self.grammar.underscores and base.startswith("--"):
            base = base.replace("_", "-")
        value = text if equals else None
        if self.grammar.nested and dot and (option := self._find_option(base)) is not None:
            return self._nested(option, flag, path, value)
        flag = base + dot + path
        if flag not in self.table.by_spelling and (glued := self._glued(word)) is not None:
            flag, value = glued[0], glued[1] or None
        if flag in self._added_options and flag not in self.table.by_spelling:
            return self._added(self._added_options[flag], word, value is not None)
        option = self._find_option(flag)
        if option is None:
            return self._unknown(flag, word, value is not None)
        return self._known(option, flag, value)

    def _glued(self, word: str) -> tuple[str, str] | None:
        """A short flag and the value that follows without a blank: ``-O3``, ``-qfp8``."""
        short = word[:2]
        flag = self.grammar.glued.get(short)
        if not flag and len(word) > 2 and short in self.table.by_spelling:
            flag = short
        return (flag, word[2:].removeprefix("=")) if flag else None

    def _find_option(self, flag: str) -> Option | None:
        """The option of a flag: itself, or the only one that it begins."""
        exact = self.table.by_spelling.get(flag)
        may_be_short = self.grammar.abbreviations and flag.startswith("--") and len(flag) >= 3
        if exact is not None or not may_be_short:
            return exact
        options = options_begun_by(self.table, flag)
        return options[0] if len(options) == 1 else None

    def _known(self, option: Option, flag: str, glued: str | None) -> None:
        self._flag, self._option = option.flag, option.name
        if option.deprecated:
            message = f"{option.flag} is deprecated in {self._title}."
            hint = option_replacement(self.engine, option.flag, self.table)
            self.findings.say("warning", "deprecated", message, hint, option=option.flag)
        if option.type == "switch":
            self._switch(option, flag, glued)
            return
        texts = [glued] if glued is not None else self._following(None if option.many else 1)
        if not texts and not option.optional:
            message = f"{option.flag} needs a value: {option.takes}."
            self._refuse("no-value", option.flag, message)
            return
        values = [self._value(option, text) for text in texts]
        if any(value is None for value in values):
            return
        single = values[0] if values else True
        value = values if option.many else single
        if self.values.get(option.name, value) != value:
            message = f"{option.flag} is given more than once; the last, {value}, counts."
            self.findings.say("warning", "repeated", message, option=option.flag)
        self.values[option.name] = value

    def _following(self, limit: int | None) -> list[str]:
        """The values that follow, at most ``limit`` (None: all); a flag has no blank in it."""
        words = islice(self._words, self._at, None if limit is None else self._at + limit)
        texts = list(takewhile(lambda word: " " in word or not self._is_flag(word), words))
        self._at += len(texts)
        return texts

    def _switch(self, option: Option, flag: str, glued: str | None) -> None:
        on = flag in (option.flag, *option.also)
        off = not on and any(word.startswith(flag) for word in option.turned_off_by)
        self.values[option.name] = not off
        stray = glued
        if stray is None:
            stray = self._words[self._at] if self._at < len(self._words) else ""
            if stray.casefold() not in ("true", "false"):
                return
            self._at += 1
        self.values[option.name] = stray.casefold() != "false"
        message = f"{option.flag} is a switch and takes no value, not {stray!r}"
        if self.judged.exact:
            instead = f"write --no-{option.flag[2:]}" if option.negated else "leave it out"
            message = f"{message}; {instead} to turn it off"
        self._refuse("switch-value", option.flag, f"{message}.")

    def _value(self, option: Option, text: str) -> Any:
        """A value in its type; None when it has another or is left open."""
        free_text = option.type == "str" and not option.choices
        if is_open(text) and (not free_text or option.name in self.grammar.means):
            self.open[option.name] = text
            message = f"{option.flag} is left open: {text}."
            self.findings.say("warning", "open", message, option=option.flag)
            return None
        if text in option.words:
            return text
        value = parse_option_value(option, text)
        if value is None:
            message = f"{option.flag} takes {_shortened_choices(option)}, not {text[:80]!r}."
            hint = option_replacement(self.engine, option.flag, self.table, value=text)
            if hint is None and self._may_suggest():
                hint = closest(text, option.choices)
            self._refuse("value", option.flag, message, hint)
        elif isinstance(value, dict):
            self._check_keys(option, value)
        elif option.keys:
            message = f"{option.flag} takes a JSON object, not {text[:80]!r}."
            self._refuse("value", option.flag, message)
        return value

    def _check_keys(self, option: Option, keys: Iterable[str]) -> None:
        for key in keys if option.keys else ():
            if key in option.keys:
                continue
            message = f"{option.flag} has no key {key[:80]!r} in {self._title}"
            hint = option_replacement(self.engine, option.flag, self.table, key=key)
            when = release_of_change(self.engine, self.table.version, option.flag, key)
            if hint is None and not when and self._may_suggest():
                hint = closest(key, option.keys)
            level, message = self._lack(when), f"{message}{when}."
            self.findings.say(level, "key", message, hint, option=option.flag, key=key)

    def _nested(self, option: Option, flag: str, path: str, text: str | None) -> None:
        """``--flag.key.sub value``: a part of a JSON value; ``key+`` is a list."""
        self._flag, self._option = flag, option.name
        if text is None:
            text = next(iter(self._following(1)), None)
        if text is None:
            self._refuse("no-value", flag, f"{flag} needs a value.")
            return
        if option.type != "json" and not (option.type == "str" and not option.choices):
            message = f"{option.flag} takes {option.takes}; it has no part {path!r}."
            self._refuse("value", flag, message)
            return
        keys = path.removesuffix("+").split(".")
        part: Any = text.split(",") if path.endswith("+") else json_or_text(text)
        self._check_keys(option, keys[:1])
        inner = self._nested_values.setdefault(option.name, {})
        for key in keys[:-1]:
            deeper = inner.setdefault(key, {})
            inner = deeper if isinstance(deeper, dict) else {}
        inner[keys[-1]] = part

    def _added(self, option: Option, word: str, glued: bool) -> None:
        """An option of the program around the engine, which says nothing about that."""
        self._flag = option.flag
        self.unread.append(word)
        if option.type != "switch" and not glued:
            self.unread += self._following(None if option.many else 1)

    def _unknown(self, flag: str, word: str, glued: bool) -> None:
        self._flag = flag
        suggest = self._may_suggest()
        unknown = explain_unknown(self.engine, self.table.version, flag, suggest)
        self.unread += [word, *self._following(0 if glued else unknown.takes)]
        level, message = self._lack(unknown.when), f"{self._title} {unknown.message}"
        self.findings.say(level, "unknown", message, unknown.hint, option=flag)

    def _lack(self, when: str) -> Level:
        """Return what lacking a word means: a tag that moves may still be a release that has it."""
        return "warning" if when and self.judged.moving else self.refusal

    def _may_suggest(self) -> bool:
        """Return whether to look for the nearest name again; thousands would take minutes."""
        self._suggested += 1
        return self._suggested <= SUGGESTIONS


def _shortened_choices(option: Option, limit: int = 8) -> str:
    if len(option.choices) <= limit:
        return option.takes
    return f"{', '.join(option.choices[:limit])} or {len(option.choices) - limit} others"
