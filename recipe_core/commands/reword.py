"""A command with some of its words changed: what it says beside them stays as it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipe_core.commands.arguments import Arguments, Finding, Place, is_open
from recipe_core.commands.launches import Launch
from recipe_core.commands.render import Rendered
from recipe_core.engines.option_releases import successor
from recipe_core.engines.options import Option, OptionTable

_REFUSED = frozenset({"unknown", "key", "value", "switch-value", "no-value", "model-place"})
"""Codes of findings about words that can be left out or replaced."""

Words = tuple[str, ...]


def with_values(launch: Launch, arguments: Arguments, values: Mapping[str, Any]) -> Words:
    """The words after the program with options, by name, set to other values.

    Where an option stands it keeps its spelling; one that is not there comes at the end. A switch
    is only turned on, by its flag alone.
    """
    table = arguments.judged.table
    replaced: dict[int, tuple[int, list[str]]] = {}
    missing = dict(values)
    for place in arguments.places:
        if place.option is not None and place.option in values:
            option = table.by_name[place.option]
            text = str(values[place.option])
            switched = option.type == "switch"
            instead = [option.flag] if switched else _respelled(launch.args, place, text)
            replaced[place.start] = place.end, instead
            missing.pop(place.option, None)
    words = _spliced(launch.args, replaced)
    for name, value in missing.items():
        option = table.by_name[name]
        words += [option.flag] if option.type == "switch" else [option.flag, str(value)]
    return tuple(words)


def _respelled(words: Words, place: Place, text: str) -> list[str]:
    flag, equals, _ = words[place.start].partition("=")
    if equals:
        return [f"{flag}={text}"]
    # a value that is glued to a short flag leaves no flag to keep
    return [flag if place.end - place.start > 1 else place.flag, text]


def _spliced(words: Words, replaced: Mapping[int, tuple[int, list[str]]]) -> list[str]:
    """Words with ranges, by their start, replaced."""
    out: list[str] = []
    at = 0
    while at < len(words):
        end, instead = replaced.get(at, (at + 1, [words[at]]))
        out += instead
        at = max(end, at + 1)
    return out


def mended(launch: Launch, arguments: Arguments) -> tuple[Words, dict[str, Any]] | None:
    """The words without what the engine refuses, or with what stands for it now.

    With the flags that change: their new spelling, None where they are left out. None where there
    is nothing to mend, or something that leaving out does not mend.
    """
    errors = [one for one in arguments.findings if one.level == "error"]
    if not errors or any(one.code not in _REFUSED or not one.option for one in errors):
        return None
    replaced: dict[int, tuple[int, list[str]]] = {}
    changes: dict[str, Any] = {}
    for place in arguments.places:
        for error in errors:
            if _concerns(error, place):
                instead, change = _instead(launch, arguments, place, error)
                replaced[place.start] = place.end, instead
                changes |= change
    if not changes:
        return None
    return tuple(_spliced(launch.args, replaced)), changes


def _concerns(error: Finding, place: Place) -> bool:
    return error.option == place.flag or place.flag.startswith(f"{error.option}.")


def _instead(
    launch: Launch, arguments: Arguments, place: Place, error: Finding
) -> tuple[list[str], dict[str, Any]]:
    """What stands for the words of a refused option, and the change in words."""
    table = arguments.judged.table
    option = table.by_name.get(place.option or "")
    if error.code == "key" and option is not None:
        return _without_keys(launch, arguments, place, option)
    if error.code == "switch-value" and option is not None:
        turned_on = bool(arguments.values.get(option.name))
        return ([option.flag], {option.flag: True}) if turned_on else ([], {option.flag: None})
    if error.code == "model-place":
        word = launch.args[place.start]
        return [place.flag, word], {place.flag: word}
    before = _value_words(launch.args, place)
    if error.code == "value" and option is not None and len(before) == 1:
        after = successor(table.engine, option.flag, table, value=before[0])
        if after is not None:
            text = str(after.value(before[0]))
            return _respelled(launch.args, place, text), {option.flag: text}
    if error.code == "unknown" and (words := _succeeding(place, before, table)):
        return words, {place.flag: " ".join(words)}
    return [], {place.flag: None}


def _succeeding(place: Place, before: list[str], table: OptionTable) -> list[str]:
    """The words that stand for a gone option; none where they cannot say the same."""
    after = successor(table.engine, place.flag, table)
    if after is None:
        return []
    option = table.by_name[after.option]
    if after.values:
        value = after.value(before[0] if before else True)
        before = [] if value is None else [str(value)]
    if not before and option.type != "switch":
        return []
    if before and (option.type == "switch" or (option.choices and before[0] not in option.choices)):
        return []
    return [f"{after.flag}.{after.path}" if after.path else after.flag, *before]


def _without_keys(
    launch: Launch, arguments: Arguments, place: Place, option: Option
) -> tuple[list[str], dict[str, Any]]:
    """A JSON option with successors for the keys that it does not have, or without them."""
    value = arguments.values.get(option.name)
    if path := place.flag.partition(".")[2]:
        key = path.removesuffix("+").partition(".")[0]
        if key in option.keys:
            return list(launch.args[place.start : place.end]), {}
        part = value.get(key) if isinstance(value, dict) else None
        words = [
            word
            for new, text in _new_keys(arguments, option, {key: part}).items()
            for word in (f"{option.flag}.{new}", str(text))
        ]
        return words, {place.flag: " ".join(words) or None}
    if not isinstance(value, dict):
        return [], {option.flag: None}
    nested = {
        one.flag.partition(".")[2].removesuffix("+").partition(".")[0]
        for one in arguments.places
        if one.option == option.name
    }
    stated = {k: v for k, v in value.items() if k not in nested}
    kept_keys = _new_keys(arguments, option, stated)
    if not kept_keys:
        return [], {option.flag: None}
    text = json.dumps(kept_keys, separators=(",", ":"))
    return _respelled(launch.args, place, text), {option.flag: text}


def _new_keys(arguments: Arguments, option: Option, value: dict[str, Any]) -> dict[str, Any]:
    """The keys of a JSON value that an option has, and successors of those that it had."""
    table = arguments.judged.table
    out = {key: part for key, part in value.items() if key in option.keys}
    for key in value.keys() - out.keys():
        after = successor(table.engine, option.flag, table, key=key)
        new = after.value(value[key]) if after and after.option == option.name else None
        if after is not None and after.path and new is not None:
            out.setdefault(after.path, new)
    return out


def _value_words(words: Words, place: Place) -> list[str]:
    _, equals, text = words[place.start].partition("=")
    return [text] if equals else list(words[place.start + 1 : place.end])


def whole_command(launch: Launch, words: Words) -> Rendered | None:
    """The user's command with other words after its program, in front of which all stays.

    None where words are left open: a shell would read them otherwise once they are quoted.
    """
    before = launch.before or _program(launch.program)
    if any(is_open(word) for word in (*before, *words)):
        return None
    return Rendered((*before, *words), dict(launch.assigned) if launch.before else {})


def _program(program: Words) -> Words:
    return ("python3", *program) if program and program[0] == "-m" else program
