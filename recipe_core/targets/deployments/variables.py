"""Variables in the words of a file: ``$(NAME)``, ``${NAME:-default}``, ``$NAME``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Characters that variables may add to one text.
MAX_ADDED = 64 << 10
_POD = re.compile(r"\$\$|\$\((\w[\w.-]{0,200})\)")
_COMPOSE = re.compile(r"\$\$|\$\{(\w{1,200})(?:(:?[-?+])([^{}]*))?\}|\$(\w{1,200})")
_OPEN = re.compile(r"\$\{(\w{1,200})[^{}]*\}|\$\((\w{1,200})\)|\$(\w{1,200})")


def filled_pod(text: str, env: Mapping[str, str]) -> str:
    """A word of a pod: ``$(NAME)`` from its variables, as Kubernetes fills them; others stay."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])[:MAX_ADDED]

    return _POD.sub(value, text)[: len(text) + MAX_ADDED]


def filled_compose(text: str, env: Mapping[str, str]) -> str:
    """A text of a Compose file: variables of the file's own environment, else their defaults.

    Compose fills them from the user's environment, which is not known here. What has no value
    stays as it is written.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[4]
        if name is None:
            return "$"
        env_value, mark, default = env.get(name), match[2] or "", match[3] or ""
        if mark.endswith("+"):
            return default if env_value else ""
        if env_value is not None and env_value != match[0]:
            return env_value[:MAX_ADDED]
        return default if mark.endswith("-") else match[0]

    return _COMPOSE.sub(value, text)[: len(text) + MAX_ADDED]


def unset_in(words: Iterable[str]) -> tuple[str, ...]:
    """Names of variables that words still hold, in order."""
    matches = (match for word in words for match in _OPEN.finditer(word[:4096]))
    names = (match[1] or match[2] or match[3] for match in matches)
    return tuple(dict.fromkeys(names))[:32]
