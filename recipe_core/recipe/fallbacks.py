"""Fallbacks of a recipe, for where it cannot run.

Other splits, fewer devices, other formats, a shorter context, other devices.

Each is really planned, and rendered once: what its engine cannot be started with is no fallback.
They come in this order, from the smallest change of plans to the largest; of each kind the best by
the request's objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.nodes import cluster_beside
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_candidate, plan_together
from recipe_core.plans.problem import ServingProblem, resolve_problem
from recipe_core.plans.remedies import change_label
from recipe_core.plans.serving_settings import serving_settings
from recipe_core.recipe.decision import TRIED, Decision, start_reasons
from recipe_core.recipe.schema import Fallback, Recipe
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.split_key import split_name

OTHER_SPLITS, OTHERS_A_VENDOR = 2, 2
# Tokens of context below which a shorter one is no help.
NARROWEST = 1024
_FORMATS = {"weight_dtype": "weights", "kv_dtype": "cache", "precision": "compute"}
FIGURES = {
    "serving": (
        "ttft_s",
        "tpot_s",
        "output_tokens_per_s",
        "usd_per_hour",
        "usd_per_million_output_tokens",
        "total_bytes",
    ),
    "training": ("step_s", "tokens_per_s", "usd_per_million_tokens", "peak_memory_bytes"),
}


def fallbacks(
    decision: Decision, request: PlanRequest, *, folders: bool = True
) -> tuple[Fallback, ...]:
    """The fallbacks of a decision; ``request`` is that before the split was chosen."""
    if request.is_training:
        return tuple(_training_fallbacks(decision, request))
    return tuple(_serving_fallbacks(decision, request, folders))


# Serving: every fallback is the best row of one plan over all that may be changed


def _serving_fallbacks(
    decision: Decision, original: PlanRequest, folders: bool
) -> Iterator[Fallback]:
    base, split = decision.request, decision.candidate
    if original.load_searched:  # so that others are judged at the load which they hold
        base = without_load(base)
    options = base.options.model_copy(update={"engines": (decision.engine,)})
    request = base.model_copy(update={"candidate": None, "options": options})
    shorter = _half_the_context(request, decision)
    weights, caches = _other_formats(decision)
    formats = {
        "options.weight_dtypes": [*options.weight_dtypes, "auto", *weights],
        "options.kv_dtypes": [*options.kv_dtypes, "auto", *caches],
    }
    changed = {
        "formats": change(request, formats),
        "context": change(request, shorter) if shorter else None,
        "devices": _on_other_devices(decision, base, original),
    }
    problems = {
        name: problem
        for name, changed_request in changed.items()
        if (problem := _resolve_or_none(changed_request, folders)) is not None
    }
    plan, sources = plan_together(list(problems.values()))
    ranked = dict.fromkeys(changed, plan.order[:0])
    ranked |= {name: plan.order[sources[plan.order] == k] for k, name in enumerate(problems)}
    rows = ranked["formats"]
    columns = plan.spec.split_columns(plan)
    weight, cache = columns["weight_dtype"][rows], columns["kv_dtype"][rows]
    stated_problem = _resolve_or_none(request, folders)
    settings = serving_settings(stated_problem) if stated_problem else ()
    stated_formats = {(setting.weight_dtype, setting.kv_dtype) for setting in settings}
    same = rows[[pair in stated_formats for pair in zip(weight, cache, strict=True)]]
    gpus = plan.columns["gpus"][same]
    half, fewer = same[gpus <= decision.gpus // 2], same[gpus < decision.gpus]
    narrower = rows[np.isin(weight, weights) & (cache == split["kv_dtype"])]
    smaller_cache = rows[(weight == split["weight_dtype"]) & np.isin(cache, caches)]
    other_rows = (row for row in same if plan.candidate(int(row)) != split)
    elsewhere = _rows_elsewhere(plan, ranked["devices"], bool(original.options.hardware))
    choices: tuple[tuple[Any, Iterator[int], int | None, dict[str, Any]], ...] = (
        ("other-split", _startable_rows(plan, other_rows), OTHER_SPLITS, {}),
        ("fewer-gpus", chain(_startable_rows(plan, half), _startable_rows(plan, fewer)), 1, {}),
        ("other-precision", _startable_rows(plan, narrower), 1, {}),
        ("other-precision", _startable_rows(plan, smaller_cache), 1, {}),
        ("lower-context", _startable_rows(plan, ranked["context"]), 1, shorter),
        ("other-device", elsewhere, None, {}),
    )
    for kind, startable, limit, changes in choices:
        for row in islice(startable, limit):
            yield _fallback(kind, plan, row, changes)


def _resolve_or_none(request: PlanRequest | None, folders: bool) -> ServingProblem | None:
    """The request looked up.

    None where there is none, or its devices do not go with the engine or the links.
    """
    try:
        return None if request is None else resolve_problem(request, folders=folders)
    except RecipeError:
        return None


def _fallback(kind: Any, plan: Plan, row: int, changes: dict[str, Any]) -> Fallback:
    cluster = plan.setting(row).cluster
    if kind == "other-device" and not changes:
        changes = {"hardware": _hardware_values(cluster.request)}
    if plan.request.load_searched:
        changes = {**changes, "workload.concurrency": int(plan.columns["load"][row])}
    return Fallback(
        kind=kind,
        changes=changes,
        device=cluster.device.name,
        gpus=int(plan.columns["gpus"][row]),
        candidate=plan.candidate(row),
        figures={name: _finite_figure(plan.columns[name][row]) for name in FIGURES[plan.kind]},
    )


def _startable_rows(plan: Plan, rows: Iterable[Any]) -> Iterator[int]:
    """Of the first rows those that can be started with the user's own options and variables."""
    return (row for row in map(int, islice(rows, TRIED)) if not start_reasons(plan, row))


def _finite_figure(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _other_formats(decision: Decision) -> tuple[list[str], list[str]]:
    """Formats of weights (made at load) and caches that the device has and the decision has not."""
    spec, device, split = engine(decision.engine), decision.cluster.device, decision.candidate
    weights = set(device.weight_dtypes) - {split["weight_dtype"]}
    caches = set(device.kv_dtypes) - {split["kv_dtype"]}
    return (
        [dtype for dtype in spec.online_weight_dtypes if dtype in weights],
        [dtype for dtype in spec.kv_dtypes if dtype in caches],
    )


def _half_the_context(request: PlanRequest, decision: Decision) -> dict[str, Any]:
    """Half the context, with lengths halved where they would not fit into it.

    Nothing where that is too short, or where lengths in tokens have means that do not fit.
    """
    workload, longest = request.workload, decision.max_context
    if not isinstance(workload, ServingWorkload) or longest is None or longest < 2 * NARROWEST:
        return {}
    half = longest // 2
    if workload.model_copy(update={"max_context": half}).longest_tokens <= half:
        return {"workload.max_context": half}
    shapes = (workload.input_lengths, workload.output_lengths)
    if any(shape and (shape.quantiles or shape.shape == "trace") for shape in shapes):
        return {}
    lengths = {
        name: max(getattr(workload, name) // 2, 1) for name in ("input_tokens", "output_tokens")
    }
    halved = workload.model_copy(update=lengths).longest_tokens
    return {
        **{f"workload.{name}": tokens for name, tokens in lengths.items()},
        "workload.max_context": max(half, halved),
    }


def without_load(request: PlanRequest) -> PlanRequest:
    """The request of a closed loop with its load left open, to be searched."""
    workload = request.workload.model_copy(update={"concurrency": None})
    return request.model_copy(update={"workload": workload})


def _on_other_devices(
    decision: Decision, base: PlanRequest, original: PlanRequest
) -> PlanRequest | None:
    """The decision's ``own`` request on other devices, of which the best are looked for.

    None where there are none.
    """
    clusters = _other_clusters(decision, original)
    if not clusters:
        return None
    first, *rest = (
        _hardware_values(cluster_beside(hardware, decision.cluster)) for hardware in clusters
    )
    engines = original.options.engines
    if original.candidate and original.candidate.engine:
        engines = (original.candidate.engine,)
    fields = {"hardware": first, "options.hardware": rest, "options.engines": list(engines)}
    return change(base, {**fields, "candidate": None})


def _other_clusters(decision: Decision, request: PlanRequest) -> list[HardwareRequest]:
    """The request's clusters of another device than the decision's, else likely ones.

    Those of a training run have nodes like the decision's, for the same split.
    """
    home, clusters = decision.cluster, request.options.hardware
    requested = [other for other in clusters if device_profile(other.device) != home.device]
    counts = (home.per_node, home.nodes) if request.is_training else (decision.gpus,)
    likely = likely_devices(home.device)
    return requested or [usual_hardware(profile, *counts) for profile in likely]


def _rows_elsewhere(plan: Plan, rows: Int, by_device: bool) -> Iterator[int]:
    """The best on each of the devices that the request names, else one a vendor."""
    covered: set[str] = set()

    def place(row: int) -> str:
        profile = plan.setting(row).cluster.device
        return str(profile.digest if by_device else profile.vendor)

    for row in _startable_rows(plan, (row for row in rows if place(int(row)) not in covered)):
        covered.add(place(row))
        yield row


def _hardware_values(hardware: HardwareRequest | None) -> dict[str, Any]:
    return hardware.model_dump(mode="json", exclude_none=True) if hardware else {}


def likely_devices(home: Device) -> list[Device]:
    """Devices for rent on demand that are nearest in memory, a few of each vendor."""
    rented = {offer.device for offer in all_offers() if offer.commitment == "on-demand"}
    by_vendor: dict[str, list[Device]] = {}
    for profile in map(device_profile, sorted(rented & set(device_names()) - {home.name})):
        by_vendor.setdefault(profile.vendor, []).append(profile)
    nearest = [
        sorted(group, key=lambda d: abs(np.log(d.usable_memory_bytes / home.usable_memory_bytes)))
        for group in by_vendor.values()
    ]
    return [profile for group in nearest for profile in group[:OTHERS_A_VENDOR]]


def usual_hardware(profile: Device, gpus: int, nodes: int | None = None) -> HardwareRequest:
    """As many devices of another kind in usual nodes, or that many at most in each of ``nodes``."""
    per_node = min(gpus, profile.node.devices)
    nodes = nodes or math.ceil(gpus / per_node)
    return HardwareRequest(device=profile.name, per_node=per_node, nodes=nodes)


# Training: every fallback is the same split with one thing changed (fewer devices may have to keep
# less)


def _training_fallbacks(decision: Decision, request: PlanRequest) -> Iterator[Fallback]:
    split = decision.candidate
    yield from _trained_on_fewer(decision)
    for precision in ("bf16", "fp8"):
        if precision != split["precision"]:
            yield from _training_fallback(
                decision, "other-precision", {}, split | {"precision": precision}
            )
    length = decision.request.workload.model_dump().get("sequence_length", 0)
    if length >= 2 * NARROWEST:
        yield from _training_fallback(
            decision, "lower-context", {"workload.sequence_length": length // 2}, split
        )
    yield from _trained_elsewhere(decision, request)


def _trained_on_fewer(decision: Decision) -> Iterator[Fallback]:
    """The split on half of its replicas, and half of these, as far as it fits."""
    split = decision.candidate
    while split["dp"] > 1:
        halved = split | {"dp": split["dp"] // 2, "shard": max(split["shard"] // 2, 1)}
        smaller = halved | {"zero_stage": 3, "micro_batch": 1, "recompute": "full"}
        for candidate in (halved, smaller):
            if fallback := next(_training_fallback(decision, "fewer-gpus", {}, candidate), None):
                yield fallback
                break
        else:
            return
        split = halved


def _trained_elsewhere(decision: Decision, request: PlanRequest) -> Iterator[Fallback]:
    """The split on each other device that the request names, else on one a vendor."""
    vendors: set[str] = set()
    for hardware in _other_clusters(decision, request):
        vendor = device_profile(hardware.device).vendor
        if vendor in vendors and not request.options.hardware:
            continue
        changes = {"hardware": _hardware_values(hardware)}
        for fallback in _training_fallback(decision, "other-device", changes, decision.candidate):
            vendors.add(vendor)
            yield fallback


def _training_fallback(
    decision: Decision, kind: Any, changes: dict[str, Any], split: dict[str, Any]
) -> Iterator[Fallback]:
    """The split under the changes, where it can run and its framework can be told."""
    try:
        request = change(decision.request, {**changes, "candidate": split})
        plan, row = plan_candidate(request)
    except RecipeError:
        return
    if plan.feasible[row] and not start_reasons(plan, row):
        yield _fallback(kind, plan, row, changes)


# Words


def fallback_title(recipe: Recipe, fallback: Fallback) -> str:
    """A fallback for a person: what kind it is, what it runs on, and what it changes."""
    words = [split_name(fallback.candidate), *fallback_changes(recipe, fallback)]
    kind = fallback.kind.replace("-", " ")
    return f"{kind}: {fallback.gpus} × {fallback.device}, {'; '.join(words)}"


def fallback_changes(recipe: Recipe, fallback: Fallback) -> Iterator[str]:
    """Yield the formats, and the fields of the request, that a fallback has otherwise."""
    for name, part in _FORMATS.items():
        if (value := fallback.candidate.get(name)) != recipe.candidate.get(name):
            yield f"{part} in {value}"
    plain = {name: value for name, value in fallback.changes.items() if not isinstance(value, dict)}
    if plain:
        yield change_label(plain)
