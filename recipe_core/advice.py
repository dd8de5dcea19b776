"""When nothing fits: the nearest split, and changes to the request after which one does, each really planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.candidates import Resolved
from recipe_core.errors import RecipeError
from recipe_core.plan import LIMITS, PlanTable, plan

AT_MOST = 3


@dataclass(frozen=True, slots=True)
class Remedy:
    """Edits to a request, as dotted fields and values, and the split that is best after them."""

    changes: dict[str, Any]
    candidate: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """``{"set": {field: value}, "candidate": {…}}``."""
        return {"set": self.changes, "candidate": self.candidate}

    def __str__(self) -> str:
        return " and ".join(f"{field}: {list(value) if isinstance(value, tuple) else value}" for field, value in self.changes.items())


def broken_codes(table: PlanTable) -> list[frozenset[str]]:
    """The codes of the rules that each row breaks."""
    out: list[frozenset[str]] = []
    for block in table.blocks:
        codes = [refusal.code for refusal in block.refusals]
        matrix = np.array([refusal.broken for refusal in block.refusals])
        out += [frozenset(code for code, bad in zip(codes, column, strict=True) if bad) for column in matrix.T]
    return out


def refused_by_limits(table: PlanTable) -> list[int]:
    """Rows that could run and only break limits of the objective, the smallest relative excess first."""
    codes = broken_codes(table)
    rows = [row for row, broken in enumerate(codes) if broken and broken <= set(LIMITS)]
    return sorted(rows, key=lambda row: max(_excess(table, row, code) for code in codes[row]))


def _excess(table: PlanTable, row: int, code: str) -> float:
    """How many times its limit a row's quantity is."""
    rule = LIMITS[code]
    return float(table.columns[rule.column][row]) * rule.factor / float(getattr(table.request.objective.limits, rule.name))


def nearest(table: PlanTable) -> int | None:
    """When nothing is feasible, the row that misses the limits by least, else the one with the fewest problems and least memory lacking."""
    if len(table.ranked) or not len(table):
        return None
    by_limits = refused_by_limits(table)
    if by_limits:
        return by_limits[0]
    problems = np.array([len(broken) for broken in broken_codes(table)])
    c = table.columns
    return int(np.lexsort((c["gpus"], np.maximum(c["shortfall_bytes"], 0), problems))[0])


def remedies(table: PlanTable, at_most: int = AT_MOST) -> list[Remedy]:
    """Up to ``at_most`` changes that let a split in: looser limits where only those refuse, else other weights, context or more devices."""
    if len(table.ranked):
        return []
    looser = [Remedy(changes, table.candidate(row)) for changes, row in looser_limits(table)]
    if looser:
        return looser[:at_most]
    found: list[Remedy] = []
    tried: set[str] = set()
    for kind, changes in _changes(table.found):
        if kind not in tried and len(found) < at_most and (best := _planned(table, changes)):
            tried.add(kind)  # the smallest change of each kind is enough
            found.append(Remedy(changes, best))
    return found


def looser_limits(table: PlanTable) -> list[tuple[dict[str, float], int]]:
    """Limits that would let a row in: each limit alone where that is enough, else all that the nearest row breaks.

    Values are rounded up to three significant digits, so that the row really passes.
    """
    codes, rows = broken_codes(table), refused_by_limits(table)
    alone = {next(iter(codes[row])): row for row in reversed(rows) if len(codes[row]) == 1}  # the nearest of each comes last
    chosen = [alone[code] for code in LIMITS if code in alone] or rows[:1]
    return [({f"objective.limits.{LIMITS[code].name}": _needed(table, row, code) for code in sorted(codes[row])}, row) for row in chosen]


def _needed(table: PlanTable, row: int, code: str) -> float:
    rule = LIMITS[code]
    return _round_up(float(table.columns[rule.column][row]) * rule.factor)


def _round_up(value: float, digits: int = 3) -> float:
    step = 10.0 ** (np.floor(np.log10(value)) - digits + 1)
    return float(f"{np.ceil(round(value / step, 6)) * step:.10g}")


def _changes(found: Resolved) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes with their kind, the least intrusive first: weights that the engine converts itself, a shorter context, more devices."""
    request, workload, device = found.request, found.workload, found.cluster.device
    convertible = {dtype for name in request.options.engines or (None,) for dtype in found.engine(name).online_weight_dtypes}
    for dtype in sorted(convertible & set(device.weight_dtypes) - set(request.options.weight_dtypes)):
        if found.model.quantization is None:
            yield "weights", {"options.weight_dtypes": (dtype,)}
    shortest = workload.input_tokens + workload.output_tokens
    if workload.max_context is not None and workload.max_context > shortest:
        yield "context", {"workload.max_context": shortest}
    per_node, nodes, full = request.hardware.per_node, request.hardware.nodes, device.node.devices
    while per_node * 2 <= full:
        per_node *= 2
        yield "devices", {"hardware.per_node": per_node}
    for _ in range(4):
        nodes *= 2
        grown = {"hardware.per_node": per_node} if per_node != request.hardware.per_node else {}
        yield "devices", grown | {"hardware.nodes": nodes}


def _planned(table: PlanTable, changes: dict[str, Any]) -> dict[str, Any] | None:
    """The best split after the changes, None when there is still none."""
    request = table.request
    for field, value in changes.items():
        part, name = field.split(".")
        request = request.model_copy(update={part: getattr(request, part).model_copy(update={name: value})})
    try:
        after = plan(request)
    except RecipeError:
        return None
    return after.candidate(int(after.ranked[0])) if len(after.ranked) else None
