"""What happens to a size after its first day: failures, a growing load, machines bought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.hardware.ownership import OwnershipCost
from recipe_core.plans.table import replan_stated
from recipe_core.request.serving_workload import LOADS, ServingWorkload
from recipe_core.request.size import SizeRequest
from recipe_core.sizing import growth as growing
from recipe_core.sizing.buying import buy_or_rent, highest_price, mixture
from recipe_core.sizing.capacity import LargestLoad
from recipe_core.sizing.rungs import steps_of
from recipe_core.sizing.sized import SizedDevice

Json = dict[str, Any]


def load_of(workload: ServingWorkload) -> float:
    """The load that a workload states, in the unit of its mode."""
    return float(getattr(workload, LOADS[workload.mode]))


def grow_choices(
    request: SizeRequest, loads: Mapping[str, tuple[SizedDevice, LargestLoad]]
) -> growing.Choices | None:
    """Every device through the months, by name; None where the request states no growth."""
    asked, workload = request.growth, request.workload
    if asked is None or not isinstance(workload, ServingWorkload):
        return None
    ladders = {}
    for name, (one, load) in loads.items():
        if one.best is not None and load.value is not None:
            ladders[name] = steps_of(one, one.best, load.value)
    if not ladders:
        return None
    return growing.grow_all(ladders, load_of(workload), asked.per_month, asked.months)


def availability_of(request: SizeRequest, one: SizedDevice, row: int) -> Json | None:
    """Spare replicas of a row, and what it does while a machine is lost.

    None where the request does not ask.
    """
    asked = request.availability
    if asked is None or request.is_training:
        return None
    upkeep, (replicas, devices) = one.machine_upkeep(row), one.replicas_of(row)
    price = upkeep.place.usd_per_device_hour
    rented = int(one.rented[row])
    return {
        **upkeep.spares(replicas, devices).to_json(),
        "node_mtbf_hours": upkeep.mtbf_hours,
        "node_mtbf_basis": "stated" if asked.node_mtbf_hours else upkeep.failures.basis,
        "repair_hours": upkeep.repair_hours,
        "devices_rented": rented,
        "usd_per_hour": None if price is None else rented * price,
        "node_lost": node_lost(one, row),
        "spot": upkeep.spot_json(replicas, devices),
    }


def node_lost(one: SizedDevice, row: int) -> Json | None:
    """The figures of a row under the same load on the replicas that are left without one machine.

    None where the split of those that are left cannot be judged.
    """
    replicas, devices = one.replicas_of(row)
    domains = one.machine_upkeep(row).domains(replicas, devices)
    left = max(replicas - domains.replicas_per_node, 0)
    down = {"runs": False, "figures": None, "confidence": 0.0, "holds": False}
    if left < 1:
        return {"replicas": 0, **down}
    asked = one.plan.request_of(row)
    candidate = asked.candidate.model_copy(update={"dp": left}) if asked.candidate else None
    try:
        after = replan_stated(one.plan, asked.model_copy(update={"candidate": candidate}))
    except RecipeError:
        return None
    if after is None or not after.runs[0]:
        return {"replicas": left, **down}
    names = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
    chance = float(after.chances[0])
    return {
        "replicas": left,
        "runs": True,
        "figures": {name: float(after.columns[name][0]) for name in names},
        "confidence": chance if after.stated_limits else None,
        "holds": bool(after.feasible[0]),
    }


def purchase_of(
    request: SizeRequest, one: SizedDevice, row: int, load: LargestLoad | None
) -> Json | None:
    """Buying the devices of a row against renting them; None where the request does not ask."""
    asked, place = request.purchase, one.plan.setting(row).cluster
    price = place.usd_per_device_hour
    if asked is None or price is None or one.machine(row).owned:
        return None
    devices = int(one.rented[row])
    watts = float(one.plan.columns["watts"][row]) / int(one.plan.columns["gpus"][row])
    stated = {
        name: getattr(asked, name)
        for name in ("years", "residual", "usd_per_kwh", "pue", "upkeep", "staff", "use")
    }
    own = OwnershipCost.of(capex_usd=asked.usd_per_device or 0.0, watts=watts, **stated)
    highest = highest_price(own, price, asked.months, rented_share=asked.use)
    out: Json = {"highest_usd_per_device": highest, "within_months": asked.months}
    if asked.usd_per_device is None:
        return out
    curve = buy_or_rent(own, price, devices, months=asked.months, rented_share=asked.use)
    return {**out, **curve.to_json(), "mixture": _mixture(request, one, row, own, load)}


def _mixture(
    request: SizeRequest, one: SizedDevice, row: int, own: OwnershipCost, load: LargestLoad | None
) -> Json | None:
    """An owned base and a rented peak of whole units, by the hours of a day."""
    asked, workload = request.purchase, request.workload
    price = one.plan.setting(row).cluster.usd_per_device_hour
    known = load is not None and load.value is not None
    if asked is None or not asked.day or not known or price is None:
        return None
    if not isinstance(workload, ServingWorkload) or load is None or load.value is None:
        return None
    steps = steps_of(one, row, load.value, spares=False)
    unit = min(steps, key=lambda step: step.units / step.capacity)
    idle = own.model_copy(update={"use": 1.0}).idle_usd_per_hour * unit.units
    working = idle + own.power_usd_per_hour * unit.units
    found = mixture(
        asked.day,
        unit.capacity,
        working,
        price * unit.units,
        peak_load=load_of(workload),
        owned_idle_usd_per_hour=idle,
    )
    return {**found.to_json(), "unit_devices": unit.units}
