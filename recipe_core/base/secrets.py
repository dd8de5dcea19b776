"""Recipes and bundles hold no secrets.

A secret is recognised by its form, by its name, or because it is in this process's environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError

SHORTEST = 8
"""Shorter values of variables are not searched for in files: they occur by chance."""

_FORMS = {
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "an API key": r"\b(?:sk|nvapi|xai|gsk)[-_][A-Za-z0-9_-]{16,}",
    "a GitHub token": r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{22,}",
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "a signed web token": r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "an address with a password": r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@",
}
_PATTERNS = {kind: re.compile(form) for kind, form in _FORMS.items()}
_NAMES = re.compile(
    r"(?:^|_)(?:api_?keys?|password|passwd|secret|token|access_key|private_key|credentials?)$",
    re.IGNORECASE,
)
_REFERENCES = frozenset({"token_secret"})  # the name of a secret, not the secret
_HINT = (
    "Remove it: pass secrets through the environment when the bundle starts, "
    "or name a Kubernetes Secret (token_secret)."
)


def refuse_secrets(parts: Mapping[str, Any], *, by_name: tuple[str, ...] = ()) -> None:
    """Check the texts of ``parts``; in ``by_name`` parts, names count as well.

    Raises:
        InputError: for the first text that looks like a secret, or is called one.
    """
    for part, value in parts.items():
        for field, text in _texts(value, part):
            kind = _form(text)
            if kind is None and part in by_name and _is_called_secret(field, text):
                kind = "a secret"
            if kind is not None:
                raise InputError(
                    f"looks like {kind}; recipes and bundles must not contain secrets.",
                    field=field,
                    hint=_HINT,
                )


def is_secret(field: str, value: Any) -> bool:
    """Whether a value looks like a secret or is called one by its dotted field."""
    return any(_form(text) or _is_called_secret(name, text) for name, text in _texts(value, field))


def _form(text: str) -> str | None:
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(text)), None)


def _is_called_secret(field: str, text: str) -> bool:
    name = field.rpartition(".")[2]
    return bool(text) and name not in _REFERENCES and _NAMES.search(name) is not None


def refuse_planted(files: Mapping[str, bytes]) -> None:
    """Check that no file holds the value of an environment variable that is named like a secret.

    Raises:
        InputError: names the file and the variable.
    """
    for name, value in os.environ.items():
        if not _NAMES.search(name) or len(value) < SHORTEST:
            continue
        holding = next((path for path, data in files.items() if value.encode() in data), None)
        if holding is not None:
            raise InputError(
                f"contains the value of the environment variable {name}; "
                "bundles must not contain secrets.",
                field=holding,
                hint=_HINT,
            )


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Every text inside plain values, keys included, with its dotted field."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{field} (a key)", str(key)
            yield from _texts(item, f"{field}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, field)
