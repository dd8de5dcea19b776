"""From text to commands as words: quotes, continuations, comments, variables. Nothing is executed.

The rules are those of a POSIX shell as far as published commands need them. One pass over the text;
what a shell would have to run to know (``$(…)``) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile

from recipe_core.base.errors import InputError

# The longest command or script that is read.
MAX_CHARACTERS = 64 << 10
# Words that a list of a script may have.
MAX_LISTED = 4096
# Characters that variables may add to one text, lest they multiply without end.
_EXPANDED = 64 << 10

_TOKEN = re.compile(
    r"""
    (?P<joined>\\[ \t]*\r?\n)
  | (?P<blank>[ \t\r\f\v]+)
  | (?P<list>[A-Za-z_]\w*\+?=\()
  | (?P<document><<-?[ \t]*(?P<mark>['"]?)(?P<delimiter>\w+)(?P=mark))
  | (?P<hole><[A-Za-z](?:[\w./:|\ -]{0,62}\w)?>|\{\{[^{}\n]{0,200}\}\})
  | (?P<redirect>&>>?|\d?(?:>>?|<)&?)
  | (?P<end>\n|&&|\|\|?|;;?|&|[()])
  | '(?P<literal>[^']*)'
  | "(?P<quoted>(?:[^"\\]|\\.)*)"
  | (?P<variable>\$\{[^{}\n]{1,200}\}|\$\w+|\$\((?:[^()\n]|\([^()\n]*\)){0,1000}\)
      |`[^`\n]{0,1000}`)
  | \\(?P<escaped>.)
  | (?P<plain>[^\s'"\\$`;&|<>(){\#]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)")
_INSIDE = re.compile(r"\\([\\\"$`\n])|" + _VARIABLE.pattern)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_WHOLE_LIST = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_DECLARE = frozenset({"export", "declare", "local", "readonly", "set", "setenv"})


Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words, and the variables that are set for it alone."""

    words: Words
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Script:
    """All commands of a text, in order; ``env`` is what it sets for all of them.

    ``loose_ends``: lines that end in a backslash and a blank.
    """

    commands: tuple[Command, ...]
    env: dict[str, str]
    loose_ends: int = 0


def read_script(text: str, env: Mapping[str, str] | None = None) -> Script:
    """The commands in a text.

    Args:
        text: of a shell.
        env: variables that are set before it runs.

    Raises:
        InputError: when it is longer than ``MAX_CHARACTERS`` or a quote is not closed.
    """
    if len(text) > MAX_CHARACTERS:
        size = f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read"
        raise InputError(f"the command has {size}.", field="command")
    if "\0" in text:
        raise InputError("the command holds a NUL character.", field="command")
    return _Reader(text, dict(env or {})).read()


@dataclass
class _Reader:
    text: str
    env: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    word: list[str] | None = None
    dropping: bool = False  # the next word is where a redirection goes
    documents: list[str] = field(default_factory=list)
    expanded: int = 0
    loose_ends: int = 0
    lists: dict[str, list[str]] = field(default_factory=dict)
    listed: str | None = None  # the list that the words go to
    outside: list[str] = field(default_factory=list)  # the words before that list

    def read(self) -> Script:
        at = 0
        while at < len(self.text):
            at = self._take(at)
        self._end_command()
        return Script(tuple(self.commands), self.env, self.loose_ends)

    def _take(self, at: int) -> int:
        """Read one token; where the next one starts."""
        token = _TOKEN.match(self.text, at)
        kind, value = (token.lastgroup, token.group()) if token else ("other", self.text[at])
        after = token.end() if token else at + 1
        if token is None or (kind == "other" and value in "'\""):
            message = f"the command cannot be split into words: the quote {value} is not closed."
            raise InputError(message, field="command")
        match kind:
            case "blank" | "joined":
                self.loose_ends += kind == "joined" and value.rstrip("\r\n").endswith((" ", "\t"))
                self._end_word()
            case "list" if self.word is None and self.listed is None:
                self.listed, self.outside, self.words = value[:-2], self.words, []
            case "end" if self.listed is not None:
                self._end_listed(value)
            case "end":
                self._end_command()
                return self._past_documents(after) if value == "\n" else after
            case "redirect":
                self._end_word()
                self.dropping = True
            case "document":
                self.documents.append(token["delimiter"])
            case "other" if value == "#" and self.word is None:
                end = self.text.find("\n", at)
                return len(self.text) if end < 0 else end
            case "list":
                self._add(value[:-1])
                return after - 1
            case "quoted" | "variable" if list_match := _WHOLE_LIST.fullmatch(value.strip('"')):
                self._add_all(self.lists.get(list_match[1], [list_match[0]]))
            case "variable" if not self._assigns:
                piece = self._piece(kind, token)
                self._add_all([piece] if piece == value else piece.split() or [""])
            case _:
                self._add(self._piece(kind, token))
        return after

    def _add(self, piece: str) -> None:
        self.word = self.word or []
        self.word.append(piece)

    def _add_all(self, pieces: list[str]) -> None:
        """Add a value that is cut into words: an unquoted one, or a whole list."""
        for number, piece in enumerate(pieces):
            if number:
                self._end_word()
            if piece or len(pieces) > 1 or self.word is not None:
                self._add(piece)

    @property
    def _assigns(self) -> bool:
        """Return whether the word that is read gives a variable its value, which stays whole."""
        before = self.words[1:] if self.words[:1] and self.words[0] in _DECLARE else self.words
        word = "".join(self.word or ())
        return all(map(_ASSIGNMENT.match, (*before, word)))

    def _end_listed(self, end: str) -> None:
        """A line's or the list's own end inside ``NAME=( … )``."""
        self._end_word()
        if end != ")":
            return
        name, words = str(self.listed), self.words
        self.words, self.listed = self.outside, None
        before = self.lists.get(name[:-1], []) if name.endswith("+") else []
        self.lists[name.removesuffix("+")] = [*before, *words][:MAX_LISTED]

    def _piece(self, kind: str | None, token: re.Match[str]) -> str:
        match kind:
            case "quoted":
                return _INSIDE.sub(
                    lambda m: m[1].replace("\n", "") if m[1] else self._value(m, 2), token["quoted"]
                )
            case "variable":
                variable = _VARIABLE.fullmatch(token["variable"])
                return self._value(variable, 1) if variable else token["variable"]
            case "literal" | "escaped":
                return token[kind]
            case _:
                return token.group()

    def _value(self, token: re.Match[str], first: int) -> str:
        """Say what the text itself gives a variable, or its default; else as it is written."""
        name, default = token[first] or token[first + 2], token[first + 1]
        value = self.env.get(name, default)
        if value is None or self.expanded + len(value) > _EXPANDED:
            return token.group()
        self.expanded += len(value)
        return value

    def _end_word(self) -> None:
        if self.word is None:
            return
        if not self.dropping:
            self.words.append("".join(self.word))
        self.word, self.dropping = None, False

    def _end_command(self) -> None:
        self._end_word()
        self.dropping = False
        words, self.words = self.words, []
        set_here = dict(map(self._assigned, takewhile(_ASSIGNMENT.match, words)))
        rest = tuple(dropwhile(_ASSIGNMENT.match, words))
        if not rest:
            self.env |= set_here
        elif rest[0] in _DECLARE:
            self.env |= dict(self._assigned(word) for word in rest[1:] if _ASSIGNMENT.match(word))
        else:
            self.commands.append(Command(rest, set_here))

    def _past_documents(self, at: int) -> int:
        """Past the lines that follow ``<<END``, up to END."""
        waiting, self.documents = self.documents, []
        for delimiter in waiting:
            token = re.compile(rf"^\t*{re.escape(delimiter)}[ \t]*$", re.MULTILINE).search(
                self.text, at
            )
            at = token.end() if token else len(self.text)
        return at

    def _assigned(self, word: str) -> tuple[str, str]:
        """Name and value of a word that sets a variable, or adds to it (``NAME+=…``)."""
        name, _, value = word.partition("=")
        if not name.endswith("+"):
            return name, value
        before = self.env.get(name[:-1], "")
        return name[:-1], (before + value)[:MAX_CHARACTERS]
