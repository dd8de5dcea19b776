"""Options and variables that the user passes to the engine: typed, known to its version, and nothing that the candidate says."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.engines.grammar import meanings, placed
from recipe_core.engines.options import OptionTable
from recipe_core.engines.spec import Engine, engine

FIELD = "options.engine_options"
_SECRET = re.compile(
    r"(?i)(^|_)(api_?keys?|password|secret|hf_token|auth_token|access_token|ssl_keyfile|ssl_key_file)($|_)"
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


def check_options(
    values: Mapping[str, Any], chosen: Engine, table: OptionTable, stated: Container[str]
) -> dict[str, Any]:
    """The user's options of an engine, in the order given.

    Args:
        values: by name, as the table has them.
        chosen: the engine that is started.
        table: the options it has at this version.
        stated: the names that the deployment states itself.

    Raises:
        InputError: for an option that this version does not have, a value of the wrong type, a secret, or what the candidate, the workload
            or the launch says.
    """
    means, by_place = meanings(chosen), placed(chosen)
    out: dict[str, Any] = {}
    for given, value in values.items():
        name = given.replace("-", "_")
        field = f"{FIELD}.{given}"
        if _SECRET.search(name):
            raise InputError(
                "is a secret and is not part of a recipe.",
                field=field,
                hint="Set it in the engine's environment at launch.",
            )
        if name in by_place and name not in stated:
            raise InputError(
                "is set for each process by its place.", field=field, hint="Leave it out."
            )
        if name in stated or name in _OURS:
            what = means.get(name, "the launch")
            raise InputError(
                f"is stated by the recipe itself ({what}).",
                field=field,
                hint="Set it in the candidate or the workload.",
            )
        if name in means:
            raise InputError(
                f"changes the split that was estimated ({means[name]}).",
                field=field,
                hint="Set it in the candidate.",
            )
        table.argv({name: value})
        out[name] = value
    return out


def check_environment(values: Mapping[str, str]) -> dict[str, str]:
    """The user's environment variables; raises InputError for a name that cannot be one, and for secrets."""
    for name in values:
        if not _VARIABLE.fullmatch(name):
            raise InputError(
                "is no name of an environment variable.", field=f"options.environment.{name}"
            )
        if _SECRET.search(name) or name.upper().endswith(("_TOKEN", "_KEY")):
            raise InputError(
                "is a secret and is not part of a recipe.",
                field=f"options.environment.{name}",
                hint="Set it where the bundle runs.",
            )
    return dict(values)


def inner(chosen: Engine) -> Engine:
    """The engine that does the work: itself, or the one it wraps."""
    return engine(chosen.wraps) if chosen.wraps else chosen
