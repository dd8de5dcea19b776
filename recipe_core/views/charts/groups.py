"""Properties in which a plan's splits differ beside their degrees, as groups of colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import cluster_title, row_load_text
from recipe_core.plans.rank import rows_beyond_limits
from recipe_core.views.plans import GROUPS as TITLES

# Groups with a colour of their own; the others are drawn together.
COLOURED = 8
OTHERS = "Others"


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of a plan by a property. ``codes``: of every row, an index of ``titles``."""

    name: str
    titles: tuple[str, ...]
    codes: Int

    @property
    def several(self) -> bool:
        return len(self.titles) > 1

    def told(self, rows: Int) -> tuple[tuple[str, ...], Int]:
        return self.titles, np.asarray(self.codes[rows])

    def among(self, group: int) -> Bool:
        return np.asarray(self.codes == group)


ALONE = "none"


def group_names(plan: Plan) -> list[str]:
    """Properties that the splits of a plan differ in, the most telling first; often none."""
    return [name for name in TITLES if name in plan.differs]


def first_grouping(plan: Plan) -> str:
    """The grouping that colours a chart unless the reader chooses."""
    names = group_names(plan)
    return names[0] if names else ALONE


def group_rows(plan: Plan, name: str, at_most: int | None = COLOURED) -> Groups:
    """The rows of a plan by one of ``group_names``; one group for anything else.

    Groups stand in the order in which the plan has them; of more than ``at_most`` those whose best
    row ranks first keep their titles, and the others are one group, the last.
    """
    if name not in group_names(plan):
        return Groups(ALONE, ("",), np.zeros(len(plan), dtype=np.int64))
    titles, codes = _codes(plan, name)
    if at_most is None or len(titles) <= at_most:
        return Groups(name, titles, codes)
    ranked = [*plan.order.tolist(), *rows_beyond_limits(plan), *range(len(plan))]
    leading = sorted(list(dict.fromkeys(codes[ranked].tolist()))[:at_most])
    places = np.full(len(titles), len(leading), dtype=np.int64)
    places[leading] = np.arange(len(leading))
    rest = f"{OTHERS} ({len(titles) - len(leading)})"
    return Groups(name, (*(titles[code] for code in leading), rest), places[codes])


def _codes(plan: Plan, name: str) -> tuple[tuple[str, ...], Int]:
    """Titles of groups, and of every row the index of its own."""
    if name == "load":
        loads = np.asarray(plan.columns["load"], dtype=float)
        _, first, codes = np.unique(loads, return_index=True, return_inverse=True)
        return tuple(row_load_text(plan, int(row)) for row in first), codes.astype(np.int64)
    if name == "device":
        return _of_blocks(plan, lambda _block, row: cluster_title(plan, row))
    return _of_blocks(plan, lambda block, _row: plan.spec.titles_of(block.setting)[name])


def _of_blocks(plan: Plan, title: Callable[[Any, int], str]) -> tuple[tuple[str, ...], Int]:
    titles: dict[str, int] = {}
    codes, start = [], 0
    for block in plan.blocks:
        if len(block):
            code = titles.setdefault(title(block, start), len(titles))
            codes.append(np.full(len(block), code, dtype=np.int64))
        start += len(block)
    return tuple(titles), np.concatenate(codes)
