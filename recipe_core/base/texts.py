"""Texts of a user's that become words of commands, and what no such text may hold.

A text arrives as it was, character by character, quoted as a literal of the language that a launch
is written in; references that a file makes on purpose (``"$root"``, ``$(POD_IP)``) are never
quoted, and are not texts (``targets/node_script.py``). Refused is what no command can carry
(control characters, halves of characters), what would be filled in (placeholders), and names that a
program would read as options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.base.types import Text

# All that is filled: the launcher's (``launcher/plan.py``), and those of targets for pods.
PLACEHOLDER = re.compile(r"\$\{(model|host|port|head|root|run|self|index|node\d+|port\d+|at\d+)\}")


def pieces(template: str) -> list[tuple[bool, str]]:
    """The template cut into (whether a placeholder's name, text), without empty texts."""
    parts = PLACEHOLDER.split(template)
    return [(bool(n % 2), part) for n, part in enumerate(parts) if part]


_MARKUP = re.compile(
    r"""
    [\\`*\[\]<>|~$&]             # wherever they stand
  | (?<![^\W_])_ | _(?![^\W_])  # not within a word
  | \A[-+=\#]                   # a list, a heading
    """,
    re.VERBOSE,
)
_NUMBERED = re.compile(r"\A(\d+)([.)])")
_SBATCH = re.compile(r"[\w.:/@%+=,&|*()\[\]-]+")


def quote_shell(text: str) -> str:
    return shlex.quote(text)


def quote_command(words: Iterable[str]) -> str:
    return " ".join(map(quote_shell, words))


def quote_compose(text: str) -> str:
    """Text in a compose file, where ``$`` starts a variable of whoever reads the file."""
    return text.replace("$", "$$")


def quote_kubernetes(text: str) -> str:
    """Text in a container's command, arguments or variables, where ``$(NAME)`` is a variable."""
    return text.replace("$", "$$")


def quote_go_template(text: str) -> str:
    """Text in what Go's ``text/template`` renders, where ``{{`` starts an action."""
    return text.replace("{{", "{{`{{`}}")


def quote_sbatch(value: object) -> str:
    """A value in a ``#SBATCH`` line, which knows no quotes.

    Raises:
        NoAnswer: for a value that such a line cannot carry.
    """
    text = str(value)
    if not _SBATCH.fullmatch(text):
        message = f"a line of #SBATCH cannot carry {text[:80]!r}."
        raise NoAnswer(message, hint="Use letters, digits and . : / @ % + = , & | * ( ) [ ] -.")
    return text


def quote_markdown(text: str) -> str:
    """Text of one line within a paragraph of Markdown."""
    text = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _NUMBERED.sub(r"\1\\\2", text)


def quote_markdown_code(text: str) -> str:
    """Text of one line as inline code of Markdown."""
    text = " ".join(text.split())
    fence = "`" * (_longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def quote_markdown_block(text: str) -> str:
    """Lines as a block of code of Markdown."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


# First bytes of pickles, zips, GGUF, NumPy arrays and gzip.
_BINARY = (b"\x80", b"PK", b"GGUF", b"\x93NUMPY", b"\x1f\x8b")
# Control characters but tabs and ends of lines.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Lone surrogates: halves of a character, which no file can hold.
_HALF = re.compile("[\ud800-\udfff]")
_BREAK = re.compile(r"[\t\n\r\u2028\u2029]")


def read_upload_text(
    data: bytes, name: str, limit: int, expected: str, error: type[InputError], field: str
) -> str:
    """The text of a file of at most ``limit`` bytes; ``expected`` describes it in the hint.

    Raises:
        InputError: of the class ``error``, when it is too large or not text.
    """
    hint = f"Upload {expected}."
    if len(data) > limit:
        message = f"{name} has {len(data):,} bytes; the limit is {limit:,}."
        raise error(message, field=field, hint=hint)
    if data.startswith(_BINARY) or b"\x00" in data[:1024]:
        raise error(f"{name} is not text.", field=field, hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{name} is not UTF-8 text.", field=field, hint=hint) from None


def flaw_of_text(text: str) -> tuple[str, str] | None:
    """Return the flaw of a text that becomes part of a command, and the fix; None for none."""
    if control := _CONTROL.search(text):
        return f"holds the control character {control[0]!r}", "Remove it."
    if half := _HALF.search(text):
        return f"holds half a character ({half[0]!r})", "Write the whole character."
    if filled := PLACEHOLDER.search(text):
        return f"holds {filled[0]}, which is filled in at a launch", "Write the value itself."
    return None


def flaw_of_name(text: str) -> tuple[str, str] | None:
    """Return the flaw of a name (of a model, a host, an image), and the fix; None for none."""
    if text.startswith("-"):
        fix = "Leave the dash out; a folder may have ./ before it."
        return "begins with a dash, which programs read as an option", fix
    if _BREAK.search(text):
        return "holds a tab or the end of a line", "Write it on one line."
    return flaw_of_text(text)


def check_texts(value: Any, field: str) -> None:
    """Check every text inside plain values, keys included.

    Raises:
        InputError: naming the field of the first that is not allowed, and the fix.
    """
    for where, text in _walk_texts(value, field):
        if (flaw := flaw_of_text(text)) is not None:
            raise InputError(f"{flaw[0]}.", field=where, hint=flaw[1])


def check_name(text: str, field: str, error: type[InputError] = InputError) -> str:
    """The name.

    Raises:
        InputError: of the class ``error``, when it is not allowed.
    """
    if (flaw := flaw_of_name(text)) is not None:
        raise error(f"{text[:80]!r} {flaw[0]}.", field=field, hint=flaw[1])
    return text


def a_name(value: Any) -> Any:
    """A field's value, for pydantic; raises ValueError for a text that is not allowed as a name."""
    if isinstance(value, str) and (flaw := flaw_of_name(value)) is not None:
        raise ValueError(f"{flaw[0]}: {flaw[1][0].lower()}{flaw[1][1:].rstrip('.')}")
    return value


# A text that stands for one thing in a command: a model, a checkpoint.
Name = Annotated[Text, AfterValidator(a_name)]


def _walk_texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk_texts(key, field)
            yield from _walk_texts(item, f"{field}.{key}"[:120])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk_texts(item, field)
