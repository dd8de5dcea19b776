"""From a fleet's document to a program in numbers: which layout of which model may stand where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.units import usd
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.serving.cold_start import cold_start
from recipe_core.fleets.answer import ALL_DAY
from recipe_core.fleets.columns import ANYWHERE, Column, Sources, load_replica, make_columns
from recipe_core.fleets.instance import Demand, Instance, Option, Work, pack_footprints
from recipe_core.fleets.jobs import make_job_columns
from recipe_core.fleets.pools import ResolvedPool, resolve_pools, round_trip_ms
from recipe_core.fleets.program import BUSY
from recipe_core.fleets.request import FleetJob, FleetModel, FleetPeriod, FleetRequest, Tenant
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
    job and pool, why nothing of it can stand there. ``notes``: what people should know of it. The
    first slots of the instance are the periods of today.
    """

    request: FleetRequest
    pools: tuple[ResolvedPool, ...]
    instance: Instance
    choices: tuple[Choice, ...]
    periods: Mapping[str, float]
    reasons: Mapping[str, Mapping[str, str]]
    notes: tuple[str, ...] = ()


def list_periods(request: FleetRequest) -> tuple[FleetPeriod, ...]:
    """Return the periods of a day; one of 24 hours where none are stated."""
    return request.periods or (FleetPeriod(name=ALL_DAY, hours=24.0),)


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
    pools, periods = resolve_pools(request), list_periods(request)
    grows = request.growth is not None or any(model.growth for model in request.models)
    reserves = any(pool.reserve is not None for pool in request.pools)
    ahead = AHEAD if grows and reserves else ((0.0, 1.0),)
    maker = _OptionMaker(request, pools, confidence, sources)
    demands, works = list[Demand](), list[Work]()
    for k, model in enumerate(request.models):
        loads = _loads_of(request, model, month, [part for part, _ in ahead])
        with _naming(f"models.{k}"):
            maker.add_model(model, k, loads)
        headroom = request.headroom_of(model)
        demands.append(Demand(loads, model.priority, headroom.failures, headroom.domain))
    for k, job in enumerate(request.jobs):
        with _naming(f"jobs.{k}"):
            maker.add_job(job, k)
        allowed = [not job.periods or period.name in job.periods for period in periods]
        slots = np.tile(np.array(allowed, dtype=np.bool_), len(ahead))
        trains = job.workload.kind == "training"
        works.append(Work(24.0 / job.every_hours, slots, job.priority, job.preemptible, trains))
    instance = Instance(
        demands=tuple(demands),
        options=_pack_options(maker.options, pools),
        supplies=tuple(pool.supply() for pool in pools),
        works=tuple(works),
        hours=tuple(share * period.hours for _, share in ahead for period in periods),
        goal=request.objective.optimize,
        most_usd=_hourly_budget(request.objective.usd_per_month, pools),
        parts=len(ahead),
    )
    return FleetProblem(
        request=request,
        pools=pools,
        instance=instance,
        choices=tuple(maker.choices),
        periods={period.name: period.hours for period in periods},
        reasons=maker.reasons,
        notes=tuple(_note_sleepless(request)),
    )


def _note_sleepless(request: FleetRequest) -> Iterator[str]:
    text = "has headroom, so that it does not sleep; set its headroom.failures to 0 to let it."
    for model in request.models:
        if model.sleep and request.headroom_of(model).failures:
            yield f"{model.name} {text}"


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Count a step of the work, and put a field before those that its errors name."""
    budget.count_step()
    try:
        yield
    except RecipeError as error:
        inside = f"{field}.{error.field}" if error.field else field
        raise InputError(error.message, field=inside, hint=error.hint) from None


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


def _loads_of(
    request: FleetRequest, model: FleetModel, month: float, parts: Sequence[float]
) -> Float:
    """Loads by users' region and slot: the periods of a day, after each part of its growth."""
    growth = model.growth or request.growth
    factors = np.ones(len(parts))
    if growth:
        factors = (1.0 + growth.per_month) ** (month + np.array(parts) * growth.months)
    shares = np.array(list(model.users.values()) or [1.0])
    by_period = np.array([model.load.get(period.name, 1.0) for period in list_periods(request)])
    return np.asarray(model.peak * np.outer(shares / shares.sum(), np.outer(factors, by_period)))


class _OptionMaker:
    """Makes options of a program, and keeps what they are."""

    def __init__(
        self,
        request: FleetRequest,
        pools: tuple[ResolvedPool, ...],
        confidence: float | None,
        sources: Sources,
    ) -> None:
        self.request, self.pools = request, pools
        self.confidence, self.sources = confidence, sources
        self.regions = {region.name: region for region in request.regions}
        self.options: list[Option] = []
        self.choices: list[Choice] = []
        self.reasons: dict[str, dict[str, str]] = {}

    def _allowed_pools(self, tenant: Tenant) -> Iterator[tuple[int, ResolvedPool]]:
        """Pools that may have a tenant; of the others the reason is kept."""
        where, reasons = tenant.where, self.reasons.setdefault(tenant.name, {})
        for p, pool in enumerate(self.pools):
            if where.pools and pool.pool.name not in where.pools:
                reasons[pool.pool.name] = "its rules name other pools"
            elif where.regions and pool.pool.region not in where.regions:
                reasons[pool.pool.name] = f"it must stay in {' or '.join(where.regions)}"
            elif where.on_premises and not pool.pool.stands_on_premises:
                reasons[pool.pool.name] = "it must stay on premises"
            else:
                yield p, pool

    def _add(
        self, choice: Choice, owner: int, p: int, capacities: tuple[float, ...], job: bool = False
    ) -> Option:
        column, pool, part = choice.column, choice.pool, choice.slice
        option = Option(
            owner=owner,
            pool=p,
            devices=part.share if part else float(column.devices),
            capacities=capacities,
            watts=column.watts,
            slice=part.name if part else None,
            job=job,
            up=pool.up ** max(column.devices // pool.per_node, 1),
        )
        self.options.append(option)
        self.choices.append(choice)
        return option

    def add_model(self, model: FleetModel, owner: int, loads: Float) -> None:
        """Add every layout of a model in every pool that may serve it."""
        confidence = self.confidence
        if confidence is not None:
            confidence = max(model.objective.required_confidence, confidence)
        peak = float(loads.sum(axis=0).max())
        # how busy a model that sleeps keeps its devices has to be known
        top_load = max(peak * BEYOND, LEAST_AWAKE if model.sleep else 1e-3)
        for p, pool in self._allowed_pools(model):
            reasons = self.reasons[model.name]
            trips = [round_trip_ms(pool, users, self.regions) for users in model.users or ("",)]
            distinct = tuple(dict.fromkeys((0.0, *trips)))
            for part in (*((None,) if pool.keeps_whole else ()), *pool.slices):
                columns_there = make_columns(
                    model,
                    part.device if part else pool.pool.device,
                    1 if part else pool.per_node,
                    1 if part else min(pool.pool.nodes, MOST_NODES),
                    top_load=top_load,
                    round_trips=distinct,
                    confidence=confidence,
                    sources=self.sources,
                )
                if columns_there.reason:
                    reasons.setdefault(pool.pool.name, columns_there.reason)
                for column in columns_there.columns:
                    capacities = tuple(column.capacities[distinct.index(trip)] for trip in trips)
                    choice = Choice(model.name, pool, column, part)
                    if any(capacities):
                        self._let_sleep(
                            model, choice, self._add(choice, owner, p, capacities), peak
                        )
                    else:
                        far = f"its users are {max(trips):g} ms away, which its limits do not leave"
                        reasons.setdefault(pool.pool.name, far)

    def _let_sleep(self, model: FleetModel, choice: Choice, option: Option, peak: float) -> None:
        """Add the same replica asleep between its bursts, where its model may sleep."""
        column = choice.column
        if model.sleep is None or choice.slice or column.devices > choice.pool.per_node:
            return
        if self.request.headroom_of(model).failures:  # a sleeper has no replicas to spare
            return
        wake_s, rests = wake_seconds(column), rest_shares(column)
        nap = busy_share(column, peak) + model.sleep.wakes_per_hour * wake_s / 3600.0
        if wake_s <= model.sleep.longest_wake_s and nap <= BUSY and max(rests) <= 1.0:
            self.options.append(replace(option, nap=nap, rests=rests))
            self.choices.append(replace(choice, asleep=True))

    def add_job(self, job: FleetJob, owner: int) -> None:
        """Add every layout of a job in every pool that may run it."""
        for p, pool in self._allowed_pools(job):
            if not pool.keeps_whole:
                self.reasons[job.name][pool.pool.name] = "its devices are all cut"
                continue
            columns_there = make_job_columns(
                job, pool.pool.device, pool.per_node, pool.pool.nodes, self.sources
            )
            if columns_there.reason:
                self.reasons[job.name][pool.pool.name] = columns_there.reason
            for column in columns_there.columns:
                self._add(Choice(job.name, pool, column, None), owner, p, column.capacities, True)


def busy_share(column: Column, load: float) -> float:
    """Return the share of the time in which a replica has any request, one after another at worst.

    ``load``: requests a second, or users at once, of which one keeps it busy.
    """
    if load > column.capacity or column.plan.problem.workload.mode != "open":
        return 1.0
    latency_s = load_replica(column, np.array([load])).columns["request_latency_s"][0]
    return min(load * float(latency_s), 1.0)


def wake_seconds(column: Column) -> float:
    """Seconds until a model that sleeps with its weights in host memory serves again."""
    setting = column.plan.setting(0)
    weights = float(column.plan.columns["weights_bytes"][0])
    return cold_start(
        Start(node="ready", wake="sleep-1"),
        engine=column.engine,
        weights_bytes=weights * column.devices,
        devices=column.devices,
        device=setting.cluster.device,
        weight_dtype=setting.weight_dtype,
    ).seconds


def rest_shares(column: Column) -> tuple[float, float]:
    """Return what a replica keeps asleep: of the host's memory, and of what engines leave free.

    Its weights wait in its devices' share of the host's memory; where that is not known, or is the
    devices' own, nothing sleeps. On a device the context and captured graphs of its engine stay.
    """
    block = column.plan.blocks[0]
    device = block.setting.cluster.device
    host, sizes = device.node.host_memory_bytes, training_data().run.sleeping_engine_bytes
    weights = float(column.plan.columns["weights_bytes"][0]) * device.node.devices
    free = device.usable_memory_bytes * (1.0 - float(block.cases.memory_fraction[0]))
    context_bytes = sizes.get(column.engine, sizes["any"]).value
    return weights / host.value if host else np.inf, context_bytes / free if free > 0 else np.inf


def _pack_options(options: Sequence[Option], pools: Sequence[ResolvedPool]) -> tuple[Option, ...]:
    """Options with the devices of their replicas as they pack into nodes of their pools."""
    sizes: dict[int, set[int]] = {p: set() for p in range(len(pools))}
    for option in options:
        if option.slice is None:
            sizes[option.pool].add(int(option.devices))
    packs = [pack_footprints(sizes[p], pool.per_node) for p, pool in enumerate(pools)]
    return tuple(
        option if option.slice else replace(option, devices=packs[option.pool][int(option.devices)])
        for option in options
    )
