"""Text as a literal of the languages that launches are written in: one function each.

Whatever is quoted here arrives as it was, character by character; references that a file makes on
purpose (``"$root"``, ``$(POD_IP)``) are never quoted, and are not texts
(``targets/placeholders.py``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from recipe_core.base.errors import NoAnswer

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
