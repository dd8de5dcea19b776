"""An engine's command-line options at one version, as data: ``options/<engine>-<version>.yaml``.

Tables of vLLM and SGLang are written by ``scripts/engine_options.py`` from the engines' own
parsers; those of other releases than the pinned one are files of differences
(`recipe_core.engines.options`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, field_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, look_up, unknown
from recipe_core.base.texts import PLACEHOLDER


@dataclass(frozen=True, slots=True)
class CandidateOption:
    """One field, by its ``name`` in the candidate and in ``means``, and its ``column`` of a case.

    ``usual``: what engines do where it is not stated, which a launch leaves out; None where each
    engine has a default of its own, and launches state it. ``layer``: what sets it where the user
    does not.
    """

    name: str
    column: str
    usual: float | None = None
    integral: bool = True
    layer: Literal["base", "device"] = "base"


OPTIONS = (
    CandidateOption("max_batched_tokens", "max_batched_tokens", layer="device"),
    CandidateOption("max_num_seqs", "max_num_seqs", layer="device"),
    CandidateOption("memory_fraction", "memory_fraction", integral=False),
    CandidateOption("block_size", "block_tokens"),
    CandidateOption("stream_interval", "stream_interval", usual=1),
    CandidateOption("scheduler_recv_interval", "recv_interval", usual=1),
)
# Those that every launch states.
STATED = tuple(option for option in OPTIONS if option.usual is None)
# Those that a launch states where they are not as usual, and what they are then.
USUAL = {option.name: option.usual for option in OPTIONS if option.usual is not None}
COLUMNS = {option.name: option.column for option in OPTIONS}


# Options by flag, as the fields that are not at their defaults.
Rows = dict[str, dict[str, Any]]

# Fields that differ by members; any other is replaced, and ``null`` sets its default.
LISTS = ("also", "inverse", "choices", "words", "keys")


def laid_over(newer: Rows, changes: dict[str, Any]) -> Rows:
    """The rows of a release: a newer one's, with the differences laid over them.

    Raises:
        KeyError: when a row or member to drop or to change is not there.
        ValueError: when one to add is there already.
    """
    rows = dict(newer)
    for flag in changes.get("drop", ()):
        del rows[flag]
    for flag, fields in changes.get("change", {}).items():
        rows[flag] = _change_row(rows[flag], fields)
    for flag, row in changes.get("options", {}).items():
        if flag in rows:
            raise ValueError(f"{flag} is there already")
        rows[flag] = row
    return dict(sorted(rows.items()))


def _change_row(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    out = dict(row)
    for name, value in fields.items():
        if name in LISTS:
            out[name] = _change_members(out.get(name, []), value)
        else:
            out[name] = value
    return {name: value for name, value in out.items() if value not in (None, [])}


def _change_members(values: list[str], change: dict[str, list[str]]) -> list[str]:
    dropped, added = change.get("drop", []), change.get("add", [])
    if missing := sorted(set(dropped) - set(values)):
        raise KeyError(missing[0])
    if present := sorted(set(added) & set(values)):
        raise ValueError(f"{present[0]} is there already")
    return [value for value in values if value not in dropped] + added


FOLDER = Path(__file__).with_name("options")
# Files of differences that lie over each other.
LONGEST_CHAIN = 32
_MEANINGS = (
    "model",
    "tp",
    "pp",
    "dp",
    "ep",
    "cp",
    "all_experts",
    "attention_dp",
    "attention_dp_switch",
    "nodes",
    "dtype",
    "quantization",
    "kv_dtype",
    "max_context",
    "eager",
    "chunked_prefill",
    "balanced_experts",
    "config",
    "speculative",
    "draft_tokens",
    "draft_method",
    "draft_model",
    "cache_size",
    "runtime",
    "task",
    "converted",
    "text_only",
    "media_limits",
    "encoder_mode",
)
MEANINGS = frozenset((*_MEANINGS, *(option.name for option in OPTIONS)))


def _known_meaning(name: str) -> str:
    if name in MEANINGS:
        return name
    message, hint = unknown("meaning", name, sorted(MEANINGS))
    raise ValueError(f"{message} {hint}")


# What options say about a candidate: the name of a row of `OPTIONS`, or one of its own.
# ``cache_size``: the size of the cache, for engines that are told; ``runtime``: CPU or GPU;
# ``task``: whether it makes text or pools (then ``embed``); ``converted``: what a model that makes
# text is turned into; ``text_only``: that no tower is loaded; ``media_limits``: items of each
# modality in a prompt, of which 0 leaves a tower out; ``encoder_mode``: whether ranks hold towers
# whole ("data") or cut.
Meaning = Annotated[str, AfterValidator(_known_meaning)]

_PYTHON: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "json": (dict, list),
    "switch": (bool,),
}


class Option(DataRow):
    """One option: its ``flag``, what it is ``also`` called, and the values it takes.

    ``choices``: all allowed values; ``words``: values besides those of the type ("auto" of a
    number); ``keys``: those of a JSON object. ``many``: one or more values follow; ``repeated``:
    the flag may occur again; ``optional``: the value may be missing. ``scaled``: a number may end
    in k, M … or K; ``folded``: choices in any case, with dashes or underscores. ``negated``: a
    switch that ``--no-…`` turns off, as do the flags ``inverse``. ``deprecated``: this version
    accepts it with a warning.
    """

    flag: str
    also: tuple[str, ...] = ()
    type: Literal["int", "float", "str", "json", "switch"]
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    many: bool = False
    repeated: bool = False
    optional: bool = False
    scaled: bool = False
    folded: bool = False
    negated: bool = False
    inverse: tuple[str, ...] = ()
    deprecated: bool = False

    @property
    def name(self) -> str:
        """The flag as a name: ``--tp-size`` is ``tp_size``."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.flag, *self.also, *self.turned_off_by)

    @property
    def turned_off_by(self) -> tuple[str, ...]:
        return (*((f"--no-{self.flag[2:]}",) if self.negated else ()), *self.inverse)

    @property
    def takes(self) -> str:
        """The values it takes, for a message."""
        if self.choices:
            return ", ".join(self.choices)
        kind = {"json": "JSON", "switch": "no value"}.get(self.type, self.type)
        return " or ".join([kind, *self.words])


class OptionTable(DataRow):
    """Every option of one engine at one version, by flag.

    ``means``: what options say about a candidate, for engines without a `Grammar`, which says it.
    ``any_value``: a flag takes the next word whatever it is, and none after ``=`` (llama.cpp);
    other parsers read a word that begins with a dash as a flag. ``partial``: rare options are left
    out, so that one that is not here may be there. ``same_in``: patch releases whose
    parsers were compared and have the same options.
    """

    schema_version: Literal[1]
    engine: str
    version: str
    same_in: tuple[str, ...] = ()
    options: dict[str, Option]
    means: Mapping[str, Meaning] = {}
    any_value: bool = False
    partial: bool = False

    @field_validator("options", mode="before")
    @classmethod
    def _flags(cls, value: Any) -> Any:
        """A row is keyed by its flag and need not repeat it."""
        return {flag: {"flag": flag, **row} for flag, row in value.items()}

    @cached_property
    def by_name(self) -> dict[str, Option]:
        return {option.name: option for option in self.options.values()}

    @cached_property
    def by_spelling(self) -> dict[str, Option]:
        return {flag: option for option in self.options.values() for flag in option.spellings}

    def argv(self, values: dict[str, Any]) -> list[str]:
        """Options by name as separate argv words, in the order given.

        Raises:
            InputError: for an option this version does not have, or a value of the wrong type.
        """
        return [word for name, value in values.items() for word in self._words(name, value)]

    def _words(self, name: str, value: Any) -> list[str]:
        kind = f"{self.engine} {self.version} option"
        option = look_up(kind, name, self.by_name, "options")
        if option.type == "switch":
            if not isinstance(value, bool):
                message = f"{option.flag} takes true or false, not {value!r}."
                raise InputError(message, field=f"options.{name}")
            return [option.flag] if value else []
        values = value if option.many and isinstance(value, list | tuple) else [value]
        for item in values:
            self._check(option, item)
        if option.type == "json":
            return [option.flag, *(json.dumps(item, separators=(",", ":")) for item in values)]
        return self._flagged(option, list(map(str, values)))

    def _flagged(self, option: Option, texts: list[str]) -> list[str]:
        """A flag and its values; one that is empty or begins with a dash is glued to the flag.

        Raises:
            InputError: where the engine's parser would read such a value as a flag all the same.
        """
        odd = next((text for text in texts if not text or text.startswith("-")), None)
        if odd is None or self.any_value:
            return [option.flag, *texts]
        if len(texts) == 1 and option.flag.startswith("--"):
            return [f"{option.flag}={odd}"]
        reason = "programs would read it as an option" if odd else "programs would pass over it"
        message = f"{option.flag} cannot take {odd[:80]!r}: {reason}."
        raise InputError(message, field=f"options.{option.name}", hint="Leave it out.")

    @staticmethod
    def _check(option: Option, value: Any) -> None:
        if isinstance(value, str) and PLACEHOLDER.match(value):
            return  # filled at launch, whatever the type
        # A bool is an int to Python, but not to an engine.
        number = option.type == "switch" or not isinstance(value, bool)
        typed = isinstance(value, _PYTHON[option.type]) and number
        allowed = typed and (not option.choices or str(value) in option.choices)
        if isinstance(value, float) and not math.isfinite(value):
            allowed = False
        if value not in option.words and not allowed:
            message = f"{option.flag} takes {option.takes}, not {value!r:.80}."
            raise InputError(message, field=f"options.{option.name}")
        if option.keys and isinstance(value, dict):
            for key in sorted(value.keys() - set(option.keys)):
                message, hint = unknown(f"key of {option.flag}", key, option.keys)
                raise InputError(message, field=f"options.{option.name}", hint=hint)


@cache
def option_table(engine: str, version: str) -> OptionTable:
    """The table of an engine at a version.

    Raises:
        InputError: when the file is missing or malformed, is another's, or gives a meaning to an
            option that it does not list.
    """
    file = table_file(engine, version)
    table = file.validated(_complete_table(file, engine), OptionTable)
    for field, value, expected in (
        ("engine", table.engine, engine),
        ("version", table.version, version),
    ):
        if value != expected:
            hint = f"Set `{field}: {expected}`, or rename the file."
            raise file.problem(field, f"{value!r} is not the one in the file's name", hint)
    for name in table.means:
        if name not in table.by_name:
            hint = unknown("option", name, list(table.by_name))[1]
            raise file.problem(f"means.{name}", "is not an option of the table", hint)
    return table


def _complete_table(file: DataFile, engine: str, above: tuple[str, ...] = ()) -> Any:
    """A table's plain values; a file of differences is laid over the release it differs from."""
    values = file.read()
    if not isinstance(values, dict) or "differs_from" not in values:
        return values
    newer = str(values.pop("differs_from"))
    if newer in above or len(above) > LONGEST_CHAIN:
        raise file.problem("differs_from", "leads back to itself", "Name a complete table.")
    rows = _complete_table(table_file(engine, newer), engine, (*above, newer))["options"]
    changes = {name: values.pop(name, {}) for name in ("drop", "change", "options")}
    try:
        return {**values, "options": laid_over(rows, changes)}
    except (KeyError, ValueError) as error:
        text = f"does not fit {engine}-{newer}.yaml ({error.args[0]})"
        hint = "Write both again with scripts/engine_option_changes.py."
        raise file.problem("", text, hint) from None


def table_file(engine: str, version: str) -> DataFile:
    return DataFile(FOLDER / f"{engine}-{version}.yaml", "engines")
