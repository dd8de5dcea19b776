"""Recipes and bundles hold no secrets.

A secret is recognised by its form, by its name, or because it is in this process's environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.payload.launcher.redact import always_secret, called_secret, secret_kind

# Shorter values of variables are not searched for in files: they occur by chance.
SHORTEST = 8

_HINT = (
    "Remove it: pass secrets through the environment when the bundle starts, "
    "or name a Kubernetes Secret (token_secret, api_key_secret)."
)


def refuse_secrets(parts: Mapping[str, Any], *, by_name: tuple[str, ...] = ()) -> None:
    """Check the texts of ``parts``; in ``by_name`` parts, names count as well.

    Raises:
        InputError: for the first text that looks like a secret, or is called one.
    """
    for part, value in parts.items():
        for field, text in _named_texts(value, part):
            kind = secret_kind(text)
            if kind is None and part in by_name and called_secret(field, text):
                kind = "a secret"
            if kind is not None:
                raise InputError(
                    f"looks like {kind}; recipes and bundles must not contain secrets.",
                    field=field,
                    hint=_HINT,
                )


def is_secret(field: str, value: Any) -> bool:
    return any(
        secret_kind(text) or called_secret(name, text) for name, text in _named_texts(value, field)
    )


def refuse_planted(files: Mapping[str, bytes]) -> None:
    """Check that no file holds the value of an environment variable that is named like a secret.

    Raises:
        InputError: names the file and the variable.
    """
    for name, value in os.environ.items():
        if len(value) < SHORTEST or not called_secret(name, value):
            continue
        # A word in such a variable (DESKTOP_SESSION) may stand in files by chance.
        if value.isalpha() and not always_secret(name):
            continue
        holding = next((path for path, data in files.items() if os.fsencode(value) in data), None)
        if holding is not None:
            raise InputError(
                f"contains the value of the environment variable {name}; "
                "bundles must not contain secrets.",
                field=holding,
                hint=_HINT,
            )


def _named_texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{field} (a key)", str(key)
            yield from _named_texts(item, f"{field}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_texts(item, field)
