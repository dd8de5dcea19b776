"""A training plan as people compare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.labels import TRAINING_MEMORY, TRAINING_REFUSALS, training_split
from recipe_core.measured.support import support
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import TRAINING_FIELDS, split_key, split_of
from recipe_core.search.board import Board
from recipe_core.search.measures import TRAINING
from recipe_core.search.training_plan import TrainingTable
from recipe_core.search.training_search import judge
from recipe_core.space.training import RECOMPUTE


class TrainingBoard(Board):
    """The rows of a ``TrainingTable``."""

    measures = TRAINING
    axes = ("wall", "per_gpu")
    listed: tuple[str, ...] = (
        "gpus",
        "output",
        "per_gpu",
        "step",
        "memory",
        "bubble",
        "wall",
        "usd_run",
    )
    parts = TRAINING_MEMORY
    kinds = TRAINING_REFUSALS
    figures = ("output", "wall", "usd_run")
    headline: tuple[str, ...] = ("output", "step", "wall", "usd_run")

    def __init__(self, table: TrainingTable) -> None:
        self.table = table
        if table.asked.workload.tokens is None:  # nothing to finish: a step is what is compared
            self.axes, self.figures = ("step", "per_gpu"), ("output", "step", "usd")
            self.listed = (*self.listed[:-2], "usd")
            self.headline = ("output", "per_gpu", "step", "usd")

    def __len__(self) -> int:
        return len(self.table)

    @property
    def request(self) -> PlanRequest:
        """What was asked."""
        return self.table.asked.request

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The plan's columns, with those of the run."""
        e = self.table.estimates
        ran = {name: getattr(e.run, name) for name in ("wall_s", "usd", "usd_per_hour", "watts")}
        return {**self.table.columns, **ran}

    @property
    def feasible(self) -> Bool:
        """Rows that nothing refuses."""
        out: Bool = self.table.columns["feasible"]
        return out

    @cached_property
    def runs(self) -> Bool:
        """Rows that nothing but a limit refuses."""
        return self.table.estimates.feasible

    @property
    def ranked(self) -> Int:
        """Feasible rows, best first."""
        return self.table.ranked

    @property
    def device_title(self) -> str:
        """A GPU, or a machine where the processor computes."""
        return "machine" if self.table.asked.cluster.device.runtime == "cpu" else "GPU"

    def degree(self, name: str) -> Int:
        """A degree of every row."""
        return np.asarray(getattr(self.table.estimates.cases, name), dtype=np.int64)

    @property
    def basis(self) -> str:
        """How well the device is known."""
        return support(self.table.asked.cluster.device).level

    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row."""
        return self.table.estimates.candidate(row)

    def estimate(self, row: int) -> dict[str, Any]:
        """The estimate of a row."""
        return self.table.estimates.row(row)

    def key(self, row: int) -> str:
        """The name of a row."""
        return split_key(self.candidate(row))

    def row(self, key: str) -> int | None:
        """The row that a key names."""
        wanted = split_of(key)
        setting, cases = self.table.estimates.setting, self.table.estimates.cases
        if wanted is None or "micro_batch" not in wanted or wanted["recompute"] not in RECOMPUTE:
            return None
        if (wanted["engine"], wanted["precision"]) != (setting.engine, setting.precision):
            return None
        numbers = (
            {"shard": wanted["dp"] * wanted["cp"]}
            | wanted
            | {"recompute": RECOMPUTE.index(wanted["recompute"])}
        )
        found = np.flatnonzero(
            np.all(
                [getattr(cases, name) == numbers[name] for name in (*TRAINING_FIELDS[2:], "shard")],
                axis=0,
            )
        )
        return int(found[0]) if len(found) else None

    def label(self, row: int) -> str:
        """The degrees, and what else a split is."""
        return training_split(self.candidate(row))

    def sentences(self, rows: Sequence[int]) -> list[list[str]]:
        """The reasons of some rows, from an estimate of these alone: a sentence looks at all that are estimated with it."""
        e = self.table.estimates
        some = judge(self.table.asked, e.setting, e.cases.take(np.asarray(rows, dtype=int)))
        within = [
            "" if not self._rules["limit"][row] else "a limit of the objective is not kept"
            for row in rows
        ]
        return [[*some.reasons(k), *([said] if said else [])] for k, said in enumerate(within)]

    @cached_property
    def _rules(self) -> dict[str, Bool]:
        rules: dict[str, Bool] = {}
        for refusal in self.table.estimates.refusals:
            rules[refusal.code] = (
                rules.get(refusal.code, np.zeros(len(self), dtype=np.bool_)) | refusal.broken
            )
        return rules | {"limit": self.table.estimates.feasible & ~self.feasible}

    def rules(self) -> dict[str, Bool]:
        """For each rule's code the rows that it refuses."""
        return self._rules

    def nearest(self) -> int | None:
        """When nothing fits, the row that lacks least."""
        return self.table.nearest

    def beyond_limits(self) -> list[int]:
        """Rows that only break limits of the objective, by their score."""
        rows = np.flatnonzero(self._rules["limit"])
        return [int(row) for row in rows[np.argsort(self.table.score[rows], kind="stable")]]

    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each part in the fullest stage."""
        found = self.table.estimates.memory
        index = np.asarray(rows, dtype=int)
        fullest = np.nanargmax(found.by_stage[index], axis=1) if len(index) else index
        return {
            name: np.asarray(found.parts[name][index, fullest], dtype=float) for name in self.parts
        }

    def short_bytes(self, row: int) -> float:
        """What the fullest device lacks at its peak."""
        return float(self.columns["peak_memory_bytes"][row]) - self.usable_bytes(row)

    def usable_bytes(self, row: int) -> float:  # noqa: ARG002 - the same for all rows
        """What a process can have besides its context."""
        return float(self.table.estimates.memory.capacity_bytes)

    def capacity_bytes(self, row: int) -> float:  # noqa: ARG002 - the same for all rows
        """What a process can have of a device."""
        return float(self.table.asked.cluster.device.usable_memory_bytes)
