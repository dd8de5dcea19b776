"""Edits of a command: other settings in place of some of its parts, all else as it stands."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from recipe_core.commands.arguments import (
    SUGGESTIONS,
    Arguments,
    Part,
    is_open,
    parse_option_value,
)
from recipe_core.commands.findings import Finding
from recipe_core.commands.unknown_words import nearest_word
from recipe_core.commands.words import Words
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import option_successor, release_of_change
from recipe_core.engines.options import Option, OptionTable

# A flag and its value: a text or a number, a tuple of texts, or True for the flag alone.
Setting = tuple[str, Any]

# Codes of errors about words, which can be left out or replaced.
_ABOUT_WORDS = frozenset({"unknown", "key", "value", "switch-value", "no-value", "model-place"})


def set_options(
    arguments: Arguments, values: Mapping[str, Any], *, without: Collection[str] = ()
) -> Words:
    """The words with options, by name, set to other values; one that is not there comes last.

    A switch is only turned on, by its flag alone (True). ``without``: options that are left out.
    """
    table, parts = arguments.table.by_name, arguments.parts
    settings = {name: (table[name].flag, value) for name, value in values.items()}
    instead = {
        n: [settings[part.option]] for n, part in enumerate(parts) if part.option in settings
    }
    instead |= {n: [] for n, part in enumerate(parts) if part.option in without}
    present = {part.option for part in parts}
    new = [setting for name, setting in settings.items() if name not in present]
    return _edit_words(parts, instead, new)


def _edit_words(
    parts: Sequence[Part], instead: Mapping[int, Sequence[Setting]], new: Sequence[Setting] = ()
) -> Words:
    """The words of parts, with settings in place of some, by their numbers, and new ones last."""
    out: list[str] = []
    for n, part in enumerate(parts):
        if n not in instead:
            out += part.words
        for flag, value in instead.get(n, ()):
            out += _respell(part, value) if flag == part.flag else _spell(flag, value)
    return (*out, *(word for setting in new for word in _spell(*setting)))


def _spell(flag: str, value: Any) -> list[str]:
    if value is True:
        return [flag]
    return [flag, *value] if isinstance(value, tuple) else [flag, str(value)]


def _respell(part: Part, value: Any) -> list[str]:
    """A part with another value, in the user's spelling of its flag."""
    spelling, equals, _ = part.words[0].partition("=")
    if value is True or not spelling.startswith("-"):
        return _spell(part.flag, value)
    if equals:
        return [f"{spelling}={value}"]
    # a value that is glued to a short flag leaves no flag to keep
    return [spelling if len(part.words) > 1 else part.flag, str(value)]


def mend_words(arguments: Arguments) -> tuple[Words, dict[str, Any]] | None:
    """The words without what the engine refuses, or with what stands for it now.

    With the flags that change: their value, other words for them, None where they are left out.
    None where no word is refused.
    """
    parts, instead = arguments.parts, dict[int, list[Setting]]()
    for error in arguments.findings.errors:
        for n, part in enumerate(parts if error.code in _ABOUT_WORDS else ()):
            if part.flag == error.option or part.flag.startswith(f"{error.option}."):
                settings = _replace_part(arguments, part, error)
                instead |= {} if settings is None else {n: settings}
    changes: dict[str, Any] = {}
    for n in sorted(instead, key=lambda n: (parts[n].words[0][:1] != "-", n)):
        flag, words = parts[n].flag, " ".join(word for s in instead[n] for word in _spell(*s))
        changes[flag] = dict(instead[n]).get(flag, words or None)
    return (_edit_words(parts, instead), changes) if changes else None


def _replace_part(arguments: Arguments, part: Part, error: Finding) -> list[Setting] | None:
    """Return what stands for a part that is refused; None where that part is not."""
    table, texts = arguments.table, part.texts
    if error.code == "model-place":
        return [(part.flag, part.words[0])]
    if error.code == "unknown":
        return _successors(part, table) or _respell_flag(arguments, part)
    option = table.by_name.get(part.option or "")
    if option is None:
        return []
    if error.code == "key":
        return _other_keys(arguments, part, option)
    if error.code == "switch-value":
        return [(option.flag, True)] if arguments.values.get(option.name) else []
    if error.code == "value" and len(texts) == 1:
        after = option_successor(table.engine, option.flag, table, value=texts[0])
        if after is not None:
            return [(option.flag, str(after.value(texts[0])))]
        gone = grammars()[table.engine].gone_word(option.flag, value=texts[0])
        nearest = None if gone else _misspelt_word(arguments, texts[0], option.choices)
        return [] if nearest is None else [(option.flag, nearest)]
    return []


def _misspelt_word(arguments: Arguments, text: str, names: Sequence[str]) -> str | None:
    """The known word of which a text is a misspelling; none in a command that is mostly unknown.

    To look for thousands would take minutes.
    """
    few = len(arguments.findings.errors) <= SUGGESTIONS
    return nearest_word(text, names) if few else None


def _successors(part: Part, table: OptionTable) -> list[Setting]:
    """Return what stands for a gone option; nothing where it cannot say the same."""
    after = option_successor(table.engine, part.flag, table)
    if after is None:
        return []
    option, texts = table.by_name[after.option], part.texts
    if after.values:
        value = after.value(texts[0] if texts else True)
        texts = () if value is None else (str(value),)
    if bool(texts) == (option.type == "switch"):
        return []
    if texts and option.choices and texts[0] not in option.choices:
        return []
    return [(f"{after.flag}.{after.path}" if after.path else after.flag, texts or True)]


def _respell_flag(arguments: Arguments, part: Part) -> list[Setting]:
    """A misspelt flag as the engine spells it, with its values; nothing where none is meant.

    None is where the word was another release's, where the option stands elsewhere in the command,
    and where it does not take such values.
    """
    table, texts = arguments.table, part.texts
    gone = grammars()[table.engine].gone_word(part.flag) is not None
    if gone or release_of_change(table.engine, table.version, part.flag):
        return []
    flag = _misspelt_word(arguments, part.flag, tuple(table.by_spelling))
    if flag is None or table.by_spelling[flag].name in {**arguments.values, **arguments.open}:
        return []
    option, glued = table.by_spelling[flag], "=" in part.words[0]
    if option.type == "switch":  # a word after it is none of its own
        return [] if glued else [(flag, texts or True)]
    read = (is_open(text) or parse_option_value(option, text) is not None for text in texts)
    if not texts or not all(read):
        return []
    return [(f"{flag}={texts[0]}", True)] if glued else [(flag, texts)]


def _other_keys(arguments: Arguments, part: Part, option: Option) -> list[Setting] | None:
    """A JSON option with successors for the keys that it does not have, or without them."""
    value = arguments.values.get(option.name)
    if key := _nested_key(part):
        if key in option.keys:
            return None
        inner = value.get(key) if isinstance(value, dict) else None
        keys = _succeeding_keys(arguments, option, {key: inner})
        return [(f"{option.flag}.{name}", str(text)) for name, text in keys.items()]
    if not isinstance(value, dict):
        return []
    nested = {_nested_key(other) for other in arguments.parts if other.option == option.name}
    value = {key: inner for key, inner in value.items() if key not in nested}
    keys = _succeeding_keys(arguments, option, value)
    return [(option.flag, json.dumps(keys, separators=(",", ":")))] if keys else []


def _nested_key(part: Part) -> str:
    """The key that a part sets in a JSON option (``--flag.key value``); empty for a whole one."""
    return part.flag.partition(".")[2].removesuffix("+").partition(".")[0]


def _succeeding_keys(arguments: Arguments, option: Option, value: dict[str, Any]) -> dict[str, Any]:
    table = arguments.table
    out = {key: inner for key, inner in value.items() if key in option.keys}
    for key in [key for key in value if key not in out]:
        after = option_successor(table.engine, option.flag, table, key=key)
        if after is None and grammars()[table.engine].gone_word(option.flag, key) is None:
            unused = [name for name in option.keys if name not in value]
            nearest = _misspelt_word(arguments, key, unused)
            out |= {} if nearest is None else {nearest: value[key]}
        elif after is not None and after.path and after.option == option.name:
            new = after.value(value[key])
            out |= {} if new is None or after.path in out else {after.path: new}
    return out
