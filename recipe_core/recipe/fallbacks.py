"""What to do where a recipe cannot run: other splits, fewer devices, other formats, a shorter context, other devices.

Each is really planned, and rendered once: what its engine cannot be started with is no fallback. They come in this order, from the
smallest change of plans to the largest; of each kind the best by the request's objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import Cluster, device, device_names
from recipe_core.hardware.prices import offers
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launch.serving.start import launch
from recipe_core.launch.training.start import launch_reasons
from recipe_core.recipe.decision import TRIED, Decision, deployment_of
from recipe_core.recipe.schema import Fallback
from recipe_core.request.schema import PlanRequest, ServingWorkload
from recipe_core.search.serving_plan import PlanTable, plan
from recipe_core.search.training_plan import TrainingTable
from recipe_core.search.training_problem import resolve_training
from recipe_core.search.training_search import chosen_training

OTHER_SPLITS, OTHERS_A_VENDOR = 2, 2
NARROWEST = 1024
"""Tokens of context below which a shorter one is no help."""
FIGURES = (
    "ttft_s",
    "tpot_s",
    "output_tokens_per_s",
    "usd_per_hour",
    "usd_per_million_output_tokens",
    "total_bytes",
)
TRAINING_FIGURES = ("step_s", "tokens_per_s", "usd_per_million_tokens", "peak_memory_bytes")


def changed(request: Mapping[str, Any], changes: Mapping[str, Any]) -> PlanRequest:
    """A request's plain values with dotted fields changed; None takes one out.

    Raises:
        InputError: when what comes out is no request.
    """
    out: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in request.items()
    }
    for field, value in changes.items():
        part, _, name = field.partition(".")
        at, key = (out.setdefault(part, {}), name) if name else (out, part)
        at[key] = value
    parts = {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in out.items()
    }
    return PlanRequest.parse({key: value for key, value in parts.items() if value is not None})


def fallback_request(request: Mapping[str, Any], fallback: Fallback) -> PlanRequest:
    """The request of a fallback, from that of its recipe."""
    return changed(request, fallback.changes | {"candidate": fallback.candidate})


def fallbacks(
    decision: Decision, asked: PlanRequest, *, folders: bool = True
) -> tuple[Fallback, ...]:
    """The fallbacks of a decision; ``asked`` is the request before the split was chosen."""
    found = _training(decision) if asked.is_training else _serving(decision, asked, folders)
    return tuple(found)


# Serving: every fallback is the best row of a plan


def _serving(decision: Decision, asked: PlanRequest, folders: bool) -> Iterator[Fallback]:
    request = decision.request.model_copy(
        update={
            "candidate": None,
            "options": decision.request.options.model_copy(update={"engines": (decision.engine,)}),
        }
    )
    table = plan(request, folders=folders)
    yield from _other_splits(decision, table)
    yield from _fewer(decision, table)
    yield from _narrower(decision, request, folders)
    yield from _shorter(decision, request, folders)
    yield from _elsewhere(decision, asked, folders)


def _fallback(kind: Any, table: PlanTable, row: int, changes: dict[str, Any]) -> Fallback:
    candidate = table.candidate(row)
    return Fallback(
        kind=kind,
        changes=changes,
        device=table.setting(row).cluster.device.name,
        gpus=int(table.columns["gpus"][row]),
        candidate=candidate,
        figures={name: _known(table.columns[name][row]) for name in FIGURES},
    )


def _starting(table: PlanTable, rows: Iterable[Any]) -> Iterator[int]:
    """Of the first rows those that their engine can be started with, the user's own options and variables included."""
    for row in map(int, islice(rows, TRIED)):
        try:
            launch(deployment_of(table, row))
        except RecipeError:
            continue
        yield row


def _known(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _other_splits(decision: Decision, table: PlanTable) -> Iterator[Fallback]:
    others = (row for row in table.ranked if table.candidate(int(row)) != decision.candidate)
    for row in islice(_starting(table, others), OTHER_SPLITS):
        yield _fallback("other-split", table, row, {})


def _fewer(decision: Decision, table: PlanTable) -> Iterator[Fallback]:
    """The best on half of the devices or fewer, else on any fewer."""
    gpus = table.columns["gpus"][table.ranked]
    for most in (decision.gpus // 2, decision.gpus - 1):
        for row in _starting(table, table.ranked[gpus <= most]):
            yield _fallback("fewer-gpus", table, row, {})
            return


def _narrower(decision: Decision, request: PlanRequest, folders: bool) -> Iterator[Fallback]:
    """The best with other weights that the engine makes at load, and the best with another cache."""
    spec, here = engine(decision.engine), decision.cluster.device
    weights = [
        each
        for each in spec.online_weight_dtypes
        if each in here.weight_dtypes and each != decision.candidate["weight_dtype"]
    ]
    caches = [
        each
        for each in spec.kv_dtypes
        if each in here.kv_dtypes and each != decision.candidate["kv_dtype"]
    ]
    asked = {"options.weight_dtypes": ["auto", *weights], "options.kv_dtypes": ["auto", *caches]}
    table = plan(changed(request.to_json(), asked), folders=folders)
    same = ("weight_dtype", "kv_dtype")
    for changing in same:
        kept = next(name for name in same if name != changing)
        narrow = weights if changing == "weight_dtype" else caches
        settings = ((row, table.setting(int(row))) for row in table.ranked)
        rows = (
            row
            for row, s in settings
            if getattr(s, changing) in narrow and getattr(s, kept) == decision.candidate[kept]
        )
        for row in islice(_starting(table, rows), 1):
            yield _fallback("other-precision", table, row, {})


def _shorter(decision: Decision, request: PlanRequest, folders: bool) -> Iterator[Fallback]:
    """Half the context, with lengths halved where they would not fit into it."""
    workload = request.workload
    if (
        not isinstance(workload, ServingWorkload)
        or decision.max_context is None
        or decision.max_context < 2 * NARROWEST
    ):
        return
    half = decision.max_context // 2
    changes: dict[str, Any] = {"workload.max_context": half}
    if workload.longest_tokens > half:
        lengths = {
            "input_tokens": max(workload.input_tokens // 2, 1),
            "output_tokens": max(workload.output_tokens // 2, 1),
        }
        longest = workload.model_copy(update=lengths).longest_tokens
        changes = {f"workload.{name}": value for name, value in lengths.items()} | {
            "workload.max_context": max(half, longest)
        }
    table = plan(changed(request.to_json(), changes), folders=folders)
    for row in islice(_starting(table, table.ranked), 1):
        yield _fallback("lower-context", table, row, changes)


def _elsewhere(decision: Decision, asked: PlanRequest, folders: bool) -> Iterator[Fallback]:
    """The best on each other device of the request, else on the likeliest devices of each vendor, one a vendor."""
    named = [
        each for each in asked.options.hardware if device(each.device) != decision.cluster.device
    ]
    hardware = named or [
        hardware_of(other, decision.gpus) for other in likely_devices(decision.cluster.device)
    ]
    if not hardware:
        return
    first, *rest = hardware
    stated = {
        "hardware": _plain(first),
        "options.hardware": [_plain(each) for each in rest],
        "candidate": None,
    }
    engines = (
        [asked.candidate.engine]
        if asked.candidate and asked.candidate.engine
        else list(asked.options.engines)
    )
    request = changed(decision.request.to_json(), stated | {"options.engines": engines})
    try:
        table = plan(request, folders=folders)
    except RecipeError:  # a device that the engine or the links do not fit
        return
    seen: set[str] = set()

    def key(row: Any) -> str:
        there = table.setting(int(row)).cluster.device
        return there.digest if named else there.vendor

    for row in _starting(table, (row for row in table.ranked if key(row) not in seen)):
        seen.add(key(row))
        yield _fallback(
            "other-device", table, row, {"hardware": _plain(table.setting(row).cluster.asked)}
        )


def _plain(hardware: HardwareRequest | None) -> dict[str, Any]:
    return hardware.model_dump(mode="json", exclude_none=True) if hardware else {}


def likely_devices(here: Device) -> list[Device]:
    """Devices that are rented out on demand and are nearest to this one in memory, a few of each vendor."""
    rented = {offer.device for offer in offers() if offer.commitment == "on-demand"} - {here.name}
    found: dict[str, list[Device]] = {}
    for other in map(device, sorted(rented & set(device_names()))):
        found.setdefault(other.vendor, []).append(other)
    near = [
        sorted(each, key=lambda d: abs(np.log(d.usable_memory_bytes / here.usable_memory_bytes)))
        for each in found.values()
    ]
    return [other for each in near for other in each[:OTHERS_A_VENDOR]]


def hardware_of(other: Device, gpus: int) -> HardwareRequest:
    """As many devices of another kind, in nodes as they are usual."""
    per_node = min(gpus, other.node.devices)
    return HardwareRequest(device=other.name, per_node=per_node, nodes=math.ceil(gpus / per_node))


# Training: every fallback is the same split with one thing changed (fewer devices may have to keep less)


def _training(decision: Decision) -> Iterator[Fallback]:
    split = decision.candidate
    halved = split | {"dp": split["dp"] // 2, "shard": max(split["shard"] // 2, 1)}
    for smaller in (
        (halved, halved | {"zero_stage": 3, "micro_batch": 1, "recompute": "full"})
        if split["dp"] > 1
        else ()
    ):
        if found := list(_trained(decision, "fewer-gpus", {}, smaller)):
            yield from found
            break
    for precision in ("bf16", "fp8"):
        if precision != split["precision"]:
            yield from _trained(decision, "other-precision", {}, split | {"precision": precision})
    length = decision.request.workload.model_dump().get("sequence_length", 0)
    if length >= 2 * NARROWEST:
        yield from _trained(
            decision, "lower-context", {"workload.sequence_length": length // 2}, split
        )
    vendors: set[str] = set()
    for other in likely_devices(decision.cluster.device):
        if other.vendor in vendors:
            continue
        for fallback in _trained(
            decision,
            "other-device",
            {"hardware": _plain(_same_nodes(other, decision.cluster))},
            split,
        ):
            vendors.add(other.vendor)
            yield fallback


def _same_nodes(other: Device, here: Cluster) -> HardwareRequest:
    return HardwareRequest(
        device=other.name, per_node=min(here.per_node, other.node.devices), nodes=here.nodes
    )


def _trained(
    decision: Decision, kind: Any, changes: dict[str, Any], split: dict[str, Any]
) -> Iterator[Fallback]:
    """The split under the changes, where it can run and its framework can be told."""
    try:
        request = changed(decision.request.to_json(), changes | {"candidate": split})
        estimates, row = chosen_training(request)
        table = TrainingTable(resolve_training(request), estimates)
    except RecipeError:
        return
    if not table.columns["feasible"][row] or launch_reasons(estimates, row):
        return
    values = {name: column[row] for name, column in table.columns.items()}
    yield Fallback(
        kind=kind,
        changes=changes,
        device=estimates.setting.cluster.device.name,
        gpus=int(values["gpus"]),
        candidate=estimates.candidate(row),
        figures={name: _known(values[name]) for name in TRAINING_FIGURES},
    )
