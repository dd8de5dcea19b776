"""A sizing as text for a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recipe_core.base.columns import aligned
from recipe_core.base.units import chance_text, significant, usd
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.measures import days
from recipe_core.plans.rows import TIED
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import Sizing
from recipe_core.views.calibrated import calibrated_lines
from recipe_core.views.size_later import (
    availability_rows,
    cheapest_sentence,
    growth_sentences,
    purchase_sentences,
)
from recipe_core.views.size_view import DOUBT, DOUBT_MEANS, counted

Row = Mapping[str, Any]
REFUSED_SHOWN = 12


def size_text(answer: Answer, top: int | None = None, ladder: str | None = None) -> str:
    """The devices as a table, those without a price, refused ones, and one device's ladder."""
    sizing = answer.sizing
    rows = [answer.device(one, ladder=False) for one in sizing.devices[:top]]
    parts = [verdict(answer), *([answer.price_warning] if answer.price_warning else [])]
    if rows:
        parts.append(_table(rows, tells_energy=_tells_energy(sizing)))
    parts += _tied(rows)
    parts += _cheapest_month(answer)
    parts += _later(answer, rows)
    parts += _unpriced(answer)
    parts += _ladder(answer, ladder)
    parts += _refused(answer)
    parts += _doubts(rows)
    parts += calibrated_lines(sizing.corrections)
    return "\n".join(parts)


def chosen_text(sizing: Sizing) -> str:
    """What a sizing chose, as one line."""
    return f"hardware: any → {verdict(Answer(sizing))}"


def verdict(answer: Answer) -> str:
    """The best choice in one sentence, or what the nearest device lacks."""
    sizing = answer.sizing
    best = sizing.best
    if best is None or best.best is None:
        reason = (
            f" Nearest: {near[0].profile.title}: {near[0].reason()}."
            if (near := sizing.refused)
            else ""
        )
        priced = " among devices with a price" if sizing.unpriced else ""
        return f"No hardware keeps the limits{priced}.{reason}"
    row = answer.rows(best, [best.best])[0]
    sure = ""
    if row["confidence"] is not None:
        sure = f", holds the limits with {chance_text(row['confidence'])}"
    job = ""
    if row.get("usd") is not None and row.get("wall_s"):
        what = "run" if row["usd_per_million_output_tokens"] is None else "job"
        job = f", {usd(row['usd'])} and {days(row['wall_s'])} for the {what}"
    return f"{counted(row)}, {money(row)}{job}{sure}: {row['label']}, {row['engine']}"


def money(row: Row) -> str:
    """``$47.20 an hour, $34,456 a month``; that the price is unknown where it is."""
    if row["usd_per_hour"] is None:
        return "price unknown"
    return f"${row['usd_per_hour']:,.2f} an hour, ${row['usd_per_month']:,.0f} a month"


def _tells_energy(sizing: Sizing) -> bool:
    """Whether energy or power is asked for, as a goal or by a limit."""
    objective = sizing.request.objective
    limits = objective.limits
    limited = limits.watts is not None or limits.joules_per_token is not None
    return limited or "energy" in objective.goals


def _table(rows: Sequence[Row], *, tells_energy: bool) -> str:
    training = rows[0]["usd_per_million_output_tokens"] is None
    tokens = "usd_per_million_tokens" if training else "usd_per_million_output_tokens"
    cells: dict[str, Callable[[Row], str]] = {
        "device": lambda row: row["device"] + (" (owned)" if row["owned"] else ""),
        "used": lambda row: str(row["count"]),
        "rented": _rented,
        "split": lambda row: row["label"],
        "engine": lambda row: row["engine"],
        "$/h": lambda row: f"{row['usd_per_hour']:,.2f}",
        "$/month": lambda row: f"{row['usd_per_month']:,.0f}",
        "$/M tokens": lambda row: significant(row[tokens]),
        "job $": lambda row: usd(row["usd"]).removeprefix("$"),
        "to finish": lambda row: days(row["wall_s"]),
        "W": lambda row: f"{row['watts']:,.0f}",
        "J/token": lambda row: _joules(row["joules_per_token"]),
        "sure": lambda row: "" if row["confidence"] is None else chance_text(row["confidence"]),
        "carries": _carries,
        "wins at": _wins,
        "offer": _offer,
    }
    if rows[0].get("usd") is None or rows[0].get("wall_s") is None:
        del cells["job $"], cells["to finish"]
    if not tells_energy:
        del cells["W"], cells["J/token"]
    left = ("device", "split", "engine", "wins at", "offer")
    width = max(shutil.get_terminal_size((160, 40)).columns, 120)
    return aligned(
        list(cells),
        [[show(row) for show in cells.values()] for row in rows],
        left=left,
        width=width,
    )


def _joules(value: float | None) -> str:
    return "–" if value is None else significant(value)


def _later(answer: Answer, rows: Sequence[Row]) -> Iterator[str]:
    """Growth, failures and purchase of the best device, as far as the request asks for them."""
    if not rows:
        return
    said = list(growth_sentences(rows[0]))
    if answer.growth is not None:
        best = [(one, one.best) for one in answer.sizing.devices if one.best is not None]
        devices = [answer.rows(one, [row])[0] for one, row in best]
        said.append(cheapest_sentence(answer.growth.to_json(), devices))
    lines = [f"growth: {' '.join(said)}"] if said else []
    if spares := availability_rows(rows[0]):
        lines += ["availability:", *(f"  {name}: {text}" for name, text in spares.items())]
    if bought := purchase_sentences(rows[0]):
        lines.append(f"purchase: {' '.join(bought)}")
    yield from lines
    if any(DOUBT in line for line in lines):
        yield DOUBT_MEANS


def _tied(rows: Sequence[Row]) -> Iterator[str]:
    """Devices that may as well be the best, if they were measured."""
    tied = [row for row in rows if row["beats_best"] is not None and row["beats_best"] >= TIED]
    for row in tied:
        yield (
            f"{row['device']} ties with the first: measured, it is better with a probability of "
            f"{chance_text(row['beats_best'])}"
        )


def _cheapest_month(answer: Answer) -> Iterator[str]:
    """Which device costs least a month, where that is not the best by the cost of a token."""
    sizing = answer.sizing
    best = sizing.best
    if best is None or set(sizing.request.objective.goals) != {"cost"}:
        return
    least = min(
        sizing.devices,
        key=lambda one: float((one.plan.columns["usd_per_hour"] * one.dearer)[one.best]),
    )
    if least.best is None or best.best is None:
        return
    row, other = (answer.rows(one, [one.best])[0] for one in (least, best) if one.best is not None)
    if row["usd_per_month"] < other["usd_per_month"]:
        yield (
            f"{row['device']} costs least a month, ${row['usd_per_month']:,.0f}: cost counts per "
            f"token, and a closed loop sends more to {other['device']}, which answers faster"
        )


def _rented(row: Row) -> str:
    if row["unit_devices"] == 1:
        return str(row["devices_rented"])
    return f"{row['units']} × {row['unit_devices']}"


def _carries(row: Row) -> str:
    load = row["largest_load"]
    if load is None or load["value"] is None:
        return ""
    return significant(load["value"]) if load["bounded"] else "any"


def _holds(row: Row) -> str:
    if row["queue"]:
        return "queues"
    return "●" if row["holds"] else ""


def _wins(row: Row) -> str:
    wins = row["wins_at"]
    if wins["usd_per_device_hour"] is None:
        return ""
    return f"{usd(wins['usd_per_device_hour'])} per device-hour"


def _offer(row: Row) -> str:
    offer = row["offer"]
    if offer is None:
        return "your machines" if row["owned"] else "your price"
    when = ", ".join(offer["marks"]) if offer["marks"] else offer["date"]
    return f"{offer['name']} {usd(offer['usd_per_device_hour'])}, {when}"


def _unpriced(answer: Answer) -> Iterator[str]:
    for one in answer.sizing.unpriced:
        if one.best is None:
            continue
        row = answer.rows(one, [one.best])[0]
        price = answer.sizing.price_to_win(one)
        wins = f"; it would win below {usd(price)} per device-hour" if price else ""
        yield f"{row['device']}: {one.choice.why}; {row['count']} would do{wins}"


def _ladder(answer: Answer, name: str | None) -> Iterator[str]:
    """Every count of a device."""
    if name is None:
        return
    found = [one for one in answer.sizing.sized if one.profile.name == name]
    if not found:
        known = ", ".join(one.profile.name for one in answer.sizing.sized)
        yield f"{name} was not sized; sized: {known}"
        return
    for one in found:
        rows = answer.ladder(one)
        cells: dict[str, Callable[[Row], str]] = {
            "rented": _rented,
            "used": lambda row: str(row["count"]),
            "idle": lambda row: str(row["idle"]),
            "split": lambda row: row["label"],
            "engine": lambda row: row["engine"],
            "$/h": lambda row: "" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:,.2f}",
            "sure": lambda row: "" if row["confidence"] is None else chance_text(row["confidence"]),
            "holds": _holds,
            "kW": lambda row: significant(row["watts"] / 1e3),
            "offer": _offer,
        }
        yield f"{one.profile.title}:"
        yield aligned(
            list(cells),
            [[show(row) for show in cells.values()] for row in rows if not row["dominated"]],
            left=("split", "engine", "offer"),
            width=max(shutil.get_terminal_size((160, 40)).columns, 120),
        )


def _refused(answer: Answer) -> Iterator[str]:
    sizing = answer.sizing
    reasons = [(one.profile.name, one.reason()) for one in sizing.refused]
    reasons += [(choice.profile.name, choice.why) for choice in sizing.barred]
    if reasons:
        yield "refused:"
    for name, reason in reasons[:REFUSED_SHOWN]:
        yield f"  {name}: {reason}"
    if len(reasons) > REFUSED_SHOWN:
        yield f"  and {len(reasons) - REFUSED_SHOWN} more; --json lists them"


def _doubts(rows: Sequence[Row]) -> Iterator[str]:
    """What to know of the prices shown."""
    doubtful = [row for row in rows if row["offer"] and row["offer"]["marks"]]
    if doubtful:
        names = ", ".join(row["device"] for row in doubtful)
        yield f"Prices of {names} are to be doubted: ask for a quote before you rely on them."
    titles = {rule.name: rule.label for rule in LIMITS.values()}
    for row in rows[1:]:
        limits = row["wins_at"]["limits"]
        moved = [f"{titles[name]} of {value:g}" for name, value in limits.items()]
        if moved:
            yield f"{row['device']} would win with a limit on {' or '.join(moved)}."
