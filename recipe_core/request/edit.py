"""Edits of a request by dotted field names, keeping consistent what depends on what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.model.catalog import load_model
from recipe_core.request.link import START_LOADS, TRAINING, WHOLE, checked, flat, leaves
from recipe_core.request.schema import LOADS, CandidateRequest, PlanRequest
from recipe_core.request.split_key import cluster_of, split_of

_OPAQUE = ("engine_options", "environment")
"""Options whose names are an engine's own and may hold dots."""

TRAINING_TOKENS = 10e9
"""The budget that a run starts with when a request turns from serving to training."""

_SERVING_LIMITS = (
    "ttft_ms",
    "tpot_ms",
    "request_latency_ms",
    "usd_per_million_output_tokens",
    "output_tokens_per_s_at_least",
    "percentile",
)
_SERVING_GOALS = ("latency", "ttft", "tpot")


def value_of(request: PlanRequest, field: str) -> Any:
    """The value of a dotted field; None where it is not stated."""
    return flat(request).get(field)


def change(request: PlanRequest, changes: Mapping[str, Any]) -> PlanRequest:
    """The request with dotted fields changed (None takes one out) and what depends on them kept consistent.

    Another kind of workload starts from its usual one and drops what only the old kind has; a new mode brings its usual load; a new device
    drops the links and the price of the old one and keeps a full node full; an offer and a stated price replace each other, and an offer
    and a commitment; a longer prompt or answer stretches the longest context.

    Raises:
        RecipeError: when the changed request is not valid; the message names the field.
    """
    fields = flat(request)
    if changes.get("workload.kind", request.workload.kind) != request.workload.kind:
        fields = _other_kind(fields, changes["workload.kind"])
    for field, value in changes.items():
        _set(fields, field, value)
    _keep_consistent(fields, request, changes)
    edited = checked({name: value for name, value in fields.items() if value is not None})
    opaque = {
        name: getattr(request.options, name) for name in _OPAQUE if f"options.{name}" not in changes
    }
    return edited.model_copy(update={"options": edited.options.model_copy(update=opaque)})


def _set(fields: dict[str, Any], field: str, value: Any) -> None:
    """Set a field, or a whole part of a request with all that is below it."""
    for name in [name for name in fields if name.startswith(f"{field}.")]:
        del fields[name]
    fields.pop(field, None)
    nested = isinstance(value, Mapping) and field not in WHOLE
    fields.update(leaves(value, f"{field}.") if nested else {field: value})


def _keep_consistent(
    fields: dict[str, Any], request: PlanRequest, changes: Mapping[str, Any]
) -> None:
    """Change what depends on the changed fields."""
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
    longest, prompt, answer = (
        fields.get(f"workload.{name}") for name in ("max_context", "input_tokens", "output_tokens")
    )
    if longest and prompt and answer and "workload.max_context" not in changes:
        fields["workload.max_context"] = max(longest, prompt + answer)


def _other_kind(named: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Model and hardware as they are, the workload that the kind starts with, and of the objective what both kinds have."""
    kept = {
        name: value for name, value in named.items() if name.split(".")[0] in ("model", "hardware")
    }
    limits = {name: value for name, value in named.items() if name.startswith("objective.limits.")}
    kept |= {
        name: value
        for name, value in limits.items()
        if name.rsplit(".", 1)[1] not in _SERVING_LIMITS
    }
    goal = named["objective.optimize"]
    kept["objective.optimize"] = (
        "throughput" if kind == "training" and goal in _SERVING_GOALS else goal
    )
    if kind != "training":
        return kept | {"workload.kind": kind, f"workload.{LOADS['closed']}": START_LOADS["closed"]}
    run = TRAINING.model_dump(exclude_none=True) | {"tokens": TRAINING_TOKENS}
    return kept | leaves(
        {
            "workload": run
            | {"sequence_length": min(run["sequence_length"], _positions(named["model"]))}
        }
    )


def _positions(model: Any) -> int:
    """The longest sequence a model takes; no bound where the model is not known, which planning says."""
    try:
        return load_model(model, folders=False).max_context
    except RecipeError:
        return TRAINING.sequence_length


def _swap_load(named: dict[str, Any], changes: Mapping[str, Any]) -> None:
    mode = named["workload.mode"]
    for name, load in LOADS.items():
        field = f"workload.{load}"
        if name != mode:
            named[field] = None
        elif named.get(field) is None and field not in changes:
            named[field] = START_LOADS[mode]


def _swap_device(named: dict[str, Any], old: HardwareRequest, changes: Mapping[str, Any]) -> None:
    for name in ("fabric", "network", "offer", "usd_per_device_hour", "commitment", "term_months"):
        named[f"hardware.{name}"] = changes.get(f"hardware.{name}")
    if "hardware.per_node" not in changes:
        full, new_full = (
            device(old.device).node.devices,
            device(named["hardware.device"]).node.devices,
        )
        named["hardware.per_node"] = (
            new_full if old.per_node >= full else min(old.per_node, new_full)
        )


def select_split(request: PlanRequest, key: str) -> dict[str, Any]:
    """The changes that make a plan's split the chosen one; its cluster becomes the request's where it was one of the options.

    What all splits of a training plan share stays as it is stated.
    """
    place = cluster_of(key)
    stated = (
        request.candidate.model_dump(include=set(SHARED), exclude_none=True)
        if request.candidate
        else {}
    )
    changes: dict[str, Any] = {
        "candidate": (stated if request.is_training else {}) | (split_of(key) or {})
    }
    if not place:
        return changes
    others = list(request.options.hardware)
    chosen, others[place - 1] = others[place - 1], request.hardware
    fields = {f"hardware.{name}": value for name, value in chosen.model_dump().items()}
    return changes | fields | {"options.hardware": tuple(others)}


SHARED = ("engine", "precision", "offload")
"""Fields of a candidate that all splits of a training plan share."""


def shared_candidate(request: PlanRequest) -> CandidateRequest | None:
    """What of a training request's candidate is true of every split; None where that is nothing, and for serving."""
    if request.candidate is None or not request.is_training:
        return None
    stated = {
        name: value for name in SHARED if (value := getattr(request.candidate, name)) is not None
    }
    return CandidateRequest(**stated) if stated else None
