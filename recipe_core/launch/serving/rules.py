"""Demands of vendors, architectures and networks on engines: ``rules.yaml``, with sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import field_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import Sourced, Status
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.options import FOLDER, USUAL, OptionTable
from recipe_core.engines.training_programs import Condition
from recipe_core.launch.process import Deployment
from recipe_core.models.towers import THROUGH
from recipe_core.plans.conditions import all_hold

_FACTS: Mapping[str, Callable[[Deployment], Any]] = {
    "engines": lambda d: d.setting.engine.wraps or d.setting.engine.name,
    "vendors": lambda d: d.setting.cluster.device.vendor,
    "runtimes": lambda d: d.setting.cluster.device.runtime,
    "architectures": lambda d: d.setting.cluster.device.architecture,
    "networks": lambda d: d.setting.cluster.network.name,
    "weight_dtypes": lambda d: d.candidate.weight_dtype,
    "rack_scale": lambda d: d.setting.cluster.rack_scale,
    "several_nodes": lambda d: d.candidate.devices > d.setting.cluster.per_node,
    "several_devices": lambda d: d.candidate.devices > 1,
    "pools": lambda d: d.candidate.prefill is not None,
}


class Rule(DataRow):
    """Environment and options of an engine's processes where ``when`` holds."""

    name: str
    when: Mapping[str, Condition]
    env: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    source: str
    status: Status
    note: str | None = None

    @field_validator("when")
    @classmethod
    def _names_facts(cls, when: Mapping[str, Condition]) -> Mapping[str, Condition]:
        if foreign := sorted(when.keys() - _FACTS.keys()):
            raise ValueError(f"{foreign[0]!r} is no fact of a deployment")
        return when


class RuleFile(Sourced):
    """``rules.yaml``: rules in order; later ones go before earlier ones."""

    rules: tuple[Rule, ...]


@cache
def rule_file() -> RuleFile:
    """Every rule; raises InputError when the file is malformed."""
    return DataFile(FOLDER / "rules.yaml", "engines").read_as(RuleFile)


def rules_for(deployment: Deployment) -> list[Rule]:
    facts = {name: fact(deployment) for name, fact in _FACTS.items()}
    return [rule for rule in rule_file().rules if all_hold(rule.when, facts)]


def told_options(deployment: Deployment, table: OptionTable | None = None) -> dict[str, float]:
    """Options of a table for what a candidate has otherwise than usual.

    Intervals also where an objective may choose them, so that 1 is no default. Without a table,
    the options are those of the engine's command.
    """
    spec, values = deployment.setting.engine, deployment.candidate.options
    words = {meaning: name for name, meaning in option_meanings(spec).items()}
    places = table or spec.options
    out: dict[str, float] = {}
    for name, usual in USUAL.items():
        value, word = values.get(name, usual), words.get(name, name)
        if word in places.by_name and (value != usual or _is_chosen(deployment, name)):
            out[word] = value
    return out


def _is_chosen(deployment: Deployment, name: str) -> bool:
    offered = deployment.setting.engine.intervals
    architecture = deployment.setting.cluster.device.architecture
    return offered is not None and name in offered.options and offered.chosen_on(architecture)


def rule_environment(deployment: Deployment) -> dict[str, str]:
    """Variables by the rules, then the user's own."""
    variables: dict[str, str] = {}
    for rule in rules_for(deployment):
        variables |= rule.env
    return {**variables, **deployment.environment}


def rule_options(deployment: Deployment) -> dict[str, Any]:
    """Options by the rules; of two rules alike the later counts."""
    out: dict[str, Any] = {}
    for rule in rules_for(deployment):
        out |= rule.options
    return out


def tower_options(deployment: Deployment) -> dict[str, Any]:
    """Options that leave towers out, as the estimate does; none where it has them all.

    With one switch where no tower stays, else by limits of 0, where the engine has them.
    """
    model, names = deployment.setting.model, option_meanings(deployment.setting.engine)
    by_meaning = {meaning: name for name, meaning in names.items()}
    if not model.left_out:
        return {}
    if not model.towers and "text_only" in by_meaning:
        return {by_meaning["text_only"]: True}
    if "media_limits" in by_meaning:
        limits = {name: 0 for modality in model.left_out for name in THROUGH[modality]}
        return {by_meaning["media_limits"]: limits}
    raise InputError(
        f"{deployment.setting.engine.title} has no option that leaves towers out.",
        field="workload.modalities",
        hint="Leave it out.",
    )
