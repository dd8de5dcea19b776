"""Edits of a request by dotted field names, which keep it consistent, and ranges of fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recipe_core.base.documented import field_of
from recipe_core.base.errors import RecipeError
from recipe_core.base.numbers import Range
from recipe_core.engines.training_programs import program_facts
from recipe_core.hardware.cluster import cluster, device_profile
from recipe_core.hardware.nodes import cluster_beside
from recipe_core.hardware.request import HardwareRequest
from recipe_core.models.catalog import load_model_spec
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.link import (
    START_LOADS,
    TRAINING,
    WHOLE,
    flat_values,
    leaves,
    request_of_values,
    searches_load,
)
from recipe_core.request.metrics import goals_of, kind_limits, run_limits
from recipe_core.request.presets import longest_positions, preset_file, preset_of, presets
from recipe_core.request.rollout import REINFORCED
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS, MEDIA, SIDES, MediaItems, ServingWorkload
from recipe_core.request.split_key import key_cluster, key_load, key_split

_ENDS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}


@cache
def range_of(path: str, model: type[BaseModel] = PlanRequest) -> Range:
    """The range of the field at a dotted path; of a list, that of its items.

    Raises:
        LookupError: for a name that the model has not.
    """
    field = field_of(model, path)
    ends: dict[str, Any] = {}
    for bound in _type_bounds([*field.metadata, field.annotation]):
        ends |= {name: getattr(bound, end) for end, name in _ENDS.items() if hasattr(bound, end)}
    return Range(integer=int in set(_types(field.annotation)), **ends)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _type_bounds(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, FieldInfo):
            yield from part.metadata
        elif any(hasattr(part, end) for end in _ENDS):
            yield part
        else:
            yield from _type_bounds([*getattr(part, "__metadata__", ()), *get_args(part)])


# The budget of a run that states neither another one nor a method with a usual one.
TRAINING_TOKENS = 10e9

# The rollout that a request starts with when its method turns to one that samples answers.
START_ROLLOUT = {"prompts": 128, "samples": 8, "prompt_tokens": 512, "response_tokens": 1024}


def value_of(request: PlanRequest, field: str) -> Any:
    """The value of a dotted field; None where it is not stated."""
    return flat_values(request).get(field)


def change(request: PlanRequest, changes: Mapping[str, Any]) -> PlanRequest:
    """The request with dotted fields changed (None takes one out), and what depends on them.

    Another kind of workload starts from its usual one and drops what only the old kind has; a new
    mode brings its usual load; a new device drops the links and the price of the old one and keeps
    a full node full; an offer and a stated price replace each other, and an offer and a commitment;
    a model with fewer positions shortens the longest request, one with more lengthens that of a
    preset again, and lengths beyond it leave it open;
    phases bring their tokens, and another budget stretches them; another method brings the budget
    and the step that are usual for it where the old one had its usual ones, and drops a framework
    that does not launch it, and data that it does not learn from; other answers of a step bring its
    length and batch, unless those are one's own. The load of a closed loop becomes searched where
    that becomes possible and it is the usual one, and a usual one again where it no longer is.

    Raises:
        RecipeError: when the changed request is not valid; the message names the field.
    """
    fields = flat_values(request)
    if changes.get("workload.kind", request.workload.kind) != request.workload.kind:
        fields = _other_kind(fields, changes["workload.kind"])
    for field, value in changes.items():
        _set_field(fields, field, value)
    _keep_consistent(fields, request, changes)
    return request_of_values({name: value for name, value in fields.items() if value is not None})


def _set_field(fields: dict[str, Any], field: str, value: Any) -> None:
    """Set a field, or a whole part of a request with all that is below it."""
    for name in [name for name in fields if name.startswith(f"{field}.")]:
        del fields[name]
    fields.pop(field, None)
    nested = isinstance(value, Mapping) and field not in WHOLE
    fields.update(leaves(value, f"{field}.") if nested else {field: value})


def _keep_consistent(
    fields: dict[str, Any], request: PlanRequest, changes: Mapping[str, Any]
) -> None:
    if "workload.mode" in changes:
        _swap_load(fields, changes)
    if "hardware.device" in changes and changes["hardware.device"] != request.hardware.device:
        _swap_device(fields, request.hardware, changes)
    if changes.get("hardware.offer") is not None:
        fields |= dict.fromkeys(
            ("hardware.usd_per_device_hour", "hardware.commitment", "hardware.term_months")
        )
    if "hardware.commitment" in changes:
        fields["hardware.offer"] = changes.get("hardware.offer")
        if changes["hardware.commitment"] != "reserved":
            fields["hardware.term_months"] = None
    if changes.get("hardware.usd_per_device_hour") is not None:
        fields["hardware.offer"] = None
    if "workload.method" in changes:
        _swap_rollout(fields, changes)
        _swap_run(fields, getattr(request.workload, "method", "pretrain"), changes)
    _keep_step(fields, request, changes)
    endless = changes.get("workload.mode", "offline") != "offline"
    if endless or ("workload.tokens" in changes and changes["workload.tokens"] is None):
        fields |= dict.fromkeys(f"objective.limits.{name}" for name in run_limits())
    _keep_budget(fields, changes)
    if "workload.method" in changes:
        _keep_method(fields, changes)
    if "model" in changes:
        _keep_media(fields)
    _keep_lengths(fields, changes)
    _search_load(fields, request, changes)
    if fields.get("workload.max_context") and "workload.max_context" not in changes:
        _keep_longest(fields, request)


def _keep_longest(fields: dict[str, Any], request: PlanRequest) -> None:
    """Keep the longest request, that of a preset as it is there, within the model's positions.

    Lengths beyond it leave it open.
    """
    longest = fields["workload.max_context"]
    if fields["model"] != request.model and (preset := preset_of(request, any_load=True)):
        longest = presets(request)[preset].workload.get("max_context", longest)
    longest = min(longest, longest_positions(fields["model"]))
    needed = float(_media_tokens(fields))
    for name in ("input", "output"):
        mean, spread = (fields.get(f"workload.{name}_{part}") or 0 for part in ("tokens", "spread"))
        needed += round(mean * (1 + spread))
    fields["workload.max_context"] = longest if longest >= needed else None


def _keep_lengths(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Let a shape of lengths and a spread replace each other; a static batch has neither.

    A mean of one's own takes out a shape that has another one, and a trace that is gone its shape.
    """
    exact = fields.get("workload.mode") == "static" and "workload.mode" in changes
    for side in SIDES:
        shape, spread = f"workload.{side}_lengths", f"workload.{side}_spread"
        traced = fields.get(f"{shape}.shape") == "trace"
        has_mean = traced or any(name.startswith(f"{shape}.quantiles.") for name in fields)
        other_mean = changes.get(f"workload.{side}_tokens") is not None and shape not in changes
        gone = traced and not fields.get("workload.over_time.lengths")
        if exact or changes.get(shape) is not None:
            fields[spread] = None
        if exact or changes.get(spread) is not None or (has_mean and other_mean) or gone:
            _set_field(fields, shape, None)


def _keep_budget(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Phases decide the budget of a run; another budget stretches them."""
    phases, tokens = fields.get("workload.phases"), changes.get("workload.tokens")
    if not phases:
        return
    if "workload.phases" in changes:
        fields["workload.tokens"] = tokens
    elif tokens is not None:
        factor = tokens / sum(phase["tokens"] for phase in phases)
        stretched = ({**phase, "tokens": phase["tokens"] * factor} for phase in phases)
        fields["workload.phases"] = tuple(stretched)


def _keep_method(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Take out a framework that does not launch a new method where another does, and its data."""
    method, name = fields["workload.method"], fields.get("candidate.engine")
    programs = program_facts().engines
    able = {
        framework for framework, program in programs.items() if method in program.launches.methods
    }
    if name in programs and "candidate.engine" not in changes and able and name not in able:
        fields["candidate.engine"] = None
    data = fields.get("workload.data_format")
    fits = data is None or (data == "preference") == (method == "dpo")
    if not fits and "workload.data_format" not in changes:
        fields["workload.data_format"] = None


def usual_run(method: str) -> dict[str, Any]:
    """The budget that a run of a method starts with, and its step where that has no rollout."""
    runs = preset_file().training
    # a critic beside it changes nothing of how much is trained on
    return dict((runs.get(method) or runs["grpo"]).workload)


def _swap_run(fields: dict[str, Any], old: str, changes: Mapping[str, Any]) -> None:
    """The budget and the step that are usual for a new method, where they were so for the old."""
    before, after = usual_run(old), usual_run(fields["workload.method"])
    for name in ("tokens", "sequence_length", "global_batch"):
        field = f"workload.{name}"
        untouched = field not in changes and not fields.get("workload.phases")
        if untouched and name in after and fields.get(field) in (before.get(name), None):
            fields[field] = after[name]
    if fields.get("workload.sequence_length"):
        longest = longest_positions(fields["model"])
        fields["workload.sequence_length"] = min(fields["workload.sequence_length"], longest)


def _swap_rollout(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """A usual rollout for a method that samples answers, and none for another one.

    A new rollout brings the lengths and the batch that go with it.
    """
    sampled = any(name.startswith("workload.rollout.") for name in fields)
    if changes["workload.method"] not in REINFORCED:
        _set_field(fields, "workload.rollout", None)
        fields["workload.adapters"] = None
    elif not sampled:
        _set_field(fields, "workload.rollout", START_ROLLOUT)
        sizes = ("workload.sequence_length", "workload.global_batch")
        fields |= {name: changes.get(name) for name in sizes}


def _keep_step(fields: dict[str, Any], request: PlanRequest, changes: Mapping[str, Any]) -> None:
    """Let length and batch of a step follow its answers, unless they are one's own."""
    rollout = getattr(request.workload, "rollout", None)
    if rollout is not None and any(name.startswith("workload.rollout") for name in changes):
        for name, value in rollout.step_sizes.items():
            if f"workload.{name}" not in changes and fields.get(f"workload.{name}") == value:
                fields[f"workload.{name}"] = None


def _keep_media(fields: dict[str, Any]) -> None:
    """Take out images and sound that a new model does not read."""
    media_fields = [
        name for name in fields if name.startswith(("workload.images", "workload.audio"))
    ]
    if not media_fields and fields.get("workload.modalities") is None:
        return
    try:
        towers = load_model_spec(fields["model"], folders=False).towers
    except RecipeError:
        return  # an unknown model is refused by its own name
    read = {tower.modality for tower in towers}
    for field, modality in MEDIA.items():
        if modality not in read:
            _set_field(fields, f"workload.{field}", None)
    fields["workload.modalities"] = None


def _media_tokens(fields: Mapping[str, Any]) -> int:
    """Tokens of a prompt's images and sound."""
    usual = MediaItems()
    total = 0.0
    for name in MEDIA:
        items = fields.get(f"workload.{name}.per_request")
        tokens = fields.get(f"workload.{name}.tokens")
        if items is not None or tokens is not None:
            total += (items or usual.per_request) * (tokens or usual.tokens)
    return math.ceil(total)


def _other_kind(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Model and hardware as they are, the kind's usual workload, and the goals both kinds have."""
    out: dict[str, Any] = {}
    training = kind == "training"
    limits = kind_limits("training") if training else (*kind_limits("closed"), "percentile")
    for name, value in fields.items():
        part, _, last = name.rpartition(".")
        shared_limit = part == "objective.limits" and last in limits
        is_shared = name.split(".")[0] in ("model", "hardware") or name == "options.hardware"
        is_shared |= part == "options.supervision" and last != "min_available"
        if shared_limit or is_shared:
            out[name] = value
    goal = fields["objective.optimize"]
    drops_goal = training and goal not in goals_of("training")
    out["objective.optimize"] = "throughput" if drops_goal else goal
    if kind != "training":
        load = None if searches_load(out) else START_LOADS["closed"]
        return {**out, "workload.kind": kind, f"workload.{LOADS['closed']}": load}
    run = TRAINING.model_dump(exclude_none=True)
    run["tokens"] = usual_run(run["method"])["tokens"]
    run["sequence_length"] = min(run["sequence_length"], longest_positions(fields["model"]))
    return {**out, **leaves({"workload": run})}


def _swap_load(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    mode = fields["workload.mode"]
    for name, load in LOADS.items():
        field = f"workload.{load}"
        if name != mode:
            fields[field] = None
        elif fields.get(field) is None and field not in changes:
            searched = name == "closed" and searches_load(fields)
            fields[field] = None if searched else START_LOADS[mode]


def _search_load(fields: dict[str, Any], request: PlanRequest, changes: Mapping[str, Any]) -> None:
    """Leave the load of a closed loop open where it can be searched, or fill it in where not."""
    load = f"workload.{LOADS['closed']}"
    if load in changes or fields.get("workload.mode") != "closed":
        return
    usual = _usual_load(request)
    searchable = searches_load(fields)
    if fields.get(load) is None and not searchable:
        fields[load] = usual
        return
    start = fields.get(load) in (usual, START_LOADS["closed"])
    if start and searchable and not searches_load(flat_values(request)):
        fields[load] = None


def _usual_load(request: PlanRequest) -> float:
    """The requests in flight of the preset in force, else those that a closed loop starts with."""
    name = preset_of(request)
    preset = presets(request)[name].workload if name else {}
    return float(preset.get(LOADS["closed"], START_LOADS["closed"]))


def _swap_device(fields: dict[str, Any], old: HardwareRequest, changes: Mapping[str, Any]) -> None:
    for name in ("fabric", "network", "offer", "usd_per_device_hour", "commitment", "term_months"):
        fields[f"hardware.{name}"] = changes.get(f"hardware.{name}")
    if "hardware.per_node" not in changes:
        usual = device_profile(fields["hardware.device"]).node.devices
        was_full = old.per_node >= device_profile(old.device).node.devices
        fields["hardware.per_node"] = usual if was_full else min(old.per_node, usual)


def select_split(request: PlanRequest, key: str) -> dict[str, Any]:
    """The changes that make a plan's split the request's candidate.

    A split on another cluster of the options swaps that cluster with the request's, and one under
    another load of the options that load with the workload's. What all splits of a training plan
    share stays as the request states it.
    """
    shared = shared_candidate(request)
    candidate = shared.model_dump(exclude_none=True) if shared else {}
    changes: dict[str, Any] = {"candidate": {**candidate, **(key_split(key) or {})}}
    changes |= _select_load(request, key_load(key))
    if place := key_cluster(key):
        clusters = list(request.options.hardware)
        # Each keeps the commitment that it was priced under.
        first = cluster(request.hardware)
        hardware = cluster_beside(clusters[place - 1], first)
        clusters = [cluster_beside(option, first) for option in clusters]
        clusters[place - 1] = _keep_on_demand(request.hardware, hardware)
        for name, value in hardware.model_dump().items():
            changes[f"hardware.{name}"] = value
        changes["options.hardware"] = tuple(clusters)
    return changes


def _select_load(request: PlanRequest, load: float | None) -> dict[str, Any]:
    """The changes that make a load of the options the workload's, and that one of the options."""
    workload = request.workload
    if load is None or not isinstance(workload, ServingWorkload):
        return {}
    name = LOADS[workload.mode]
    now = getattr(workload, name)
    loads = dict.fromkeys(map(float, (now, *request.options.loads)))
    return {
        f"workload.{name}": load if workload.mode == "open" else int(load),
        "options.loads": tuple(option_load for option_load in loads if option_load != load),
    }


def _keep_on_demand(old: HardwareRequest, new: HardwareRequest) -> HardwareRequest:
    """The old first cluster, on demand in words where the new one commits to something else."""
    if old.states_price or cluster(new).commitment in (None, "on-demand"):
        return old
    return old.model_copy(update={"commitment": "on-demand"})


# Fields of a candidate that all splits of a training plan share.
SHARED = ("engine", "precision", "offload")


def shared_candidate(request: PlanRequest) -> CandidateRequest | None:
    """Return a training candidate's words about every split; None for none, and for serving."""
    if request.candidate is None or not request.is_training:
        return None
    shared = request.candidate.model_dump(include=set(SHARED), exclude_none=True)
    return CandidateRequest.model_validate(shared) if shared else None
