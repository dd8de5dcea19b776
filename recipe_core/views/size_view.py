"""A sizing's answer in words, for a page. Rows are those of ``Answer.to_json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import chance_text, significant, usd
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import device, short_title
from recipe_core.plans.limits import LIMITS

Row = Mapping[str, Any]
DOUBT = "†"
"""Marks an amount that rests on a price to doubt."""
DOUBT_MEANS = f"{DOUBT} The price is unverified or more than 90 days old."
MONEY = {
    "hour": "usd_per_hour",
    "month": "usd_per_month",
    "tokens": "usd_per_million_output_tokens",
    "run": "usd",
}
"""Columns of money, by the name of their field."""
RULES = {rule.name: rule for rule in LIMITS.values()}
"""Limits by their field."""
LOAD_UNITS = {
    "concurrency": "requests in flight",
    "request_rate": "requests per second",
    "batch": "requests in a batch",
    "requests": "queued requests",
}


# --- names -----------------------------------------------------------------------------------


def key(row: Row) -> str:
    """What tells the devices of an answer apart: a device that is owned is another choice."""
    return f"{row['device']} (owned)" if row.get("owned") else str(row["device"])


def short(row: Row) -> str:
    """A device in few characters: ``H100 SXM 80 GB``."""
    try:
        title = short_title(device(row["device"]))
    except RecipeError:  # a profile of one's own is known by what the answer says of it
        title = row["title"]
    return f"{title}, owned" if row.get("owned") else title


def engine_title(name: str) -> str:
    """An engine or framework as people write it."""
    for known in (engine, framework):
        try:
            return str(known(name).title)
        except RecipeError:
            continue
    return name


def is_doubtful(row: Row) -> bool:
    """Whether the price of a row is unverified or old."""
    return bool(row.get("offer") and row["offer"]["marks"])


def doubt(row: Row) -> str:
    """The mark of a doubtful price; nothing where there is none to doubt."""
    return DOUBT if is_doubtful(row) else ""


def money(row: Row, name: str = "hour") -> str:
    """An amount of a row, marked where its price is to be doubted; a dash where it is unknown."""
    value = row.get(MONEY[name])
    if value is None:
        return "–"
    return f"{dollars(value)}{doubt(row)}"


def dollars(value: float) -> str:
    """Dollars as on a bill: cents below a thousand, three digits of less than ten cents."""
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 0.1 else usd(value)


def counted(row: Row) -> str:
    """``12 × AMD Instinct MI355X 288 GB in 2 machines of 8 (4 idle)``, spare ones included."""
    spare = row["devices_rented"] - row["idle"] - row["count"]
    text = f"{row['count'] + spare} × {row['title']}"
    if row["unit_devices"] > 1:
        machines = "machine" if row["units"] == 1 else "machines"
        text += f" in {row['units']} {machines} of {row['unit_devices']}"
    rest = {"spare": spare, "idle": row["idle"]}
    said = ", ".join(f"{count} {name}" for name, count in rest.items() if count)
    return f"{text} ({said})" if said else text


def take_label(row: Row) -> str:
    """``Take 8 × B200 SXM 180 GB``."""
    return f"Take {row['count']} × {short(row)}"


# --- sentences -------------------------------------------------------------------------------


def verdict(answer: Row) -> tuple[bool, str]:
    """Whether some hardware holds the limits, and the best, or what the nearest device lacks."""
    best = answer.get("best")
    if best is not None:
        return True, sentence(best)
    if answer.get("unpriced"):
        row = answer["unpriced"][0]
        return False, f"No device with a price holds the limits. {counted(row)} would; see below."
    refused = answer.get("refused") or []
    if not refused:
        return False, "There is no device to choose from. Widen the choice."
    near = refused[0]
    return False, f"No device holds the limits. Nearest is {near['title']}: {reasons(near)}."


def sentence(row: Row) -> str:
    """``4 × … in 1 machine of 4, $8.00 an hour ($5,840 a month), holds the limits with 93%``."""
    parts = [counted(row)]
    if row["usd_per_hour"] is not None:
        parts.append(f"{money(row)} an hour ({money(row, 'month')} a month)")
    if row.get("usd") is not None:
        parts.append(f"{money(row, 'run')} for the run of {hours(row['wall_s'])}")
    if row["confidence"] is not None:
        parts.append(f"holds the limits with {chance_text(row['confidence'])}")
    return ", ".join(parts)


def hours(seconds: float) -> str:
    """A long time in hours, or days from two of them on."""
    value = seconds / 3600.0
    return f"{significant(value)} h" if value < 48 else f"{significant(value / 24)} days"


def reasons(refused: Row) -> str:
    """Why a device is refused."""
    return "; ".join(refused["reasons"])


def load_sentence(row: Row) -> str:
    """The largest load that the split carries; empty where none was looked for."""
    load = row.get("largest_load")
    if not load:
        return ""
    if load["value"] is None:
        return "It carries no load within the limits."
    if not load["bounded"]:
        unit = LOAD_UNITS[load["field"]]
        return f"No limit ends the load: more {unit} only wait longer. State one on times."
    more = "" if load["monotone"] else " Smaller loads may break a limit too."
    return f"It carries up to {load_text(load['value'], load['field'])} within the limits.{more}"


def load_text(value: float, field: str) -> str:
    """A load with its unit; all but rates are whole."""
    number = significant(value) if field == "request_rate" else f"{value:,.0f}"
    return f"{number} {LOAD_UNITS[field]}"


def wins_sentence(row: Row, best: bool) -> str:
    """What would make a device the best, or up to which price it stays so."""
    wins = row.get("wins_at") or {}
    price = wins.get("usd_per_device_hour")
    if best:
        return f"It stays the cheapest up to {usd(price)} per device-hour." if price else ""
    found = []
    if price:
        found.append(f"below {usd(price)} per device-hour")
    for name, value in wins.get("limits", {}).items():
        rule = RULES[name]
        found.append(f"with {rule.label} limited to {rule.show(value / rule.factor)}")
    if wins.get("load"):
        found.append(f"with {load_text(wins['load'], row['largest_load']['field'])}")
    return f"It would be the cheapest {', or '.join(found)}." if found else ""


def to_win(row: Row, best: bool) -> str:
    """What would make a device win, short enough for a table."""
    wins = row.get("wins_at") or {}
    price = wins.get("usd_per_device_hour")
    if price is None:
        return ""
    return f"best up to {usd(price)}/h each" if best else f"below {usd(price)}/h each"


def is_training(answer: Row) -> bool:
    """Whether what is sized is a training run."""
    rows = [*(answer.get("devices") or []), *(answer.get("unpriced") or [])]
    return any("step_s" in row["figures"] for row in rows)


def rented(row: Row) -> str:
    """What is rented: ``2``, ``1 × 8, 6 idle``."""
    units = f"{row['units']}"
    if row["unit_devices"] > 1:
        units = f"{row['units']} × {row['unit_devices']}"
    return f"{units}, {row['idle']} idle" if row["idle"] else units


def price_text(row: Row) -> str:
    """Where a price is from and since when, with what to doubt."""
    offer = row.get("offer")
    if offer is None:
        return "your machines" if row.get("owned") else "unknown"
    marks = f" {DOUBT} {', '.join(offer['marks'])}" if offer["marks"] else ""
    return f"{offer['provider']}, {offer['date']}{marks}"


def own_runs_sentence(own: Mapping[str, Any]) -> str:
    """That own runs corrected an answer's figures, from its ``own_runs``."""
    runs = f"{own['used']:,} own run{'s' * (own['used'] != 1)}"
    return f"Figures of devices that were measured are calibrated by {runs}."
