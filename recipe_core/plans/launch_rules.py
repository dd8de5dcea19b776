"""Launches of training frameworks: what one can be told of a request and of its splits.

Evaluates the rules of ``engines/training/launch_rules.yaml`` and of ``launches`` in
``programs.yaml``. Where some frameworks can launch a request, the first of them is the default and
the splits of all others are refused. Where none can (Muon …), splits are estimated all the same,
and the plan says that there is no bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.base.units import gib
from recipe_core.engines.frameworks import framework
from recipe_core.engines.training_programs import (
    RequestRule,
    SplitRule,
    launch_rules,
    program_facts,
    training_engine,
)
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    TrainingCases,
    TrainingSetting,
)
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.plans.conditions import any_holds
from recipe_core.plans.launch_facts import OFFLOAD_TITLES, LaunchFacts

# The code of the rule that refuses all splits of a framework.
FRAMEWORK = "framework"


@dataclass(frozen=True, slots=True)
class LaunchRefusal(Refusal):
    """Splits that a launch cannot be told: the field of the request it is about, what to use."""

    field: str = "candidate"
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Unable:
    """Something of a request that a framework cannot be told.

    ``phrase`` ends the sentence "torchtitan cannot launch …"; ``field`` of the request it stands
    in; ``hint``: what can be launched instead, with ``value`` in the field; empty where only
    another framework helps.
    """

    phrase: str
    field: str
    hint: str = ""
    value: str | None = None


# Conditions and sentences


def _breaks(rule: RequestRule | SplitRule, subject: LaunchFacts) -> Bool | bool:
    broken = any_holds(rule.when, subject, subject.coded)
    if not np.any(broken):
        return False
    return broken & ~np.asarray(any_holds(rule.unless, subject, subject.coded))


class _Sentence(Formatter):
    """A text that names facts in braces, of one split."""

    def __init__(self, subject: LaunchFacts, i: int = 0) -> None:
        self.subject, self.i = subject, i

    def get_field(self, field_name: str, _args: Any, _kwargs: Any) -> Any:
        return self.subject.shown(field_name, self.i), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """Bytes as GiB, and lists with "or", or with commas."""
        if format_spec == "gib":
            return gib(value)
        if not isinstance(value, tuple):
            return str(super().format_field(value, format_spec))
        if format_spec == "zero":
            return " or ".join(f"ZeRO-{stage}" if stage else "no ZeRO" for stage in value)
        return (", " if format_spec == "," else " or ").join(map(str, value))


# One framework


def launch_lacks(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> Iterator[Unable]:
    """Yield what of a request the setting's framework cannot be told.

    ``offload``: where states live; ``in_pieces``: whether the loss is to be computed in
    pieces.
    """
    title = OFFLOAD_TITLES[offload]
    subject = LaunchFacts(setting, offload=offload, offload_title=title, in_pieces=in_pieces)
    text = _Sentence(subject)
    for rule in launch_rules().requests:
        if _breaks(rule, subject):
            value = None if rule.value is None else text.format(rule.value)
            yield Unable(text.format(rule.lack), rule.field, text.format(rule.use), value)


def split_rules(
    setting: TrainingSetting, cases: TrainingCases, *, degrees: bool = False
) -> Iterator[LaunchRefusal]:
    """Yield what the setting's framework cannot be told of its splits.

    ``degrees``: only what is not launched whatever else a split chooses.
    """
    shared, launches = launch_rules(), training_engine(setting.engine).launches
    rules = [*shared.degrees, *shared.expand(launches.degree_rules), *shared.nodes]
    if not degrees:
        rules += [*shared.splits, *shared.expand(launches.rules)]
    subject = LaunchFacts(setting, cases)
    for rule in rules:
        yield LaunchRefusal(
            rule.code,
            np.array(np.broadcast_to(_breaks(rule, subject), len(cases))),
            lambda i, rule=rule: _Sentence(subject, i).format(rule.says),  # type: ignore[misc]
            rule.field,
            _Sentence(subject).format(rule.use),
        )


def launch_search_rules(
    setting: TrainingSetting, cases: TrainingCases, *, degrees: bool = False
) -> list[Refusal]:
    """Return rules on splits of a search whose framework cannot launch the request or the split.

    Nothing where no framework can launch the request: then there are estimates only. ``degrees``:
    as ``split_rules``.
    """
    if not len(cases):
        return []
    # all cases share where states live, and whether the loss is in pieces
    needs = OFFLOADS[int(cases.offload[0])], bool(cases.fused_loss[0])
    frameworks = able_frameworks(setting, *needs)
    if not frameworks:
        return []
    if setting.engine in frameworks:
        return list(split_rules(setting, cases, degrees=degrees))
    lacks = " and ".join(lack.phrase for lack in launch_lacks(setting, *needs))
    reason = f"{setting.framework.title} cannot launch {lacks}: use {framework_titles(frameworks)}"
    return [Refusal(FRAMEWORK, np.ones(len(cases), dtype=np.bool_), lambda _: reason)]


# All frameworks


def able_frameworks(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> tuple[str, ...]:
    """The frameworks that can launch what is asked, the preferred ones first."""
    facts, device = program_facts(), setting.cluster.device
    cards, names = facts.small_cards, facts.preferred
    small = device.memory_bytes.value <= cards.memory_at_most_bytes
    if small and device.runtime in cards.runtimes and setting.method in cards.methods:
        names = (*cards.preferred, *(name for name in names if name not in cards.preferred))
    return tuple(
        name
        for name in names
        if not any(launch_lacks(on_framework(setting, name), offload, in_pieces))
    )


def on_framework(setting: TrainingSetting, name: str) -> TrainingSetting:
    """The setting on another framework."""
    if name == setting.engine:
        return setting
    built = framework(name).built(compiled=bool(setting.compiles))
    return replace(setting, engine=name, framework=built)


def default_framework(
    setting: TrainingSetting, offload: str = "none", in_pieces: bool = False
) -> str:
    """The framework of a request that names none: the first that can launch what is asked.

    Where none can, the one that can launch most of it.
    """
    names = able_frameworks(setting, offload, in_pieces)
    if names:
        return names[0]
    return min(
        program_facts().preferred,
        key=lambda name: len(list(launch_lacks(on_framework(setting, name), offload, in_pieces))),
    )


def ways_out(setting: TrainingSetting, offload: str, in_pieces: bool) -> list[dict[str, object]]:
    """Changes to a request that no framework can launch after which one can, the fewest first."""
    out: list[dict[str, object]] = []
    for name in program_facts().preferred:
        lacks = list(launch_lacks(on_framework(setting, name), offload, in_pieces))
        changes: dict[str, object] = {lack.field: lack.value for lack in lacks}
        if lacks and all(lack.hint for lack in lacks) and changes not in out:
            out.append(changes)
    return sorted(out, key=len)


def launchable_names(part: str) -> frozenset[str]:
    """Return what any framework can launch of a part: ``methods``, ``optimizers``, and so on."""
    programs = program_facts().engines.values()
    return frozenset(name for program in programs for name in getattr(program.launches, part))


def framework_titles(names: tuple[str, ...]) -> str:
    """Frameworks as a person calls them: ``torchtitan, Accelerate or DeepSpeed``."""
    *rest, last = (framework(name).title for name in names)
    return f"{', '.join(rest)} or {last}" if rest else last
