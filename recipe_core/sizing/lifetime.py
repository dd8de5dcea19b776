"""The life of a size after its first day: failures, a growing load, machines bought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.numbers import LARGEST_COUNT, LONGEST_MONTHS
from recipe_core.hardware.prices import HOURS_PER_MONTH, OwnershipCost
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.splits import row_request
from recipe_core.request.serving_workload import LOADS, ServingWorkload
from recipe_core.request.size import SizeRequest
from recipe_core.sizing import growth as growing
from recipe_core.sizing.device_sizing import SizedDevice
from recipe_core.sizing.growth import ladder_steps
from recipe_core.sizing.size import LargestLoad

HORIZON_MONTHS = 36
HOURS_OF_A_DAY = 24
# Of a whole number that a division should have given.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """Dollars a month of owning devices."""

    capital_usd: float
    """Depreciation."""
    upkeep_usd: float
    staff_usd: float
    power_usd: float
    """Of the hours in which they work."""

    @property
    def running_usd(self) -> float:
        """All but capital."""
        return self.upkeep_usd + self.staff_usd + self.power_usd

    @property
    def total_usd(self) -> float:
        return self.capital_usd + self.running_usd

    def to_json(self) -> dict[str, Any]:
        """Its fields, ``running_usd`` and ``total_usd``."""
        return asdict(self) | {"running_usd": self.running_usd, "total_usd": self.total_usd}


def monthly_cost(cost: OwnershipCost, devices: int = 1) -> MonthlyCost:
    """Return what ``devices`` cost in a month of 730 hours, written off over their life."""
    hours = devices * HOURS_PER_MONTH
    return MonthlyCost(
        capital_usd=cost.standing_capital_usd_per_hour * hours,
        upkeep_usd=cost.standing_upkeep_usd_per_hour * hours,
        staff_usd=cost.standing_staff_usd_per_hour * hours,
        power_usd=cost.power_usd_per_hour * cost.use * hours,
    )


@dataclass(frozen=True, slots=True)
class BuyOrRent:
    """Both ways in dollars paid until the end of months 0, 1, …, ``months``."""

    devices: int
    months: int
    monthly: MonthlyCost
    """Of owning."""
    rented_usd_per_month: float
    owned_up_front: tuple[float, ...]
    """Capital paid when devices are bought; they are replaced at the end of their life."""
    owned_written_off: tuple[float, ...]
    """Capital spread evenly over their life."""
    rented: tuple[float, ...]
    break_even_month: int | None
    """The first month at whose end buying up front has cost no more than renting, which may lie
    beyond ``months``; None where renting stays cheaper for 50 years."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"monthly": self.monthly.to_json()}


def buy_or_rent(
    cost: OwnershipCost,
    rented_usd_per_hour: float,
    devices: int = 1,
    *,
    months: int = HORIZON_MONTHS,
    rented_share: float = 1.0,
) -> BuyOrRent:
    """Return what buying and renting the same devices cost, month by month.

    Until the end of month m ``capex · (bought(m) - residual · sold(m)) + m · running`` is paid up
    front: of a life of L months ``bought = ceil(m / L)`` (1 at once) and ``sold = floor(m / L)``.
    Written off: ``m · (capital + running)``. Rented: ``m · price · 730 · rented_share``.

    Args:
        cost: the price and the running costs of a device.
        rented_usd_per_hour: price of a device-hour that is rented.
        devices: devices bought, or rented.
        months: of the curves.
        rented_share: share of all hours that are rented; below 1 where idle ones are handed back.
    """
    monthly = monthly_cost(cost, devices)
    rent = rented_usd_per_hour * HOURS_PER_MONTH * rented_share * devices
    month = np.arange(LONGEST_MONTHS + 1)
    up_front = cost.capex_usd * devices * _purchases(cost, month) + month * monthly.running_usd
    rented = month * rent
    # A rounding of sums does not move the month.
    paid = (up_front <= rented * (1 + ROUNDING)) & (month > 0)
    shown = slice(months + 1)
    return BuyOrRent(
        devices=devices,
        months=months,
        monthly=monthly,
        rented_usd_per_month=rent,
        owned_up_front=tuple(up_front[shown].tolist()),
        owned_written_off=tuple((month * monthly.total_usd)[shown].tolist()),
        rented=tuple(rented[shown].tolist()),
        break_even_month=int(np.argmax(paid)) if paid.any() else None,
    )


def highest_price(
    cost: OwnershipCost,
    rented_usd_per_hour: float,
    months: int = HORIZON_MONTHS,
    *,
    rented_share: float = 1.0,
) -> float | None:
    """The highest ``capex_usd`` of a device at which buying pays within ``months``.

    Buying has paid at the end of month m while ``capex · (bought - residual · sold + m · (upkeep +
    staff) / 12) <= m · (rent - running costs that do not depend on capex)``; the largest capex of
    all m. None where renting costs less than running a device that was a gift.
    """
    gift = monthly_cost(cost.model_copy(update={"capex_usd": 0.0}))
    saved = rented_usd_per_hour * HOURS_PER_MONTH * rented_share - gift.running_usd
    if saved < 0:
        return None
    month = np.arange(1, months + 1)
    paid_per_capex = _purchases(cost, month) + month * (cost.upkeep + cost.staff) / 12
    return float(np.max(month * saved / paid_per_capex))


def _purchases(cost: OwnershipCost, month: Any) -> Float:
    """Prices of a device paid until the end of each month, less what sold ones brought."""
    lives = month / (cost.years * 12)
    bought = np.maximum(np.ceil(lives - ROUNDING), 1)
    return np.asarray(bought - cost.residual * np.floor(lives + ROUNDING))


@dataclass(frozen=True, slots=True)
class Mixture:
    """An owned base and a rented peak, by what a month costs."""

    needed_units: tuple[int, ...]
    """By hour of the day."""
    owned_units: int
    """Of the cheapest mixture; the fewest where several cost the same."""
    rented_units: tuple[int, ...]
    """Of the cheapest mixture, by hour of the day."""
    usd_per_month: float
    """Of the cheapest mixture."""
    all_rented_usd_per_month: float
    all_owned_usd_per_month: float
    idle_share: float
    """Of the hours of owned units, those in which one has nothing to do."""
    curve: tuple[float, ...]
    """Dollars a month with 0, 1, … units owned, up to those of the busiest hour."""


def cheapest_mixture(
    load_by_hour: Sequence[float],
    capacity_per_unit: float,
    owned_usd_per_hour: float,
    rented_usd_per_hour: float,
    *,
    peak_load: float | None = None,
    owned_idle_usd_per_hour: float | None = None,
) -> Mixture:
    """Return how many units to own, when all that is needed beyond them is rented by the hour.

    In hour h ``need = ceil(load / capacity)`` units work. With k owned ones the hour costs
    ``min(k, need) · owned + max(k - need, 0) · idle + max(need - k, 0) · rented``; a month has
    730 / 24 such days. Every k up to the busiest hour is counted.

    Args:
        load_by_hour: 24 loads, in any unit that ``capacity_per_unit`` is given in.
        capacity_per_unit: the most load that a unit (a replica, a node) carries.
        owned_usd_per_hour: price of an hour in which an owned unit works.
        rented_usd_per_hour: price of an hour of a rented unit.
        peak_load: the load of the busiest hour; the 24 values are then relative to each other.
        owned_idle_usd_per_hour: price of an hour in which an owned unit idles, as much as one in
            which it works unless given (``OwnershipCost.idle_usd_per_hour`` leaves power out).

    Raises:
        InputError: where the busiest hour takes too many units.
    """
    load = np.array(load_by_hour, dtype=float)
    if peak_load is not None:
        load = load / load.max() * peak_load
    idle = owned_usd_per_hour if owned_idle_usd_per_hour is None else owned_idle_usd_per_hour
    need = _needed_units(load, capacity_per_unit)
    curve = _usd_per_month(need, owned_usd_per_hour, idle, rented_usd_per_hour)
    best = int(np.argmin(curve))
    return Mixture(
        needed_units=tuple(need.tolist()),
        owned_units=best,
        rented_units=tuple(np.maximum(need - best, 0).tolist()),
        usd_per_month=float(curve[best]),
        all_rented_usd_per_month=float(curve[0]),
        all_owned_usd_per_month=float(curve[-1]),
        idle_share=float(np.maximum(best - need, 0).sum() / max(HOURS_OF_A_DAY * best, 1)),
        curve=tuple(curve.tolist()),
    )


def _needed_units(load: Float, capacity: float) -> Int:
    """Whole units for each load; raises InputError where too many are needed."""
    with np.errstate(over="ignore"):  # infinitely many units are refused below
        units = np.ceil(load / capacity - ROUNDING)
    if units.max() > LARGEST_COUNT:
        raise InputError(
            f"is {capacity:g}, so that the busiest hour takes {units.max():,.0f} units.",
            field="capacity_per_unit",
            hint=f"Give larger units, so that at most {LARGEST_COUNT:,} are needed.",
        )
    return units.astype(np.int64)


def _usd_per_month(need: Int, owned: float, idle: float, rented: float) -> Float:
    """With 0, 1, … units owned, at these prices of an hour."""
    base = np.arange(int(need.max()) + 1)[:, None]
    hours = (
        np.minimum(base, need) * owned
        + np.maximum(base - need, 0) * idle
        + np.maximum(need - base, 0) * rented
    )
    return np.asarray(hours.sum(axis=1) * HOURS_PER_MONTH / HOURS_OF_A_DAY)


Json = dict[str, Any]


def workload_load(workload: ServingWorkload) -> float:
    return float(getattr(workload, LOADS[workload.mode]))


def grow_choices(
    request: SizeRequest, loads: Mapping[str, tuple[SizedDevice, LargestLoad]]
) -> growing.Choices | None:
    """Every device through the months, by name; None where the request states no growth."""
    growth, workload = request.growth, request.workload
    if growth is None or not isinstance(workload, ServingWorkload):
        return None
    ladders = {}
    for name, (device, load) in loads.items():
        if device.best is not None and load.value is not None:
            ladders[name] = ladder_steps(device, device.best, load.value)
    if not ladders:
        return None
    return growing.grow_ladders(ladders, workload_load(workload), growth.per_month, growth.months)


def availability_of(request: SizeRequest, device: SizedDevice, row: int) -> Json | None:
    """Spare replicas of a row, and what it does while a machine is lost.

    None where the request does not ask.
    """
    availability = request.availability
    if availability is None or request.is_training:
        return None
    upkeep, (replicas, devices) = device.machine_upkeep(row), device.replicas_of(row)
    price = upkeep.place.usd_per_device_hour
    rented = int(device.rented[row])
    return {
        **upkeep.spares(replicas, devices).to_json(),
        "node_mtbf_hours": upkeep.mtbf_hours,
        "node_mtbf_basis": "stated" if availability.node_mtbf_hours else upkeep.failures.basis,
        "repair_hours": upkeep.repair_hours,
        "devices_rented": rented,
        "usd_per_hour": None if price is None else rented * price,
        "node_lost": plan_without_node(device, row),
        "spot": upkeep.spot_json(replicas, devices),
    }


def plan_without_node(device: SizedDevice, row: int) -> Json | None:
    """The figures of a row under the same load on the replicas that are left without one machine.

    None where the split of those that are left cannot be judged.
    """
    replicas, devices = device.replicas_of(row)
    domains = device.machine_upkeep(row).domains(replicas, devices)
    replicas_left = max(replicas - domains.replicas_per_node, 0)
    down = {"runs": False, "figures": None, "confidence": 0.0, "holds": False}
    if replicas_left < 1:
        return {"replicas": 0, **down}
    split_request = row_request(device.plan, row)
    candidate = (
        split_request.candidate.model_copy(update={"dp": replicas_left})
        if split_request.candidate
        else None
    )
    try:
        after = device.plan.replan_stated(split_request.model_copy(update={"candidate": candidate}))
    except RecipeError:
        return None
    if after is None or not after.runs[0]:
        return {"replicas": replicas_left, **down}
    names = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
    chance = float(after.chances[0])
    return {
        "replicas": replicas_left,
        "runs": True,
        "figures": {name: float(after.columns[name][0]) for name in names},
        "confidence": chance if stated_limits(after) else None,
        "holds": bool(after.feasible[0]),
    }


def purchase_of(
    request: SizeRequest, device: SizedDevice, row: int, load: LargestLoad | None
) -> Json | None:
    """Buying the devices of a row against renting them; None where the request does not ask."""
    purchase, place = request.purchase, device.plan.setting(row).cluster
    price = place.usd_per_device_hour
    if purchase is None or price is None or device.machine(row).owned:
        return None
    devices = int(device.rented[row])
    watts = float(device.plan.columns["watts"][row]) / int(device.plan.columns["gpus"][row])
    cost_fields = {
        name: getattr(purchase, name)
        for name in ("years", "residual", "usd_per_kwh", "pue", "upkeep", "staff", "use")
    }
    cost = OwnershipCost.of(capex_usd=purchase.usd_per_device or 0.0, watts=watts, **cost_fields)
    highest = highest_price(cost, price, purchase.months, rented_share=purchase.use)
    out: Json = {"highest_usd_per_device": highest, "within_months": purchase.months}
    if purchase.usd_per_device is None:
        return out
    curve = buy_or_rent(cost, price, devices, months=purchase.months, rented_share=purchase.use)
    return {
        **out,
        **curve.to_json(),
        "mixture": _mix_owned_and_rented(request, device, row, cost, load),
    }


def _mix_owned_and_rented(
    request: SizeRequest,
    device: SizedDevice,
    row: int,
    cost: OwnershipCost,
    load: LargestLoad | None,
) -> Json | None:
    """An owned base and a rented peak of whole units, by the hours of a day."""
    purchase, workload = request.purchase, request.workload
    price = device.plan.setting(row).cluster.usd_per_device_hour
    has_load = load is not None and load.value is not None
    if purchase is None or not purchase.day or not has_load or price is None:
        return None
    if not isinstance(workload, ServingWorkload) or load is None or load.value is None:
        return None
    steps = ladder_steps(device, row, load.value, spares=False)
    unit = min(steps, key=lambda step: step.units / step.capacity)
    idle = cost.model_copy(update={"use": 1.0}).idle_usd_per_hour * unit.units
    working = idle + cost.power_usd_per_hour * unit.units
    cheapest = cheapest_mixture(
        purchase.day,
        unit.capacity,
        working,
        price * unit.units,
        peak_load=workload_load(workload),
        owned_idle_usd_per_hour=idle,
    )
    return {**asdict(cheapest), "unit_devices": unit.units}
