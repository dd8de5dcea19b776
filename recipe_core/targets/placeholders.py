"""A launch's words in the language of a target: text quoted, placeholders filled.

A placeholder (``${model}``, ``${head}``) becomes a text, which is quoted as every other text is, or
a ``Variable``, which only the target knows when it runs. So no text is ever taken for a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipe_core.base import quoting
from recipe_core.base.errors import NoAnswer
from recipe_core.base.quoting import pieces


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that is known when a launch runs, by the name that its target has for it."""

    name: str


Values = Mapping[str, "str | Variable"]


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a language writes a text, a reference to a variable, and nothing at all."""

    text: Callable[[str], str]
    reference: Callable[[str], str]
    nothing: str = ""


def _shell_reference(name: str) -> str:
    return f'"${{{name}}}"' if "[" in name else f'"${name}"'


def _kubernetes_reference(name: str) -> str:
    return f"$({name})"


def _compose_reference(name: str) -> str:
    return f"${{{name}}}"


IN_SHELL = Syntax(quoting.quote_shell, _shell_reference, nothing="''")
IN_KUBERNETES = Syntax(quoting.quote_kubernetes, _kubernetes_reference)
IN_COMPOSE = Syntax(quoting.quote_compose, _compose_reference)
# Words that are quoted later, by a target whose values are all texts.
PLAIN = Syntax(str, str)


def fill_placeholders(template: str, values: Values, syntax: Syntax) -> str:
    """``template`` in a language, with every placeholder replaced.

    Raises:
        NoAnswer: for a placeholder that the target has no value for.
    """
    parts = (
        _write_piece(_placeholder_value(values, text) if is_name else text, syntax)
        for is_name, text in pieces(template)
    )
    return "".join(parts) or syntax.nothing


def _write_piece(value: str | Variable, syntax: Syntax) -> str:
    return syntax.reference(value.name) if isinstance(value, Variable) else syntax.text(value)


def _placeholder_value(values: Values, name: str) -> str | Variable:
    if name not in values:
        available = ", ".join(values)
        message = f"the launch needs ${{{name}}}, which this target lacks. Available: {available}."
        raise NoAnswer(message, hint="Choose another target.")
    return values[name]
