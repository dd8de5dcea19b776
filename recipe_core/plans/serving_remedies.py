"""Changes of a serving request that may help, and what its decision may depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.base.units import significant
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.estimates.serving.starts import longest_context, start_errors
from recipe_core.models.tensors import bytes_per_value
from recipe_core.models.variants import model_variants
from recipe_core.plans.kind import Cures, Fields
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_columns import INTERVALS
from recipe_core.plans.serving_settings import cached_as, requested_engine
from recipe_core.plans.splits import broken_rules
from recipe_core.plans.table import PlanTable
from recipe_core.request.serving_workload import LOADS

# How far mean lengths (as a share), the load (as a factor) and a limit on a time (as a share) are
# moved.
LENGTH, LOAD, LIMIT = 0.5, 2.0, 0.2


def _serving_remedies(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    """Changes by topic, the least intrusive first.

    Weights that the engine converts itself, a shorter context, more devices.
    """
    request, workload, model = table.request, table.problem.workload, table.problem.model
    device = table.problem.cluster.device
    options = request.options
    if model.quantization is None:
        engines = [
            requested_engine(name, table.problem.cluster) for name in options.engines or (None,)
        ]
        online = {dtype for spec in engines for dtype in spec.online_weight_dtypes}
        for dtype in sorted(online & set(device.weight_dtypes) - set(options.weight_dtypes)):
            yield "weights", {"options.weight_dtypes": (dtype,)}
    shortest = workload.prompt_tokens + workload.output_tokens
    if workload.max_context is not None and workload.max_context > shortest:
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


def _longest_sure_context(table: PlanTable, shortest: int) -> int | None:
    """The longest context, in tokens, with which the first uncertain row surely starts."""
    if not len(table.order) or not table.uncertain[table.order[0]]:
        return None
    block, i = table.at(int(table.order[0]))
    case = block.cases.take(np.array([i]))
    return longest_context(block.setting, case, shortest, start_errors().sure)


def _cure_serving_row(table: PlanTable, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    for code, suggest in _CURE_OF_RULE.items():
        if code in codes:
            yield from suggest(table, row)


def _relieve_row(table: PlanTable, row: int, codes: frozenset[str]) -> Iterator[Fields]:
    """Formats that keep the accuracy; intervals of one step, where a row waits too long."""
    if "limit-accuracy" in codes:
        yield from _keep_accuracy(table, row)
    if codes & {"limit-ttft", "limit-latency"}:
        split = table.candidate(row)
        long = [name for name in INTERVALS if split.get(name, 1) > 1]
        if long:
            yield {f"candidate.{name}": 1 for name in long}


def _keep_accuracy(table: PlanTable, row: int) -> Iterator[Fields]:
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


def _wider_formats(setting: Setting, floor: float) -> list[tuple[str, str | None]]:
    """Weight formats that keep at least a share of accuracy, the smallest first.

    With the catalog's checkpoint to be loaded for each; None where the engine makes the format of
    the request's own while it loads.
    """
    catalogued = model_variants(setting.model.name)
    out: dict[str, str | None] = {}
    for name, dtype in catalogued.items():
        out.setdefault(dtype, name)
    if setting.model.quantization is None:
        out |= dict.fromkeys(setting.engine.online_weight_dtypes)
    able = [dtype for dtype in out if dtype in setting.cluster.device.weight_dtypes]
    shares = {dtype: accuracy_of(replace(setting, weight_dtype=dtype)).value for dtype in able}
    enough = [dtype for dtype in able if math.isfinite(shares[dtype]) and shares[dtype] >= floor]
    order = sorted(enough, key=lambda dtype: (bytes_per_value(dtype), dtype in WIDE))
    return [(dtype, out[dtype]) for dtype in order if dtype != setting.weight_dtype]


def _finer_formats(table: PlanTable) -> Iterator[Fields]:
    """Changes of number formats that keep a limit on accuracy, where the nearest row breaks it.

    The smallest formats first.
    """
    row = nearest_row(table)
    if row is not None and "limit-accuracy" in broken_rules(table, row):
        yield from _keep_accuracy(table, row)


def _carry(fields: Fields) -> Fields:
    names = {"weight_dtypes": "weight_dtype", "kv_dtypes": "kv_dtype"}
    return {
        f"candidate.{of_split}": fields[f"options.{option}"][0]
        for option, of_split in names.items()
        if f"options.{option}" in fields
    }


def _serving_moves(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    """Move lengths, and the load or the limits on times, down and up."""
    workload = table.problem.workload
    for name in ("input_tokens", "output_tokens"):
        for sign in (-1, 1):
            tokens = max(round(getattr(workload, name) * (1 + sign * LENGTH)), 1)
            yield f"{name.replace('_', ' ')} {sign * LENGTH:+.0%}", {f"workload.{name}": tokens}
    yield from _move_limits(table) if table.request.load_searched else _move_loads(table)


def _move_limits(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    """Limits on times, each tightened and loosened: they set the load that is searched."""
    limits = table.request.objective.limits
    for rule in LIMITS.values():
        if not rule.timed or (limit := getattr(limits, rule.name)) is None:
            continue
        for sign in (-1, 1):
            moved = float(f"{limit * (1 + sign * LIMIT):.6g}")
            field = f"objective.limits.{rule.name}"
            yield f"limit on {rule.label} {sign * LIMIT:+.0%}", {field: moved}


def _move_loads(table: PlanTable) -> Iterator[tuple[str, Fields]]:
    workload = table.problem.workload
    load = LOADS[workload.mode]
    for factor in (1 / LOAD, LOAD):
        now = getattr(workload, load)
        moved = now * factor if workload.mode == "open" else max(round(now * factor), 1)
        if moved != now:
            yield f"{load.replace('_', ' ')} × {factor:g}", {f"workload.{load}": moved}


def _serving_identity(table: PlanTable, row: int) -> tuple[Any, ...]:
    candidate, place = table.candidate(row), table.setting(row).cluster
    names = ("engine", "tp", "pp", "dp", "ep", "cp", "weight_dtype", "kv_dtype")
    return (place.device.digest, *(candidate[name] for name in names))


def _memory_cures(table: PlanTable, row: int) -> Iterator[Fields]:
    """A shorter context, or weights that the engine converts itself."""
    block, i = table.at(row)
    workload, setting = table.problem.workload, block.setting
    case, shortest = block.cases.take([i]), workload.prompt_tokens + workload.output_tokens
    longest = longest_context(setting, case, shortest, start_errors().sure)
    if longest is not None:
        yield {"workload.max_context": longest}
    if setting.model.quantization is None:
        for dtype in setting.engine.online_weight_dtypes:
            if dtype in setting.cluster.device.weight_dtypes and dtype != setting.weight_dtype:
                yield {"options.weight_dtypes": (dtype,)}


def _context_cures(table: PlanTable, _: int) -> Iterator[Fields]:
    workload, longest = table.problem.workload, table.problem.model.max_context
    if workload.output_tokens < longest:
        prompt = longest - workload.output_tokens
        yield {"workload.input_tokens": prompt, "workload.max_context": None}


def _batch_cures(table: PlanTable, row: int) -> Iterator[Fields]:
    batch = int(table.columns["max_concurrency"][row])
    if batch >= 1:
        yield {"workload.batch": batch}


def _rate_cures(table: PlanTable, row: int) -> Iterator[Fields]:
    served = float(table.raw("output")[row]) / table.problem.workload.output_tokens
    if math.isfinite(served) and served > 0:
        rate = float(significant(served * 0.95, 2).replace(",", ""))
        yield {"workload.request_rate": rate}


def _idle_cures(table: PlanTable, row: int) -> Iterator[Fields]:
    mode = table.problem.workload.mode
    if mode in ("closed", "static"):
        yield {f"workload.{LOADS[mode]}": int(table.candidate(row)["dp"])}


def _format_cures(table: PlanTable, row: int) -> Iterator[Fields]:
    for dtype in table.setting(row).cluster.device.weight_dtypes:
        yield {"options.weight_dtypes": (dtype,)}


# Cures of a rule, by its code; against rules of divisibility only another split helps.
_CURE_OF_RULE: dict[str, Callable[[PlanTable, int], Iterator[Fields]]] = {
    "memory": _memory_cures,
    "context": _context_cures,
    "batch": _batch_cures,
    "rate": _rate_cures,
    "idle-replicas": _idle_cures,
    "weight-dtype": _format_cures,
}

CURES = Cures(
    remedies=_serving_remedies,
    row_cures=_cure_serving_row,
    row_reliefs=_relieve_row,
    carried=_carry,
    finer_formats=_finer_formats,
    launches=lambda _table: iter(()),
    moves=_serving_moves,
    identity=_serving_identity,
)
