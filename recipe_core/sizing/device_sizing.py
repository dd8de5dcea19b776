"""One device sized: every count and split on every kind of machine that it comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.errors import InputError
from recipe_core.base.intervals import BAND, LEVELS, Ends
from recipe_core.base.numbers import LARGEST_COUNT
from recipe_core.base.units import chance_text, round_significant
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.measured.support import fitted_engines_for
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.hardware.profile import Device
from recipe_core.plans.confidence import below_text
from recipe_core.plans.evaluation import differs_by_case
from recipe_core.plans.limits import LIMITS, bounded_figures
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import queue_text
from recipe_core.plans.plans import plan_cases
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import TIE_DIGITS
from recipe_core.plans.replicas import replicas_of
from recipe_core.plans.serving_kind import prefill_pools
from recipe_core.plans.splits import broken_rules, row_reasons
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import AnyHardware, AvailabilityRequest, SizeRequest
from recipe_core.sizing.evaluated import search_again
from recipe_core.sizing.market import Choice, Machine
from recipe_core.sizing.spares import Upkeep

# Rungs of a device that are simulated before one is looked for that holds, and in all.
SIMULATED_AT_ONCE, MOST_SIMULATED = 3, 12


@dataclass(frozen=True)
class SizedDevice:
    """A device with the plan over all of its machines; rows are those of the plan.

    ``unknown``: why nothing is said to hold though it may; empty where it is known.
    ``availability``: how often enough replicas have to be up, where that is asked. ``spans``:
    whether replicas span machines because none holds the load on one.
    """

    choice: Choice
    plan: Plan
    unknown: str = ""
    availability: AvailabilityRequest | None = None
    spans: bool = False

    @property
    def profile(self) -> Device:
        return self.choice.profile

    @property
    def priced(self) -> bool:
        return self.choice.priced

    @property
    def tier(self) -> tuple[bool, bool]:
        """Return what devices rank by before their score: replicas that span, prices to doubt."""
        return self.spans, self.choice.doubted

    @property
    def by_month(self) -> bool:
        """Return whether cost is that of the devices by the hour: serving goes on, jobs end."""
        return self.plan.kind == "serving" and self.plan.problem.workload.mode != "offline"

    def machine(self, row: int) -> Machine:
        return self.choice.machines[int(self.plan.clusters_of_rows[row])]

    def replicas_of(self, row: int) -> tuple[int, int]:
        replicas = replicas_of(self.plan, row)
        return replicas.count, replicas.devices

    def machine_upkeep(self, row: int) -> Upkeep:
        """Return how replicas on the machines of a row stay up."""
        availability = None if self.plan.kind == "training" else self.availability
        return Upkeep(self.plan.setting(row).cluster, self.machine(row).owned, availability)

    def upkeep(self, row: int) -> Upkeep | None:
        """The same where spares count: availability is asked for, or machines are taken back."""
        upkeep = self.machine_upkeep(row)
        counts = upkeep.availability is not None or upkeep.market is not None
        return upkeep if counts and self.plan.kind == "serving" else None

    @cached_property
    def working(self) -> Int:
        """Devices that are paid for by row, without spares; 0 where a row cannot run."""
        return np.asarray(np.nan_to_num(self.plan.columns["gpus_rented"]), dtype=np.int64)

    @cached_property
    def rented(self) -> Int:
        """Devices that are paid for by row, those of spares among them; 0 where none can run."""
        out, by_replicas = self.working.copy(), {}
        starts = np.cumsum([0, *map(len, self.plan.blocks)])
        for start, block in zip(starts.tolist(), self.plan.blocks, strict=False):
            rows = start + np.flatnonzero(block.runs)
            if not len(rows) or (upkeep := self.upkeep(start)) is None:
                continue
            for row in rows.tolist():
                replicas, devices = self.replicas_of(row)
                key = id(upkeep.place), replicas, devices
                if key not in by_replicas:
                    by_replicas[key] = _rented_with_spares(upkeep, replicas, devices)
                out[row] = max(by_replicas[key], out[row])
        return out

    def spares(self, row: int) -> int:
        """Spare replicas of a row."""
        upkeep = self.upkeep(row)
        return 0 if upkeep is None else upkeep.spares(*self.replicas_of(row)).spares

    @cached_property
    def dearer(self) -> Float:
        return np.asarray(self.rented / np.maximum(self.working, 1), dtype=float)

    @cached_property
    def scores(self) -> Float:
        """Return what rows are ranked by, less is better: as the plan's, with what spares cost.

        Cost is that of all rented devices by the hour, where the workload goes on; devices without
        a price are counted.
        """
        goals = self.plan.request.objective.goals
        weight = sum(goals.get(goal, 0.0) for goal in ("cost", "gpus"))
        if self.by_month and "cost" in goals:
            hour = self.dearer * self.plan.columns["usd_per_hour"] if self.priced else self.rented
            if len(goals) == 1:
                return np.asarray(hour, dtype=float)
            tokens = self.plan.columns[self.plan.spec.goals["cost"][0]]
            if self.priced:
                with np.errstate(divide="ignore", invalid="ignore"):
                    by_month = goals["cost"] * np.log(hour / self.dearer / tokens)
                return np.asarray(self.plan.score + by_month + weight * np.log(self.dearer))
        if len(goals) == 1:
            return np.asarray(self.plan.score * (self.dearer if weight else 1.0))
        return np.asarray(self.plan.score + weight * np.log(self.dearer))

    @cached_property
    def _affordable(self) -> Bool:
        """Rows that keep limits on money with their spares too."""
        limits = self.plan.request.objective.limits
        keeps = np.ones(len(self.plan), dtype=np.bool_)
        for rule in LIMITS.values():
            if (rule.priced or rule.column == "gpus") and (bound := rule.bound(limits)) is not None:
                value = np.asarray(self.plan.columns[rule.column], dtype=float)
                keeps &= ~(value * self.dearer > bound) | (self.dearer == 1)
        return keeps

    @cached_property
    def _machine_of(self) -> Int:
        return self.plan.clusters_of_rows

    @cached_property
    def allowed(self) -> Bool:
        """Rows that run on no more devices than there may be, each server on one network."""
        machines = self.choice.machines
        of = self._machine_of
        most_devices = np.array([machine.most_devices for machine in machines])[of]
        per_node = np.array([machine.hardware.per_node for machine in machines])[of]
        joined = np.array([machine.networked for machine in machines])[of]
        networked = joined | (self._joined <= per_node)
        return (
            self.plan.runs
            & (self.rented <= most_devices)
            & networked
            & self._in_last(most_devices, per_node)
        )

    def _in_last(self, most_devices: Int, per_node: Int) -> Bool:
        """Mark whether servers fit where the last of the machines that one has is not full."""
        owned = np.array([machine.owned for machine in self.choice.machines])[self._machine_of]
        server = self.server
        room = most_devices // per_node * (per_node // server) + most_devices % per_node // server
        used = np.nan_to_num(self.plan.columns["gpus"])
        return np.asarray(~owned | (server > per_node) | (room * server >= used))

    @cached_property
    def server(self) -> Int:
        """Devices of one server (serving), or of the whole job (training), by row."""
        columns = self.plan.columns
        if self.plan.kind == "training":
            return np.asarray(columns["gpus"], dtype=np.int64)
        ranks = columns["tp"] * columns["pp"]
        return np.asarray(np.where(columns["ep"] > 1, ranks * columns["dp"], ranks))

    @property
    def _joined(self) -> Int:
        """Devices that send each other what a request needs, by row: a server, or both pools."""
        if self.plan.kind == "training":
            return self.server
        return np.where(prefill_pools(self.plan), self.plan.columns["gpus"], self.server)

    @cached_property
    def holds(self) -> Bool:
        """Allowed rows that hold the whole load at once and keep the limits.

        With the confidence that is asked for. A row that starts and queues is no answer: more
        devices hold what waits there.
        """
        return self.allowed & self.plan.holds & self._affordable & (not self.unknown)

    @cached_property
    def order(self) -> Int:
        """Rows that hold, best first; of equally dear ones those that leave the fewest idle."""
        order = np.asarray(self.plan.order[self.holds[self.plan.order]])
        score = round_significant(self.scores[order], TIE_DIGITS)
        counts_money = self.by_month and "cost" in self.plan.request.objective.goals
        idle = self.working - np.nan_to_num(self.plan.columns["gpus"]) if counts_money else None
        keys = (np.arange(len(order)), *(() if idle is None else (idle[order],)), score)
        return np.asarray(order[np.lexsort(keys)])

    @property
    def best(self) -> int | None:
        """The best row that holds; None where none does."""
        return int(self.order[0]) if len(self.order) else None

    @property
    def score(self) -> float:
        """Return what devices are ranked by, less is better; infinite where nothing holds."""
        return float("inf") if self.best is None else float(self.scores[self.best])

    @cached_property
    def confidence(self) -> Float:
        """The probability that each row keeps the limits; 1 without limits, NaN where none runs."""
        return np.where(self.allowed, self.plan.chances, np.nan)

    @cached_property
    def bounded(self) -> dict[str, Float]:
        """Return what each limit bounds, by its code and row."""
        limits = self.plan.request.objective.limits
        return {
            code: bounded_figures(self.plan, code)
            for code, rule in LIMITS.items()
            if rule.bound(limits) is not None
        }

    def band_factors(self, column: str, row: int) -> Ends:
        """The ends of the 80 % band of a column, as factors of a row's estimate."""
        block, i = self.plan.at(row)
        if not differs_by_case(block.setting):  # the same for all of a block
            return self._common_factors(id(block.setting), column, block)
        band = block.physics.uncertain(block.setting, column)
        if band is None:
            return 1.0, 1.0
        estimates, place = block.detail(i)
        stretch = block.physics.stretches(estimates).get(band.metric)
        if stretch is None:
            return band.factors[BAND]
        low, high = band.ends(stretch)
        return float(low[place, LEVELS.index(BAND)]), float(high[place, LEVELS.index(BAND)])

    @cached_property
    def _bands(self) -> dict[tuple[int, str], Ends]:
        return {}

    def _common_factors(self, setting: int, column: str, block: Any) -> Ends:
        if (setting, column) not in self._bands:
            band = block.physics.uncertain(block.setting, column)
            self._bands[setting, column] = (1.0, 1.0) if band is None else band.factors[BAND]
        return self._bands[setting, column]

    @cached_property
    def nearest(self) -> int | None:
        """Return where nothing holds: the row that most likely keeps the limits.

        Rows that queue come last, those that hold most of their load first.
        """
        rows = np.flatnonzero(self.allowed)
        if not len(rows):
            return None
        chance = np.nan_to_num(self.confidence[rows])
        return int(rows[np.lexsort((self.rented[rows], -chance, self._waiting[rows]))[0]])

    @cached_property
    def _waiting(self) -> Float:
        """The share of its load that each row does not hold at once; all where it may not start."""
        none = np.where(self.plan.uncertain, 1.0, 0.0)
        if not self.plan.queues.any():
            return none
        held_share = self.plan.columns["held_requests"] / self.plan.columns["load"]
        return np.where(self.plan.queues, 1 - np.nan_to_num(held_share), none)

    @cached_property
    def ladder(self) -> list[int]:
        """For each number of rented devices its row, rising.

        The best that holds, or where none does the one that most likely keeps the limits; rows
        that queue come last.
        """
        rows = np.flatnonzero(self.allowed)
        if not len(rows):
            return []
        rank = np.full(len(self.plan), len(self.plan))
        rank[self.order] = np.arange(len(self.order))
        chance = np.nan_to_num(self.confidence[rows])
        sort = np.lexsort((-chance, self._waiting[rows], rank[rows], self.rented[rows]))
        ranked = rows[sort]
        first = np.r_[True, np.diff(self.rented[ranked]) > 0]
        return [int(row) for row in ranked[first]]

    @cached_property
    def candidates(self) -> Int:
        """Of each number of rented devices the split with the best score and the likeliest one.

        And those between them that neither a likelier one nor one with a better score beats. Only
        of those that hold the whole load at once.
        """
        holding = self.allowed & self.plan.holds
        rows = np.flatnonzero(holding & np.isfinite(self.scores))
        chance = np.nan_to_num(self.confidence[rows])
        order = rows[np.lexsort((-chance, self.scores[rows], self.rented[rows]))]
        candidate_rows, likeliest, rented = [], -1.0, -1
        for row in order.tolist():
            if self.rented[row] != rented:
                likeliest, rented = -1.0, int(self.rented[row])
            if self.confidence[row] > likeliest:
                candidate_rows.append(row)
                likeliest = float(self.confidence[row])
        return np.array(candidate_rows, dtype=np.int64)

    def highest_confidence(self, row: int) -> float:
        """The highest probability, over all splits on as many rented devices as a row's.

        Of those that hold the whole load at once, where any does.
        """
        alike = self.allowed & (self.rented == self.rented[row])
        if (holding := alike & self.plan.holds).any():
            alike = holding
        return float(np.nanmax(self.confidence[alike]))

    def simulated(self, request: SizeRequest) -> SizedDevice:
        """The device with its rungs simulated, the best by their means first, until one holds.

        Then those of other engines that were better by their means. Rows that are not simulated are
        left out. ``request``: with the percentile of its limits.
        """
        rank = np.full(len(self.plan), len(self.plan))
        rank[self.order] = np.arange(len(self.order))
        rungs = sorted((row for row in self.ladder if self.holds[row]), key=lambda row: rank[row])
        problem = replace(self.plan.problem, request=device_plan_request(request, self.choice))
        blocks: list[Any] = []

        def with_rows(rows: Sequence[int]) -> SizedDevice:
            for row in rows:
                block, i = self.plan.at(row)
                blocks.extend(plan_cases(problem, block.setting, block.cases.take([i])).blocks)
            return replace(self, plan=Plan(self.plan.spec, problem, list(blocks)))

        out = self
        for start in range(0, min(len(rungs), MOST_SIMULATED), SIMULATED_AT_ONCE):
            out = with_rows(rungs[start : start + SIMULATED_AT_ONCE])
            if out.best is not None:
                better = self._other_engines(rungs, int(rank[rungs[out.best]]))
                return with_rows(better[:MOST_SIMULATED])
        return out

    def _other_engines(self, rungs: Sequence[int], number: int) -> list[int]:
        """Of the ``number`` best rows the first of each engine and number of devices.

        Without ``rungs``.
        """
        first_rows: dict[tuple[Any, int], int] = {}
        for row in (*rungs, *map(int, self.order[:number])):
            block, _ = self.plan.at(row)
            first_rows.setdefault((block.setting.engine.name, int(self.rented[row])), row)
        rung_rows = set(rungs)
        return [row for row in first_rows.values() if row not in rung_rows]

    def unsimulated(self, percentile: float) -> SizedDevice:
        """The device without a row that holds, as no percentile of it is known."""
        why = f"p{percentile:g} is not simulated: others rank before it by their means"
        return replace(self, unknown=why)

    def reason(self) -> str:
        """Say why nothing holds, as a sentence."""
        if self.unknown:
            return self.unknown
        if self.nearest is None:
            return self._cannot_run()
        row, most_devices = self.nearest, int(self.rented[self.allowed].max())
        confidence = self.plan.request.objective.required_confidence
        chance = float(self.confidence[row])
        if broken_rules(self.plan, row) == {"confidence"}:
            return (
                f"with up to {most_devices} devices the limits hold with "
                f"{below_text(chance, confidence)} at best; {chance_text(confidence)} is asked for"
            )
        if queueing := queue_text(self.plan, row):
            broken = "; ".join([f"the likeliest layout {queueing}", *row_reasons(self.plan, row)])
            return f"with up to {most_devices} devices no layout holds the load: {broken}"
        broken = "; ".join(row_reasons(self.plan, row))
        return (
            f"with up to {most_devices} devices the limits hold with {chance_text(chance)} at "
            f"best: {broken}"
        )

    def _cannot_run(self) -> str:
        """Say what keeps every split from running, in the words of the one that is nearest."""
        if not len(self.plan):
            return "no layout of its devices is known"
        rows = np.flatnonzero(~self.plan.runs)
        if not len(rows):
            return "every layout that runs takes more devices than are asked for"
        lacking = np.nan_to_num(self.plan.columns["shortfall_bytes"][rows], nan=np.inf)
        problems = np.sum([broken[rows] for broken in self.plan.rules.values()], axis=0)
        # of those that only serve too little the one that serves most
        served = self.plan.columns.get("output_tokens_per_s", self.plan.columns["gpus"])[rows]
        fewest = -np.nan_to_num(np.asarray(served, dtype=float))
        row = int(rows[np.lexsort((fewest, np.maximum(lacking, 0), problems))[0]])
        return "; ".join(row_reasons(self.plan, row))


def device_plan_request(request: SizeRequest, choice: Choice) -> PlanRequest:
    """The plan's request over all machines of a device.

    Limits on money do not bind a device without a price: they say at which one it would do.
    """
    first, *other_hardware = (machine.hardware for machine in choice.machines)
    options = request.options
    fields: dict[str, Any] = {"hardware": tuple(other_hardware)}
    if not request.is_training and not options.engines:
        fields["engines"] = fitted_engines_for(choice.profile)
    objective = request.objective
    money = (
        dict.fromkeys(MONEY) if not choice.priced else {"usd_per_hour": hourly_price_limit(request)}
    )
    limits = objective.limits.model_copy(update=money)
    return request.on(first).model_copy(
        update={
            "options": options.model_copy(update=fields),
            "objective": objective.model_copy(update={"limits": limits}),
        }
    )


# Limits on money, by their fields.
MONEY = tuple(rule.name for rule in LIMITS.values() if rule.priced)


def hourly_price_limit(request: SizeRequest) -> float | None:
    """The highest price of an hour that the limits and the budget of a month allow."""
    hourly_limit = request.objective.limits.usd_per_hour
    budget = request.market.usd_per_month
    by_month = None if budget is None else budget / HOURS_PER_MONTH
    return min((price for price in (hourly_limit, by_month) if price is not None), default=None)


def size_device(
    request: SizeRequest,
    choice: Choice,
    *,
    folders: bool = True,
    corrections: Corrections | None = None,
) -> SizedDevice:
    """Every split on every machine of a device, judged.

    Replicas stay on one machine, unless the request lets them span, or none holds the load there on
    a device that it names.

    Raises:
        InputError: for names that are not known, as a plan does.
    """
    device_request = device_plan_request(request, choice)
    problem = resolve_problem(device_request, folders=folders, corrections=corrections)
    together = not may_span(request)

    def sized(on_one_machine: bool) -> SizedDevice:
        problem_there = replace(problem, on_one_machine=on_one_machine)
        plan = search_again(problem_there, request.candidate)
        spans = together and not on_one_machine
        return SizedDevice(choice, plan, availability=request.availability, spans=spans)

    alone = sized(together)
    if alone.best is not None or not together or not choice.by_name:
        return alone
    apart = sized(on_one_machine=False)
    return alone if apart.best is None and len(alone.plan) else apart


def may_span(request: SizeRequest) -> bool:
    """Return whether replicas may span machines: where asked for, in training, on one cluster."""
    is_open = isinstance(request.hardware, AnyHardware)
    return request.is_training or not is_open or request.market.several_machines


def _rented_with_spares(upkeep: Upkeep, replicas: int, devices: int) -> int:
    """Devices that are rented with spares; more than anybody has where no number is enough."""
    try:
        return upkeep.rented(upkeep.spares(replicas, devices).replicas, devices)
    except InputError:
        return LARGEST_COUNT
