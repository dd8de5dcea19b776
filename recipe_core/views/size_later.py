"""What a sizing says about growth, failures and purchases, in words and tables for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.units import chance_text, duration, rate, significant
from recipe_core.views import size_view as view
from recipe_core.views.size_view import Row


def growth_sentences(row: Row) -> list[str]:
    """How long the size of a device lasts, when the next unit is needed, and what it costs."""
    grown = row.get("growth")
    if not grown:
        return []
    months, name = len(grown["load"]), view.short(row)
    if grown["holds_until"] is None:
        return [f"No number of {name} carries the load of today."]
    out = []
    if grown["next_unit_month"] is not None:
        out.append(f"{name}: today's size lasts until month {grown['holds_until']}.")
        step = grown["ladder"][grown["steps"][grown["next_unit_month"]]]
        out.append(f"Month {grown['next_unit_month']} needs {step['units']} devices.")
    elif grown["ends_month"] is None:
        out.append(f"{name}: today's size lasts all {months} months.")
    if grown["ends_month"] is not None:
        most = grown["ladder"][-1]["units"]
        out.append(
            f"From month {grown['ends_month']} on, {most} devices, the most that you allow, "
            "do not carry the load."
        )
    if grown["total_usd"] is not None:
        out.append(f"{months} months cost {view.dollars(grown['total_usd'])}{view.doubt(row)}.")
    return out


def cheapest_sentence(growth: Row, rows: Sequence[Row]) -> str:
    """Which device is the cheapest over all months, and in which month that changes."""
    names = {view.key(row): f"{view.short(row)}{view.doubt(row)}" for row in rows}
    if growth["cheapest"] is None:
        return "No device carries the load of every month."
    first = f"Cheapest over all months: {names.get(growth['cheapest'], growth['cheapest'])}."
    changes = [change for change in growth["changes"] if change["cheapest"]]
    if not changes:
        return f"{first} It is the cheapest in every month."
    month, name = changes[0]["month"], changes[0]["cheapest"]
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    return (
        f"{first} The cheapest of the month changes {times}, first in month {month} to "
        f"{names.get(name, name)}."
    )


def availability_rows(row: Row) -> dict[str, str]:
    """Spare replicas, what they cost, and what a lost machine does."""
    spares = row.get("availability")
    if not spares:
        return {}
    replicas = "replica" if spares["needed"] == 1 else "replicas"
    out = {
        "Without spares": f"{spares['needed']} {replicas}, all up "
        f"{share(spares['up_probability_without'])} of the time",
        "Spare replicas": f"{spares['spares']}, then enough are up "
        f"{share(spares['up_probability'])} of the time",
        "With spares": f"{spares['devices_rented']} devices on {spares['nodes']} "
        f"{'machine' if spares['nodes'] == 1 else 'machines'}",
    }
    if spares["usd_per_hour"] is not None:
        out["Cost with spares"] = f"{view.dollars(spares['usd_per_hour'])}{view.doubt(row)} an hour"
    out["A machine fails every"] = f"{significant(spares['node_mtbf_hours'] / 24)} days"
    out["Back after"] = f"{significant(spares['repair_hours'] * 60)} minutes"
    out["While one is lost"] = lost(spares.get("node_lost"))
    if spot := spares.get("spot"):
        out["Spot"] = (
            f"{spot['useful_share']:.1%} of paid hours serve; ask for {spot['extra_devices']} "
            "devices more"
        )
    return out


def share(probability: float) -> str:
    """A share of time with as many nines as it has."""
    for digits in (1, 2, 3, 4):
        if probability < 1 - 10.0 ** -(digits + 2) or digits == 4:
            return f"{probability:.{digits}%}"
    return "100%"


def lost(after: Mapping[str, Any] | None) -> str:
    """What the replicas that are left do under the same load."""
    if after is None:
        return "not known"
    if not after["replicas"]:
        return "nothing serves"
    left = f"{after['replicas']} replicas are left"
    if not after["runs"]:
        return f"{left}, which cannot take the load"
    figures = after["figures"]
    kept = "the limits still hold" if after["holds"] else "the limits do not hold"
    if after["confidence"] is not None:
        kept += f" ({chance_text(after['confidence'])})"
    speed = f"{duration(figures['tpot_s'])} per token, {rate(figures['output_tokens_per_s'])}"
    return f"{left}: {speed}; {kept}"


def purchase_sentences(row: Row) -> list[str]:
    """Up to which price buying pays, when it does at the one that is stated, and the mixture."""
    bought = row.get("purchase")
    if not bought:
        return []
    name, within = view.short(row), bought["within_months"]
    highest, mark = bought["highest_usd_per_device"], view.doubt(row)
    if highest is None:
        out = [f"Buying {name} never pays: renting costs less than running it.{mark}"]
    else:
        out = [
            f"Buying {name} pays within {within} months up to "
            f"{view.dollars(highest)}{mark} per device."
        ]
    if "break_even_month" in bought:
        month = bought["break_even_month"]
        paid = f"has paid after {month} months" if month is not None else "does not pay in 50 years"
        owned, rent = bought["monthly"]["total_usd"], bought["rented_usd_per_month"]
        out.append(
            f"At your price it {paid}: {view.dollars(owned)} a month written off and running, "
            f"against {view.dollars(rent)}{mark} rented."
        )
    if mixed := bought.get("mixture"):
        out.append(
            f"By the hours of a day the cheapest is to own {mixed['owned_units']} units of "
            f"{mixed['unit_devices']} and rent up to {max(mixed['rented_units'])} more: "
            f"{view.dollars(mixed['usd_per_month'])} a month, against "
            f"{view.dollars(mixed['all_rented_usd_per_month'])} all rented and "
            f"{view.dollars(mixed['all_owned_usd_per_month'])} all owned."
        )
    return out
