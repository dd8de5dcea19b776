"""Changes of a command's own words after which it starts, the fewest first, each really judged.

Before any other split: a shorter context, smaller steps, a larger share of memory, fewer sequences
or no graphs where graphs lack memory, or the command without what its engine refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.commands.arguments import Arguments, Finding, Place, is_open
from recipe_core.commands.launches import Launch
from recipe_core.commands.render import Rendered
from recipe_core.commands.verdict import OK, Case, View
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import option_successor
from recipe_core.engines.options import Meaning, Option, OptionTable
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.starts import longest_context, start_errors, starts_with
from recipe_core.plans.splits import broken_rules

# Codes of findings about words that can be left out or replaced.
_REFUSED = frozenset({"unknown", "key", "value", "switch-value", "no-value", "model-place"})

Words = tuple[str, ...]


def with_values(launch: Launch, arguments: Arguments, values: Mapping[str, Any]) -> Words:
    """The words after the program with options, by name, set to other values.

    Where an option stands it keeps its spelling; one that is not there comes at the end. A switch
    is only turned on, by its flag alone.
    """
    table, edits, new = arguments.judged.table.by_name, dict[Place, list[str]](), list[str]()
    for name, value in values.items():
        option, text = table[name], str(value)
        switch = option.type == "switch"
        places = [place for place in arguments.places if place.option == name]
        for place in places:
            edits[place] = [option.flag] if switch else _respell_option(launch.args, place, text)
        if not places:
            new += [option.flag] if switch else [option.flag, text]
    return (*_edited(launch.args, edits), *new)


def _respell_option(words: Words, place: Place, text: str) -> list[str]:
    flag, equals, _ = words[place.start].partition("=")
    if equals:
        return [f"{flag}={text}"]
    # a value that is glued to a short flag leaves no flag to keep
    return [flag if place.end - place.start > 1 else place.flag, text]


def _edited(words: Words, edits: Mapping[Place, list[str]]) -> Words:
    """The words with others at some places."""
    out, at = list[str](), 0
    for place in sorted(edits, key=lambda place: place.start):
        out += [*words[at : place.start], *edits[place]]
        at = place.end
    return (*out, *words[at:])


def mend_words(launch: Launch, arguments: Arguments) -> tuple[Words, dict[str, Any]] | None:
    """The words without what the engine refuses, or with what stands for it now.

    With the flags that change: their new spelling, None where they are left out. None where there
    is nothing to mend, or something that leaving out does not mend.
    """
    errors = [finding for finding in arguments.findings if finding.level == "error"]
    if not errors or any(finding.code not in _REFUSED or not finding.option for finding in errors):
        return None
    edits: dict[Place, list[str]] = {}
    changes: dict[str, Any] = {}
    for place in arguments.places:
        for error in errors:
            if error.option == place.flag or place.flag.startswith(f"{error.option}."):
                edits[place], change = _replacement_words(launch, arguments, place, error)
                changes |= change
    return (_edited(launch.args, edits), changes) if changes else None


def _replacement_words(
    launch: Launch, arguments: Arguments, place: Place, error: Finding
) -> tuple[list[str], dict[str, Any]]:
    """Return what stands for the words of a refused option, and the change in words."""
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
        after = option_successor(table.engine, option.flag, table, value=before[0])
        if after is not None:
            text = str(after.value(before[0]))
            return _respell_option(launch.args, place, text), {option.flag: text}
    if error.code == "unknown" and (words := _succeeding(place, before, table)):
        return words, {place.flag: " ".join(words)}
    return [], {place.flag: None}


def _succeeding(place: Place, before: list[str], table: OptionTable) -> list[str]:
    """The words that stand for a gone option; none where they cannot say the same."""
    after = option_successor(table.engine, place.flag, table)
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
        argument.flag.partition(".")[2].removesuffix("+").partition(".")[0]
        for argument in arguments.places
        if argument.option == option.name
    }
    whole_keys = {k: v for k, v in value.items() if k not in nested}
    kept_keys = _new_keys(arguments, option, whole_keys)
    if not kept_keys:
        return [], {option.flag: None}
    text = json.dumps(kept_keys, separators=(",", ":"))
    return _respell_option(launch.args, place, text), {option.flag: text}


def _new_keys(arguments: Arguments, option: Option, value: dict[str, Any]) -> dict[str, Any]:
    table = arguments.judged.table
    out = {key: part for key, part in value.items() if key in option.keys}
    for key in value.keys() - out.keys():
        after = option_successor(table.engine, option.flag, table, key=key)
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
    before = launch.before or _program_words(launch.program)
    if any(is_open(word) for word in (*before, *words)):
        return None
    return Rendered((*before, *words), dict(launch.assigned) if launch.before else {})


def _program_words(program: Words) -> Words:
    return ("python3", *program) if program and program[0] == "-m" else program


# The largest share of memory that is proposed: the rest is the driver's and other processes'.
FULLEST = 0.95
SHARE_STEP = 0.01
# Tokens of the smallest step that is proposed.
SMALLEST_STEP = 256
# Sequences of the smallest step that is proposed.
FEWEST_SEQUENCES = 8
# The probability that a change must have where none makes the start sure.
PROBABLY = 0.5

# What options say, by meaning.
Values = dict[Meaning, float]

# Fields of a request that stand for the options that are changed.
_FIELDS: dict[Meaning, str] = {
    "max_context": "workload.max_context",
    "max_batched_tokens": "candidate.max_batched_tokens",
    "memory_fraction": "candidate.memory_fraction",
    "max_num_seqs": "candidate.max_num_seqs",
    "eager": "candidate.eager",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A command with other words, to be judged: ``fields`` of a request, and flags, as they are."""

    view: View
    case: Case
    fields: Mapping[str, Any]
    options: Mapping[str, Any]

    def keep(self, verdict: View) -> None:
        """Add the change to its view, where the changed command starts at least probably."""
        chance = float(verdict.columns["start_probability"][verdict.row])
        probable = verdict.verdict == "uncertain" and chance >= PROBABLY
        if not OK[verdict.verdict] and not probable:
            return
        change: dict[str, Any] = {
            "set": dict(self.fields),
            "options": dict(self.options),
            "candidate": verdict.plan.candidate(verdict.row),
            "verdict": verdict.verdict,
            "start_probability": chance,
        }
        command = whole_command(self.case.launch, self.case.launch.args)
        if command is not None:
            change |= {"command": str(command), "argv": list(command.argv)}
        self.view.changes.append(change)


def find_attempts(view: View, read: Callable[[Launch], Case]) -> list[Attempt]:
    """Return what is worth trying for a command that does not surely start; nothing for any other.

    ``read``: makes a case of a launch with other words.
    """
    if OK[view.verdict]:
        return []
    case, options = view.ready.case, dict[str, Any]()
    words = mend_words(case.launch, case.arguments) if view.refused_words else None
    if words is not None:
        case = view.mended = read(replace(case.launch, args=words[0]))
        options = words[1]
    elif view.refused_words:
        return []  # what is wrong is not in the words alone
    out = [Attempt(view, case, {}, options)] if options else []
    for values in _memory_values(view):
        by_option = {_option_of_meaning(case, meaning): value for meaning, value in values.items()}
        settable = {name: value for name, value in by_option.items() if name is not None}
        if len(settable) < len(values):
            continue
        changed = with_values(case.launch, case.arguments, settable)
        table = case.arguments.judged.table.by_name
        flags = {table[name].flag: value for name, value in settable.items()}
        fields = {_FIELDS[meaning]: value for meaning, value in values.items()}
        mending = read(replace(case.launch, args=changed))
        out.append(Attempt(view, mending, fields, {**options, **flags}))
    return out


def _option_of_meaning(case: Case, meaning: Meaning) -> str | None:
    """The name of the option that says something, where it counts as estimates do."""
    shared = case.meant.attention_dp and meaning == "max_batched_tokens"
    means = grammars()[case.launch.engine].means
    return None if shared else next((name for name, m in means.items() if m == meaning), None)


def _memory_values(view: View) -> list[Values]:
    """Values with which the command's own split starts, where only memory is in the way.

    Surely, by a single option or else by several; where none of these is sure, probably.
    """
    plan, row = view.plan, view.row
    if view.refused or not broken_rules(plan, row) <= {"memory"}:
        return []
    setting, case = view.group.block.setting, view.cases.take(np.array([row]))
    sure = start_errors().sure
    if case.disaggregated[0] or starts_with(setting, case, sure)[0]:
        return []
    workload = view.ready.problem.workload
    shortest: int | None = workload.prompt_tokens + workload.output_tokens
    if view.ready.case.meant.max_context == "auto":
        shortest = None
    for probability in (sure, PROBABLY):
        options = _Options(setting, case, shortest, probability)
        if starts_with(setting, case, probability)[0]:
            break
        if values := options.single() or options.several():
            return values
    return []


@dataclass(frozen=True, slots=True)
class _Options:
    """Values of options with which a single case starts with a probability.

    ``shortest``: tokens of context that the load needs, None where the context is not in question.
    """

    setting: Setting
    case: Cases
    shortest: int | None
    probability: float

    def single(self) -> list[Values]:
        """One option each: a shorter context, smaller steps, a larger share of memory.

        Where only captured graphs lack memory: fewer sequences, each of which they need a block of
        cache for, a larger share, or no graphs.
        """
        memory = serving_memory(self.setting, self.case, np.ones(1))
        graphs = bool(memory.captures_lack_memory[0])
        out: list[Values] = []
        if not graphs and (longest := self._longest(self.case)) is not None:
            out.append({"max_context": longest})
        fewer: Meaning = "max_num_seqs" if graphs else "max_batched_tokens"
        for meaning, values in ((fewer, self._halves(fewer)), ("memory_fraction", self._shares())):
            if (value := self._first(meaning, values)) is not None:
                out.append({meaning: value})
        if graphs:
            eager = replace(self.setting, engine=self.setting.engine.without_graphs())
            out += [{"eager": True}] * bool(starts_with(eager, self.case, self.probability)[0])
        return out

    def several(self) -> list[Values]:
        """The fullest share or the smallest steps, and both, each with the longest context."""
        shares, steps = self._shares(), self._halves("max_batched_tokens")
        fullest: Values = {"memory_fraction": shares[-1]} if shares else {}
        smallest: Values = {"max_batched_tokens": steps[-1]} if steps else {}
        for values in (fullest, smallest, {**fullest, **smallest}):
            changed: Any = {name: np.array([float(value)]) for name, value in values.items()}
            longest = self._longest(replace(self.case, **changed)) if values else None
            if longest is not None:
                return [{"max_context": longest, **values}]
        return []

    def _longest(self, case: Cases) -> int | None:
        if self.shortest is None:
            return None
        return longest_context(self.setting, case, self.shortest, self.probability)

    def _halves(self, column: Meaning) -> list[int]:
        """Halves of a step's tokens, as long as every sequence has one; or of its sequences."""
        sequences = int(self.case.max_num_seqs[0])
        steps = column == "max_batched_tokens"
        minimum = max(SMALLEST_STEP, sequences) if steps else FEWEST_SEQUENCES
        out, value = [], int(getattr(self.case, column)[0]) // 2
        while value >= minimum:
            out.append(value)
            value //= 2
        return out

    def _shares(self) -> list[float]:
        share = float(self.case.memory_fraction[0])
        count = round((FULLEST - share) / SHARE_STEP)
        steps = (round(share + SHARE_STEP * (n + 1), 2) for n in range(count))
        return [step for step in steps if share < step <= FULLEST]

    def _first(self, column: str, values: Sequence[float]) -> float | None:
        """The first of some values of a column with which the case starts."""
        if not values:
            return None
        changed: Any = {column: np.array(values, dtype=np.float64)}
        same = replace(self.case.take(np.zeros(len(values), dtype=np.int64)), **changed)
        starts = np.flatnonzero(starts_with(self.setting, same, self.probability))
        return values[int(starts[0])] if len(starts) else None
