"""From a fleet's document to a program in numbers: which layout of which model may stand where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.units import usd
from recipe_core.estimates.serving.cold_start import cold_start
from recipe_core.fleets.answer import ALL_DAY
from recipe_core.fleets.columns import ANYWHERE, Column, Sources, loaded_plan, make_columns
from recipe_core.fleets.instance import Demand, Instance, Option, Work, pack_footprints
from recipe_core.fleets.jobs import make_job_columns
from recipe_core.fleets.pools import ResolvedPool, resolve_pools, round_trip_ms
from recipe_core.fleets.program import BUSY
from recipe_core.fleets.request import (
    DataRules,
    FleetJob,
    FleetModel,
    FleetPeriod,
    FleetRequest,
)
from recipe_core.hardware.prices import HOURS_PER_MONTH, price_month
from recipe_core.hardware.slices import Slice
from recipe_core.request.over_time import Start

# Nodes of one replica at most.
MOST_NODES = 16
# Loads that a replica is estimated under, over the whole of its model.
BEYOND = 4.0
# Requests a second up to which a model that sleeps is estimated, and users at once.
LEAST_AWAKE = 8.0
# Parts of the months ahead that reservations are decided for, with their share of the time.
AHEAD = ((0.0, 0.25), (0.5, 0.5), (1.0, 0.25))


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a program by what it is: whose, where, on which slice, in which layout."""

    owner: str
    pool: ResolvedPool
    column: Column
    slice: Slice | None
    asleep: bool = False


@dataclass(frozen=True)
class FleetProblem:
    """A fleet with the program that places it.

    ``choices``: of the instance's options. ``periods``: with their hours. ``reasons``: by model or
    job and pool, why nothing of it can stand there. The first slots of the instance are the periods
    of today.
    """

    request: FleetRequest
    pools: tuple[ResolvedPool, ...]
    instance: Instance
    choices: tuple[Choice, ...]
    periods: Mapping[str, float]
    reasons: Mapping[str, Mapping[str, str]]


def list_periods(request: FleetRequest) -> tuple[FleetPeriod, ...]:
    """Return the periods of a day; one of 24 hours where none are stated."""
    return request.periods or (FleetPeriod(name=ALL_DAY, hours=24.0),)


def is_allowed_pool(where: DataRules, pool: ResolvedPool) -> str | None:
    """Say why the rules on data forbid a pool; None where they allow it."""
    name = pool.pool.name
    if where.pools and name not in where.pools:
        return "its rules name other pools"
    if where.regions and pool.pool.region not in where.regions:
        return f"it must stay in {' or '.join(where.regions)}"
    if where.on_premises and not pool.pool.stands_on_premises:
        return "it must stay on premises"
    return None


def pose_fleet(
    request: FleetRequest,
    *,
    month: float = 0.0,
    confidence: float | None = None,
    sources: Sources = ANYWHERE,
) -> FleetProblem:
    """Return the program of a fleet.

    Args:
        request: the fleet.
        month: months of growth ahead of today for which it is placed.
        confidence: with which the limits of each model must hold at least; None: its own.
        sources: of models and corrections.

    Raises:
        InputError: naming the field that is wrong.
    """
    pools = resolve_pools(request)
    periods = list_periods(request)
    ahead = AHEAD if _looks_ahead(request) else ((0.0, 1.0),)
    maker = _OptionMaker(request, pools, confidence, sources)
    demands, works = [], []
    for k, model in enumerate(request.models):
        budget.count_step()
        growth = model.growth or request.growth
        loads = np.concatenate(
            [
                _loads(
                    model, periods, _growth_factor(growth, month + part * (growth or _STILL).months)
                )
                for part, _ in ahead
            ],
            axis=1,
        )
        try:
            maker.add_model(model, k, loads)
        except RecipeError as error:
            raise _at(error, f"models.{k}") from None
        headroom = request.headroom_of(model)
        demands.append(Demand(loads, model.priority, headroom.failures, headroom.domain))
    for k, job in enumerate(request.jobs):
        budget.count_step()
        try:
            single = maker.add_job(job, k)
        except RecipeError as error:
            raise _at(error, f"jobs.{k}") from None
        allowed = [not job.periods or period.name in job.periods for period in periods]
        slots = np.tile(np.array(allowed, dtype=np.bool_), len(ahead))
        works.append(Work(24.0 / job.every_hours, slots, job.priority, job.preemptible, single))
    monthly = request.objective.usd_per_month
    instance = Instance(
        demands=tuple(demands),
        options=tuple(maker.options),
        supplies=tuple(pool.supply() for pool in pools),
        works=tuple(works),
        hours=tuple(share * period.hours for _, share in ahead for period in periods),
        goal=request.objective.optimize,
        most_usd=_hourly_budget(monthly, pools),
    )
    return FleetProblem(
        request=request,
        pools=pools,
        instance=instance,
        choices=tuple(maker.choices),
        periods={period.name: period.hours for period in periods},
        reasons=maker.reasons,
    )


def _hourly_budget(monthly: float | None, pools: tuple[ResolvedPool, ...]) -> float | None:
    """The highest cost of an hour; None without a budget."""
    if monthly is None:
        return None
    fixed = sum(pool.usd * pool.devices for pool in pools if pool.pool.term == "reserved")
    if monthly < price_month(fixed):
        raise InputError(
            f"is below the {usd(price_month(fixed))} that reserved machines cost in any case.",
            field="objective.usd_per_month",
            hint="Raise it, or leave a reserved pool out.",
        )
    return monthly / HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class _NoGrowth:
    months: int = 0
    per_month: float = 0.0


_STILL = _NoGrowth()


def _looks_ahead(request: FleetRequest) -> bool:
    """Return whether reservations have to be decided for a load that grows."""
    grows = request.growth is not None or any(model.growth for model in request.models)
    return grows and any(pool.reserve is not None for pool in request.pools)


def _growth_factor(growth: object, months: float) -> float:
    return float((1.0 + getattr(growth, "per_month", 0.0)) ** months)


def _at(error: RecipeError, field: str) -> InputError:
    inside = f".{error.field}" if error.field else ""
    return InputError(error.message, field=f"{field}{inside}", hint=error.hint)


def _loads(model: FleetModel, periods: tuple[FleetPeriod, ...], factor: float) -> Float:
    """Loads by users' region and period."""
    shares = np.array(list(model.users.values()) or [1.0])
    by_period = np.array([model.load.get(period.name, 1.0) for period in periods])
    return np.asarray(model.peak * factor * np.outer(shares / shares.sum(), by_period))


class _OptionMaker:
    """Makes options of a program, and keeps what they are."""

    def __init__(
        self,
        request: FleetRequest,
        pools: tuple[ResolvedPool, ...],
        confidence: float | None,
        sources: Sources,
    ) -> None:
        self.request, self.pools, self.confidence = request, pools, confidence
        self.sources = sources
        self.regions = {region.name: region for region in request.regions}
        self.options: list[Option] = []
        self.choices: list[Choice] = []
        self.reasons: dict[str, dict[str, str]] = {}

    def add_model(self, model: FleetModel, owner: int, loads: Float) -> None:
        """Add every layout of a model in every pool that may serve it."""
        own_confidence = model.objective.required_confidence
        confidence = None if self.confidence is None else max(own_confidence, self.confidence)
        largest_load = max(float(loads.sum(axis=0).max()) * BEYOND, 1e-3)
        if model.sleep is not None:  # how busy it keeps its devices has to be known
            largest_load = max(largest_load, LEAST_AWAKE)
        self.reasons[model.name] = {}
        for p, pool in enumerate(self.pools):
            forbidden = is_allowed_pool(model.where, pool)
            if forbidden is not None:
                self.reasons[model.name][pool.pool.name] = forbidden
                continue
            trips = [round_trip_ms(pool, users, self.regions) for users in model.users or ("",)]
            distinct = tuple(dict.fromkeys((0.0, *trips)))
            places = [distinct.index(trip) for trip in trips]
            for part in (*((None,) if pool.keeps_whole else ()), *pool.slices):
                columns_found = make_columns(
                    model,
                    pool.pool.device if part is None else part.device,
                    pool.per_node if part is None else 1,
                    1 if part else min(pool.pool.nodes, MOST_NODES),
                    top_load=largest_load,
                    round_trips=distinct,
                    confidence=confidence,
                    sources=self.sources,
                )
                if columns_found.reason and part is None:
                    self.reasons[model.name][pool.pool.name] = columns_found.reason
                for column in columns_found.columns:
                    capacities = tuple(column.capacities[place] for place in places)
                    if any(value > 0 for value in capacities):
                        self._add(model, owner, p, column, capacities, part, loads)
                    elif part is None:
                        self.reasons[model.name][pool.pool.name] = (
                            f"its users are {max(trips):g} ms away, which its limits do not leave"
                        )

    def _add(
        self,
        model: FleetModel,
        owner: int,
        p: int,
        column: Column,
        capacities: tuple[float, ...],
        part: Slice | None,
        loads: Float,
    ) -> None:
        pool = self.pools[p]
        option = Option(
            owner=owner,
            pool=p,
            devices=part.share if part else float(column.devices),
            capacities=capacities,
            watts=column.watts,
            slice=part.name if part else None,
            up=pool.up ** max(column.devices // pool.per_node, 1),
        )
        self.options.append(option)
        self.choices.append(Choice(model.name, pool, column, part))
        if model.sleep is None or part is not None or column.devices > pool.per_node:
            return
        wake_s = wake_seconds(column)
        nap = busy_share(column, float(loads.sum(axis=0).max()))
        nap += model.sleep.wakes_per_hour * wake_s / 3600.0
        if wake_s <= model.sleep.longest_wake_s and nap <= BUSY:
            self.options.append(replace(option, nap=nap))
            self.choices.append(Choice(model.name, pool, column, None, asleep=True))

    def add_job(self, job: FleetJob, owner: int) -> bool:
        """Add every layout of a job, and return whether it has one worker at a time."""
        self.reasons[job.name] = {}
        single = False
        for p, pool in enumerate(self.pools):
            forbidden = is_allowed_pool(job.where, pool)
            if not pool.keeps_whole:
                forbidden = "its devices are all cut"
            if forbidden is not None:
                self.reasons[job.name][pool.pool.name] = forbidden
                continue
            columns_found = make_job_columns(
                job, pool.pool.device, pool.per_node, pool.pool.nodes, self.sources
            )
            single |= columns_found.single
            if columns_found.reason:
                self.reasons[job.name][pool.pool.name] = columns_found.reason
            for column in columns_found.columns:
                self.options.append(
                    Option(
                        owner=owner,
                        pool=p,
                        devices=float(column.devices),
                        capacities=column.capacities,
                        watts=column.watts,
                        job=True,
                        up=pool.up ** max(column.devices // pool.per_node, 1),
                    )
                )
                self.choices.append(Choice(job.name, pool, column, None))
        return single


def busy_share(column: Column, load: float) -> float:
    """Return the share of the time in which a replica has any request, one after another at worst.

    ``load``: requests a second, or users at once, of which one keeps it busy.
    """
    if load > column.capacity or column.plan.problem.workload.mode != "open":
        return 1.0
    plan, row = loaded_plan(column, load)
    return min(load * float(plan.columns["request_latency_s"][row]), 1.0)


def wake_seconds(column: Column) -> float:
    """Seconds until a model that sleeps with its weights in host memory serves again."""
    setting = column.plan.setting(column.row)
    weights = float(column.plan.columns["weights_bytes"][column.row])
    return cold_start(
        Start(node="ready", wake="sleep-1"),
        engine=column.engine,
        weights_bytes=weights * column.devices,
        devices=column.devices,
        device=setting.cluster.device,
        weight_dtype=setting.weight_dtype,
    ).seconds


def packed(problem: FleetProblem) -> Instance:
    """Return the instance with devices of replicas as they pack into nodes of their pools."""
    sizes: dict[int, set[int]] = {}
    for option in problem.instance.options:
        if option.slice is None:
            sizes.setdefault(option.pool, set()).add(int(option.devices))
    chains = {
        p: pack_footprints(members, problem.pools[p].per_node) for p, members in sizes.items()
    }
    options = tuple(
        option
        if option.slice is not None
        else replace(option, devices=chains[option.pool][int(option.devices)])
        for option in problem.instance.options
    )
    return replace(problem.instance, options=options)
