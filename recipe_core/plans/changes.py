"""Changes to a request that would help, each really planned.

For a plan with nothing feasible, and for one refused split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import split_name
from recipe_core.engines.candidate_options import OPTIONS
from recipe_core.plans.limits import LIMITS
from recipe_core.request.edit import change

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

AT_MOST = 3
LEAST_CONFIDENCE = 0.5
"""The lowest confidence that a request may ask for."""
CLOSE = 50
"""Feasible rows with the nearest degrees whose other choices are compared."""

_ENGINE_LIMITS = (
    "shard",
    *(option.name for option in OPTIONS),
    "batch_window_ms",
    "instances",
)
"""What follows from a split rather than makes it another."""


@dataclass(frozen=True, slots=True)
class Change:
    """Edits to a request (dotted fields and values), and the split that runs after them.

    ``fields`` is empty for the nearest split that runs already.
    """

    fields: Mapping[str, Any]
    candidate: Mapping[str, Any]
    key: str

    @property
    def split(self) -> str:
        """The split in a few characters."""
        return split_name(self.candidate)

    def to_json(self) -> dict[str, Any]:
        """``{"set": {field: value}, "candidate": {…}}``."""
        return {"set": dict(self.fields), "candidate": dict(self.candidate)}

    def __str__(self) -> str:
        return change_text(self.fields)


def change_text(
    fields: Mapping[str, Any],
    candidate: Mapping[str, Any] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> str:
    """Say edits, and the split that runs after them where it is another than the one ``beside``."""
    edits = " and ".join(
        f"{field}: {list(value) if isinstance(value, tuple) else value}"
        for field, value in fields.items()
    )
    if candidate is None or beside is None:
        return edits
    names = ("engine", "weight_dtype", "kv_dtype")
    differing = [candidate[name] for name in names if candidate.get(name) != beside.get(name)]
    split = split_name(candidate)
    if split == split_name(beside) and not differing:
        return edits
    return f"{edits} ({', '.join([split, *differing])})"


def advice(changes: Sequence[Change], beside: Mapping[str, Any]) -> str:
    """Changes after which something fits, as a sentence that names other splits than ``beside``."""
    said = (change_text(one.fields, one.candidate, beside) for one in changes)
    return f"It works with {'; or '.join(said)}."


# A plan with nothing feasible


def helpful_changes(plan: Plan, at_most: int = AT_MOST) -> list[Change]:
    """Up to ``at_most`` changes that let a split in; none where one surely starts.

    Looser limits where only those refuse, else what the kind of workload offers: other number
    formats, a shorter context, states on the host, more devices.
    """
    if len(plan.order) and plan.certain[plan.order[0]]:
        return []
    looser = looser_limits(plan) if not len(plan.order) else []
    if looser:
        return [*_finer(plan), *looser][:at_most]
    out: list[Change] = []
    tried: set[str] = set()
    for topic, fields in plan.remedies():
        if len(out) == at_most:
            break
        if topic not in tried and (best := _best_after(plan, fields)):
            tried.add(topic)  # the smallest change of each topic is enough
            out.append(best)
    return out


def _finer(plan: Plan) -> list[Change]:
    """The smallest number formats that keep the limit on accuracy; none where others are broken."""
    after = (_best_after(plan, fields) for fields in plan.finer_formats())
    return [one for one in [next(filter(None, after), None)] if one is not None]


def looser_limits(plan: Plan) -> list[Change]:
    """Limits that would let a row in.

    Each alone where that is enough, else all that the nearest row breaks.
    """
    rows = plan.beyond_limits()
    codes = {row: plan.codes(row) for row in rows}
    alone = {}
    for row in reversed(rows):  # the nearest of each comes last
        if len(codes[row]) == 1:
            alone[next(iter(codes[row]))] = row
    nearest = [alone[code] for code in (*LIMITS, "confidence") if code in alone] or rows[:1]
    changes = [
        Change(_loosened(plan, row, codes[row]), plan.candidate(row), plan.key(row))
        for row in nearest
    ]
    if plan.request.objective.confidence is None:
        return changes
    # what a limit has to be so that it holds with the confidence is only close to what is computed
    planned = (_best_after(plan, one.fields) for one in changes)
    return [change for change in planned if change]


def _loosened(plan: Plan, row: int, codes: frozenset[str]) -> dict[str, float]:
    """The limits among ``codes`` at the row's own figures, or as it holds them with confidence.

    Without those that are unknown.
    """
    figures = {
        code: float(plan.bound(code)[row]) * plan.margin(code, row)
        for code in sorted(codes & set(LIMITS))
    }
    out = {
        f"objective.limits.{LIMITS[code].name}": LIMITS[code].loosened(figure)
        for code, figure in figures.items()
        if math.isfinite(figure)
    }
    if "confidence" in codes:
        chance = math.floor(float(plan.confidence([row])[0]) * 100) / 100
        if chance >= LEAST_CONFIDENCE:
            return {**out, "objective.confidence": chance}
        codes = frozenset(
            code for code in LIMITS if LIMITS[code].bound(plan.request.objective.limits) is not None
        )
        return _loosened(plan, row, codes)
    return out


def buildable_changes(plan: Plan, at_most: int = AT_MOST) -> list[Change]:
    """Changes after which a bundle can be made, each really planned; none where one can already."""
    out: list[Change] = []
    for fields in plan.launch_cures():
        if len(out) < at_most and (best := _best_after(plan, fields, bundled=True)):
            out.append(best)
    return out


def _best_after(plan: Plan, fields: Mapping[str, Any], *, bundled: bool = False) -> Change | None:
    """The change with the best split after it, None when there is still none.

    ``bundled``: one of which a bundle can be made.
    """
    try:
        after = plan.replan(change(plan.request, fields))
    except RecipeError:
        return None
    row = after.best_row
    if row is None or after.uncertain[row]:
        return None
    if _loses_bundle(plan, after) or (bundled and after.launch_note):
        return None
    return Change(fields, after.candidate(row), after.key(row))


def _loses_bundle(plan: Plan, after: Plan) -> bool:
    """Whether after a change there are estimates only, where a bundle could be made before."""
    return after.launch_note is not None and plan.launch_note is None


# One refused split


def fixes(plan: Plan, row: int, at_most: int = AT_MOST) -> list[Change]:
    """Changes that let this very split run, then the nearest split that runs already.

    None for a row that surely starts.
    """
    if plan.feasible[row] and plan.certain[row]:
        return []
    out: list[Change] = []
    for fields in _worth_trying(plan, row):
        if len(out) == at_most - 1:
            break
        if _runs_after(plan, row, fields):
            out.append(Change(fields, plan.candidate(row), plan.key(row)))
    near = nearest_feasible(plan, row)
    if near is not None:
        out.append(Change({}, plan.candidate(near), plan.key(near)))
    return out


def _worth_trying(plan: Plan, row: int) -> Iterator[dict[str, Any]]:
    """Changes for the rules that a row breaks, the least intrusive first.

    Several rules are met together.
    """
    codes = plan.codes(row) | ({"memory"} if plan.uncertain[row] else set())
    yield from plan.reliefs(row, codes)
    limits = _loosened(plan, row, codes)
    if codes and codes <= set(LIMITS):
        yield limits
    for fields in plan.cures(row, codes):
        yield {**limits, **fields}


def _runs_after(plan: Plan, row: int, fields: Mapping[str, Any]) -> bool:
    """Whether the row's split runs after the changes: looked up and judged anew."""
    try:
        request = change(plan.request_of(row), {**fields, **plan.carried(row, fields)})
        after = plan.replan_stated(request)
    except RecipeError:
        return False
    if after is None or not after.feasible[0] or after.uncertain[0]:
        return False
    return not _loses_bundle(plan, after)


def nearest_feasible(plan: Plan, row: int) -> int | None:
    """The row that surely starts with the nearest degrees, by their logarithms.

    Of close ones the most alike; None when nothing surely starts.
    """
    starting = plan.order[plan.certain[plan.order]]
    if not len(starting):
        return None
    target = plan.candidate(row)
    distance = np.zeros(len(starting))
    for name in ("tp", "pp", "dp", "ep", "cp"):
        distance += np.abs(np.log2(plan.degree(name)[starting] / target[name]))
    close = starting[np.argsort(distance, kind="stable")[:CLOSE]]
    return min(map(int, close), key=lambda other: _apart(target, plan.candidate(other)))


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """How far two candidates are apart.

    Doublings of degrees, and one for every other choice that differs.
    """
    out = 0.0
    for name, value in a.items():
        other = b.get(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not isinstance(other, int | float)
        ):
            out += value != other
        elif name not in _ENGINE_LIMITS:
            out += abs(math.log2(max(value, 0.5) / max(other, 0.5)))
    return out
