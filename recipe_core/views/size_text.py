"""A sizing as text: sentences about growth, failures and purchases, and all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.units import chance_text, seconds_text, significant, token_rate_text
from recipe_core.plans.rank import TIED
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import Sizing
from recipe_core.views import size_view as view
from recipe_core.views.columns import terminal
from recipe_core.views.size_view import Row

# Refused devices that a terminal lists.
REFUSED_SHOWN = 12


def growth_sentences(row: Row) -> list[str]:
    """Months that the size of a device lasts, the month of the next unit, and the cost."""
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
        units = grown["ladder"][-1]["units"]
        out.append(
            f"From month {grown['ends_month']} on, {units} devices, the most that you allow, "
            "do not carry the load."
        )
    if grown["total_usd"] is not None:
        out.append(
            f"{months} months cost {view.dollars(grown['total_usd'])}{view.price_doubt_mark(row)}."
        )
    return out


def cheapest_sentence(growth: Row, rows: Sequence[Row]) -> str:
    """The device that is the cheapest over all months, and the month in which that changes."""
    names = {view.key(row): f"{view.short(row)}{view.price_doubt_mark(row)}" for row in rows}
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


def availability_facts(row: Row) -> dict[str, str]:
    """Spare replicas, what they cost, and what a lost machine does."""
    spares = row.get("availability")
    if not spares:
        return {}
    replicas = "replica" if spares["needed"] == 1 else "replicas"
    out = {
        "Without spares": f"{spares['needed']} {replicas}, all up "
        f"{nines_text(spares['up_probability_without'])} of the time",
        "Spare replicas": f"{spares['spares']}, then enough are up "
        f"{nines_text(spares['up_probability'])} of the time",
        "With spares": f"{spares['devices_rented']} devices on {spares['nodes']} "
        f"{'machine' if spares['nodes'] == 1 else 'machines'}",
    }
    if spares["usd_per_hour"] is not None:
        out["Cost with spares"] = (
            f"{view.dollars(spares['usd_per_hour'])}{view.price_doubt_mark(row)} an hour"
        )
    out["A machine fails every"] = f"{significant(spares['node_mtbf_hours'] / 24)} days"
    out["Back after"] = f"{significant(spares['repair_hours'] * 60)} minutes"
    out["While one is lost"] = loss_text(spares.get("node_lost"))
    if spot := spares.get("spot"):
        out["Spot"] = (
            f"{spot['useful_share']:.1%} of paid hours serve; ask for {spot['extra_devices']} "
            "devices more"
        )
    return out


def nines_text(probability: float) -> str:
    """A share of time with as many nines as it has."""
    for digits in (1, 2, 3, 4):
        if probability < 1 - 10.0 ** -(digits + 2) or digits == 4:
            return f"{probability:.{digits}%}"
    return "100%"


def loss_text(after: Mapping[str, Any] | None) -> str:
    """The figures of the replicas that are left under the same load."""
    if after is None:
        return "not known"
    if not after["replicas"]:
        return "nothing serves"
    replicas = f"{after['replicas']} replicas are left"
    if not after["runs"]:
        return f"{replicas}, which cannot take the load"
    figures = after["figures"]
    limits = "the limits still hold" if after["holds"] else "the limits do not hold"
    if after["confidence"] is not None:
        limits += f" ({chance_text(after['confidence'])})"
    output = token_rate_text(figures["output_tokens_per_s"])
    speed = f"{seconds_text(figures['tpot_s'])} per token, {output}"
    return f"{replicas}: {speed}; {limits}"


def purchase_sentences(row: Row) -> list[str]:
    """Up to which price buying pays, when it does at the one that is stated, and the mixture."""
    bought = row.get("purchase")
    if not bought:
        return []
    name, within = view.short(row), bought["within_months"]
    highest, mark = bought["highest_usd_per_device"], view.price_doubt_mark(row)
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


# --- the whole -----------------------------------------------------------------------------------


def size_text(answer: Answer, top: int | None = None, ladder: str | None = None) -> str:
    """The devices as a table, those without a price, refused ones, and one device's ladder."""
    sizing = answer.sizing
    rows = [answer.device(device, ladder=False) for device in sizing.devices[:top]]
    parts = _partial_json(answer, rows)
    good, sentence = view.size_verdict(parts)
    lines = [view.split_sentence(rows[0]) if good else sentence, parts["price_warning"] or ""]
    if rows:
        objective = sizing.request.objective
        limits = objective.limits
        energy = limits.watts is not None or limits.joules_per_token is not None
        columns = view.size_columns(rows, energy=energy or "energy" in objective.goals)
        lines.append(terminal(rows, [column for column in columns if column.key != "device"]))
    lines += _ties(rows)
    lines += _cheapest_month(sizing, rows)
    lines += _later_lines(answer, rows)
    if parts["unpriced"]:
        lines += ["without a price:", terminal(parts["unpriced"], view.UNPRICED)]
    lines += _ladder_lines(answer, ladder)
    lines += _refused_device_lines(parts["refused"])
    lines += _winning_limits(rows)
    if sizing.corrections is not None and sizing.corrections.teach:
        lines.append(view.own_runs_sentence(sizing.corrections.to_json()))
    if any(view.DOUBT in line for line in lines):
        lines.append(view.DOUBT_MEANS)
    return "\n".join(filter(None, lines))


def _partial_json(answer: Answer, rows: Sequence[Row]) -> dict[str, Any]:
    """The answer's JSON without ladders, which take as long as everything else."""
    sizing = answer.sizing
    unpriced = [
        {
            **answer.rows(device, [device.best])[0],
            "usd_per_device_hour_to_win": sizing.price_to_win(device),
        }
        for device in sizing.unpriced
        if device.best is not None
    ]
    refused = [(device.profile, device.reason()) for device in sizing.refused]
    refused += [(choice.profile, choice.why) for choice in sizing.barred]
    return {
        "best": rows[0] if rows else None,
        "price_warning": answer.price_warning,
        "unpriced": unpriced,
        "refused": [
            {"device": profile.name, "title": profile.title, "reasons": [reason]}
            for profile, reason in refused
        ],
    }


def choice_text(sizing: Sizing) -> str:
    """The hardware that open hardware became, as one line."""
    best = sizing.best
    assert best is not None and best.best is not None  # noqa: S101, PT018 - there is a choice
    return f"hardware: any → {view.split_sentence(Answer(sizing).rows(best, [best.best])[0])}"


def _ties(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["beats_best"] is not None and row["beats_best"] >= TIED:
            yield (
                f"{row['device']} ties with the first: measured, it is better with a probability "
                f"of {chance_text(row['beats_best'])}"
            )


def _cheapest_month(sizing: Sizing, rows: Sequence[Row]) -> Iterator[str]:
    """The device that costs least a month, where that is not the best by the cost of a token."""
    if not rows or set(sizing.request.objective.goals) != {"cost"}:
        return
    cheapest = min(rows, key=lambda row: float(row["usd_per_month"]))
    if cheapest["usd_per_month"] < rows[0]["usd_per_month"]:
        yield (
            f"{cheapest['device']} costs least a month, {view.money(cheapest, 'month')}: cost "
            f"counts per token, and a closed loop sends more to {rows[0]['device']}, which "
            "answers faster"
        )


def _later_lines(answer: Answer, rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    growth = growth_sentences(rows[0])
    if answer.growth is not None:
        growth.append(cheapest_sentence(answer.growth.to_json(), rows))
    if growth:
        yield f"growth: {' '.join(growth)}"
    if spares := availability_facts(rows[0]):
        yield "availability:"
        yield from (f"  {name}: {text}" for name, text in spares.items())
    if purchase := purchase_sentences(rows[0]):
        yield f"purchase: {' '.join(purchase)}"


def _ladder_lines(answer: Answer, name: str | None) -> Iterator[str]:
    if name is None:
        return
    devices = [device for device in answer.sizing.sized if device.profile.name == name]
    if not devices:
        names = ", ".join(device.profile.name for device in answer.sizing.sized)
        yield f"{name} was not sized; sized: {names}"
    for device in devices:
        rungs = answer.ladder(device)
        yield f"{device.profile.title}:"
        yield terminal(rungs, view.size_columns(rungs, ladder=True))


def _refused_device_lines(refused: Sequence[Row]) -> Iterator[str]:
    if refused:
        yield "refused:"
    yield from (f"  {row['device']}: {view.reasons(row)}" for row in refused[:REFUSED_SHOWN])
    if len(refused) > REFUSED_SHOWN:
        yield f"  and {len(refused) - REFUSED_SHOWN} more; --json lists them"


def _winning_limits(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows[1:]:
        if row["wins_at"]["limits"]:
            yield f"{row['device']}: {view.wins_sentence(row, best=False)}"
