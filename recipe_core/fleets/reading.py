"""From the program's numbers to an answer: placements, machines, costs and charges."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.serving.notes import list_setting_notes
from recipe_core.fleets.answer import (
    Charge,
    Conflict,
    CutDevices,
    FleetAnswer,
    PlacedJob,
    PlacedModel,
    Placement,
    PoolUse,
    Status,
)
from recipe_core.fleets.columns import load_replica, price_replica
from recipe_core.fleets.instance import Solution
from recipe_core.fleets.nodes import fill_nodes
from recipe_core.fleets.placing import FleetProblem
from recipe_core.fleets.pools import sharing_notes
from recipe_core.fleets.probability import Stated, joint_probabilities, share_up
from recipe_core.fleets.request import FleetModel, Tenant
from recipe_core.hardware.prices import price_month

# Figures of a replica that an answer states.
FIGURES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
JOB_FIGURES = ("wall_s", "step_s", "tokens_per_s", "output_tokens_per_s")
# Notes of single estimates that an answer repeats, and models that each names.
MOST_NOTES, MOST_NAMES = 20, 4


def read_solution(
    problem: FleetProblem, solution: Solution, conflict: Conflict | None = None
) -> FleetAnswer:
    """Return the answer that a solution of a fleet's program means."""
    return _Reader(problem, solution).answer(conflict)


class _Reader:
    """Devices, cost and load of each option of a program by period: arrays options × periods."""

    def __init__(self, problem: FleetProblem, solution: Solution) -> None:
        self.problem, self.solution = problem, solution
        self.request, self.instance = problem.request, problem.instance
        self.options, self.supplies = self.instance.options, self.instance.supplies
        self.periods = tuple(problem.periods)
        self.share = np.array([*problem.periods.values()]) / sum(problem.periods.values())
        # later slots are months ahead
        self.replicas = solution.replicas[:, : len(self.periods)]
        self.nodes, self.cut_nodes = fill_nodes(problem, solution, len(self.periods))
        self.members: defaultdict[str, list[int]] = defaultdict(list)
        for k, choice in enumerate(problem.choices):
            self.members[choice.owner].append(k)
        self.pool_of = np.array([option.pool for option in self.options], dtype=int)
        self.loads = self._share_loads()
        self._count_devices()
        self._share_costs()
        self.notes: defaultdict[str, list[str]] = defaultdict(list)
        """Models by what their estimates note."""
        self.placed = {
            k: self._read_placement(k) for k in range(len(self.options)) if self.replicas[k].any()
        }

    def _share_loads(self) -> Float:
        """Load of each option: by flows, or by what its replicas hold of its model's."""
        loads, slots = np.zeros(self.replicas.shape), len(self.periods)
        for m, (model, demand) in enumerate(
            zip(self.request.models, self.instance.demands, strict=True)
        ):
            served = demand.loads.sum(axis=0)[:slots] * (1.0 - self.solution.unmet[m, :slots])
            members = self.members[model.name]
            if len(demand.loads) > 1:
                for k in members:
                    flows = np.einsum("rt,rt->t", self.solution.flows[k], demand.loads)[:slots]
                    asleep = self.options[k].nap is not None
                    loads[k] = served * (self.replicas[k] > 0) if asleep else flows
                continue
            held_each = np.array(
                [self.options[k].capacities[0] * self.options[k].up for k in members]
            )
            capacity = held_each[:, None] * self.replicas[members]
            loads[members] = served * _quotients(capacity, capacity.sum(axis=0))
        return loads

    def _count_devices(self) -> None:
        """Devices by option and pool, and power; those that sleep have a part of their group's."""
        watts = np.array([o.watts if o.nap is None else 0.0 for o in self.options])
        is_whole = _upright([option.slice is None for option in self.options])
        self.free = np.ones(len(self.options))
        """Shares of requests that find the devices free of others' that sleep on them too."""
        self.devices = _upright([option.devices for option in self.options]) * self.replicas
        self.watts = self._by_pool(watts * (self.replicas @ self.share))
        for (p, size, _), group in self.solution.groups.items():
            naps, members = np.array([self.options[k].nap for k in group], float), list(group)
            self.free[members] = 1.0 - (naps.sum() - naps)
            self.devices[members] = (size * naps / naps.sum())[:, None]
            self.watts[p] += max(self.options[k].watts for k in group)
        self.used = self._by_pool(self.devices * is_whole)
        self.used += _upright([cuts.sum() for cuts in self.solution.cuts])

    def _share_costs(self) -> None:
        """Devices that are paid for, the cost of each pool, and each option's part by devices."""
        slots, rented = len(self.periods), self.used * 0.0
        self.paid, usd = self.used.copy(), _upright([supply.usd for supply in self.supplies])
        for p, supply in enumerate(self.supplies):
            if supply.paid == "fixed":
                self.paid[p] = supply.nodes * supply.per_node
            elif supply.paid == "nodes":
                machines = np.maximum(self.solution.machines[p, :slots], self.solution.reserved[p])
                self.paid[p] = machines * supply.per_node
                saved = supply.usd - (supply.reserve_usd or 0.0)
                rented[p] = self.solution.reserved[p] * supply.per_node * saved
        self.pool_usd = self.paid * usd - rented
        counted = self._by_pool(self.devices)
        # what nobody uses of machines that are paid for in any case is nobody's
        fixed = _upright([supply.paid == "fixed" for supply in self.supplies])
        counted = np.where(fixed > 0, self.paid, counted)
        parts = _quotients(self.devices, counted[self.pool_of])
        self.usd = (parts * self.pool_usd[self.pool_of]) @ self.share

    def _by_pool(self, values: Float | Int) -> Float:
        out = np.zeros((len(self.supplies), *values.shape[1:]))
        np.add.at(out, self.pool_of, values)
        return out

    def _by_period(self, values: Float) -> dict[str, float]:
        return dict(zip(self.periods, values.tolist(), strict=True))

    # placements

    def _busiest(self, owner: str) -> tuple[int, float]:
        """The period in which a model has its largest load, and that load."""
        loads = self.loads[self.members[owner]].sum(axis=0)
        return int(loads.argmax()), float(loads.max())

    def _read_placement(self, k: int) -> Placement:
        option, choice, count = self.options[k], self.problem.choices[k], self.replicas[k]
        column, pool, part = choice.column, choice.pool, choice.slice
        load_each = _quotients(self.loads[k], count * option.up)
        if option.job:
            plan, request = column.plan, column.plan.request
        else:
            highest = max(float(load_each.max()), 1e-3)
            if column.plan.problem.workload.mode == "closed":  # users are whole
                highest = np.ceil(highest - 1e-6)
            plan = load_replica(column, np.array([highest]))
            request = price_replica(plan, pool.usd * (part.share if part else 1.0))
        setting = plan.setting(0)
        for note in list_setting_notes(setting) if plan.kind == "serving" else setting.model.notes:
            self.notes[note].append(choice.owner)
        t, peak = self._busiest(choice.owner)
        return Placement(
            pool=pool.pool.name,
            device=part.device if part else pool.profile.name,
            slice=part.name if part else None,
            layout=column.layout,
            engine=column.engine,
            candidate=column.candidate,
            request=request.to_json(),
            devices_each=float(part.share if part else column.devices),
            replicas=dict(zip(self.periods, count.tolist(), strict=True)),
            capacity_each=float(max(option.capacities)),
            load_each=self._by_period(load_each),
            weight=float(self.loads[k, t]) / peak if peak > 0 else 0.0,
            figures={
                name: _finite_number(plan.columns[name][0])
                for name in (JOB_FIGURES if option.job else FIGURES)
                if name in plan.columns
            },
            confidence=float(np.nan_to_num(plan.chances[0]) * self.free[k]),
            watts=float(count.max() * option.watts),
            usd_per_hour=float(self.usd[k]),
            shared=choice.asleep,
            nodes=tuple(self.nodes.get(k, ())),
        )

    def _state(self, k: int) -> Stated:
        """Return the replicas of an option in the busiest period of their model."""
        choice, (t, _) = self.problem.choices[k], self._busiest(self.problem.choices[k].owner)
        spans = max(choice.column.devices // choice.pool.per_node, 1)
        return Stated(
            owner=choice.owner,
            column=choice.column,
            replicas=int(self.replicas[k, t]),
            load=float(self.loads[k, t]),
            free=float(self.free[k]),
            up=share_up(choice.pool) ** spans,
            nodes=() if spans > 1 else self.placed[k].nodes,
        )

    # the whole

    def answer(self, conflict: Conflict | None) -> FleetAnswer:
        """Return everything, as plain values."""
        solution = self.solution
        status: Status = "optimal" if solution.proven else "feasible"
        if (solution.unmet > 0).any() or (solution.undone > 0).any():
            status = "partial"
        joint, by_owner = joint_probabilities(
            [self._state(k) for k in self.placed if not self.options[k].job]
        )
        models = tuple(self._read_model(m, by_owner) for m in range(len(self.request.models)))
        has_load = any(max(model.load.values()) > 0 for model in models)
        usd = float((self.pool_usd @ self.share).sum())
        grams = np.array([pool.co2_per_watt_hour for pool in self.problem.pools]) * self.watts
        return FleetAnswer(
            request=self.request,
            status=status,
            optimize=self.request.objective.optimize,
            **_take(solution, "gap", "objective", "bound", "seconds"),
            models=models,
            jobs=tuple(self._read_job(j) for j in range(len(self.request.jobs))),
            pools=tuple(self._read_pool(p) for p in range(len(self.supplies))),
            charges=tuple(sorted(self._charges(usd), key=lambda charge: -charge.usd_per_hour)),
            usd_per_hour=usd,
            watts=float(self.watts.sum()),
            kg_co2_per_hour=float(grams.sum()) / 1000.0,
            # as far as models are served; nothing that is asked for is served where none is
            probability=joint if by_owner or not has_load else 0.0,
            conflict=conflict,
            notes=(*self._notes(models), *self._estimate_notes()),
            periods=dict(self.problem.periods),
        )

    def _tenant_fields(self, tenant: Tenant, lacks: bool) -> dict[str, Any]:
        """Fields that a model and a job have alike; ``lacks``: whether not all of it is run."""
        placed = [self.placed[k] for k in self.members[tenant.name] if k in self.placed]
        reason = "the pools that may serve it have no more devices free for it"
        if not self.members[tenant.name]:
            reason = "; ".join(dict.fromkeys(self.problem.reasons[tenant.name].values()))
        return {
            **_take(tenant, "name", "team", "project", "cost_centre"),
            "placements": tuple(placed),
            "usd_per_hour": float(sum(placement.usd_per_hour for placement in placed)),
            "reason": reason if lacks else None,
        }

    def _read_model(self, m: int, probabilities: Mapping[str, float]) -> PlacedModel:
        model, slots = self.request.models[m], len(self.periods)
        loads = self.instance.demands[m].loads.sum(axis=0)[:slots]
        unmet = self.solution.unmet[m, :slots]
        return PlacedModel(
            **_take(model, "priority", "mode"),
            load=self._by_period(loads),
            served=self._by_period(loads * (1.0 - unmet)),
            # a model without load has nothing that may fail
            probability=probabilities.get(model.name, 0.0 if loads.any() else 1.0),
            **self._tenant_fields(model, bool(self.solution.unmet[m].any())),
        )

    def _read_job(self, j: int) -> PlacedJob:
        job = self.request.jobs[j]
        runs_per_hour = sum(
            self.placed[k].most_replicas * self.problem.choices[k].column.capacity
            for k in self.members[job.name]
            if k in self.placed
        )
        return PlacedJob(
            **_take(job, "every_hours", "preemptible"),
            hours=1.0 / runs_per_hour if runs_per_hour else 0.0,
            **self._tenant_fields(job, bool(self.solution.undone[j] > 0)),
        )

    def _read_pool(self, p: int) -> PoolUse:
        resolved, supply = self.problem.pools[p], self.supplies[p]
        return PoolUse(
            **_take(resolved.pool, "name", "term", "region", "nodes", "power_kw"),
            device=resolved.profile.name,
            per_node=resolved.per_node,
            racks=supply.racks,
            used=self._by_period(self.used[p]),
            paid=self._by_period(self.paid[p]),
            reserved=int(self.solution.reserved[p] * supply.per_node),
            usd_per_device_hour=resolved.usd,
            price_basis=resolved.basis,
            usd_per_hour=float(self.pool_usd[p] @ self.share),
            watts=float(self.watts[p]),
            cuts=tuple(self._read_cuts(p)),
        )

    def _read_cuts(self, p: int) -> Iterator[CutDevices]:
        by_slice: defaultdict[str, list[Int]] = defaultdict(list)
        for option, count in zip(self.options, self.replicas, strict=True):
            if option.pool == p and option.slice is not None:
                by_slice[option.slice].append(count)
        used = Counter(
            {name: int(np.sum(counts, axis=0).max()) for name, counts in by_slice.items()}
        )
        cuts = zip(self.solution.cuts[p], self.supplies[p].cuts, strict=True)
        for k, (number, counts) in enumerate(cuts):
            if number:
                in_use = {name: min(used[name], n * int(number)) for name, n in counts.items()}
                used.subtract(in_use)
                nodes = dict(self.cut_nodes.get((p, k), {}))
                yield CutDevices(int(number), dict(counts), in_use, nodes)

    def _charges(self, total: float) -> Iterator[Charge]:
        """Costs by team, project and cost centre; what nothing uses is nobody's."""
        rows: defaultdict[tuple[str | None, str | None, str | None], list[int]] = defaultdict(list)
        for tenant in (*self.request.models, *self.request.jobs):
            members = [k for k in self.members[tenant.name] if k in self.placed]
            if members:
                rows[tenant.team, tenant.project, tenant.cost_centre] += members
        devices = self.devices @ self.share
        for owner, members in rows.items():
            usd = float(self.usd[members].sum())
            names = tuple(dict.fromkeys(self.problem.choices[k].owner for k in members))
            yield Charge(*owner, usd, price_month(usd), float(devices[members].sum()), names)
        idle = total - float(self.usd.sum())
        if idle > 1e-6 * max(total, 1.0):
            unused = float(((self.paid - self.used) @ self.share).sum())
            yield Charge(None, None, None, idle, price_month(idle), unused, ())

    # notes

    def _notes(self, models: Sequence[PlacedModel]) -> Iterator[str]:
        """Say what the answer does not know or count."""
        yield from (*self.problem.notes, *sharing_notes(self.problem.pools))
        for model, placed in zip(self.request.models, models, strict=True):
            if self._is_crowded(model, placed):
                lost = self.request.headroom_of(model)
                lost_text = f"{lost.failures} {lost.domain}s" if lost.failures > 1 else lost.domain
                yield (
                    f"{model.name}: no order of replicas on nodes was found that holds its load "
                    f"with any {lost_text} down; spread them by hand."
                )
        if any(placement.shared for placement in self.placed.values()):
            yield (
                "Models that sleep wait for each other's requests on shared devices: their "
                "probabilities count only requests that find the devices free."
            )
        if self.placed:
            yield (
                "Probabilities count nodes that fail, as often as those of published fleets, and "
                "spot nodes that are reclaimed, one by one; racks and pools that fail whole, and "
                "reclaims of many nodes at once, are not counted."
            )
        if self.request.jobs:
            yield "Jobs count with their estimated times, without waiting for each other."

    def _is_crowded(self, model: FleetModel, placed: PlacedModel) -> bool:
        """Return whether a loss takes load of a period whose replicas stand on the nodes."""
        headroom = self.request.headroom_of(model)
        losses: defaultdict[str, float] = defaultdict(float)
        members = [k for k in self.members[model.name] if k in self.placed]
        placements = [self.placed[k] for k in members]
        for part in placements:
            for share in part.nodes:
                domains = {"node": share.node, "rack": share.rack, "pool": part.pool}
                losses[domains[headroom.domain]] += share.replicas * part.capacity_each
        lost = sum(sorted(losses.values(), reverse=True)[: headroom.failures])
        standing = [sum(share.devices for share in part.nodes) for part in placements]
        is_shown = np.isclose(self.devices[members], _upright(standing)).all(axis=0)
        surviving = np.array([p.capacity_each for p in placements]) @ self.replicas[members] - lost
        needed = np.array([*placed.served.values()]) * (1 - 1e-3)
        return bool(headroom.failures and (is_shown & (surviving < needed)).any())

    def _estimate_notes(self) -> Iterator[str]:
        """Repeat what single estimates note, with their models; the notes of most models first."""
        owners = {note: list(dict.fromkeys(names)) for note, names in self.notes.items()}
        notes = sorted(owners, key=lambda note: -len(owners[note]))
        for note in notes[:MOST_NOTES]:
            names, more = owners[note][:MOST_NAMES], len(owners[note]) - MOST_NAMES
            yield f"{', '.join(names)}{f' and {more} more' if more > 0 else ''}: {note}"
        if (count := len(notes) - MOST_NOTES) > 0:
            yield f"Estimates of single layouts have {count} more note{'s' if count > 1 else ''}."


def _take(source: object, *names: str) -> dict[str, Any]:
    """Fields that an answer states as they are."""
    return {name: getattr(source, name) for name in names}


def _upright(values: Sequence[float]) -> Float:
    """Values as a column, beside which arrays of periods stand."""
    return np.array(values, dtype=float)[:, None]


def _quotients(values: Float | Int, by: Float | Int) -> Float:
    """Quotients; 0 where nothing divides."""
    return np.divide(values, by, out=np.zeros(values.shape), where=np.asarray(by) > 0)


def _finite_number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) and number > 0 else None
