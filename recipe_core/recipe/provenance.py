"""Which layer set each option: base < model < architecture < device < objective < user.

What an option means is data of the engine's grammar. A degree is the objective's choice, a batch limit the device's default, a format the
model's, unless the request states it: then it is the user's. Options that say nothing about a candidate are the engine's base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from recipe_core.engines.grammar import meanings
from recipe_core.engines.options import Meaning
from recipe_core.launch.process import Launch
from recipe_core.launch.serving.rules import Rule, rules_for
from recipe_core.request.schema import PlanRequest, ServingWorkload

if TYPE_CHECKING:
    from recipe_core.recipe.decision import Decision

Layer = Literal["base", "model", "architecture", "device", "objective", "user"]
"""What a value was set by; a later one goes before an earlier one."""
LAYERS: tuple[Layer, ...] = get_args(Layer)

_FIELDS: dict[str, Layer] = {
    "weight_dtype": "model",
    "kv_dtype": "model",
    "precision": "base",
    "max_num_seqs": "device",
    "max_batched_tokens": "device",
    "engine": "base",
    "memory_fraction": "base",
    "block_size": "base",
}
"""What sets a field of a candidate where the user does not; the others are the objective's choice."""

_MEANT: dict[Meaning, str] = {
    "all_experts": "ep",
    "attention_dp": "dp",
    "attention_dp_switch": "dp",
    "nodes": "tp",
    "dtype": "weight_dtype",
    "quantization": "weight_dtype",
    "speculative": "speculative",
    "draft_tokens": "speculative",
    "draft_method": "speculative",
    "draft_model": "speculative",
}
"""Fields of a candidate that options mean under another name."""

_WITHOUT_FIELD: dict[Meaning | None, Layer] = {"cache_size": "objective", "runtime": "architecture"}
"""Meanings that are no field of a candidate: the load says how much cache there is, what the device runs where it is used."""

_VARIED = {
    "engine": "engines",
    "weight_dtype": "weight_dtypes",
    "kv_dtype": "kv_dtypes",
    "max_batched_tokens": "max_batched_tokens",
}
"""Fields that a search may vary: then they are the objective's choice."""


def provenance(decision: Decision, started: Launch, asked: PlanRequest) -> dict[str, Layer]:
    """The layer of every field of a candidate, option and variable, by dotted name; ``asked`` is the request as the user wrote it."""
    means = meanings(decision.deployment.setting.engine) if decision.deployment else {}
    candidate, passed = decision.candidate, decision.request.options
    out = {f"candidate.{field}": field_layer(field, asked) for field in candidate}
    out |= {
        f"options.{name}": _option_layer(means.get(name), asked, candidate)
        for name in started.options
    }
    out |= dict.fromkeys((f"environment.{name}" for name in shared_environment(started)), "base")
    for rule in rules_for(decision.deployment) if decision.deployment else ():
        named = [
            *(f"options.{name}" for name in rule.options),
            *(f"environment.{name}" for name in rule.env),
        ]
        out |= dict.fromkeys((name for name in named if name in out), _rule_layer(rule))
    users = [f"options.{name.replace('-', '_')}" for name in passed.engine_options]
    users += [f"environment.{name}" for name in passed.environment]
    return out | dict.fromkeys(users, "user")


def _rule_layer(rule: Rule) -> Layer:
    """The layer of a rule of hardware: what it is held against."""
    when = rule.when
    if when.vendors or when.runtimes or when.architectures:
        return "architecture"
    return "device" if when.networks or when.rack_scale is not None else "base"


def shared_environment(started: Launch) -> dict[str, str]:
    """The variables that all processes of the engine have alike."""
    first, *others = [process for process in started.processes if process.role != "router"]
    return {
        name: value
        for name, value in first.env.items()
        if all(process.env.get(name) == value for process in others)
    }


def _option_layer(
    meaning: Meaning | None, asked: PlanRequest, candidate: Mapping[str, Any]
) -> Layer:
    if meaning == "max_context":
        return (
            "user"
            if isinstance(asked.workload, ServingWorkload)
            and asked.workload.max_context is not None
            else "objective"
        )
    if meaning in _WITHOUT_FIELD:
        return _WITHOUT_FIELD[meaning]
    field = _MEANT.get(meaning, str(meaning)) if meaning else ""
    return field_layer(field, asked) if field in candidate else "base"


def field_layer(field: str, asked: PlanRequest) -> Layer:
    """The layer that set a field of the candidate."""
    if getattr(asked.candidate, field, None) not in (None, "auto"):
        return "user"
    tried = getattr(asked.options, _VARIED[field]) if field in _VARIED else ()
    if field == "speculative" and getattr(asked.workload, field, None) is not None:
        return "user"
    return "objective" if set(tried) - {"auto"} else _FIELDS.get(field, "objective")
