"""The user's options and variables of an engine: known to its version, apart from the candidate."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.texts import check_texts
from recipe_core.engines.grammar import LIMITS, option_meanings, placed_options
from recipe_core.engines.options import OptionTable
from recipe_core.engines.spec import Engine, engine

FIELD = "options.engine_options"
_SECRET = re.compile(
    r"(?i)(^|_)(api_?keys?|password|secret|hf_token|auth_token|access_token"
    r"|ssl_keyfile|ssl_key_file)($|_)"
)
_OURS = frozenset(
    {
        "host",
        "hostname",
        "port",
        "model",
        "model_id",
        "model_path",
        "served_model_name",
        "alias",
        "config",
        "headless",
    }
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables by which a shell, the loader of programs or Python runs other code than is seen in a
# bundle.
_LOADING = re.compile(
    r"PATH|(?:LD|DYLD)_\w+|PYTHON(?:PATH|HOME|STARTUP|USERBASE|PLATLIBDIR|EXECUTABLE|BREAKPOINT"
    r"|INSPECT)|ENV|BASH_ENV|BASH_FUNC_\w+|BASHOPTS|SHELLOPTS|IFS|PS4|PROMPT_COMMAND|GCONV_PATH"
    r"|CUDA_INJECTION64_PATH"
)


def check_options(
    values: Mapping[str, Any], spec: Engine, table: OptionTable, settled: Container[str]
) -> dict[str, Any]:
    """The user's options of an engine, in the order given.

    Args:
        values: by name, as the table has them.
        spec: the engine that is started.
        table: the options it has at this version.
        settled: the names that the deployment sets itself.

    Raises:
        InputError: for an option that this version does not have, a value of the wrong type or that
            no command can carry, a secret, or what the candidate, the workload or the launch sets.
    """
    means, by_place = option_meanings(spec), placed_options(spec)
    out: dict[str, Any] = {}
    for word, value in values.items():
        name = word.replace("-", "_")
        message = hint = ""
        if _SECRET.search(name):
            message = "is a secret and must not be part of a recipe."
            hint = (
                "Set it in the engine's environment at launch; parameters.api_key_secret asks "
                "callers for an API key."
            )
        elif name in by_place and name not in settled:
            message, hint = "is set for each process by its place.", "Leave it out."
        elif name in settled or name in _OURS:
            message = f"is set by the recipe itself ({means.get(name, 'the launch')})."
            hint = "Set it in the candidate or the workload."
        elif name in means and means[name] not in LIMITS:
            message = f"changes the layout that was estimated ({means[name]})."
            hint = "Set it in the candidate."
        if message:
            raise InputError(message, field=f"{FIELD}.{word}", hint=hint)
        check_texts(value, f"{FIELD}.{word}")
        table.argv({name: value})
        out[name] = value
    return out


def check_environment(values: Mapping[str, str]) -> dict[str, str]:
    """The user's environment variables.

    Raises:
        InputError: for invalid names, values that no command can carry, secrets, and what decides
            which programs and libraries are loaded.
    """
    for name, value in values.items():
        field = f"options.environment.{name}"
        if not _VARIABLE.fullmatch(name):
            raise InputError("is not a valid environment variable name.", field=field[:120])
        if _SECRET.search(name) or name.upper().endswith(("_TOKEN", "_KEY")):
            message = "is a secret and must not be part of a recipe."
            raise InputError(message, field=field, hint="Set it where the bundle runs.")
        if _LOADING.fullmatch(name):
            message = "decides which programs and libraries are loaded."
            hint = "Set it where the bundle runs, or in the image, not in a recipe."
            raise InputError(message, field=field, hint=hint)
        check_texts(value, field)
    return dict(values)


def wrapped_engine(spec: Engine) -> Engine:
    """The engine that does the work: itself, or the one it wraps."""
    return engine(spec.wraps) if spec.wraps else spec
