"""Options of a launch: the user's own, and which layer set each one.

What an option means is data of the engine's grammar. A degree is the objective's choice, a batch
limit the device's default, a format the model's, unless the request states it: then it is the
user's. Options that say nothing about a candidate are the engine's base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError, look_up
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.options import OPTIONS, USUAL, Meaning, Option
from recipe_core.engines.spec import Engine
from recipe_core.launch.process import Launch
from recipe_core.launch.serving.rules import Rule, rules_for
from recipe_core.launch.user_options import FIELD, wrapped_engine
from recipe_core.models.checkpoint import split_revision
from recipe_core.plans.serving_settings import admits_by_limits
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload

if TYPE_CHECKING:
    from recipe_core.recipe.decision import Decision


def passing_on(
    request: PlanRequest, options: Mapping[str, Any], environment: Mapping[str, str]
) -> PlanRequest:
    """The request with more of the engine's own options and variables; these replace its own."""
    before = request.options
    more = {
        "engine_options": {**before.engine_options, **options},
        "environment": {**before.environment, **environment},
    }
    return request.model_copy(update={"options": before.model_copy(update=more)})


def passed_options(request: PlanRequest, spec: Engine) -> dict[str, Any]:
    """The request's options for an engine in their types, and the model's revision, if any.

    Raises:
        InputError: for options that this version of the engine does not have, values of another
            type, a revision that it cannot be told.
    """
    revision = split_revision(request.model)[1] if isinstance(request.model, str) else None
    if revision and "revision" not in wrapped_engine(spec).options.by_name:
        message = f"{spec.title} cannot load a revision ({revision})."
        raise InputError(message, field="model", hint="Download it and give the snapshot's folder.")
    options = typed_options(spec, request.options.engine_options)
    return {**options, "revision": revision} if revision else options


def typed_options(spec: Engine, words: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, in their types; text becomes what the option takes.

    Raises:
        InputError: for options that this version of the engine does not have, and values of
            another type.
    """
    options: dict[str, Any] = {}
    for word, value in words.items():
        option = _engine_option(spec, word)
        options[option.name] = _typed_value(option, value) if isinstance(value, str) else value
    return options


def _engine_option(spec: Engine, word: str) -> Option:
    name, table = word.lstrip("-").replace("-", "_"), wrapped_engine(spec).options
    option = table.by_name.get(name) or table.by_spelling.get(word)
    kind = f"{spec.title} {spec.version} option"
    return option or look_up(kind, word, table.by_name, f"{FIELD}.{word}")


def _typed_value(option: Option, text: str) -> Any:
    field = f"{FIELD}.{option.name}"
    if option.many:
        single = option.model_copy(update={"many": False})
        return [_typed_value(single, item) for item in text.split(",")]
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
        raise InputError(f"{option.flag} takes {takes}, not {text!r:.80}.", field=field) from None


# What a value was set by; a later one goes before an earlier one.
Layer = Literal["base", "model", "architecture", "device", "objective", "traffic", "limits", "user"]
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
_WITHOUT_FIELD: dict[Meaning | None, Layer] = {"cache_size": "traffic", "runtime": "architecture"}

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
    if _admits_less(decision, request):
        words = [name for name, meaning in means.items() if meaning == "max_num_seqs"]
        paths = ["candidate.max_num_seqs", *(f"options.{name}" for name in words)]
        layers |= {path: "limits" for path in paths if path in layers}
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


def _admits_less(decision: Decision, request: PlanRequest) -> bool:
    """Return whether the limits on time lowered how many requests the engine admits."""
    if decision.deployment is None or not admits_by_limits(decision.request, request.candidate):
        return False
    setting = decision.deployment.setting
    device = setting.cluster.device
    usual = setting.engine.batch_limits(device.usable_memory_bytes, device.architecture)
    return decision.deployment.candidate.max_num_seqs < usual.max_num_seqs


def _rule_layer(rule: Rule) -> Layer:
    """The layer of a rule of hardware: what it is held against."""
    facts = rule.when.keys()
    if facts & {"vendors", "runtimes", "architectures"}:
        return "architecture"
    return "device" if facts & {"networks", "rack_scale"} else "base"


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
        return "user" if by_user else "traffic"
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
