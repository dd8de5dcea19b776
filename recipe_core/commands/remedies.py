"""Changes of a command's own words after which it starts, the fewest first, each really judged.

Before any other split: a shorter context, smaller steps, a larger share of memory, fewer sequences
or no graphs where graphs lack memory, or the command without what its engine refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.commands.edits import mend_words, set_options
from recipe_core.commands.rewrite import compare_commands, whole_command
from recipe_core.commands.verdict import OK, Case, View
from recipe_core.commands.words import Words
from recipe_core.engines.options import Meaning
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.starts import longest_context, start_errors, starts_with
from recipe_core.plans.splits import broken_rules

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


@dataclass(frozen=True, slots=True)
class Attempt:
    """A command with other words, to be judged: ``fields`` of a request, and flags, as they are.

    ``mends``: whether it is the command without what its engine refuses, and no more.
    """

    view: View
    case: Case
    fields: Mapping[str, Any]
    options: Mapping[str, Any]
    mends: bool = False

    def keep(self, verdict: View) -> None:
        """Add the change to its view, where the changed command starts at least probably."""
        if self.mends:
            self.view.mended = verdict
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
            difference = compare_commands(self.view.case, command)
            change |= {"command": str(command), "argv": list(command.argv)}
            change["difference"] = difference
        self.view.changes.append(change)


def find_attempts(view: View, reread: Callable[[Case, Words], Case]) -> list[Attempt]:
    """Return what is worth trying for a command that does not surely start; nothing for any other.

    ``reread``: reads a case with other words after its program.
    """
    if OK[view.verdict]:
        return []
    case, out, options = view.case, list[Attempt](), dict[str, Any]()
    if view.refused_words:
        mended = mend_words(case.arguments)
        if mended is None:
            return []  # what is wrong is not in the words alone
        words, options = mended
        case = reread(case, words)
        out.append(Attempt(view, case, {}, options, mends=True))
    table, means = case.arguments.table.by_name, case.grammar.means
    names = {meaning: name for name, meaning in reversed(means.items())}
    if case.attention_dp:
        names.pop("max_batched_tokens", None)  # which does not count there as in estimates
    for values in _memory_values(view):
        if not values.keys() <= names.keys():
            continue
        settings = {names[meaning]: value for meaning, value in values.items()}
        words = set_options(case.arguments, settings)
        changed = reread(case, words)
        flags = {table[name].flag: value for name, value in settings.items()}
        fields = {
            f"{'workload' if meaning == 'max_context' else 'candidate'}.{meaning}": value
            for meaning, value in values.items()
        }
        out.append(Attempt(view, changed, fields, {**options, **flags}))
    return out


def _memory_values(view: View) -> list[Values]:
    """Values with which the command's own split starts, where only memory is in the way.

    Surely, by a single option or else by several; where none of these is sure, probably.
    """
    if view.refused or not broken_rules(view.plan, view.row) <= {"memory"}:
        return []
    block, sure = view.plan.blocks[0], start_errors().sure
    setting, case = block.setting, block.cases.take(np.array([view.row]))
    if case.disaggregated[0]:
        return []
    workload = view.problem.workload
    shortest: int | None = workload.prompt_tokens + workload.output_tokens
    if view.case.max_context == "auto":
        shortest = None
    for probability in (sure, PROBABLY):
        if starts_with(setting, case, probability)[0]:
            break
        options = _Options(setting, case, shortest, probability)
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
        longest = None if graphs else self._longest(self.case)
        out: list[Values] = [] if longest is None else [{"max_context": longest}]
        fewer = "max_num_seqs" if graphs else "max_batched_tokens"
        for meaning, values in ((fewer, self._halves(fewer)), ("memory_fraction", self._shares())):
            out += [{meaning: value} for value in self._starting(meaning, values)[:1]]
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
        is_tokens = column == "max_batched_tokens"
        sequences, value = int(self.case.max_num_seqs[0]), int(getattr(self.case, column)[0])
        minimum = max(SMALLEST_STEP, sequences) if is_tokens else FEWEST_SEQUENCES
        halves = (value >> n for n in range(1, value.bit_length()))
        return [half for half in halves if half >= minimum]

    def _shares(self) -> list[float]:
        share = float(self.case.memory_fraction[0])
        count = round((FULLEST - share) / SHARE_STEP)
        steps = (round(share + SHARE_STEP * (n + 1), 2) for n in range(count))
        return [step for step in steps if share < step <= FULLEST]

    def _starting(self, column: str, values: Sequence[float]) -> list[float]:
        """The values of a column with which the case starts."""
        changed: Any = {column: np.array(values, dtype=np.float64)}
        same = replace(self.case.take(np.zeros(len(values), dtype=np.int64)), **changed)
        starts = starts_with(self.setting, same, self.probability) if values else ()
        return [value for value, starting in zip(values, starts, strict=True) if starting]
