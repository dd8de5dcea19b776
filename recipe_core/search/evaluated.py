"""Candidates of one setting, judged: quantities as columns, broken rules as bits, and the details of a row when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Bool, Int
from recipe_core.physics.serving.estimates import Estimates, estimate
from recipe_core.physics.serving.memory import Memory
from recipe_core.physics.serving.simulate import Simulation, Spread
from recipe_core.space.refusal import Refusal
from recipe_core.space.rules import load_rules, place_rules, refusals, search_rules, start_rules
from recipe_core.space.serving import Cases, Setting

Bits = NDArray[np.uint64]

CHUNK = 16_384
"""Candidates that are estimated at a time: their columns stay in the processor's cache, and memory stays flat however many there are."""

SPLIT_COLUMNS: dict[str, Callable[[Cases], Any]] = {
    "tp": lambda c: c.tp,
    "pp": lambda c: c.pp,
    "dp": lambda c: c.dp,
    "ep": lambda c: c.ep,
    "cp": lambda c: c.cp,
    "gpus": lambda c: c.devices,
    "load": lambda c: c.load,
    "max_batched_tokens": lambda c: c.max_batched_tokens,
}
"""Columns that a candidate has whether it is estimated or not."""

QUANTITIES: dict[str, Callable[[Estimates], Any]] = {
    "weights_bytes": lambda e: e.memory.weights_bytes,
    "kv_needed_bytes": lambda e: e.memory.kv_needed_bytes,
    "activations_bytes": lambda e: e.memory.activations_bytes,
    "runtime_bytes": lambda e: e.memory.runtime_bytes,
    "total_bytes": lambda e: e.memory.total_bytes,
    "usable_bytes": lambda e: e.memory.usable_bytes,
    "capacity_bytes": lambda e: e.memory.capacity_bytes,
    "shortfall_bytes": lambda e: e.memory.shortfall_bytes,
    "kv_cache_tokens": lambda e: e.memory.pool_tokens,
    "max_concurrency": lambda e: e.memory.max_concurrency,
    "ttft_s": lambda e: e.serving.ttft_s,
    "tpot_s": lambda e: e.serving.tpot_s,
    "request_latency_s": lambda e: e.serving.request_latency_s,
    "output_tokens_per_s": lambda e: e.serving.output_tokens_per_s,
    "output_tokens_per_s_per_gpu": lambda e: e.serving.output_tokens_per_s / e.cases.devices,
    "usd_per_hour": lambda e: e.cost.usd_per_hour,
    "usd_per_million_output_tokens": lambda e: e.cost.usd_per_million_output_tokens,
    "watts": lambda e: e.cost.watts,
    "joules_per_token": lambda e: e.cost.joules_per_token,
}
"""Columns of candidates that no rule of splits refuses; NaN for the others, and serving's for those that do not fit."""


@dataclass(frozen=True)
class EvaluatedCases:
    """Candidates of one setting.

    ``quantities`` are columns over all of ``cases``. Bit k of ``broken`` says that rule ``codes[k]`` refuses a row. ``outside`` are rules
    that an estimate does not know (of placing servers, and of searches); ``limits`` are rules of the request on top. ``estimates`` are
    those of the rows ``legal`` where they are few enough to keep.
    """

    setting: Setting
    cases: Cases
    quantities: dict[str, Any]
    broken: Bits
    codes: tuple[str, ...]
    legal: Int
    estimates: Estimates | None
    outside: tuple[Refusal, ...] = ()
    limits: tuple[Refusal, ...] = ()
    simulation: Simulation | None = None

    def __len__(self) -> int:
        return len(self.cases)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Degrees, quantities and whether a row is feasible."""
        split = {name: np.asarray(get(self.cases)) for name, get in SPLIT_COLUMNS.items()}
        return split | self.quantities | {"feasible": self.feasible}

    @cached_property
    def runs(self) -> Bool:
        """Rows that no rule but the request's limits refuses."""
        out: Bool = self.broken == 0
        return out

    @cached_property
    def feasible(self) -> Bool:
        """Rows that no rule refuses."""
        out = self.runs.copy()
        for limit in self.limits:
            out &= ~limit.broken
        return out

    def rules(self) -> Iterator[tuple[str, Bool]]:
        """Every rule with the rows it refuses."""
        for k, code in enumerate(self.codes):
            yield code, (self.broken >> np.uint64(k)) & np.uint64(1) > 0
        for limit in self.limits:
            yield limit.code, limit.broken

    def reasons(self, i: int) -> list[str]:
        """Every reason why row ``i`` is refused; empty when it is not."""
        whole, j = self._detail(i)
        return [*whole.reasons(j), *self._limits_of(i)]

    def row(self, i: int, *, explained: bool = False) -> dict[str, Any]:
        """The estimate of row ``i`` as the contract writes it, ``explained`` with its times by cause."""
        whole, j = self._detail(i)
        return whole.row(j, self._limits_of(i), explained=explained)

    def memory(self, i: int) -> tuple[Memory, int]:
        """Memory that holds row ``i``, and where."""
        whole, j = self._detail(i)
        return whole.memory, j

    def sentences(self, rows: Int | None = None) -> Iterator[list[str]]:
        """The reasons of some rows, of every row where none are named; none for feasible rows. Many at once cost little more than one."""
        rows = np.arange(len(self)) if rows is None else rows
        for some in (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)):
            refused = some[~self.feasible[some]]
            found = estimate(self.setting, self.cases.take(refused)) if len(refused) else None
            said = {
                int(i): [*(found.reasons(k) if found else ()), *self._limits_of(int(i))]
                for k, i in enumerate(refused)
            }
            yield from (said.get(int(i), []) for i in some)

    def _limits_of(self, i: int) -> list[str]:
        return [rule.say(i) for rule in (*self.outside, *self.limits) if rule.broken[i]]

    def _detail(self, i: int) -> tuple[Estimates, int]:
        """Estimates that hold row ``i``, and where; made again where they were not kept, to the same bits."""
        at = int(np.searchsorted(self.legal, i))
        if self.estimates is not None and at < len(self.legal) and self.legal[at] == i:
            whole, j, rows = self.estimates, at, self.legal
        else:
            whole, j, rows = estimate(self.setting, self.cases.take([i])), 0, np.array([i])
        return (
            whole
            if self.simulation is None
            else replace(whole, simulation=self.simulation.take(rows))
        ), j

    def simulated(
        self, rows: Int, spread: Spread, percentiles: Sequence[float], limits: Mapping[str, float]
    ) -> EvaluatedCases:
        """With percentiles of the chosen rows, which should be feasible, and how many of their requests keep the limits (seconds)."""
        chosen = estimate(self.setting, self.cases.take(rows)).simulated(
            np.arange(len(rows)), spread, percentiles, limits
        )
        return (
            self
            if chosen.simulation is None
            else replace(self, simulation=chosen.simulation.scattered(rows, len(self)))
        )


def judge(setting: Setting, cases: Cases, *, searching: bool = False) -> EvaluatedCases:
    """All cases held against the rules of splits (where ``searching``, of searches too), and those that pass estimated in chunks."""
    searches = (
        (*search_rules(setting, cases), *start_rules(setting, cases), *load_rules(setting, cases))
        if searching
        else ()
    )
    outside = searches or tuple(place_rules(setting, cases))
    codes: dict[str, int] = {}
    broken = _bits([*refusals(setting, cases), *outside], codes, len(cases))
    legal = np.flatnonzero(broken == 0)
    quantities = {name: np.full(len(cases), np.nan) for name in QUANTITIES}
    kept = None
    for start in range(0, len(legal), CHUNK):
        rows = legal[start : start + CHUNK]
        found = estimate(setting, cases.take(rows))
        for name, get in QUANTITIES.items():
            quantities[name][rows] = get(found)
        broken[rows] = _bits(found.refusals, codes, len(rows))
        kept = found if len(legal) <= CHUNK else None
    return EvaluatedCases(setting, cases, quantities, broken, tuple(codes), legal, kept, outside)


def _bits(rules: Sequence[Refusal], codes: dict[str, int], n: int) -> Bits:
    """Rows that each rule refuses, as the bit of its code; codes that are new get the next one."""
    out = np.zeros(n, dtype=np.uint64)
    for rule in rules:
        out |= rule.broken.astype(np.uint64) << np.uint64(codes.setdefault(rule.code, len(codes)))
    return out
