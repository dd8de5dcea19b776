"""What to do where a recipe cannot run: another split, device, format, or a shorter context.

Each fallback is planned, and rendered once: what its engine cannot be started with is none. They
come from the smallest change of plans to the largest; of each kind the best by the request's
objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import Cluster, device, device_names
from recipe_core.hardware.prices import offers
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.recipe.decision import TRIED, Decision, start_reasons
from recipe_core.recipe.schema import Fallback
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest, ServingWorkload
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan, plan_candidate

OTHER_SPLITS, OTHERS_A_VENDOR = 2, 2
NARROWEST = 1024
"""Tokens of context below which a shorter one is no help."""
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
    """The fallbacks of a decision; ``request`` is the user's, before the split was chosen."""
    if request.is_training:
        return tuple(_training(decision))
    return tuple(_serving(decision, request, folders))


# Serving: every fallback is the best row of a plan


def _serving(decision: Decision, original: PlanRequest, folders: bool) -> Iterator[Fallback]:
    options = decision.request.options.model_copy(update={"engines": (decision.engine,)})
    request = decision.request.model_copy(update={"candidate": None, "options": options})
    alternatives = plan(request, folders=folders)
    yield from _other_splits(decision, alternatives)
    yield from _fewer(decision, alternatives)
    yield from _narrower(decision, request, folders)
    yield from _shorter(decision, request, folders)
    yield from _elsewhere(decision, original, folders)


def _fallback(kind: Any, plan: Plan, row: int, changes: dict[str, Any]) -> Fallback:
    return Fallback(
        kind=kind,
        changes=changes,
        device=plan.setting(row).cluster.device.name,
        gpus=int(plan.columns["gpus"][row]),
        candidate=plan.candidate(row),
        figures={name: _known(plan.columns[name][row]) for name in FIGURES[plan.kind]},
    )


def _starting(plan: Plan, rows: Iterable[Any]) -> Iterator[int]:
    """Of the first rows those that can be started, with the user's own options and variables."""
    return (row for row in map(int, islice(rows, TRIED)) if not start_reasons(plan, row))


def _known(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _other_splits(decision: Decision, plan: Plan) -> Iterator[Fallback]:
    rows = (row for row in plan.order if plan.candidate(int(row)) != decision.candidate)
    for row in islice(_starting(plan, rows), OTHER_SPLITS):
        yield _fallback("other-split", plan, row, {})


def _fewer(decision: Decision, plan: Plan) -> Iterator[Fallback]:
    """The best on half of the devices or fewer, else on any fewer."""
    gpus = plan.columns["gpus"][plan.order]
    for limit in (decision.gpus // 2, decision.gpus - 1):
        for row in _starting(plan, plan.order[gpus <= limit]):
            yield _fallback("fewer-gpus", plan, row, {})
            return


def _narrower(decision: Decision, request: PlanRequest, folders: bool) -> Iterator[Fallback]:
    """The best with weights that the engine quantises at load, and the best with another cache."""
    spec, profile, split = engine(decision.engine), decision.cluster.device, decision.candidate
    weights = [d for d in spec.online_weight_dtypes if d in profile.weight_dtypes]
    caches = [d for d in spec.kv_dtypes if d in profile.kv_dtypes]
    narrow = {
        "weight_dtype": [dtype for dtype in weights if dtype != split["weight_dtype"]],
        "kv_dtype": [dtype for dtype in caches if dtype != split["kv_dtype"]],
    }
    formats = {f"options.{name}s": ["auto", *dtypes] for name, dtypes in narrow.items()}
    alternatives = plan(change(request, formats), folders=folders)
    for changing, fixed in (("weight_dtype", "kv_dtype"), ("kv_dtype", "weight_dtype")):
        settings = ((row, alternatives.setting(int(row))) for row in alternatives.order)
        rows = (
            row
            for row, s in settings
            if getattr(s, changing) in narrow[changing] and getattr(s, fixed) == split[fixed]
        )
        for row in islice(_starting(alternatives, rows), 1):
            yield _fallback("other-precision", alternatives, row, {})


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
        changes = {f"workload.{name}": value for name, value in lengths.items()}
        changes["workload.max_context"] = max(half, longest)
    alternatives = plan(change(request, changes), folders=folders)
    for row in islice(_starting(alternatives, alternatives.order), 1):
        yield _fallback("lower-context", alternatives, row, changes)


def _elsewhere(decision: Decision, original: PlanRequest, folders: bool) -> Iterator[Fallback]:
    """The best on each other device of the request.

    Without one, the best of each vendor on the devices that are likeliest.
    """
    profile = decision.cluster.device
    requested = [c for c in original.options.hardware if device(c.device) != profile]
    clusters = requested or [hardware_of(other, decision.gpus) for other in likely_devices(profile)]
    if not clusters:
        return
    engines = list(original.options.engines)
    if original.candidate and original.candidate.engine:
        engines = [original.candidate.engine]
    changes = {
        "hardware": _plain(clusters[0]),
        "options.hardware": [_plain(cluster) for cluster in clusters[1:]],
        "options.engines": engines,
        "candidate": None,
    }
    request = change(decision.request, changes)
    try:
        alternatives = plan(request, folders=folders)
    except RecipeError:  # a device that the engine or the links do not fit
        return
    covered: set[str] = set()

    def kind(row: Any) -> str:
        other = alternatives.setting(int(row)).cluster.device
        return str(other.digest if requested else other.vendor)

    # Lazy: each fallback that is yielded excludes the rows of its kind that follow.
    rows = (row for row in alternatives.order if kind(row) not in covered)
    for row in _starting(alternatives, rows):
        covered.add(kind(row))
        hardware = _plain(alternatives.setting(row).cluster.asked)
        yield _fallback("other-device", alternatives, row, {"hardware": hardware})


def _plain(hardware: HardwareRequest | None) -> dict[str, Any]:
    return hardware.model_dump(mode="json", exclude_none=True) if hardware else {}


def likely_devices(profile: Device) -> list[Device]:
    """Devices for rent on demand that are nearest to this one in memory, a few of each vendor."""
    rented = {offer.device for offer in offers() if offer.commitment == "on-demand"}
    by_vendor: dict[str, list[Device]] = {}
    for other in map(device, sorted((rented & set(device_names())) - {profile.name})):
        by_vendor.setdefault(other.vendor, []).append(other)

    def distance(other: Device) -> float:
        return float(abs(np.log(other.usable_memory_bytes / profile.usable_memory_bytes)))

    likely: list[Device] = []
    for devices in by_vendor.values():
        likely += sorted(devices, key=distance)[:OTHERS_A_VENDOR]
    return likely


def hardware_of(other: Device, gpus: int) -> HardwareRequest:
    """As many devices of another kind, in nodes of their usual size."""
    per_node = min(gpus, other.node.devices)
    return HardwareRequest(device=other.name, per_node=per_node, nodes=math.ceil(gpus / per_node))


# Training: every fallback is the same split with one change; fewer devices may have to keep less


def _training(decision: Decision) -> Iterator[Fallback]:
    split = decision.candidate
    halved = split | {"dp": split["dp"] // 2, "shard": max(split["shard"] // 2, 1)}
    frugal = halved | {"zero_stage": 3, "micro_batch": 1, "recompute": "full"}
    for smaller in (halved, frugal) if split["dp"] > 1 else ():
        if alternatives := list(_trained(decision, "fewer-gpus", {}, smaller)):
            yield from alternatives
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
        changes = {"hardware": _plain(_same_nodes(other, decision.cluster))}
        for fallback in _trained(decision, "other-device", changes, split):
            vendors.add(other.vendor)
            yield fallback


def _same_nodes(other: Device, cluster: Cluster) -> HardwareRequest:
    per_node = min(cluster.per_node, other.node.devices)
    return HardwareRequest(device=other.name, per_node=per_node, nodes=cluster.nodes)


def _trained(
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
