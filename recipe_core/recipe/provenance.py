"""Which layer set each option: base < model < architecture < device < objective < user.

What an option means is data of the engine's grammar. A degree is the objective's choice, a batch
limit the device's default, a format the model's, unless the request states it: then it is the
user's. Options that say nothing about a candidate are the engine's base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.options import OPTIONS, USUAL, Meaning
from recipe_core.launch.process import Launch
from recipe_core.launch.serving.rules import Rule, rules_for
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload

if TYPE_CHECKING:
    from recipe_core.recipe.decision import Decision

# What a value was set by; a later one goes before an earlier one.
Layer = Literal["base", "model", "architecture", "device", "objective", "user"]
LAYERS: tuple[Layer, ...] = get_args(Layer)

# What sets a field of a candidate where the user does not; the rest is the objective's choice.
_FIELDS: dict[str, Layer] = {
    "weight_dtype": "model",
    "kv_dtype": "model",
    "precision": "base",
    "engine": "base",
    **{option.name: option.layer for option in OPTIONS},
}

# Fields of a candidate that options mean under another name.
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

# Meanings that are no field of a candidate: the load sizes the cache, the device the runtime.
_WITHOUT_FIELD: dict[Meaning | None, Layer] = {"cache_size": "objective", "runtime": "architecture"}

# Fields that a search may vary: then they are the objective's choice.
_VARIED = {
    "engine": "engines",
    "weight_dtype": "weight_dtypes",
    "kv_dtype": "kv_dtypes",
    "max_batched_tokens": "max_batched_tokens",
}


def provenance(decision: Decision, started: Launch, request: PlanRequest) -> dict[str, Layer]:
    """The layer of every field of a candidate, option and variable, by dotted name.

    ``request`` is the one that the user wrote.
    """
    means = option_meanings(decision.deployment.setting.engine) if decision.deployment else {}
    layers = {f"candidate.{field}": field_layer(field, request) for field in decision.candidate}
    for name in started.options:
        layer = _option_layer(means.get(name), request, decision.candidate)
        layers[f"options.{name}"] = layer
    for field, usual in USUAL.items():  # not as usual only where the objective allows it
        if decision.candidate.get(field, usual) != usual:
            paths = [f"{part}.{field}" for part in ("candidate", "options")]
            layers |= {path: "objective" for path in paths if layers.get(path) == "base"}
    for name in shared_environment(started):
        layers[f"environment.{name}"] = "base"
    for rule in rules_for(decision.deployment) if decision.deployment else ():
        paths = [f"options.{name}" for name in rule.options]
        paths += [f"environment.{name}" for name in rule.env]
        layers |= {path: _rule_layer(rule) for path in paths if path in layers}
    passed = decision.request.options
    for name in passed.engine_options:
        layers[f"options.{name.replace('-', '_')}"] = "user"
    for name in passed.environment:
        layers[f"environment.{name}"] = "user"
    return layers


def _rule_layer(rule: Rule) -> Layer:
    """The layer of a rule of hardware: what it is held against."""
    when = rule.when
    if when.vendors or when.runtimes or when.architectures:
        return "architecture"
    return "device" if when.networks or when.rack_scale is not None else "base"


def shared_environment(started: Launch) -> dict[str, str]:
    """The variables that all processes of the engine have alike."""
    engines = [process.env for process in started.processes if process.role != "router"]
    return {
        name: value
        for name, value in engines[0].items()
        if all(env.get(name) == value for env in engines)
    }


def _option_layer(
    meaning: Meaning | None, request: PlanRequest, candidate: Mapping[str, Any]
) -> Layer:
    if meaning == "max_context":
        workload = request.workload
        by_user = isinstance(workload, ServingWorkload) and workload.max_context is not None
        return "user" if by_user else "objective"
    if meaning in _WITHOUT_FIELD:
        return _WITHOUT_FIELD[meaning]
    field = _MEANT.get(meaning, str(meaning)) if meaning else ""
    return field_layer(field, request) if field in candidate else "base"


def field_layer(field: str, request: PlanRequest) -> Layer:
    """The layer that set a field of the candidate."""
    if getattr(request.candidate, field, None) not in (None, "auto"):
        return "user"
    if field == "speculative" and getattr(request.workload, field, None) is not None:
        return "user"
    varied = getattr(request.options, _VARIED[field]) if field in _VARIED else ()
    return "objective" if set(varied) - {"auto"} else _FIELDS.get(field, "objective")
