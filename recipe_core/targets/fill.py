"""Placeholders of a launch (``${model}``, ``${host}`` …) replaced by what a target calls them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from recipe_core.base.errors import NoAnswer

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that a shell script holds in a variable or array element, known when it runs."""

    name: str


Values = Mapping[str, "str | Variable"]


def fill(template: str, values: Mapping[str, str], literal: Callable[[str], str] = str) -> str:
    """``template`` with every placeholder replaced; ``literal`` escapes what stands between them.

    Raises:
        NoAnswer: for a placeholder that the target has no value for.
    """
    return "".join(
        _value(values, text) if is_name else literal(text) for is_name, text in _pieces(template)
    )


def shell_word(template: str, values: Values) -> str:
    """One word of a shell command: literals quoted, variables expanded inside double quotes.

    Raises:
        NoAnswer: for a placeholder that the target has no value for.
    """
    if not template:
        return "''"
    return "".join(
        _shell(_value(values, text) if is_name else text) for is_name, text in _pieces(template)
    )


def kubernetes_literal(text: str) -> str:
    """Text escaped for a container's command, where ``$(`` starts a variable."""
    return text.replace("$(", "$$(")


def compose_literal(text: str) -> str:
    """Text escaped for a compose file, where ``$`` starts a variable."""
    return text.replace("$", "$$")


def _shell(value: str | Variable) -> str:
    if isinstance(value, Variable):
        return f'"${{{value.name}}}"' if "[" in value.name else f'"${value.name}"'
    return shlex.quote(value)


def _pieces(template: str) -> list[tuple[bool, str]]:
    """The template cut into (whether a placeholder's name, text), without empty texts."""
    parts = _PLACEHOLDER.split(template)
    return [(bool(n % 2), part) for n, part in enumerate(parts) if part]


def _value(values: Mapping[str, _T], name: str) -> _T:
    if name not in values:
        available = ", ".join(values)
        message = f"the launch needs ${{{name}}}, which this target lacks. Available: {available}."
        raise NoAnswer(message, hint="Choose another target.")
    return values[name]
