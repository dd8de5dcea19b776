"""The search for a size: hardware, number, cost and certainty; the largest load it carries.

For the largest load, loads are scanned on a geometric grid, and the gap behind the last one that
holds again, until it is closed. More load never shortens a time to first token, a time per token or
a queue (each is a sum of terms that do not fall with the requests that share a step), and never
raises what a token costs, so that loads that hold are one range. Where a scan shows that they are
not, because the engine's limits or a target throughput step in, the range that holds the workload's
own load counts, else the longest, and ``monotone`` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.plans.limits import without_percentile
from recipe_core.plans.load import bisect_loads
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases
from recipe_core.plans.rank import beats_elsewhere
from recipe_core.plans.splits import row_request
from recipe_core.request.schema import PlanRequest, asks_for_any
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.size import AnyHardware, SizeRequest
from recipe_core.sizing.device_sizing import (
    SizedDevice,
    hourly_price_limit,
    may_span,
    size_device,
)
from recipe_core.sizing.market import Choice, iter_device_choices

# Loads of the first scan, and of those inside a gap that it leaves: two scans are nearly always
# enough.
POINTS, CLOSER = 129, 181
# The largest load that is looked at, and the most requests of a queue.
LARGEST, MOST_QUEUED = float(1 << 20), 1e12
# The smallest arrival rate that is looked at, in requests per second and replica.
LEAST_RATE = 1e-3
# Share of a rate within which it is known.
CLOSE = 1e-3
# What ends a load that the limits would allow: not all of it is held at once.
QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class LargestLoad:
    """The largest load within the limits, held at once; None where not even the smallest holds.

    ``field``: the workload's, which gives its unit. ``bounded``: whether anything ends it.
    ``limited_by``: codes of the rules that the next larger load breaks, ``queue`` where some of it
    would wait. ``monotone``: whether the loads that hold are one range.
    """

    value: float | None
    field: str
    bounded: bool
    limited_by: tuple[str, ...]
    monotone: bool


def largest_load(plan: Plan, row: int) -> LargestLoad:
    """The largest load that the split of a row carries within the limits of its plan.

    A limit at a percentile is held against simulated requests, for the loads of the last scans.

    Args:
        plan: of serving.
        row: one that runs.
    """
    workload = plan.problem.workload
    field, integral = LOADS[workload.mode], workload.mode != "open"
    now = float(getattr(workload, field))
    low, high = (1.0 if integral else LEAST_RATE), LARGEST
    if workload.mode == "offline":
        high = MOST_QUEUED
    limits = plan.request.objective.limits
    mean = without_percentile(plan.request)
    holds, codes, loads = _judge_loads(mean, plan, row, _load_grid(low, high, integral, POINTS))
    monotone = _is_one_range(holds)
    start, end = _range_of_load(loads, holds, now)
    if start is None:
        return LargestLoad(None, field, True, codes(0), monotone)
    if end == len(loads) - 1:
        return LargestLoad(None, field, False, (), monotone)
    low, high, codes_at = loads[end], loads[end + 1], codes(end + 1)
    while not _is_close(low, high, integral):
        grid = _load_grid(low, high, integral, CLOSER)
        holds, codes, loads = _judge_loads(mean, plan, row, grid)
        monotone &= _is_one_range(holds)
        last = int(np.argmin(holds)) - 1 if not holds.all() else len(loads) - 1
        last = max(last, 0)
        low, high, codes_at = loads[last], loads[last + 1], codes(last + 1)
    if limits.percentile is not None:
        low, codes_at = _bisect_simulated_load(plan, row, low, integral, codes_at)
    value = float(low) if np.isfinite(low) else None
    return LargestLoad(value, field, True, codes_at, monotone)


def _load_grid(low: float, high: float, integral: bool, points: int) -> Float:
    loads = np.geomspace(low, high, points)
    return np.unique(np.round(loads)) if integral else loads


def _is_close(low: float, high: float, integral: bool) -> bool:
    return high - low <= 1 if integral else high <= low * (1 + CLOSE)


def _judge_loads(
    request: PlanRequest, plan: Plan, row: int, loads: Float
) -> tuple[Bool, Callable[[int], tuple[str, ...]], Float]:
    """Return which of some loads hold, and what tells the codes of the rules that one breaks."""
    block, i = plan.at(row)
    problem = replace(plan.problem, request=request)
    cases = block.cases.take(np.full(len(loads), i))
    judged = plan_cases(problem, block.setting, replace(cases, load=loads))
    rules = {**judged.rules, QUEUE: judged.queues}
    rules["memory"] = rules.get("memory", np.zeros(len(judged), dtype=np.bool_)) | judged.uncertain

    def codes(k: int) -> tuple[str, ...]:
        return tuple(code for code, broken in rules.items() if broken[k])

    return judged.holds, codes, loads


def _is_one_range(holds: Bool) -> bool:
    return int(np.abs(np.diff(np.r_[0, holds.astype(int), 0])).sum()) <= 2


def _range_of_load(loads: Float, holds: Bool, now: float) -> tuple[int | None, int]:
    """First and last place of the range that holds the load of now, else of the longest one."""
    edges = np.flatnonzero(np.diff(np.r_[0, holds.astype(int), 0]))
    ranges = list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
    if not ranges:
        return None, 0
    nearest = int(np.argmin(np.abs(np.log(loads / now))))
    for start, end in ranges:
        if start <= nearest <= end:
            return start, end
    return max(ranges, key=lambda ends: ends[1] - ends[0])


def _bisect_simulated_load(
    plan: Plan, row: int, mean_load: float, integral: bool, codes: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """The largest load whose simulated percentile holds: bisected below the one of the means."""
    broken = {float("inf"): codes}

    def keeps(_places: Int, loads: Float) -> Bool:
        holds, ends, _ = _judge_loads(plan.request, plan, row, loads)
        broken.update((float(loads[k]), ends(int(k))) for k in np.flatnonzero(~holds))
        return holds

    [load] = bisect_loads(keeps, np.array([mean_load]), whole_requests=integral)
    return float(load), broken[min(broken)]


# Devices that are simulated where limits are on a percentile: the best by their means.
SIMULATED_DEVICES = 8


@dataclass(frozen=True)
class Sizing:
    """Every device of a request, sized.

    ``sized``: those with machines to choose from; ``barred``: the others, each with its reason.
    """

    request: SizeRequest
    sized: tuple[SizedDevice, ...]
    barred: tuple[Choice, ...]

    @property
    def corrections(self) -> Corrections | None:
        """Return what runs of one's own taught its estimates; None without any."""
        return self.sized[0].plan.problem.corrections if self.sized else None

    @cached_property
    def devices(self) -> list[SizedDevice]:
        """Priced devices on which something holds, best first."""
        devices = [device for device in self.sized if device.priced and device.best is not None]
        return sorted(
            devices,
            key=lambda device: (
                device.tier,
                device.score,
                device.rented[device.best],
                device.profile.name,
            ),
        )

    @cached_property
    def unpriced(self) -> list[SizedDevice]:
        """Devices without a price on which something holds, the most likely to win first."""
        devices = [device for device in self.sized if not device.priced and device.best is not None]
        return sorted(devices, key=lambda device: -(self.price_to_win(device) or 0.0))

    @property
    def refused(self) -> list[SizedDevice]:
        """Devices on which nothing holds, the likeliest first."""
        devices = [device for device in self.sized if device.best is None]

        def chance(device: SizedDevice) -> float:
            nearest = device.nearest
            return -1.0 if nearest is None else float(np.nan_to_num(device.confidence[nearest]))

        return sorted(devices, key=lambda device: (-chance(device), device.profile.name))

    @property
    def best(self) -> SizedDevice | None:
        """The best priced device; None where nothing holds on any."""
        return self.devices[0] if self.devices else None

    def merged(self, more: Sizing) -> Sizing:
        return Sizing(self.request, (*self.sized, *more.sized), (*self.barred, *more.barred))

    # what would make a device win

    def price_to_win(self, device: SizedDevice) -> float | None:
        """The price of a device-hour below which a device is the best, in US dollars.

        Of the best itself: up to which it stays so. At most what limits on money allow. None where
        neither these nor, with cost as the only goal, another device say one.
        """
        rows, goals = device.order, self.request.objective.goals
        rivals = [rival for rival in self.devices if rival is not device]
        limits, hourly_limit = self.request.objective.limits, hourly_price_limit(self.request)
        rate = device.plan.spec.unpriced[device.plan.spec.goals["cost"][0]]
        per_s = (
            device.plan.columns[rate][rows]
            * device.plan.columns["gpus"][rows]
            / device.rented[rows]
        )
        prices = []  # of a million tokens, as of a device-hour
        if set(goals) == {"cost"} and rivals:
            by_hour = 1 / device.rented[rows] if device.by_month else per_s * 3600.0 / 1e6
            prices.append(rivals[0].score * by_hour)
        if limits.usd_per_million_output_tokens is not None:
            prices.append(limits.usd_per_million_output_tokens / 1e6 * per_s * 3600.0)
        if hourly_limit is not None:
            prices.append(hourly_limit / device.rented[rows])
        if not prices or not len(rows):
            return None
        return float(np.max(np.min(prices, axis=0)))

    def beats_best(self, device: SizedDevice) -> float | None:
        """The probability that a device is better than the best, if both were measured.

        None for the best itself, without a price, and where another price or several machines
        decide.
        """
        best = self.best
        if best is None or device is best or best.best is None or device.best is None:
            return None
        if device.priced and device.tier != best.tier:
            return None
        first, second = best.scores[best.best], device.scores[device.best]
        weights = self.request.objective.goals.values()
        gain = first - second
        if len(weights) == 1:
            gain = np.sign(first) * np.log(first / second) * abs(*weights)
        return beats_elsewhere(device.plan, device.best, best.plan, best.best, gain=float(gain))

    @property
    def choice(self) -> PlanRequest:
        """The plan's request for the best device, its split the candidate.

        Raises:
            NoAnswer: where nothing holds.
        """
        if self.best is None and self.unpriced:
            names = ", ".join(device.profile.title for device in self.unpriced[:3])
            raise NoAnswer(
                f"no hardware with a known price keeps the limits; without one: {names}.",
                field="hardware",
                hint="Name one of these as the device, with its usd_per_device_hour.",
            )
        if self.best is None or self.best.best is None:
            reasons = [f"{device.profile.title}: {device.reason()}" for device in self.refused[:3]]
            raise NoAnswer(
                "no hardware keeps the limits. " + " ".join(f"{reason}." for reason in reasons),
                field="hardware",
                hint="Loosen a limit, allow more devices, or name other ones.",
            )
        return row_plan_request(self.best, self.best.best)


def row_plan_request(device: SizedDevice, row: int) -> PlanRequest:
    """The plan's request for a row: as many nodes as it takes, its split the candidate."""
    split_request = row_request(device.plan, row)
    hardware, devices = split_request.hardware, int(device.plan.columns["gpus"][row])
    per_node = hardware.per_node
    if devices <= per_node and device.machine(row).elastic:
        hardware = hardware.model_copy(update={"per_node": devices, "nodes": 1})
    else:
        nodes = max(-(-int(device.working[row]) // per_node), -(-devices // per_node))
        hardware = hardware.model_copy(update={"nodes": nodes})
    return split_request.model_copy(update={"hardware": hardware})


def settle_hardware(
    value: Any, *, folders: bool = True, corrections: Corrections | None = None
) -> PlanRequest:
    """The plan's request in plain values, its hardware chosen by sizing where it is open.

    Raises:
        InputError: naming the first wrong field.
        NoAnswer: where no hardware keeps the limits.
    """
    if not asks_for_any(value):
        return PlanRequest.parse(value)
    return size_devices(SizeRequest.parse(value), folders=folders, corrections=corrections).choice


def size_devices(
    request: SizeRequest,
    *,
    folders: bool = True,
    corrections: Corrections | None = None,
    among: Sequence[Choice] | None = None,
) -> Sizing:
    """Every device of a request, sized: every engine, format, count and split.

    Args:
        request: what is asked.
        folders: whether the model may be named by a path on this machine.
        corrections: what runs of one's own teach.
        among: some of its ``choices`` only, for an answer in parts.

    Raises:
        InputError: for names that are not known.
    """
    device_choices = list(iter_device_choices(request) if among is None else among)
    means = request_by_means(request)
    sizing = replace(_size_choices(means, device_choices, folders, corrections), request=request)
    if among is None:
        sizing = span_machines(sizing, folders=folders, corrections=corrections)
    return sizing if means is request else simulate_best_devices(sizing)


def _size_choices(
    request: SizeRequest,
    device_choices: Sequence[Choice],
    folders: bool,
    corrections: Corrections | None,
) -> Sizing:
    sized = []
    with budget.track_task(len(device_choices)):
        for choice in (choice for choice in device_choices if choice.machines):
            budget.spend()
            sized.append(size_device(request, choice, folders=folders, corrections=corrections))
            budget.count_step()
    barred = tuple(choice for choice in device_choices if not choice.machines)
    return Sizing(request, tuple(sized), barred)


def span_machines(
    sizing: Sizing, *, folders: bool = True, corrections: Corrections | None = None
) -> Sizing:
    """The sizing itself, or with replicas that span machines where none holds the load on one.

    Args:
        sizing: every device of a request.
        folders: as ``size_devices``.
        corrections: as ``size_devices``.
    """
    request = sizing.request
    market = request.market
    if sizing.devices or may_span(request) or market.devices:
        return sizing
    wide = AnyHardware(any=market.model_copy(update={"several_machines": True}))
    spanning = request_by_means(request).model_copy(update={"hardware": wide})
    apart = _size_choices(spanning, list(iter_device_choices(spanning)), folders, corrections)
    sized = tuple(replace(device, spans=True) for device in apart.sized)
    spread = replace(apart, request=request, sized=sized)
    return spread if spread.devices else sizing


def request_by_means(request: SizeRequest) -> SizeRequest:
    """The request with its limits on means, above which percentiles lie but for some medians."""
    objective = request.objective
    if objective.limits.percentile is None:
        return request
    limits = objective.limits.model_copy(update={"percentile": None})
    return request.model_copy(update={"objective": objective.model_copy(update={"limits": limits})})


def simulate_best_devices(sizing: Sizing) -> Sizing:
    """With the rungs that are nearest to the limits simulated, of the best devices by their means.

    The others keep no row that holds: what their percentiles are is not known.
    """
    ranked = [*sizing.devices, *sizing.unpriced]
    devices = ranked[:SIMULATED_DEVICES]
    simulated = {}
    with budget.track_task(len(devices)):
        for device in devices:
            simulated[id(device)] = device.simulated(sizing.request)
            budget.count_step()
    percentile = sizing.request.objective.limits.percentile or 0.0
    rest = {id(device): device.unsimulated(percentile) for device in ranked[SIMULATED_DEVICES:]}
    by = simulated | rest
    return replace(sizing, sized=tuple(by.get(id(device), device) for device in sizing.sized))
