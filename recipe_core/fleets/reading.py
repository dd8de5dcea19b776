"""From the program's numbers to an answer: placements, machines, costs and charges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
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
from recipe_core.fleets.columns import loaded_plan, loaded_request
from recipe_core.fleets.instance import Solution
from recipe_core.fleets.nodes import fill_nodes
from recipe_core.fleets.placing import Choice, FleetProblem
from recipe_core.fleets.pools import sharing_notes
from recipe_core.fleets.probability import Stated, joint_probabilities
from recipe_core.fleets.request import FleetModel
from recipe_core.hardware.prices import price_month

# Figures of a replica that an answer states.
FIGURES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
JOB_FIGURES = ("wall_s", "step_s", "tokens_per_s", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class _Read:
    """A placement with what its owner, pool and probability need of it."""

    choice: Choice
    placement: Placement
    usd_by_slot: Float
    devices_by_slot: Float


def read_solution(
    problem: FleetProblem, solution: Solution, conflict: Conflict | None = None
) -> FleetAnswer:
    """Return the answer that a solution of a fleet's program means."""
    reader = _Reader(problem, solution)
    return reader.answer(conflict)


class _Reader:
    def __init__(self, problem: FleetProblem, solution: Solution) -> None:
        self.problem, self.solution = problem, solution
        self.instance = problem.instance
        self.periods = list(problem.periods)
        self.hours = np.array([problem.periods[name] for name in self.periods])
        # later slots are months ahead
        self.replicas = solution.replicas[:, : len(self.periods)]
        self.nodes = fill_nodes(problem, solution, len(self.periods))
        self.used = self._used_devices()
        self.paid, self.pool_usd = self._paid_devices()

    def by_period(self, values: Float) -> dict[str, float]:
        return {name: float(values[t]) for t, name in enumerate(self.periods)}

    # devices and money by pool and period

    def _used_devices(self) -> Float:
        used = np.zeros((len(self.problem.pools), len(self.periods)))
        for k, option in enumerate(self.instance.options):
            if option.slice is None and option.nap is None:
                used[option.pool] += option.devices * self.replicas[k]
        for p, devices, _ in self.solution.groups:
            used[p] += devices
        for p, cuts in enumerate(self.solution.cuts):
            used[p] += cuts.sum()
        return used

    def _paid_devices(self) -> tuple[Float, Float]:
        """Devices that are paid for, and their cost in an hour of each period."""
        paid, usd = self.used.copy(), np.zeros(self.used.shape)
        for p, supply in enumerate(self.instance.supplies):
            if supply.paid == "fixed":
                paid[p] = supply.nodes * supply.per_node
            elif supply.paid == "nodes":
                reserved = self.solution.reserved[p]
                machines = np.maximum(self.solution.machines[p, : len(self.periods)], reserved)
                paid[p] = machines * supply.per_node
                usd[p] = (machines - reserved) * supply.per_node * supply.usd
                usd[p] += reserved * supply.per_node * (supply.reserve_usd or 0.0)
                continue
            usd[p] = paid[p] * supply.usd
        return paid, usd

    # placements

    def _state(self, k: int, choice: Choice) -> Stated:
        """Return the replicas of an option in the busiest period of their model."""
        option = self.instance.options[k]
        loads = self._loads[choice.owner]
        t = int(sum(loads.values(), np.zeros(len(self.periods))).argmax())
        serving = float(self.replicas[k, t]) * option.up
        free = self._awake_alone(k)
        return Stated.of(choice.owner, choice.column, serving, float(loads[k][t]), free)

    def _shares(self, owner: str) -> dict[int, Float]:
        """Load of each option of a model by period: its part of what is served."""
        names = [model.name for model in self.problem.request.models]
        m = names.index(owner)
        demand = self.instance.demands[m]
        total = demand.loads.sum(axis=0)[: len(self.periods)]
        served = total * (1.0 - self.solution.unmet[m, : len(self.periods)])
        members = [k for k, c in enumerate(self.problem.choices) if c.owner == owner]
        options = self.instance.options
        if len(demand.loads) > 1:
            loads = {
                k: np.einsum("rt,rt->t", self.solution.flows[k], demand.loads)[: len(self.periods)]
                for k in members
            }
            for k in members:
                if options[k].nap is not None:
                    loads[k] = served * (self.replicas[k] > 0)
            return loads
        capacity = {k: options[k].capacities[0] * self.replicas[k] * options[k].up for k in members}
        everything = sum(capacity.values(), np.zeros(len(self.periods)))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {k: np.nan_to_num(served * capacity[k] / everything) for k in members}

    def _read(self, k: int, choice: Choice) -> _Read:
        option, count = self.instance.options[k], self.replicas[k]
        column, pool = choice.column, choice.pool
        names = [job.name for job in self.problem.request.jobs]
        job = choice.owner in names
        if job:
            load = np.zeros(len(self.periods))
            replica_load = np.zeros(len(self.periods))
        else:
            load = self._loads[choice.owner][k]
            replica_load = np.divide(
                load, count * option.up, out=np.zeros(len(load)), where=count > 0
            )
        busiest = float(replica_load.max())
        plan, row = (column.plan, column.row) if job else loaded_plan(column, max(busiest, 1e-3))
        figures = {
            name: _finite_number(plan.columns[name][row])
            for name in (JOB_FIGURES if job else FIGURES)
            if name in plan.columns
        }
        confidence = float(np.nan_to_num(plan.chances[row]))
        request = (
            column.plan.request
            if job
            else loaded_request(column, max(busiest, 1e-3), pool.usd * (option.devices or 1.0))
        )
        usd, devices = self._cost(k)
        totals = self._loads.get(choice.owner, {})
        peak = sum(totals.values(), np.zeros(len(self.periods)))
        t = int(peak.argmax()) if len(peak) else 0
        placement = Placement(
            pool=pool.pool.name,
            device=pool.profile.name if choice.slice is None else choice.slice.device,
            slice=choice.slice.name if choice.slice else None,
            layout=column.layout,
            engine=column.engine,
            candidate=column.candidate,
            request=request.to_json(),
            devices_each=float(choice.slice.share if choice.slice else column.devices),
            replicas={name: int(count[i]) for i, name in enumerate(self.periods)},
            capacity_each=float(max(option.capacities)),
            load_each=self.by_period(replica_load),
            weight=float(load[t] / peak[t]) if len(peak) and peak[t] > 0 else 0.0,
            figures=figures,
            confidence=confidence * self._awake_alone(k),
            watts=float(count.max() * option.watts),
            usd_per_hour=float((usd * self.hours).sum() / self.hours.sum()),
            shared=choice.asleep,
            nodes=tuple(self.nodes.get(k, ())),
        )
        return _Read(choice, placement, usd, devices)

    def _awake_alone(self, k: int) -> float:
        """The share of requests of a sleeping model that find its devices free of the others."""
        options = self.instance.options
        for members in self.solution.groups.values():
            if k in members:
                return 1.0 - sum(
                    float(options[beside].nap or 0.0) for beside in members if beside != k
                )
        return 1.0

    def _cost(self, k: int) -> tuple[Float, Float]:
        """The money that an option pays of its pool by period, by the devices that it takes."""
        option, count = self.instance.options[k], self.replicas[k].astype(float)
        devices = option.devices * count
        if option.nap is not None:
            for (_, replica_load, _), members in self.solution.groups.items():
                if k in members:
                    naps = [float(self.instance.options[m].nap or 0.0) for m in members]
                    devices = np.full(len(count), replica_load * float(option.nap) / sum(naps))
        weights = self._weights[option.pool]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num(devices / weights)
        return share * self.pool_usd[option.pool], devices

    @property
    def _weights(self) -> Float:
        """Devices that share the cost of each pool, by period."""
        out = np.zeros((len(self.problem.pools), len(self.periods)))
        for k, option in enumerate(self.instance.options):
            if option.nap is None:
                out[option.pool] += option.devices * self.replicas[k]
        for p, devices, _ in self.solution.groups:
            out[p] += devices
        for p, supply in enumerate(self.instance.supplies):
            if supply.paid == "fixed":  # what nobody uses is nobody's
                out[p] = self.paid[p]
        return out

    # the whole

    def answer(self, conflict: Conflict | None) -> FleetAnswer:
        """Return everything, as plain values."""
        request, solution = self.problem.request, self.solution
        self._loads = {model.name: self._shares(model.name) for model in request.models}
        reads = {
            k: self._read(k, choice)
            for k, choice in enumerate(self.problem.choices)
            if self.replicas[k].any()
        }
        stated_replicas = [
            self._state(k, read.choice)
            for k, read in reads.items()
            if read.choice.owner in self._loads
        ]
        joint, by_owner = joint_probabilities(stated_replicas)
        by_choice: defaultdict[str, list[_Read]] = defaultdict(list)
        for read in reads.values():
            by_choice[read.choice.owner].append(read)
        models = tuple(
            self._model(m, model, by_choice[model.name], by_owner.get(model.name, 1.0))
            for m, model in enumerate(request.models)
        )
        jobs = tuple(self._job(j, by_choice[job.name]) for j, job in enumerate(request.jobs))
        status: Status = "optimal" if solution.proven else "feasible"
        partial = (solution.unmet > 0).any() or (solution.undone > 0).any()
        usd = float((self.pool_usd.sum(axis=0) * self.hours).sum() / self.hours.sum())
        watts = self._watts()
        return FleetAnswer(
            request=request,
            status="partial" if partial else status,
            gap=solution.gap,
            optimize=request.objective.optimize,
            objective=solution.objective,
            bound=solution.bound,
            seconds=solution.seconds,
            models=models,
            jobs=jobs,
            pools=tuple(self._pool(p, watts[p]) for p in range(len(self.problem.pools))),
            charges=self._charges(list(reads.values()), usd),
            usd_per_hour=usd,
            watts=float(watts.sum()),
            kg_co2_per_hour=float(
                sum(
                    watt * pool.co2_per_watt_hour / 1000.0
                    for watt, pool in zip(watts, self.problem.pools, strict=True)
                )
            ),
            probability=joint,
            conflict=conflict,
            notes=self._notes(list(reads.values())),
            periods=dict(self.problem.periods),
        )

    def _watts(self) -> Float:
        """Mean power of each pool over the hours of a day."""
        out = np.zeros(len(self.problem.pools))
        share = self.hours / self.hours.sum()
        for k, option in enumerate(self.instance.options):
            if option.nap is None:
                out[option.pool] += float(option.watts * (self.replicas[k] * share).sum())
        for (p, _, _), members in self.solution.groups.items():
            out[p] += max(self.instance.options[k].watts for k in members)
        return out

    def _model(
        self, m: int, model: FleetModel, reads: list[_Read], probability: float
    ) -> PlacedModel:
        loads = self.instance.demands[m].loads.sum(axis=0)[: len(self.periods)]
        unmet = self.solution.unmet[m, : len(self.periods)]
        return PlacedModel(
            name=model.name,
            team=model.team,
            project=model.project,
            cost_centre=model.cost_centre,
            priority=model.priority,
            mode=str(getattr(model.workload, "mode", "")),
            load=self.by_period(loads),
            served=self.by_period(loads * (1.0 - unmet)),
            placements=tuple(read.placement for read in reads),
            probability=probability if reads else 0.0,
            usd_per_hour=float(sum(read.placement.usd_per_hour for read in reads)),
            reason=self._reason(model.name) if (unmet > 0).any() else None,
        )

    def _job(self, j: int, reads: list[_Read]) -> PlacedJob:
        job = self.problem.request.jobs[j]
        rate = sum(
            max(read.placement.replicas.values()) * read.choice.column.capacity for read in reads
        )
        undone = self.solution.undone[j] > 0
        return PlacedJob(
            name=job.name,
            team=job.team,
            project=job.project,
            cost_centre=job.cost_centre,
            every_hours=job.every_hours,
            hours=1.0 / rate if rate else 0.0,
            preemptible=job.preemptible,
            placements=tuple(read.placement for read in reads),
            usd_per_hour=float(sum(read.placement.usd_per_hour for read in reads)),
            reason=self._reason(job.name) if undone else None,
        )

    def _reason(self, owner: str) -> str:
        """Say why some of an owner's load is not served."""
        reasons = self.problem.reasons[owner]
        if any(choice.owner == owner for choice in self.problem.choices):
            return "the pools that may serve it have no more devices free for it"
        return "; ".join(dict.fromkeys(reasons.values()))

    def _pool(self, p: int, watts: float) -> PoolUse:
        resolved, supply = self.problem.pools[p], self.instance.supplies[p]
        counts = [
            (int(n), dict(c)) for n, c in zip(self.solution.cuts[p], supply.cuts, strict=True)
        ]
        used: defaultdict[str, int] = defaultdict(int)
        for k, option in enumerate(self.instance.options):
            if option.pool == p and option.slice is not None:
                used[option.slice] += int(self.replicas[k].max())
        cuts = []
        for number, slices in counts:
            if number:
                slices_used = {name: min(used[name], n * number) for name, n in slices.items()}
                for name, n in slices_used.items():
                    used[name] -= n
                cuts.append(CutDevices(number, slices, slices_used))
        return PoolUse(
            name=resolved.pool.name,
            device=resolved.profile.name,
            term=resolved.pool.term,
            region=resolved.pool.region,
            nodes=resolved.pool.nodes,
            per_node=resolved.per_node,
            racks=supply.racks,
            used=self.by_period(self.used[p]),
            paid=self.by_period(self.paid[p]),
            reserved=int(self.solution.reserved[p] * supply.per_node),
            usd_per_device_hour=resolved.usd,
            price_basis=resolved.basis,
            usd_per_hour=float((self.pool_usd[p] * self.hours).sum() / self.hours.sum()),
            watts=watts,
            power_kw=resolved.pool.power_kw,
            cuts=tuple(cuts),
        )

    def _charges(self, reads: list[_Read], total: float) -> tuple[Charge, ...]:
        """Costs by team, project and cost centre; what nothing uses is nobody's."""
        request = self.problem.request
        owners = {m.name: (m.team, m.project, m.cost_centre) for m in request.models}
        owners |= {job.name: (job.team, job.project, job.cost_centre) for job in request.jobs}
        share = self.hours / self.hours.sum()
        rows: defaultdict[tuple[str | None, str | None, str | None], list[_Read]]
        rows = defaultdict(list)
        for read in reads:
            rows[owners[read.choice.owner]].append(read)
        out = [
            Charge(
                *(team, project, cost_centre),
                usd_per_hour=(usd := sum(read.placement.usd_per_hour for read in members)),
                usd_per_month=price_month(usd),
                devices=float(sum((read.devices_by_slot * share).sum() for read in members)),
                models=tuple(dict.fromkeys(read.choice.owner for read in members)),
            )
            for (team, project, cost_centre), members in rows.items()
        ]
        idle = total - sum(charge.usd_per_hour for charge in out)
        if idle > 1e-6 * max(total, 1.0):
            devices = float(((self.paid - self.used) * share).sum())
            out.append(Charge(None, None, None, idle, price_month(idle), devices, ()))
        return tuple(sorted(out, key=lambda charge: -charge.usd_per_hour))

    def _crowded_notes(self, reads: list[_Read]) -> Iterator[str]:
        """Say of models whose replicas found no nodes that spread them as their headroom needs."""
        for m, model in enumerate(self.problem.request.models):
            headroom = self.problem.request.headroom_of(model)
            if headroom.failures != 1 or headroom.domain != "node":
                continue
            by_node: defaultdict[str, float] = defaultdict(float)
            for part in (r.placement for r in reads if r.choice.owner == model.name):
                for share in part.nodes:
                    by_node[share.node] += share.replicas * part.capacity_each
            load = self.instance.demands[m].loads.sum(axis=0)[: len(self.periods)].max()
            load *= 1.0 - self.solution.unmet[m].max()
            if sum(by_node.values()) - max(by_node.values(), default=0.0) < load * (1 - 1e-3):
                yield (
                    f"{model.name}: no order of replicas on nodes was found that holds its load "
                    "with any node down; spread them by hand."
                )

    def _notes(self, reads: list[_Read]) -> tuple[str, ...]:
        """Say what the answer does not know or count."""
        notes = [*sharing_notes(self.problem.pools), *self._crowded_notes(reads)]
        if any(read.choice.asleep for read in reads):
            notes.append(
                "Models that sleep wait for each other's requests on shared devices: their "
                "probabilities count only requests that find the devices free."
            )
        if any(pool.pool.term == "spot" for pool in self.problem.pools):
            notes.append(
                "Spot machines count with the share of time that they serve; reclaims of many at "
                "once are not counted."
            )
        if self.problem.request.jobs:
            notes.append("Jobs count with their estimated times, without waiting for each other.")
        return tuple(notes)


def _finite_number(value: object) -> float | None:
    number = float(value)  # type: ignore[arg-type]
    return number if np.isfinite(number) and number > 0 else None
