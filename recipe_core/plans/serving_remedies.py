"""Changes of a serving request that may help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.units import significant
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.estimates.serving.starts import longest_context, start_errors
from recipe_core.models.tensors import bytes_per_value
from recipe_core.models.variants import model_variants
from recipe_core.plans.kind import DEGREES, Cures, Fields
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_columns import INTERVALS
from recipe_core.plans.serving_settings import cached_as, served_context
from recipe_core.plans.splits import broken_rules
from recipe_core.request.serving_workload import LOADS

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan


def _serving_remedies(table: Plan) -> Iterator[tuple[str, Fields]]:
    """Changes by topic, the least intrusive first.

    Weights that the engine converts itself, a shorter context, more devices.
    """
    request, workload = table.request, table.problem.workload
    device = table.problem.cluster.device
    online = {dtype for block in table.blocks for dtype in online_formats(block.setting)}
    for dtype in sorted(online - {*request.options.weight_dtypes}):
        yield "weights", {"options.weight_dtypes": (dtype,)}
    shortest = workload.longest_tokens
    if served_context(workload, table.problem.model) > shortest:
        longest = _longest_sure_context(table, shortest)
        yield "context", {"workload.max_context": longest or shortest}
    per_node, nodes, full = (
        request.hardware.per_node,
        request.hardware.nodes,
        device.node.devices,
    )
    while per_node * 2 <= full:
        per_node *= 2
        yield "devices", {"hardware.per_node": per_node}
    fuller = {"hardware.per_node": per_node} if per_node != request.hardware.per_node else {}
    for factor in (2, 4, 8, 16):
        yield "devices", {**fuller, "hardware.nodes": nodes * factor}


def _longest_sure_context(table: Plan, shortest: int) -> int | None:
    """The longest context, in tokens, with which the first uncertain or refused row starts."""
    row = int(table.order[0]) if len(table.order) else nearest_row(table)
    if row is None or not (table.uncertain[row] or "memory" in broken_rules(table, row)):
        return None
    block, i = table.at(row)
    case = block.cases.take(np.array([i]))
    return longest_context(block.setting, case, shortest, start_errors().sure)


def _cure_serving_row(table: Plan, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    """By the rules that a row breaks; against those of divisibility only another split helps."""
    (block, i), workload, setting = table.at(row), table.problem.workload, table.setting(row)
    if "memory" in codes:  # a shorter context, or weights that the engine converts itself
        case, shortest = block.cases.take([i]), workload.longest_tokens
        longest = longest_context(setting, case, shortest, start_errors().sure)
        if longest is not None:
            yield {"workload.max_context": longest}
        yield from ({"options.weight_dtypes": (dtype,)} for dtype in online_formats(setting))
    prompt = table.problem.model.max_context - workload.output_tokens
    if "context" in codes and prompt > 0:
        yield {"workload.input_tokens": prompt, "workload.max_context": None}
    if "batch" in codes and table.columns["max_concurrency"][row] >= 1:
        yield {"workload.batch": int(table.columns["max_concurrency"][row])}
    served = float(table.raw("output")[row]) / workload.output_tokens
    if "rate" in codes and math.isfinite(served) and served > 0:
        yield {"workload.request_rate": float(significant(served * 0.95, 2).replace(",", ""))}
    if "idle-replicas" in codes and workload.mode in ("closed", "static"):
        yield {f"workload.{LOADS[workload.mode]}": int(table.candidate(row)["dp"])}
    if "weight-dtype" in codes:
        for dtype in setting.cluster.device.weight_dtypes:
            yield {"options.weight_dtypes": (dtype,)}


def _relieve_row(table: Plan, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    """Formats that keep the accuracy; intervals of one step, where a row waits too long."""
    if "limit-accuracy" in codes:
        yield from _keep_accuracy(table, row)
    if codes & {"limit-ttft", "limit-latency"}:
        split = table.candidate(row)
        long = [name for name in INTERVALS if split.get(name, 1) > 1]
        if long:
            yield {f"candidate.{name}": 1 for name in long}


def _keep_accuracy(table: Plan, row: int) -> Iterator[Fields]:
    """Number formats that keep the accuracy asked for, the smallest first.

    Weights that the engine makes or the catalog has, then the cache as activations are.
    """
    floor = table.request.objective.limits.accuracy_recovery
    setting = table.setting(row)
    if floor is None:
        return
    for cache in dict.fromkeys((setting.kv_dtype, "auto")):
        wider = replace(setting, kv_dtype=cached_as(cache, setting))
        narrower = {} if cache == setting.kv_dtype else {"options.kv_dtypes": (cache,)}
        if narrower and accuracy_of(wider).value >= floor:
            yield narrower
        for dtype, checkpoint in _wider_formats(wider, floor):
            loaded: dict[str, Any] = {"options.weight_dtypes": (dtype,)}
            if checkpoint is not None:
                loaded = {"model": checkpoint, "options.weight_dtypes": ("auto",)}
            yield loaded | narrower


def online_formats(setting: Setting) -> list[str]:
    """Other weight formats that the engine makes of the request's own weights while it loads."""
    able = setting.engine.online_weight_dtypes if setting.model.quantization is None else ()
    formats = setting.cluster.device.weight_dtypes
    return [dtype for dtype in able if dtype in formats and dtype != setting.weight_dtype]


def catalog_formats(setting: Setting) -> dict[str, str]:
    """Other weight formats that the catalog has the model in, with the first checkpoint of each."""
    out: dict[str, str] = {}
    for name, dtype in model_variants(setting.model.name).items():
        if dtype in setting.cluster.device.weight_dtypes and dtype != setting.weight_dtype:
            out.setdefault(dtype, name)
    return out


def _wider_formats(setting: Setting, floor: float) -> list[tuple[str, str | None]]:
    """Weight formats that keep at least a share of accuracy, the smallest first.

    With the catalog's checkpoint to be loaded for each; None where the engine makes the format of
    the request's own while it loads.
    """
    out = {**catalog_formats(setting), **dict.fromkeys(online_formats(setting))}
    # an unknown share keeps nothing
    enough = [d for d in out if accuracy_of(replace(setting, weight_dtype=d)).value >= floor]
    order = sorted(enough, key=lambda dtype: (bytes_per_value(dtype), dtype in WIDE))
    return [(dtype, out[dtype]) for dtype in order]


def _moved_serving_fields(table: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    load = () if table.request.load_searched else (LOADS[table.problem.workload.mode],)
    return ("input_tokens", "output_tokens"), load


CURES = Cures(
    remedies=_serving_remedies,
    row_cures=_cure_serving_row,
    row_reliefs=_relieve_row,
    moved=_moved_serving_fields,
    identity=("engine", *DEGREES, "weight_dtype", "kv_dtype"),
)
