"""Cases of one setting, evaluated.

Quantities as columns, broken rules as bits, details of a case on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.bands import Stretch, Uncertain
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.serving.simulate import Simulation

if TYPE_CHECKING:
    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.plan import Plan


Bits = NDArray[np.uint64]

# Cases that are estimated at a time: their columns stay in the processor's cache, and memory stays
# flat however many there are.
CHUNK = 16_384

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")


@dataclass(frozen=True)
class Physics(Generic[S, C, E]):
    """The functions that estimate cases of a kind of workload.

    ``estimate`` takes a setting and cases. ``case_columns`` are known of every case, ``quantities``
    of those that are estimated. ``rules`` refuse a case before it is estimated; ``search_rules``
    are those of a search, in place of ``place_rules`` for stated splits: an estimate knows neither.
    ``late_rules`` are of a search, too, and see the quantities of what was estimated.
    ``stretches``: by figure, how intervals of cases differ from those of their setting.
    ``keeping_up``: normal scores of cases serving what arrives; None where nothing does.
    """

    estimate: Callable[[S, C], E]
    case_columns: Mapping[str, Callable[[C], Any]]
    quantities: Mapping[str, Callable[[E], Any]]
    rules: Callable[[S, C], Sequence[Refusal]]
    search_rules: Callable[[S, C], Sequence[Refusal]]
    uncertain: Callable[[S, str], Uncertain | None]
    place_rules: Callable[[S, C], Sequence[Refusal]] = lambda _setting, _cases: ()
    late_rules: Callable[[C, Mapping[str, Any]], Sequence[Refusal]] = lambda _cases, _figures: ()
    correlations: Callable[[], Mapping[str, Mapping[str, float]]] = dict
    stretches: Callable[[E], Mapping[str, Stretch]] = lambda _estimates: {}
    keeping_up: Callable[[E], Float] | None = None


def differs_by_case(setting: Any) -> bool:
    """Return whether cases of one setting have intervals of their own: by own runs or arrivals."""
    corrected = getattr(setting, "correction", None) is not None
    return corrected or getattr(setting, "mode", None) == "open"


def columns_of(part: str, *names: str) -> dict[str, Callable[[Any], Any]]:
    """Getters of columns by name: of a ``part`` of estimates, or of cases (empty)."""
    return {name: attrgetter(f"{part}.{name}" if part else name) for name in names}


@dataclass(frozen=True)
class EvaluatedCases(Generic[S, C, E]):
    """Cases of one setting.

    ``quantities`` are columns over all of ``cases``, NaN where a rule refuses a case before it is
    estimated. Bit k of ``broken`` says that rule ``codes[k]`` refuses a case. ``outside`` are rules
    that an estimate does not know; ``limits`` are rules of the request on top. ``estimates`` are
    those of the cases ``legal`` where they are few enough to keep. ``chances``: with which
    probability each keeps the limits, where it is known already.
    """

    physics: Physics[S, C, E]
    setting: S
    cases: C
    quantities: dict[str, Any]
    broken: Bits
    codes: tuple[str, ...]
    legal: Int
    estimates: E | None
    outside: tuple[Refusal, ...] = ()
    limits: tuple[Refusal, ...] = ()
    simulation: Simulation | None = None
    chances: Float | None = None

    def __len__(self) -> int:
        return len(self.broken)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Degrees, quantities and whether a case is feasible, each over all cases."""
        degrees = {
            name: np.asarray(get(self.cases)) for name, get in self.physics.case_columns.items()
        }
        return {**degrees, **self.quantities, "feasible": self.feasible}

    @cached_property
    def runs(self) -> Bool:
        """Cases that no rule but the request's limits refuses."""
        return np.asarray(self.broken == 0)

    @cached_property
    def feasible(self) -> Bool:
        """Cases that no rule refuses."""
        out = self.runs.copy()
        for limit in self.limits:
            out &= ~limit.broken
        return out

    def rules(self) -> Iterator[tuple[str, Bool]]:
        """Every rule's code with the cases it refuses."""
        for k, code in enumerate(self.codes):
            yield code, (self.broken >> np.uint64(k)) & np.uint64(1) > 0
        for limit in self.limits:
            yield limit.code, limit.broken

    def row(self, i: int, *, explained: bool = False) -> Estimate:
        """The estimate of case ``i``, ``explained`` with its times by cause."""
        return self.rows(np.array([i]), explained=explained)[0]

    def rows(self, rows: Int, *, explained: bool = False) -> list[Estimate]:
        """The estimates of some cases. Many at once cost little more than one."""
        estimates, places = self.details(rows)
        out: list[Estimate] = estimates.rows(places, self._added_reasons(rows), explained=explained)
        return out

    def band_factors(self, name: str, rows: Int) -> Float:
        """Low and high ends of a figure's 80 % band over its estimate (cases × 2); NaN if unknown.

        ``rows``: feasible cases. All of a block have the same factors but where own runs narrow
        some, or a queue widens them, so that one estimate tells them.
        """
        alike = not differs_by_case(self.setting)
        ends_of = [self._common_factors] if alike else [self._factors_of(i) for i in rows.tolist()]
        factors = np.array([ends.get(name, (np.nan, np.nan)) for ends in ends_of])
        return np.broadcast_to(factors, (len(rows), 2))

    @cached_property
    def _common_factors(self) -> dict[str, tuple[float, float]]:
        return self._factors_of(int(np.flatnonzero(self.feasible)[0]))

    def _factors_of(self, i: int) -> dict[str, tuple[float, float]]:
        bands = self.row(i).bands or {}
        values = {name: float(self.columns[name][i]) for name in bands if name in self.columns}
        return {
            name: (bands[name][0] / value, bands[name][1] / value)
            for name, value in values.items()
            if value
        }

    def sentences(self, rows: Int | None = None) -> Iterator[list[str]]:
        """The reasons of some cases (of all by default), none for feasible ones.

        Many at once cost little more than one.
        """
        rows = np.arange(len(self)) if rows is None else rows
        for chunk in (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)):
            budget.spend()
            refused = chunk[~self.feasible[chunk]]
            inside: list[list[str]] = []
            if len(refused):
                estimates, places = self.details(refused)
                inside = estimates.reasons_of(places)
            by_case = {
                i: [*rules, *added]
                for i, rules, added in zip(
                    refused.tolist(), inside, self._added_reasons(refused), strict=True
                )
            }
            yield from (by_case.get(i, []) for i in chunk.tolist())

    def _added_reasons(self, rows: Int) -> list[list[str]]:
        out: list[list[str]] = [[] for _ in rows]
        for rule in (*self.outside, *self.limits):
            for place in np.flatnonzero(rule.broken[rows]).tolist():
                out[place].append(rule.say(int(rows[place])))
        return out

    def _estimate(self, rows: Int) -> E:
        cases: Any = self.cases
        return self.physics.estimate(self.setting, cases.take(rows))

    def detail(self, i: int) -> tuple[Any, int]:
        """Estimates that hold case ``i``, and its place in them."""
        estimates, places = self.details(np.array([i]))
        return estimates, int(places[0])

    def details(self, rows: Int) -> tuple[Any, Int]:
        """Estimates that hold some cases, and their places in them.

        They are made again where not all were kept, to the same bits.
        """
        estimates: Any = self.estimates
        cases = self.legal
        places = np.minimum(np.searchsorted(cases, rows), max(len(cases) - 1, 0))
        if estimates is None or not (cases[places] == rows).all():
            estimates, cases, places = self._estimate(rows), rows, np.arange(len(rows))
        if self.simulation is not None:
            estimates = replace(estimates, simulation=self.simulation.take(cases))
        return estimates, places


def evaluate_cases(
    physics: Physics[S, C, E], setting: S, cases: C, *, searching: bool = False
) -> EvaluatedCases[S, C, E]:
    """Hold all cases against the rules and estimate what passes.

    Where ``searching``, the rules of a search count too.
    """
    columns: Any = cases
    outside = tuple((physics.search_rules if searching else physics.place_rules)(setting, cases))
    codes: dict[str, int] = {}
    broken = _rule_bits([*physics.rules(setting, cases), *outside], codes, len(columns))
    legal = np.flatnonzero(broken == 0)
    budget.spend(len(broken) - len(legal))
    quantities = {name: np.full(len(columns), np.nan) for name in physics.quantities}
    estimates: Any = None
    for start in range(0, len(legal), CHUNK):
        rows = legal[start : start + CHUNK]
        estimates = physics.estimate(setting, columns.take(rows))
        for name, get in physics.quantities.items():
            quantities[name][rows] = get(estimates)
        broken[rows] = _rule_bits(estimates.refusals, codes, len(rows))
        budget.spend(len(rows))
    few = estimates if len(legal) <= CHUNK else None
    if searching:
        late = tuple(physics.late_rules(cases, quantities))
        # what an estimate refuses says so itself
        late = tuple(replace(rule, broken=rule.broken & (broken == 0)) for rule in late)
        broken |= _rule_bits(late, codes, len(columns))
        outside = (*outside, *late)
    return EvaluatedCases(
        physics, setting, cases, quantities, broken, tuple(codes), legal, few, outside
    )


def _rule_bits(rules: Sequence[Refusal], codes: dict[str, int], n: int) -> Bits:
    """Cases that each rule refuses, as the bit of its code; codes that are new get the next one."""
    out = np.zeros(n, dtype=np.uint64)
    for rule in rules:
        bit = np.uint64(codes.setdefault(rule.code, len(codes)))
        out |= rule.broken.astype(np.uint64) << bit
    return out


def repeat_blocks(plan: Plan, value: Callable[[Any], Any]) -> Any:
    """A value of each block, for each of its rows."""
    sizes = [len(block) for block in plan.blocks]
    return np.repeat(np.array([value(block) for block in plan.blocks]), sizes)


def band_ends(plan: Plan, name: str, rows: Sequence[int] | Int) -> tuple[Float, Float]:
    """Low and high ends of the 80 % band around a measure of some rows, SI.

    Those of accuracy rest on published figures. NaN where unknown, certain, or refused.
    """
    index, measure = np.asarray(rows, dtype=np.int64), plan.measures[name]
    if measure.column == "accuracy":
        low, high = (
            np.asarray(plan.columns[f"accuracy_{end}"][index], dtype=float)
            for end in ("low", "high")
        )
        return np.where(low == high, np.nan, low), np.where(low == high, np.nan, high)
    low, high = np.full(len(index), np.nan), np.full(len(index), np.nan)
    if measure.band is None:
        return low, high
    values = plan.raw(name)[index]
    banded = plan.feasible[index] & np.isfinite(values)
    for block, places, cases in plan.split_rows(index):
        inside = banded[places]
        if not inside.any():
            continue
        factors = block.band_factors(measure.band, cases[inside])
        if measure.inverse:
            factors = 1 / factors[:, ::-1]
        of_rows = places[inside]
        low[of_rows], high[of_rows] = (values[of_rows, None] * factors).T
    return low, high
