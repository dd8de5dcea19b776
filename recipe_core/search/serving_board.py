"""A serving plan as people compare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.labels import REFUSALS, serving_split
from recipe_core.base.text_rows import MEMORY
from recipe_core.measured.support import support
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import SPLIT_FIELDS, cluster_of, split_key, split_of
from recipe_core.search import advice
from recipe_core.search.board import Board
from recipe_core.search.limits import LIMITS
from recipe_core.search.measures import SERVING
from recipe_core.search.serving_plan import PlanTable


class ServingBoard(Board):
    """The rows of a ``PlanTable``."""

    measures = SERVING
    axes = ("tpot", "per_gpu")
    listed = ("gpus", "output", "per_gpu", "tpot", "ttft", "memory", "used", "concurrency", "usd")
    parts = MEMORY
    kinds = REFUSALS
    figures = ("output", "tpot", "usd")
    headline = ("output", "tpot", "ttft", "usd")

    def __init__(self, table: PlanTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def request(self) -> PlanRequest:
        """What was asked."""
        return self.table.request

    @property
    def columns(self) -> Mapping[str, Any]:
        """The plan's columns."""
        return self.table.columns

    @property
    def feasible(self) -> Bool:
        """Rows that nothing refuses."""
        out: Bool = self.table.columns["feasible"]
        return out

    @cached_property
    def runs(self) -> Bool:
        """Rows that nothing but a limit refuses."""
        out: Bool = np.concatenate([block.runs for block in self.table.blocks])
        return out

    @property
    def ranked(self) -> Int:
        """Feasible rows, best first."""
        return self.table.ranked

    @property
    def device_title(self) -> str:
        """A GPU, or a machine where the processor computes."""
        return "machine" if self.table.found.cluster.device.runtime == "cpu" else "GPU"

    def degree(self, name: str) -> Int:
        """A degree of every row."""
        return np.asarray(self.columns[name], dtype=np.int64)

    @property
    def basis(self) -> str:
        """How well the device is known."""
        return support(self.table.found.cluster.device).level

    def candidate(self, row: int) -> dict[str, Any]:
        """The split of a row."""
        return self.table.candidate(row)

    def estimate(self, row: int) -> dict[str, Any]:
        """The estimate of a row."""
        return self.table.estimate(row)

    def bounded(self, name: str) -> Float:
        """The measure, or the percentile of it that was simulated."""
        code = next(
            (code for code, rule in LIMITS.items() if rule.name == self.measures[name].limit), None
        )
        return self.raw(name) if code is None else self.table.bounded(code)

    def explained(self, row: int) -> dict[str, Any]:
        """The estimate of a row with its times by cause, without simulating percentiles."""
        block, i = self.table.at(row)
        return block.row(i, explained=True)

    @cached_property
    def _clusters(self) -> dict[int, int]:
        """Which of the request's clusters a setting's cluster is."""
        return {id(cluster): k for k, cluster in enumerate(self.table.found.clusters)}

    def cluster(self, row: int) -> int:
        """Which of the plan's clusters a row is on: 0 is the request's, those of its options follow."""
        return self._clusters[id(self.table.setting(row).cluster)]

    def key(self, row: int) -> str:
        """The name of a row."""
        return split_key(self.candidate(row), self.cluster(row))

    def row(self, key: str) -> int | None:
        """The row that a key names."""
        wanted = split_of(key)
        if wanted is None or "kv_dtype" not in wanted:
            return None
        same = [
            self.columns[name] == wanted.get(name, 1) for name in ("tp", "pp", "dp", "ep", "cp")
        ]
        same.append(self._pooled == ("prefill" in wanted))
        cluster = cluster_of(key)
        return next(
            (
                int(row)
                for row in np.flatnonzero(np.all(same, axis=0))
                if self._is(int(row), wanted, cluster)
            ),
            None,
        )

    def _is(self, row: int, wanted: Mapping[str, Any], cluster: int) -> bool:
        candidate = self.candidate(row)
        pools = all(candidate.get(name) == wanted.get(name) for name in ("replicas", "prefill"))
        return (
            pools
            and all(candidate[name] == wanted[name] for name in SPLIT_FIELDS)
            and self.cluster(row) == cluster
        )

    @cached_property
    def _pooled(self) -> Bool:
        """Rows with a prefill pool of their own."""
        return np.concatenate([block.cases.disaggregated for block in self.table.blocks])

    @cached_property
    def _differ(self) -> dict[str, bool]:
        """Whether this plan has several devices, engines, weight formats or cache formats."""
        settings = [block.setting for block in self.table.blocks]
        values: dict[str, set[int] | set[str]] = {
            "device": {self._clusters[id(s.cluster)] for s in settings},
            "engine": {s.engine.name for s in settings},
            "weight_dtype": {s.weight_dtype for s in settings},
            "kv_dtype": {s.kv_dtype for s in settings},
        }
        return {name: len(found) > 1 for name, found in values.items()}

    def label(self, row: int) -> str:
        """The degrees of the pools; device, engine and formats where the plan has several."""
        candidate, setting = self.candidate(row), self.table.setting(row)
        extra = {
            "device": f"{setting.cluster.per_node * setting.cluster.nodes} × {setting.cluster.device.name}",
            "engine": candidate["engine"],
            "weight_dtype": candidate["weight_dtype"],
            "kv_dtype": f"{candidate['kv_dtype']} cache",
        }
        return " · ".join(
            [
                serving_split(candidate),
                *(text for name, text in extra.items() if self._differ[name]),
            ]
        )

    def sentences(self, rows: Sequence[int]) -> list[list[str]]:
        """The reasons of some rows."""
        return self.table.sentences(rows)

    @cached_property
    def _rules(self) -> dict[str, Bool]:
        return advice.rule_rows(self.table)

    def rules(self) -> dict[str, Bool]:
        """For each rule's code the rows that it refuses."""
        return self._rules

    def nearest(self) -> int | None:
        """When nothing fits, the row that lacks least."""
        return advice.nearest(self.table)

    def beyond_limits(self) -> list[int]:
        """Rows that only break limits of the objective."""
        return advice.refused_by_limits(self.table)

    def memory(self, rows: Sequence[int]) -> dict[str, Float]:
        """Bytes of each part."""
        return {
            name: np.asarray(self.columns[name], dtype=float)[list(rows)] for name in self.parts
        }

    def short_bytes(self, row: int) -> float:
        """What the engine lacks to start with one request; more of them wait in its queue."""
        return float(self.columns["shortfall_bytes"][row])

    def usable_bytes(self, row: int) -> float:
        """The engine's share of a device."""
        stated = float(self.columns["usable_bytes"][row])
        return stated if np.isfinite(stated) else self.capacity_bytes(row)

    def capacity_bytes(self, row: int) -> float:
        """What a process can have of a device."""
        return float(self.table.setting(row).cluster.device.usable_memory_bytes)
