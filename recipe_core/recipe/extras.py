"""Options and variables that a user adds to what is computed. They are passed on; what the estimate rests on cannot be changed by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recipe_core.documents import parse_json
from recipe_core.engines.deployment import Launch, Process
from recipe_core.engines.spec import Engine
from recipe_core.engines.table import Option
from recipe_core.errors import InputError, unknown

_ENGINE_ROLES = ("server", "worker", "prefill", "decode")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def typed_options(spec: Engine, words: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, in their types; text becomes what the option takes.

    Raises:
        InputError: for options that this version of the engine does not have, and values of another type.
    """
    out: dict[str, Any] = {}
    for word, value in words.items():
        option = _option(spec, word)
        out[option.name] = _typed(option, value) if isinstance(value, str) else value
    spec.argv(out)  # names what is wrong with a value
    return out


def _option(spec: Engine, word: str) -> Option:
    name = word.lstrip("-").replace("-", "_")
    option = spec.options.by_name.get(name) or spec.options.by_spelling.get(word)
    if option is None:
        message, hint = unknown(f"{spec.title} {spec.version} option", word, list(spec.options.by_name))
        raise InputError(message, field="options", hint=hint)
    return option


def _typed(option: Option, text: str) -> Any:
    field = f"options.{option.name}"
    if option.many:
        return [_typed(option.model_copy(update={"many": False}), each) for each in text.split(",")]
    if text in option.words:
        return text
    try:
        match option.type:
            case "switch":
                return {"true": True, "false": False}[text.casefold()]
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "json":
                return parse_json(text, field)
            case _:
                return text
    except (ValueError, KeyError):
        takes = "true or false" if option.type == "switch" else option.takes
        raise InputError(f"{option.flag} takes {takes}, not {text!r}.", field=field) from None


def with_extras(started: Launch, spec: Engine, options: Mapping[str, Any], environment: Mapping[str, str]) -> Launch:
    """The launch with options at the end of every command of the engine, and variables for each.

    Raises:
        InputError: where one is set already to something else: the estimate, or starting at all, depends on it.
    """
    for name, value in options.items():
        if name in started.options and started.options[name] != value:
            flag = spec.options.by_name[name].flag
            message = f"{flag} is {started.options[name]!r} in what was estimated, not {value!r}."
            raise InputError(message, field=f"options.{name}", hint="Say it in the request (candidate, workload), so that it is estimated.")
    more = {name: value for name, value in options.items() if name not in started.options}
    words = tuple(spec.argv(more))
    processes = tuple(_extended(process, words, environment) for process in started.processes)
    return replace(started, processes=processes, options=started.options | more)


def _extended(process: Process, words: tuple[str, ...], environment: Mapping[str, str]) -> Process:
    if process.role not in _ENGINE_ROLES:
        return process
    for name, value in environment.items():
        if process.env.get(name, value) != value:
            message = f"is {process.env[name]!r} in what was estimated, not {value!r}."
            raise InputError(message, field=f"environment.{name}", hint="Leave it out.")
    return replace(process, argv=(*process.argv, *words), env={**process.env, **environment})
