"""Options that a user passes on to the engine, from text to what each option takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.documents import parse_json
from recipe_core.engines.spec import Engine
from recipe_core.engines.table import Option
from recipe_core.errors import InputError, unknown


def typed_options(spec: Engine, words: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, in their types; text becomes what the option takes.

    Raises:
        InputError: for options that this version of the engine does not have, and values of another type.
    """
    found = ((_option(spec, word), value) for word, value in words.items())
    return {option.name: _typed(option, value) if isinstance(value, str) else value for option, value in found}


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
