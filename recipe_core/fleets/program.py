"""The fleet as a mixed-integer program: replicas, machines, cuts and flows.

Loads are served by whole replicas, each of which holds a known load; pools bound devices, whole
machines are rented, devices are cut by one of the ways that their vendor allows, and what must
survive the loss of failure domains has the capacity beside them. What one domain may take of a
load is chosen among levels, each with replicas of its own: a disjunction, whose relaxation is
tight. With ``k`` domains lost, each counts as the level that is chosen.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recipe_core.fleets.instance import Instance, Option, Solution, Supply
from recipe_core.fleets.request import Goal
from recipe_core.fleets.solver import Found, ProgramRows, Watch, proves_infeasible, run_solver

# Of money, power and devices that break ties between equally good fleets.
TIE = 1e-6
# Hours that the devices of a started replica serve nothing, so that periods differ where it pays.
START_HOURS = 1 / 6
# Share of the time in which devices that sleeping models share may be busy with them.
BUSY = 0.5
# Seconds that a search has at least after one before it took all of its time.
LEAST_SECONDS = 4.0
# Of a whole number that the solver may miss.
ROUNDING = 1e-6
# Penalties of what is not served: each class of priority above the next by so much.
CLASSES, STEP = 6, 12.0
# Slices of a device at most, and numbers of what is not bounded.
MOST_SLICES, UNBOUNDED = 64, float(1 << 20)
# Losses of a failure domain that are told apart.
MOST_LEVELS = 14


class FleetProgram:
    """The variables and rows of an instance.

    ``relaxed``: groups of rows that do not bind, by name: ``demand.K``, ``pool.K``, ``power.K``,
    ``headroom.K``, ``work.K``, ``budget``. ``elastic``: whether load may stay unserved.
    """

    def __init__(
        self, instance: Instance, relaxed: frozenset[str] = frozenset(), *, elastic: bool = False
    ) -> None:
        self.instance, self.relaxed, self.elastic = instance, relaxed, elastic
        self.rows = ProgramRows()
        self.slots = range(len(instance.hours))
        self._share = np.asarray(instance.hours) / sum(instance.hours)
        self._usd: defaultdict[int, float] = defaultdict(float)
        # the same by the part of the months ahead in which they are paid
        self._bills = [defaultdict[int, float](float) for _ in range(instance.parts)]
        self._fixed_usd = 0.0
        self._watts: defaultdict[int, float] = defaultdict(float)
        self._co2: defaultdict[int, float] = defaultdict(float)
        self._used: defaultdict[int, float] = defaultdict(float)
        self._starts: dict[int, float] = {}
        # devices and watts by pool and slot; replicas on slices by pool, slot and name
        self._taken: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self._drawn: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self._sliced: defaultdict[tuple[int, int, str], dict[int, float]] = defaultdict(dict)
        self.count: dict[tuple[int, int], list[int]] = {}
        self.flow: dict[tuple[int, int, int], int] = {}
        self.miss: dict[tuple[int, int], int] = {}
        self.skip: dict[int, int] = {}
        self.machines: dict[tuple[int, int], int] = {}
        self.reserve: dict[int, int] = {}
        self.cut: dict[int, list[int]] = {}
        # whether an option sleeps and wakes where others do
        self.naps: dict[int, int] = {}
        self._by_owner: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        for k, option in enumerate(instance.options):
            self._by_owner[option.job, option.owner].append(k)
        self._add_machines()
        self._add_demands()
        self._add_works()
        self._add_sleepers()
        self._bound_pools()
        self._count_starts()
        self._bound_money()

    # variables

    def _add_machines(self) -> None:
        """Machines that are rented or reserved, and devices that are cut."""
        for p, supply in enumerate(self.instance.supplies):
            devices = float(self._machines_of(p) * supply.per_node)
            self.cut[p] = [self.rows.variable(devices, integer=True) for _ in supply.cuts]
            for cut in self.cut[p]:
                self._use(cut, p, self.slots, devices=1.0)
            if supply.paid != "nodes":
                if supply.paid == "fixed":
                    self._fixed_usd += supply.usd * supply.nodes * supply.per_node
                continue
            if supply.reserve_usd is not None:
                reserve = self.rows.variable(self._machines_of(p), integer=True)
                self.reserve[p] = reserve
                self._pay(reserve, self.slots, supply.reserve_usd * supply.per_node)
            for t in self.slots:
                paid = self.machines[p, t] = self.rows.variable(self._machines_of(p), integer=True)
                if p in self.reserve:  # those beyond them are paid for
                    paid = self.rows.variable(self._machines_of(p), integer=True)
                    terms = {self.machines[p, t]: 1.0, paid: -1.0, self.reserve[p]: -1.0}
                    self.rows.row(terms, high=0.0)
                self._pay(paid, [t], supply.usd * supply.per_node)

    def _machines_of(self, p: int) -> float:
        return UNBOUNDED if f"pool.{p}" in self.relaxed else self.instance.supplies[p].nodes

    def _pay(self, variable: int, slots: Iterable[int], usd: float) -> None:
        """Count what each unit of a variable costs an hour in some slots."""
        for t in slots:
            bill = self._bills[t * self.instance.parts // len(self.slots)]
            for bill_of in (bill, self._usd):
                bill_of[variable] += usd * self._share[t]

    def _use(
        self, variable: int, p: int, slots: Iterable[int], *, devices: float, watts: float = 0.0
    ) -> None:
        """Count devices and power that each unit of a variable takes of a pool in some slots."""
        supply = self.instance.supplies[p]
        for t in slots:
            if devices:
                self._taken[p, t][variable] = devices
            self._drawn[p, t][variable] = watts
            self._used[variable] += devices * self._share[t]
            self._watts[variable] += watts * self._share[t]
            self._co2[variable] += watts * supply.co2 * self._share[t]
        if supply.paid in ("used", "devices"):
            self._pay(variable, slots, supply.usd * devices)

    def _replicas(self, k: int, t: int) -> int:
        """A variable that counts replicas of an option in a slot, with what it takes."""
        option = self.instance.options[k]
        supply = self.instance.supplies[option.pool]
        devices = supply.nodes * supply.per_node
        replica_devices = 0.0 if option.slice else option.devices
        upper = devices // replica_devices if replica_devices else devices * MOST_SLICES
        upper = UNBOUNDED if f"pool.{option.pool}" in self.relaxed else min(upper, UNBOUNDED)
        replicas = self.rows.variable(float(upper), integer=True)
        self.count.setdefault((k, t), []).append(replicas)
        self._use(replicas, option.pool, [t], devices=replica_devices, watts=option.watts)
        if option.slice:
            self._sliced[option.pool, t, option.slice][replicas] = 1.0
        return replicas

    def _add_demands(self) -> None:
        for m, demand in enumerate(self.instance.demands):
            options = list(self._by_owner[False, m])
            if f"demand.{m}" in self.relaxed or not options:
                continue
            for t in self.slots:
                if not demand.loads[:, t].sum() > 0:
                    continue
                if self.elastic:
                    self.miss[m, t] = self.rows.variable(1.0)
                awake = [k for k in options if self.instance.options[k].nap is None]
                missed = [self.miss[m, t]] if self.elastic else []
                asleep = [k for k in options if k not in awake]
                for k in asleep if asleep and asleep[0] not in self.naps else ():  # in all slots
                    self.naps[k] = self.rows.variable(1.0, integer=True)
                napping = [self.naps[k] for k in asleep]
                if demand.failures and f"headroom.{m}" not in self.relaxed:
                    self._survive(m, t, awake, missed)
                else:
                    for k in awake:
                        self._replicas(k, t)
                self._serve(m, t, awake, dict.fromkeys([*missed, *napping], 1.0))

    def _serve(self, m: int, t: int, awake: list[int], otherwise: Mapping[int, float]) -> None:
        """The load of a demand in a slot: by flows where users are in several regions."""
        demand, options = self.instance.demands[m], self.instance.options
        regions = np.flatnonzero(demand.loads[:, t] > 0)
        total = float(demand.loads[:, t].sum())
        if len(regions) == 1:
            r = int(regions[0])
            served = {
                replicas: min(options[k].capacities[r] * options[k].up / total, 1.0)
                for k in awake
                for replicas in self.count.get((k, t), ())
            }
            self.rows.row({**served, **otherwise}, low=1.0)
            return
        for r in regions.tolist():
            flows = {}
            for k in awake:
                if options[k].capacities[r] > 0:
                    self.flow[k, r, t] = self.rows.variable()
                    flows[self.flow[k, r, t]] = 1.0
            self.rows.row({**flows, **otherwise}, low=1.0)
        for k in awake:
            parts = {
                self.flow[k, r, t]: float(demand.loads[r, t])
                / (options[k].capacities[r] * options[k].up)
                for r in regions.tolist()
                if (k, r, t) in self.flow
            }
            counted = dict.fromkeys(self.count.get((k, t), ()), -1.0)
            self.rows.row({**parts, **counted}, high=0.0)

    def _survive(self, m: int, t: int, awake: list[int], missed: list[int]) -> None:
        """Replicas that hold a load with ``failures`` of their domains down.

        One of several levels is chosen: what the loss of one domain may take of the load. At a
        level an option has at most so many replicas a domain, and all of them together hold the
        load and what is lost. What one replica holds counts as all of the load at most: what is
        left holds the load with that if and only if it does without.
        """
        demand = self.instance.demands[m]
        total = float(demand.loads[:, t].sum())
        places = {k: self._domain_of(m, k, total) for k in awake}
        levels = list_levels(places.values())
        choices = [self.rows.variable(1.0, integer=True) for _ in levels]
        everything = dict.fromkeys(choices, 1.0)
        self.rows.row(everything, low=1.0 if not missed else 0.0, high=1.0)
        if missed:  # a part of the load may stay unserved at the level that is chosen
            self.rows.row({**everything, missed[0]: 1.0}, low=1.0)
        spread: defaultdict[Any, dict[int, float]] = defaultdict(dict)
        for number, (level, choice) in enumerate(zip(levels, choices, strict=True)):
            served: dict[int, float] = {}
            regional = [dict[int, float]() for _ in demand.loads]  # by users' region
            for k, (share, inside) in places.items():
                size = min(inside, int(level / share + ROUNDING))
                if size < 1:
                    continue
                replicas = self._replicas(k, t)
                served[replicas] = share
                option, within = self.instance.options[k], list[Any]([number])
                for inside_of, capacity in zip(regional, option.capacities, strict=True):
                    inside_of |= {replicas: share} if capacity > 0 else {}
                if demand.domain != "pool":
                    within += ["nodes"] * ((option.pool, t) in self.machines)
                    within += [option.slice, None] if option.slice else []
                for part in within:
                    spread[option.pool, part][replicas] = 1.0 / size
            need, fewest = 1.0 + demand.failures * level, demand.failures + 1
            lacking = {}
            if missed:
                lack = self.rows.variable()
                lacking = {lack: 1.0}
                for bound in (choice, missed[0]):
                    self.rows.row({lack: 1.0, bound: -1.0}, high=0.0)
            else:
                largest = max(served.values(), default=1.0)
                fewest = max(math.ceil(need / largest - ROUNDING), fewest)
            self.rows.row({**served, **lacking, choice: -need}, low=0.0)
            for part, reach in zip((demand.loads[:, t] / total).tolist(), regional, strict=True):
                if len(reach) < len(served):
                    fewer = dict.fromkeys(lacking, part)
                    self.rows.row({**reach, **fewer, choice: 1.0 - need - part}, low=0.0)
            self.rows.row({**dict.fromkeys(served, 1.0), choice: -float(fewest)}, low=0.0)
        self._spread(demand.domain, t, spread, choices)

    def _spread(
        self, domain: str, t: int, spread: Mapping[Any, dict[int, float]], choices: list[int]
    ) -> None:
        """Bound domains in use, by pool and level, or what in a pool they are of: by those there.

        Of machines that are rented (``nodes``), and of devices that are cut, in any way (None) or
        in those that have a slice, as those of one device are in one domain.
        """
        for (p, part), parts in spread.items():
            supply = self.instance.supplies[p]
            if isinstance(part, int):
                terms = {choices[part]: -float(_count_domains(domain, supply))}
            elif part == "nodes":
                terms = {self.machines[p, t]: -1.0}
            else:
                cuts = zip(self.cut[p], supply.cuts, strict=True)
                terms = {cut: -1.0 for cut, counts in cuts if part in (None, *counts)}
            self.rows.row({**parts, **terms}, high=0.0)

    def _domain_of(self, m: int, k: int, total: float) -> tuple[float, int]:
        """The part of a load that a replica holds, and the replicas that a domain has room for."""
        option, demand = self.instance.options[k], self.instance.demands[m]
        supply = self.instance.supplies[option.pool]
        positive = [capacity for capacity in option.capacities if capacity > 0]
        share = min(min(positive) * option.up / total, 1.0)
        # a domain that holds more than all of the load has idle replicas
        upper = math.ceil(1.0 / share - ROUNDING)
        return share, max(min(_room_of(demand.domain, supply, option), upper), 1)

    def _add_works(self) -> None:
        for j, work in enumerate(self.instance.works):
            if f"work.{j}" in self.relaxed or not self._by_owner[True, j]:
                continue
            if self.elastic:
                self.skip[j] = self.rows.variable(1.0)
            skipped = {self.skip[j]: 1.0} if self.elastic else {}
            parts, allowed = self.instance.parts, [t for t in self.slots if work.slots[t]]
            runs: list[dict[int, float]] = [{} for _ in range(parts)]
            share_of = self._share.reshape(parts, -1).sum(axis=1)
            for t in allowed:
                at_once, part = {}, t * parts // len(self.slots)
                hours = 24.0 * self._share[t] / share_of[part]
                for k in self._by_owner[True, j]:
                    replicas = self._replicas(k, t)
                    rate = self.instance.options[k].capacities[0] * self.instance.options[k].up
                    runs[part][replicas] = rate * hours / work.runs_per_day
                    at_once[replicas] = 1.0
                if work.single and at_once:
                    self.rows.row(at_once, high=1.0)
            for runs_of in runs:
                self.rows.row({**runs_of, **skipped}, low=1.0)
            if not work.preemptible:
                for k in self._by_owner[True, j]:
                    [first], *rest = [list(self.count[k, t]) for t in allowed]
                    for [later] in rest:
                        self.rows.row({first: 1.0, later: -1.0}, low=0.0, high=0.0)

    def _add_sleepers(self) -> None:
        """Devices that sleeping models share: groups, each awake for a part of the time."""
        options = self.instance.options
        sizes: defaultdict[tuple[int, float], list[int]] = defaultdict(list)
        for k, option in enumerate(options):
            if k in self.naps:
                sizes[option.pool, option.devices].append(k)
        self.groups: dict[tuple[int, float, int], dict[int, int]] = {}
        for (p, devices), members in sizes.items():
            places: defaultdict[int, dict[int, float]] = defaultdict(dict)
            for number in range(len(members)):
                group = self.rows.variable(1.0, integer=True)
                awake = {}
                for k in members[number:]:  # a group is named after its first member
                    inside = self.rows.variable(1.0, integer=True)
                    awake[inside] = float(options[k].nap or 0.0)
                    places[k][inside] = 1.0
                    self.groups.setdefault((p, devices, number), {})[k] = inside
                self.rows.row({**awake, group: -BUSY}, high=0.0)
                for memory in range(2):  # of the host, and what engines leave free on devices
                    inside_of = self.groups[p, devices, number].items()
                    resting = {inside: options[k].rests[memory] for k, inside in inside_of}
                    self.rows.row(resting, high=1.0)
                watts = max(options[k].watts for k in members)
                self._use(group, p, self.slots, devices=devices, watts=watts)
            for k, parts in places.items():
                self.rows.row({**parts, self.naps[k]: -1.0}, low=0.0, high=0.0)

    # bounds

    def _bound_pools(self) -> None:
        for (p, t), taking in self._taken.items():
            per_node = float(self.instance.supplies[p].per_node)
            if (p, t) in self.machines:
                taking, bound = {**taking, self.machines[p, t]: -per_node}, 0.0
            else:
                bound = self.instance.supplies[p].nodes * per_node
            if f"pool.{p}" not in self.relaxed:
                self.rows.row(taking, high=bound)
        for (p, _, name), sliced in self._sliced.items():
            cuts = zip(self.cut[p], self.instance.supplies[p].cuts, strict=True)
            cut = {variable: -float(counts.get(name, 0)) for variable, counts in cuts}
            self.rows.row({**sliced, **cut}, high=0.0)
        for (p, _), drawn in self._drawn.items():
            most_watts = self.instance.supplies[p].most_watts
            if most_watts is not None and f"power.{p}" not in self.relaxed:
                self.rows.row(drawn, high=most_watts)

    def _count_starts(self) -> None:
        """Replicas that a period starts beyond the one before: their devices serve nothing then."""
        if len(self.slots) < 2:
            return
        hours = sum(self.instance.hours)
        for k, option in enumerate(self.instance.options):
            supply = self.instance.supplies[option.pool]
            for t in self.slots:
                now = self.count.get((k, t))
                before = self.count.get((k, (t - 1) % len(self.slots)))
                if not now or not before:
                    continue
                started = self.rows.variable()
                terms = dict.fromkeys(now, 1.0) | dict.fromkeys(before, -1.0)
                self.rows.row({**terms, started: -1.0}, high=0.0)
                devices = option.devices if option.slice is None else 1.0
                self._starts[started] = max(supply.usd, 1e-3) * devices * START_HOURS / hours

    def _bound_money(self) -> None:
        upper = self.instance.most_usd
        if upper is not None and "budget" not in self.relaxed:
            shares = self._share.reshape(self.instance.parts, -1).sum(axis=1)
            for bill, share in zip(self._bills, shares.tolist(), strict=True):
                self.rows.row(bill, high=(upper - self._fixed_usd) * share)

    # objectives

    def count_unmet(self) -> dict[int, float]:
        """Return what unserved load weighs: higher priorities far above lower ones."""
        demands, works = self.instance.demands, self.instance.works
        priorities = {variable: demands[m].priority for (m, _), variable in self.miss.items()}
        priorities |= {variable: works[j].priority for j, variable in self.skip.items()}
        ranked = sorted({*priorities.values()})[-CLASSES:]
        ranks = {priority: k for k, priority in enumerate(ranked, start=1)}
        return {v: STEP ** ranks.get(priority, 0) for v, priority in priorities.items()}

    def goal_terms(self) -> dict[int, float]:
        """Return the objective by variable, ties broken by money, power and devices."""
        parts: dict[Goal, Mapping[int, float]] = {
            "money": self._usd,
            "power": self._watts,
            "co2": self._co2,
            "devices": self._used,
            "spread": {},
        }
        terms: defaultdict[int, float] = defaultdict(float, parts[self.instance.goal])
        if self.instance.goal == "spread":
            terms[self._add_spread()] = 1.0
        if self.instance.goal == "money":
            terms.update(self._starts)
            self.rows.offset = self._fixed_usd
        scale = max(terms.values(), default=1.0) or 1.0
        for measure in (self._usd, self._used):
            largest = max(measure.values(), default=0.0)
            for variable, value in measure.items():
                if largest:
                    terms[variable] += TIE * scale * value / largest
        return terms

    def _add_spread(self) -> int:
        """The largest share of any pool's devices that is in use."""
        largest = self.rows.variable(1.0)
        for (p, _), taking in self._taken.items():
            supply = self.instance.supplies[p]
            devices = float(supply.nodes * supply.per_node)
            if devices:
                self.rows.row({**taking, largest: -devices}, high=0.0)
        return largest

    # solving

    def solve(
        self, cost: Mapping[int, float], *, gap: float, seconds: float, watch: Watch | None = None
    ) -> Found | None:
        """Return the best values found; None where there are none.

        Raises:
            Cancelled: where the caller has left.
        """
        for variable in range(len(self.rows.cost)):
            self.rows.cost[variable] = cost.get(variable, 0.0)
        return run_solver(self.rows.lp(), gap, seconds, watch)

    def serve_nothing(self) -> Found:
        """Return the values that serve nothing, for a search that ended before it found any."""
        values = np.zeros(len(self.rows.cost))
        values[[*self.miss.values(), *self.skip.values()]] = 1.0
        objective = float(values @ np.array(self.rows.cost))
        return Found(values, objective, 0.0, float("inf"), proven=False)

    def read(self, solved: Found, started: float) -> Solution:
        """Return the solver's values by what they mean."""
        instance, values = self.instance, solved.values
        options, slots = len(instance.options), len(instance.hours)
        counts = np.round(values).astype(np.int64)
        shares = np.where(values < ROUNDING, 0.0, np.minimum(values, 1.0))
        replicas = np.zeros((options, slots), dtype=np.int64)
        for (k, t), counted in self.count.items():
            replicas[k, t] = counts[counted].sum()
        for k, variable in self.naps.items():
            replicas[k, :] = counts[variable]
        # what no layout serves has no variable
        nowhere = [not self._by_owner[False, m] for m in range(len(instance.demands))]
        loads = [demand.loads.sum(axis=0) > 0 for demand in instance.demands]
        unmet = np.array(nowhere)[:, None] * np.array(loads, dtype=float)
        undone = np.array([not self._by_owner[True, j] for j in range(len(instance.works))], float)
        regions = max((len(demand.loads) for demand in instance.demands), default=1)
        pools = range(len(instance.supplies))
        groups = {
            (p, int(devices), number): tuple(k for k, at in inside.items() if counts[at])
            for (p, devices, number), inside in self.groups.items()
        }
        return Solution(
            replicas=replicas,
            flows=_fill_places(
                np.zeros((options, regions, slots)), self.flow, np.maximum(values, 0.0)
            ),
            unmet=_fill_places(unmet, self.miss, shares),
            undone=_fill_places(undone, self.skip, shares),
            machines=_fill_places(np.zeros((len(pools), slots), np.int64), self.machines, counts),
            reserved=_fill_places(np.zeros(len(pools), np.int64), self.reserve, counts),
            cuts=tuple(counts[cut] for cut in self.cut.values()),
            groups={key: members for key, members in groups.items() if members},
            usd_per_hour=self._fixed_usd + float(sum(c * values[v] for v, c in self._usd.items())),
            objective=solved.objective,
            bound=solved.bound,
            gap=solved.gap,
            proven=solved.proven,
            seconds=time.monotonic() - started,
        )


def _fill_places(array: Any, variables: Mapping[Any, int], values: Any) -> Any:
    """An array with the values of variables at their places."""
    for place, variable in variables.items():
        array[place] = values[variable]
    return array


def list_levels(places: Iterable[tuple[float, int]]) -> list[float]:
    """Return what the loss of a domain may take of a load, rising; few, as near to all as can be.

    ``places``: the part of the load that a replica holds, and the replicas that a domain has room
    for, by option. Where there are many, levels close together count as the largest of them.
    """
    losses = sorted({share * n for share, inside in places for n in range(1, inside + 1)})
    ratio = 1.0 + ROUNDING
    while True:
        levels: list[float] = []
        for loss in reversed(losses):
            if not levels or loss * ratio < levels[-1]:
                levels.append(loss)
        if len(levels) <= MOST_LEVELS:
            return levels[::-1]
        ratio = 1.0 + (ratio - 1.0) * 2 if ratio > 1.001 else 1.002


def _count_domains(domain: str, supply: Supply) -> int:
    """Failure domains of a pool."""
    if domain == "pool":
        return 1
    return min(supply.racks, supply.nodes) if domain == "rack" else supply.nodes


def _room_of(domain: str, supply: Supply, option: Option) -> int:
    """Replicas of an option that one failure domain of its pool has room for."""
    devices = max(option.devices, 1e-9)
    if option.slice is not None:
        inside = supply.per_node * max(cut.get(option.slice, 0) for cut in supply.cuts)
    else:
        inside = int(supply.per_node // devices)
    if domain == "node":
        return inside
    nodes = supply.nodes if domain == "pool" else -(-supply.nodes // max(supply.racks, 1))
    return int(inside * nodes or nodes * supply.per_node // devices)


def solve_fleet(
    instance: Instance, *, gap: float = 0.005, seconds: float = 60.0, watch: Watch | None = None
) -> Solution:
    """Return the best fleet: everything served where that can be, else the most by priority.

    Args:
        instance: the fleet in numbers.
        gap: relative distance to the bound with which the search ends.
        seconds: after which the best so far is the answer.
        watch: is told of each better fleet.

    Raises:
        Cancelled: where the caller has left.
    """
    started = time.monotonic()
    program = FleetProgram(instance)
    solved = program.solve(program.goal_terms(), gap=gap, seconds=seconds, watch=watch)
    if solved is not None:
        return program.read(solved, started)
    program = FleetProgram(instance, elastic=True)
    terms = program.count_unmet()

    def remaining_s() -> float:
        return max(seconds - (time.monotonic() - started), LEAST_SECONDS)

    first = program.solve(terms, gap=1e-4, seconds=remaining_s() / 2) or program.serve_nothing()
    program.rows.row(terms, high=first.objective * (1 + 1e-6) + 1e-6)
    best = program.solve(program.goal_terms(), gap=gap, seconds=remaining_s(), watch=watch)
    return program.read(best or first, started)


def is_impossible(
    instance: Instance, relaxed: frozenset[str] = frozenset(), seconds: float = 20.0
) -> bool:
    """Return whether it is proven that nothing serves all of a fleet.

    ``relaxed``: groups of rows that do not bind.
    """
    return proves_infeasible(FleetProgram(instance, relaxed).rows.lp(), seconds)
