"""When nothing fits: the nearest split, and changes to the request after which one does, each really planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.errors import RecipeError
from recipe_core.search.evaluated import EvaluatedCases
from recipe_core.search.limits import LIMITS
from recipe_core.search.serving_candidates import Resolved
from recipe_core.search.serving_plan import PlanTable, plan

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
        return " and ".join(
            f"{field}: {list(value) if isinstance(value, tuple) else value}"
            for field, value in self.changes.items()
        )


def broken_codes(table: PlanTable, row: int) -> frozenset[str]:
    """The codes of the rules that a row breaks."""
    block, i = table.at(row)
    return frozenset(code for code, broken in block.rules() if broken[i])


def rule_rows(table: PlanTable) -> dict[str, Bool]:
    """For each rule the rows that it refuses."""
    out: dict[str, Bool] = {}
    start = 0
    for block in table.blocks:
        for code, broken in block.rules():
            out.setdefault(code, np.zeros(len(table), dtype=np.bool_))[
                start : start + len(block)
            ] |= broken
        start += len(block)
    return out


def refused_by_limits(table: PlanTable) -> list[int]:
    """Rows that could run and only break limits of the objective, the smallest relative excess first."""
    if not len(table):
        return []
    excess = np.zeros(len(table))
    by_limits = np.zeros(len(table), dtype=np.bool_)
    for code, broken in rule_rows(table).items():
        if code in LIMITS:
            by_limits |= broken
            excess = np.where(broken, np.maximum(excess, _excess(table, code)), excess)
    runs = np.concatenate([block.runs & ~_unsimulated(block) for block in table.blocks])
    rows = np.flatnonzero(by_limits & runs)
    return [int(row) for row in rows[np.argsort(excess[rows], kind="stable")]]


def _unsimulated(block: EvaluatedCases) -> Bool:
    """Rows whose percentiles are not known."""
    out = np.zeros(len(block), dtype=np.bool_)
    for rule in block.limits:
        if rule.code not in LIMITS:
            out |= rule.broken
    return out


def _excess(table: PlanTable, code: str) -> Float:
    """How many times its limit each row's quantity is."""
    rule = LIMITS[code]
    excess = (
        table.bounded(code)
        * rule.factor
        / float(getattr(table.request.objective.limits, rule.name))
    )
    return 1 / np.maximum(excess, 1e-12) if rule.least else excess


def nearest(table: PlanTable) -> int | None:
    """When nothing is feasible, the row that misses the limits by least, else the one with the fewest problems and least memory lacking."""
    if len(table.ranked) or not len(table):
        return None
    by_limits = refused_by_limits(table)
    if by_limits:
        return by_limits[0]
    problems = np.sum(list(rule_rows(table).values()), axis=0)
    c = table.columns
    lacking = np.nan_to_num(np.maximum(c["shortfall_bytes"], 0), nan=np.inf)
    return int(np.lexsort((c["gpus"], lacking, problems))[0])


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
    rows = refused_by_limits(table)
    codes = {row: broken_codes(table, row) for row in rows}
    alone = {
        next(iter(codes[row])): row for row in reversed(rows) if len(codes[row]) == 1
    }  # the nearest of each comes last
    chosen = [alone[code] for code in LIMITS if code in alone] or rows[:1]
    return [
        (
            {
                f"objective.limits.{LIMITS[code].name}": _needed(table, row, code)
                for code in sorted(codes[row])
            },
            row,
        )
        for row in chosen
    ]


def _needed(table: PlanTable, row: int, code: str) -> float:
    rule = LIMITS[code]
    return _rounded(
        float(table.bounded(code)[row]) * rule.factor, np.floor if rule.least else np.ceil
    )


def _rounded(value: float, to: Callable[[float], float], digits: int = 3) -> float:
    step = 10.0 ** (np.floor(np.log10(value)) - digits + 1)
    return float(f"{to(round(value / step, 6)) * step:.10g}")


def _changes(found: Resolved) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes with their kind, the least intrusive first: weights that the engine converts itself, a shorter context, more devices."""
    request, workload, device = found.request, found.workload, found.cluster.device
    convertible = {
        dtype
        for name in request.options.engines or (None,)
        for dtype in found.engine(name).online_weight_dtypes
    }
    for dtype in sorted(
        convertible & set(device.weight_dtypes) - set(request.options.weight_dtypes)
    ):
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
        request = request.model_copy(
            update={part: getattr(request, part).model_copy(update={name: value})}
        )
    try:
        after = plan(request)
    except RecipeError:
        return None
    return after.candidate(int(after.ranked[0])) if len(after.ranked) else None
