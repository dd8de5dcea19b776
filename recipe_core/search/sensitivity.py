"""What would flip the decision: the same request planned again with the price, the lengths and the load changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.request.schema import LOADS, PlanRequest, ServingWorkload
from recipe_core.search.serving_plan import PlanTable, plan

PRICE, LENGTH, LOAD = 0.2, 0.5, 2.0
"""How far a price per device and hour, mean lengths and the load are moved."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing changed: what, the fields as they then are, the split that is best then, and whether it is another.

    ``candidate`` is None when nothing can run any more.
    """

    what: str
    fields: dict[str, Any]
    candidate: dict[str, Any] | None
    flips: bool

    def to_json(self) -> dict[str, Any]:
        """``{"what": …, "set": {field: value}, "candidate": {…}, "flips": …}``."""
        return {
            "what": self.what,
            "set": self.fields,
            "candidate": self.candidate,
            "flips": self.flips,
        }


def sensitivity(table: PlanTable) -> list[Change]:
    """Each change with the best split after it; nothing for a plan without a feasible one."""
    if not len(table.ranked):
        return []
    first = _where(table)
    return [_changed(table, what, fields, first) for what, fields in _changes(table)]


def _changes(table: PlanTable) -> Iterator[tuple[str, dict[str, Any]]]:
    workload, price = table.found.workload, table.found.cluster.usd_per_device_hour
    if price is not None and len(table.found.clusters) > 1:  # alone, a price changes nothing
        for sign in (-1, 1):
            yield (
                f"price {sign * PRICE:+.0%}",
                {
                    "hardware.usd_per_device_hour": round(price * (1 + sign * PRICE), 6),
                    "hardware.offer": None,
                },
            )
    for name in ("input_tokens", "output_tokens"):
        for sign in (-1, 1):
            value = max(round(getattr(workload, name) * (1 + sign * LENGTH)), 1)
            yield (
                f"{name.replace('_', ' ')} {sign * LENGTH:+.0%}",
                {f"workload.{name}": value} | _roomy(workload, name, value),
            )
    load = LOADS[workload.mode]
    for factor in (1 / LOAD, LOAD):
        stated = getattr(workload, load)
        value = stated * factor if workload.mode == "open" else max(round(stated * factor), 1)
        if value != stated:
            yield f"{load.replace('_', ' ')} × {factor:g}", {f"workload.{load}": value}


def _roomy(workload: ServingWorkload, name: str, value: int) -> dict[str, Any]:
    """A longest context that still holds the lengths, where one is stated."""
    other = {"input_tokens": workload.output_tokens, "output_tokens": workload.input_tokens}[name]
    short = workload.max_context is not None and workload.max_context < value + other
    return {"workload.max_context": None} if short else {}


def _changed(table: PlanTable, what: str, fields: dict[str, Any], first: tuple[Any, ...]) -> Change:
    request: PlanRequest = table.request
    for field, value in fields.items():
        part, name = field.split(".")
        request = request.model_copy(
            update={part: getattr(request, part).model_copy(update={name: value})}
        )
    try:
        after = plan(request)
    except RecipeError:
        return Change(what, fields, None, flips=True)
    if not len(after.ranked):
        return Change(what, fields, None, flips=True)
    return Change(what, fields, after.candidate(int(after.ranked[0])), flips=_where(after) != first)


def _where(table: PlanTable) -> tuple[Any, ...]:
    """The best split and the devices it is on."""
    row = int(table.ranked[0])
    c, setting = table.candidate(row), table.setting(row)
    return (
        setting.cluster.device.digest,
        setting.engine.name,
        *(c[name] for name in ("tp", "pp", "dp", "ep", "cp", "weight_dtype", "kv_dtype")),
    )
