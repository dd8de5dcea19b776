"""The user's options and variables in a request, and options from text to their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError, unknown
from recipe_core.engines.options import Option
from recipe_core.engines.spec import Engine
from recipe_core.launch.user_options import FIELD, wrapped_engine
from recipe_core.models.checkpoint import split_revision
from recipe_core.request.schema import PlanRequest


def passing_on(
    request: PlanRequest, options: Mapping[str, Any], environment: Mapping[str, str]
) -> PlanRequest:
    """The request with more of the engine's own options and variables; these replace its own."""
    before = request.options
    more = {
        "engine_options": {**before.engine_options, **options},
        "environment": {**before.environment, **environment},
    }
    return request.model_copy(update={"options": before.model_copy(update=more)})


def passed_options(request: PlanRequest, spec: Engine) -> dict[str, Any]:
    """The request's options for an engine in their types, and the model's revision, if any.

    Raises:
        InputError: for options that this version of the engine does not have, values of another
            type, a revision that it cannot be told.
    """
    revision = split_revision(request.model)[1] if isinstance(request.model, str) else None
    if revision and "revision" not in wrapped_engine(spec).options.by_name:
        message = f"{spec.title} cannot load a revision ({revision})."
        raise InputError(message, field="model", hint="Download it and give the snapshot's folder.")
    options = typed_options(spec, request.options.engine_options)
    return {**options, "revision": revision} if revision else options


def typed_options(spec: Engine, words: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, in their types; text becomes what the option takes.

    Raises:
        InputError: for options that this version of the engine does not have, and values of
            another type.
    """
    options: dict[str, Any] = {}
    for word, value in words.items():
        option = _engine_option(spec, word)
        options[option.name] = _typed_value(option, value) if isinstance(value, str) else value
    return options


def _engine_option(spec: Engine, word: str) -> Option:
    name, table = word.lstrip("-").replace("-", "_"), wrapped_engine(spec).options
    option = table.by_name.get(name) or table.by_spelling.get(word)
    if option is None:
        message, hint = unknown(f"{spec.title} {spec.version} option", word, list(table.by_name))
        raise InputError(message, field=f"{FIELD}.{word}", hint=hint)
    return option


def _typed_value(option: Option, text: str) -> Any:
    field = f"{FIELD}.{option.name}"
    if option.many:
        single = option.model_copy(update={"many": False})
        return [_typed_value(single, item) for item in text.split(",")]
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
        raise InputError(f"{option.flag} takes {takes}, not {text!r:.80}.", field=field) from None
