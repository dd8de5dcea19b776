"""Flips of a decision: the request planned again with one thing of it moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from recipe_core.base.units import share_text
from recipe_core.plans.kind import Fields
from recipe_core.plans.limits import LIMITS

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

# Shares by which the price of a device and hour, lengths, and limits on times are moved.
PRICE, LENGTH, LIMIT = 0.2, 0.5, 0.2
# Factor by which loads and batches are.
LOAD = 2.0
_more = partial(share_text, signed=True)


@dataclass(frozen=True, slots=True)
class Flip:
    """One thing moved: the fields as they then are, the best split then, and whether it is another.

    ``candidate`` is None when nothing is feasible any more.
    """

    title: str
    fields: Mapping[str, Any]
    candidate: dict[str, Any] | None
    flips: bool

    def to_json(self) -> dict[str, Any]:
        """``{"what": …, "set": {field: value}, "candidate": {…}, "flips": …}``."""
        return {
            "what": self.title,
            "set": dict(self.fields),
            "candidate": self.candidate,
            "flips": self.flips,
        }


def find_flips(plan: Plan) -> list[Flip]:
    """Each move with the best split after it; nothing for a plan without a feasible one."""
    if plan.best_row is None:
        return []
    first = row_identity(plan, plan.best_row)
    out = []
    for name, fields in _plan_moves(plan):
        best_plan = plan.replan_best(fields)
        split = None if best_plan is None else best_plan[0].candidate(best_plan[1])
        moved = best_plan is None or row_identity(*best_plan) != first
        out.append(Flip(name, fields, split, flips=moved))
    return out


def row_identity(plan: Plan, row: int) -> tuple[Any, ...]:
    """Return what makes a row another choice: its device, and what its kind counts."""
    split = plan.candidate(row)
    names = plan.spec.cures.identity
    return (plan.setting(row).cluster.device.digest, *(split.get(name) for name in names))


def _plan_moves(plan: Plan) -> Iterator[tuple[str, Fields]]:
    """Move the price, lengths, and the load or the limits that set it, down and up, by name.

    The price where it may change the choice: on one cluster it does not.
    """
    price, workload = plan.problem.cluster.usd_per_device_hour, plan.problem.workload
    if price is not None and len(plan.problem.clusters) > 1:
        for share in (-PRICE, PRICE):
            moved = round(price * (1 + share), 6)
            fields = {"hardware.usd_per_device_hour": moved, "hardware.offer": None}
            yield f"price {_more(share)}", fields
    lengths, loads = plan.spec.cures.moved(plan)
    for name, share in product(lengths, (-LENGTH, LENGTH)):
        tokens = max(round(getattr(workload, name) * (1 + share)), 1)
        yield f"{name.replace('_', ' ')} {_more(share)}", {f"workload.{name}": tokens}
    for name, factor in product(loads, (1 / LOAD, LOAD)):
        now = getattr(workload, name)
        load = now * factor if isinstance(now, float) else max(round(now * factor), 1)
        if load != now:
            yield f"{name.replace('_', ' ')} × {factor:g}", {f"workload.{name}": load}
    if plan.request.load_searched:
        yield from _move_limits(plan)


def _move_limits(plan: Plan) -> Iterator[tuple[str, Fields]]:
    """Limits on times, each tightened and loosened: they set the load that is searched."""
    for rule, share in product(LIMITS.values(), (-LIMIT, LIMIT)):
        limit = getattr(plan.request.objective.limits, rule.name)
        if rule.timed and limit is not None:
            moved = float(f"{limit * (1 + share):.6g}")
            yield f"limit on {rule.label} {_more(share)}", {f"objective.limits.{rule.name}": moved}
