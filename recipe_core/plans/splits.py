"""The splits of a plan: by row their names in links, requests and refusals; as objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.plans.evaluation import EvaluatedCases
from recipe_core.plans.kind import DEGREES
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import key_cluster, key_load, key_split, split_key

if TYPE_CHECKING:
    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.plan import Plan


def row_keys(table: Plan, rows: Sequence[int] | Int) -> list[str]:
    """The names of rows in links and charts, with their loads where a split has several."""
    index = np.asarray(rows, dtype=np.int64)
    loads = table.columns["load"][index].tolist() if table.request.options.loads else ()
    clusters = table.clusters_of_rows[index].tolist()
    return [split_key(*split) for split in zip_longest(table.candidates(index), clusters, loads)]


def row_key(table: Plan, row: int) -> str:
    return row_keys(table, [row])[0]


def find_row(table: Plan, key: str) -> int | None:
    """The row that a key names, None when the plan has no such split."""
    split = key_split(key)
    if split is None or not len(table):
        return None
    agree = [table.columns[name] == split.get(name, 1) for name in DEGREES]
    agree.append(table.clusters_of_rows == key_cluster(key))
    if table.request.options.loads:
        workload = table.problem.workload
        load = key_load(key) or getattr(workload, LOADS[workload.mode]) or 1
        agree.append(np.isclose(table.columns["load"], load, rtol=1e-9))
    rows = np.flatnonzero(np.all(agree, axis=0))
    same = (table.spec.is_same_split(candidate, split) for candidate in table.candidates(rows))
    return next((row for row, is_same in zip(rows.tolist(), same, strict=True) if is_same), None)


def row_request(table: Plan, row: int) -> PlanRequest:
    """The request of a row alone.

    On its hardware, under its load, with its split as the candidate.
    """
    request = table.request
    return request.model_copy(
        update={
            "options": request.options.model_copy(update=dict.fromkeys(table.spec.settled, ())),
            "hardware": table.setting(row).cluster.request or request.hardware,
            "candidate": CandidateRequest.model_validate(table.candidate(row)),
            "workload": table.spec.workload(table, row),
        }
    )


def row_estimates(table: Plan, row: int) -> tuple[Any, int]:
    """The columns of physics that hold a row, and its place in them."""
    block, place = table.at(row)
    return block.detail(place)


def row_state(table: Plan, row: int) -> str:
    """``holds``, ``queues``, ``uncertain`` or ``cannot run``."""
    if not table.feasible[row]:
        return "cannot run"
    if table.uncertain[row]:
        return "uncertain"
    return "queues" if table.queues[row] else "holds"


def broken_rules(table: Plan, row: int) -> frozenset[str]:
    """Codes of the rules that a row breaks."""
    return frozenset(code for code, broken in table.rules.items() if broken[row])


def refusal_reasons(table: Plan, rows: Sequence[int] | Int) -> list[list[str]]:
    """Say why rows are refused, as sentences; empty for a row that is not."""
    return table.spec.trim_reasons(table, table.by_block(rows, EvaluatedCases.sentences))


def row_reasons(table: Plan, row: int) -> list[str]:
    return refusal_reasons(table, [row])[0]


def is_known(table: Plan, name: str) -> bool:
    """Return whether a measure is known of any row that is feasible (a price may not be)."""
    rows = table.feasible if table.feasible.any() else slice(None)
    return bool(np.isfinite(table.raw(name)[rows]).any())


# for users of the library


@dataclass(frozen=True, slots=True)
class Split:
    """One row of a plan: how a model is cut over devices, and what that would do."""

    plan: Plan
    row: int

    @property
    def candidate(self) -> dict[str, Any]:
        return self.plan.candidate(self.row)

    @property
    def estimate(self) -> Estimate:
        """Memory, time, throughput and cost; ``estimate.tpot_s`` is a figure with its band."""
        estimate: Estimate = self.plan.completed(self.row)
        return estimate

    @property
    def reasons(self) -> list[str]:
        """Say why it cannot run; empty when it can."""
        return row_reasons(self.plan, self.row)

    @property
    def feasible(self) -> bool:
        return bool(self.plan.feasible[self.row])

    @property
    def rank(self) -> int | None:
        """1 for the best; None when it is refused."""
        places = np.flatnonzero(self.plan.order == self.row)
        return int(places[0]) + 1 if len(places) else None

    @property
    def request(self) -> PlanRequest:
        return row_request(self.plan, self.row)

    @property
    def key(self) -> str:
        return row_key(self.plan, self.row)

    def __str__(self) -> str:
        return self.plan.label(self.row)


@dataclass(frozen=True, slots=True)
class Splits(Sequence[Split]):
    """Some rows of a plan, in an order; a slice is as cheap."""

    plan: Plan
    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> Splits: ...
    def __getitem__(self, index: int | slice) -> Split | Splits:
        if isinstance(index, slice):
            return Splits(self.plan, self.rows[index])
        return Split(self.plan, int(self.rows[index]))

    def __iter__(self) -> Iterator[Split]:
        return (Split(self.plan, int(row)) for row in self.rows)
