"""What a bundle's README says of what is rented: devices, replicas, and what they cost a month."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base import quoting
from recipe_core.base.units import usd
from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.recipe import Recipe
from recipe_core.scaling.rented import HOURS

NO_PRICE = "No price is known."


def rented_section(recipe: Recipe, spot: str = "") -> str:
    """Devices that are paid for and their price; of a policy of scaling at its bounds too.

    Of a training run, whose cost is that of its time, only ``spot``.

    ``spot``: where a spot price is asked for, and where it cannot be.
    """
    if recipe.kind == "training":
        return spot
    scaling = recipe.estimate.get("scaling")
    lines = list(_fixed(recipe) if scaling is None else _scaled(recipe, scaling))
    return "\n".join(["## What is rented", "", *lines, *(["", spot] if spot else [])])


def _fixed(recipe: Recipe) -> Iterator[str]:
    cost, used = recipe.estimate["cost"], recipe.device.count
    rented = round(cost.get("devices_rented") or used)
    idle = f", {rented - used} of them idle" if rented > used else ""
    yield f"{_devices(rented)} {'is' if rented == 1 else 'are'} paid for{idle}."
    if cost["usd_per_hour"] is None:
        yield NO_PRICE
        return
    hour, month = usd(cost["usd_per_hour"]), _month(cost["usd_per_hour"] * HOURS_PER_MONTH)
    yield f"{hour} an hour, {month} a month of {HOURS_PER_MONTH:g} hours ({_basis(recipe)})."


def _scaled(recipe: Recipe, scaling: Mapping[str, Any]) -> Iterator[str]:
    low, high = scaling["min_replicas"], scaling["max_replicas"]
    span = f"{high}" if low == high else f"{low} to {high}"
    yield (
        f"A replica is what this recipe describes, {_devices(scaling['devices_per_replica'])}. "
        f"Policy {scaling['policy']} runs {span} of them."
    )
    yield ""
    yield "| | replicas | devices paid for | a month |"
    yield "|---|---|---|---|"
    known = scaling.get("simulated")
    current = known if known is not None and known["current"] else None
    if low != high:
        yield _row("at least", str(low), scaling, "at_least")
    if current is not None:
        yield _simulated(current)
    yield _row("at most", str(high), scaling, "at_most")
    yield ""
    if recipe.estimate["cost"]["usd_per_hour"] is None:
        yield NO_PRICE
    else:
        yield f"Price of a device: {_basis(recipe)}. A month is a twelfth of a year."
    if current is None:
        yield _not_simulated(known)


def _row(title: str, replicas: str, scaling: Mapping[str, Any], end: str) -> str:
    money = _month(scaling[f"usd_per_month_{end}"])
    return f"| {title} | {replicas} | {scaling[f'devices_rented_{end}']} | {money} |"


def _simulated(known: Mapping[str, Any]) -> str:
    counts = f"{known['min_replicas']:g} to {known['max_replicas']:g}"
    counts += f", {known['mean_replicas']:.2f} on average"
    devices = known["device_hours_per_month"] / HOURS
    money = _month(known["usd_per_month"])
    share = f"{known['attainment']:.2%} of requests within the limits"
    title = f"as simulated over its load: {share}"
    return f"| {title} | {counts} | {devices:.2f} on average | {money} |"


def _not_simulated(known: Mapping[str, Any] | None) -> str:
    if known is None:
        return (
            "What the policy comes to over a load was not simulated; `recipe simulate REQUEST -o "
            "CHOSEN` says it, and writes the request of a bundle that repeats it."
        )
    return (
        "The request was changed after its policy was simulated: `recipe simulate` says what it "
        "comes to now."
    )


def _devices(count: int) -> str:
    return f"{count:,} device{'s' * (count != 1)}"


def _month(money: float | None) -> str:
    return "unknown" if money is None else f"${money:,.0f}"


def _basis(recipe: Recipe) -> str:
    return quoting.markdown(str(recipe.estimate["basis"]["usd_per_hour"]))
