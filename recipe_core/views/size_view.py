"""A sizing's answer for terminal and pages: names, sentences and columns.

Rows are those of ``Answer.to_json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import chance_text, days, share_text, significant, usd
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import device_profile, short_title
from recipe_core.hardware.offers import offer_terms
from recipe_core.request.metrics import column_metric, limits_by_name, metrics_of
from recipe_core.request.split_key import load_field_text, load_metric, split_name
from recipe_core.views.columns import UNKNOWN, Column, known_columns
from recipe_core.views.texts import Phrases

Row = Mapping[str, Any]
# Marks an amount that rests on a price to doubt.
DOUBT = "†"
DOUBT_MEANS = f"{DOUBT} The price is unverified or more than 90 days old: ask for a quote."
# Columns of money, by the name of their field.
MONEY = {
    "hour": "usd_per_hour",
    "month": "usd_per_month",
    "tokens": "usd_per_million_output_tokens",
    "run": "usd",
}


# --- names -----------------------------------------------------------------------------------


def key(row: Row) -> str:
    """The name of a device in an answer: one that is owned is another choice."""
    return f"{row['device']} (owned)" if row.get("owned") else str(row["device"])


def short(row: Row) -> str:
    """A device in few characters: ``H100 SXM 80 GB``."""
    try:
        title = short_title(device_profile(row["device"]))
    except RecipeError:  # a profile of one's own is known by what the answer says of it
        title = row.get("title", row["device"])
    return f"{title}, owned" if row.get("owned") else title


def engine_title(name: str) -> str:
    """An engine or framework as people write it."""
    for read in (engine, framework):
        try:
            return str(read(name).title)
        except RecipeError:
            continue
    return name


def is_doubtful(row: Row) -> bool:
    return bool(row.get("offer") and row["offer"]["marks"])


def price_doubt_mark(row: Row) -> str:
    """The mark of a doubtful price; nothing where there is none to doubt."""
    return DOUBT if is_doubtful(row) else ""


def money(row: Row, name: str = "hour") -> str:
    """An amount of a row, marked where its price is to be doubted; a dash where it is unknown."""
    value = row.get(MONEY[name])
    if value is None:
        return "–"
    return f"{dollars(value)}{price_doubt_mark(row)}"


def dollars(value: float) -> str:
    """Dollars as on a bill: cents below a thousand, three digits of less than ten cents."""
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 0.1 else usd(value)


def take_label(row: Row) -> str:
    """``Take 8 × B200 SXM 180 GB``."""
    return f"Take {row['count']} × {short(row)}"


# --- sentences -------------------------------------------------------------------------------


def size_verdict(answer: Row) -> tuple[bool, str]:
    """True with the best hardware, or False with the reason of the nearest device."""
    best = answer.get("best")
    return (True, sentence(best)) if best is not None else (False, _say("verdict", answer))


def sentence(row: Row) -> str:
    """``4 × … in 1 machine of 4, $8.00 an hour ($5,840 a month), holds the limits with 93 %``."""
    return _say("said", row)


def split_sentence(row: Row) -> str:
    """The same with the split: ``4 × …, $8.00 an hour …: TP 4, vLLM``."""
    return f"{sentence(row)}: {row['label']}, {engine_title(row['engine'])}"


def _is_run(row: Row) -> bool:
    return "step_s" in row["figures"]


def reasons(refused: Row) -> str:
    return "; ".join(refused["reasons"])


def load_sentence(row: Row) -> str:
    """The largest load that the split carries; empty where none was looked for."""
    return _say("load", row["largest_load"]) if row.get("largest_load") else ""


def wins_sentence(row: Row, *, best: bool) -> str:
    """The price up to which the best stays so, or the changes that make another one the best."""
    wins = row.get("wins_at") or {}
    price = wins.get("usd_per_device_hour")
    if best:
        return f"It stays the cheapest up to {usd(price)} per device-hour." if price else ""
    limits = {limits_by_name()[name]: value for name, value in wins.get("limits", {}).items()}
    changes = [
        f"with {rule.label} limited to {rule.show(value / rule.factor)}"
        for rule, value in limits.items()
    ]
    if wins.get("load"):
        changes.append(f"with {load_field_text(row['largest_load']['field'], wins['load'])}")
    return _say("wins", changes, price)


def is_training(answer: Row) -> bool:
    return any(map(_is_run, [*(answer.get("devices") or []), *(answer.get("unpriced") or [])]))


def rented(row: Row) -> str:
    """Rented units and idle devices: ``2``, ``1 × 8, 6 idle``."""
    units = f"{row['units']}"
    if row["unit_devices"] > 1:
        units = f"{row['units']} × {row['unit_devices']}"
    return f"{units}, {row['idle']} idle" if row["idle"] else units


def price_text(row: Row) -> str:
    """The offer of a price with its date or its doubts: ``novita-h100, 189 days old †``."""
    offer = row.get("offer")
    if offer is None:
        return "your machines" if row.get("owned") else "your price"
    if offer["marks"]:
        return f"{offer['name']}, {', '.join(offer['marks'])} {DOUBT}"
    return f"{offer['name']}, {offer['date']}"


def own_runs_sentence(summary: Mapping[str, Any]) -> str:
    """That own runs corrected an answer's figures, from its ``own_runs``."""
    runs = f"{summary['used']:,} own run{'s' * (summary['used'] != 1)}"
    return f"Figures of devices that were measured are calibrated by {runs}."


def _nines_text(probability: float) -> str:
    """A share of time with as many nines as it has."""
    for digits in (1, 2, 3):
        if probability < 1 - 10.0 ** -(digits + 2):
            return share_text(probability, digits)
    return share_text(probability, 4)


PHRASES = Phrases(
    "size",
    device=short,
    mark=price_doubt_mark,
    dollars=dollars,
    money=money,
    nines=_nines_text,
    wins_text=lambda row: wins_sentence(row, best=False),
    load=lambda value, field: load_field_text(field, value),
    requests=lambda field: load_metric(field).label,
)
_say = PHRASES.sentence


# --- columns -----------------------------------------------------------------------------------


def size_columns(
    rows: Sequence[Row], *, ladder: bool = False, energy: bool = False
) -> list[Column[Row]]:
    """Columns of devices that hold the limits, or of every number of one device.

    Those that no row has a value for are left out. ``key`` tells devices apart and is the name
    that commands take, ``device`` its title.

    Args:
        rows: best devices, or the rungs of a ladder.
        ladder: of one device, with whether each number holds the limits.
        energy: with power and energy.
    """
    hidden = {"key", "device", "joules"} if ladder else {"holds"}
    hidden |= set() if energy or ladder else {"watts", "joules"}
    return known_columns(rows, [column for column in _COLUMNS if column.key not in hidden])


def _money_column(name: str, measure: str) -> Column[Row]:
    head = metrics_of("training")[measure].head
    return Column(head, MONEY[name], dollars, mark=price_doubt_mark, name=name)


def _metric_column(name: str) -> Column[Row]:
    metric = column_metric(name)
    return Column(metric.head, name, metric.show, name=metric.name)


def _usd_per_million(row: Row) -> Any:
    return row.get("usd_per_million_tokens", row[MONEY["tokens"]])


def _largest_load(row: Row) -> str | None:
    load = row.get("largest_load")
    if not load or load["value"] is None:
        return None
    return significant(load["value"]) if load["bounded"] else "any"


def _holds_text(row: Row) -> str:
    if row["queue"]:
        return "queues"
    return "yes" if row["holds"] else ""


def _pays_text(row: Row) -> str | None:
    if "dominated" not in row:
        return None
    return "" if row["dominated"] else "yes"


_TOKENS = column_metric(MONEY["tokens"])
_UNITS = "Units; of machines with several devices: units × devices"
_CHEAPEST = "Price of a device-hour below which it is the cheapest of all"
_SURE = "Probability that every limit holds if measured"
_COLUMNS: list[Column[Row]] = [
    Column("Name", key, align="left", name="key"),
    Column("Device", short, align="left", name="device"),
    Column("Rented", rented, align="left", help=_UNITS, name="rented"),
    Column("Layout", lambda row: split_name(row["split"]), align="left", name="split"),
    Column("Engine", lambda row: engine_title(row["engine"]), align="left", name="engine"),
    _money_column("hour", "usd_hour"),
    _money_column("month", "usd_month"),
    Column(_TOKENS.head, _usd_per_million, _TOKENS.show, mark=price_doubt_mark, name="tokens"),
    _money_column("run", "usd_run"),
    Column(column_metric("wall_s").head, "wall_s", days, name="wall"),
    *map(_metric_column, ("watts", "joules_per_token")),
    Column("Sure", "confidence", chance_text, help=_SURE, name="confidence"),
    Column("Carries", _largest_load, help="Largest load within the limits", name="carries"),
    Column("Holds", _holds_text, align="left", name="holds"),
    Column("Worth it", _pays_text, align="left", help="Nothing cheaper is as sure", name="pays"),
    Column("Wins below", "wins_at.usd_per_device_hour", usd, help=_CHEAPEST, name="wins"),
    Column("Price from", price_text, align="left", help="Offer, date, and doubts", name="price"),
]
# Devices that hold the limits and have no price, with the price below which each would win.
UNPRICED: list[Column[Row]] = [
    Column("Name", key, align="left", name="key"),
    Column("Device", short, align="left", name="device"),
    Column("Devices", rented),
    Column("Layout", lambda row: split_name(row["split"]), align="left"),
    Column(
        "Cheapest below",
        "usd_per_device_hour_to_win",
        lambda price: f"{usd(price)} per device-hour",
    ),
]
# Devices on which nothing holds, the likeliest first.
REFUSED: list[Column[Row]] = [
    Column("Device", "title", align="left"),
    Column("Why", reasons, align="left"),
]


def offer_facts(row: Row) -> dict[str, str]:
    """The offer that a row's price is from."""
    offer = row.get("offer")
    if offer is None:
        return {"Price": price_text(row)}
    terms = offer_terms(offer["commitment"], offer["term_months"])
    return PHRASES.facts("offer", offer, price_doubt_mark(row), terms)


def sized_device_facts(row: Row) -> dict[str, str]:
    figures = row["figures"]
    facts = {"Layout": split_name(row["split"]), "Engine": engine_title(row["engine"])}
    for measure in metrics_of("training" if _is_run(row) else "closed").values():
        if figures.get(measure.column) is not None:
            facts[measure.head] = measure.show(figures[measure.column])
    facts["Power"] = f"{significant(row['watts'] / 1e3)} kW"
    facts["Energy"] = f"{significant(row['kwh_per_month'])} kWh a month"
    return facts


def headroom_rows(row: Row) -> list[dict[str, str]]:
    """Each stated limit with the estimate, its band and what is left."""
    rows = []
    for name, room in row["headroom"].items():
        rule = limits_by_name()[name]
        mark = price_doubt_mark(row) if rule.priced else ""
        texts = {
            part: UNKNOWN if room[part] is None else rule.show(room[part] / rule.factor)
            for part in ("limit", "value", "low", "high")
        }
        rest = room["share_left"]
        rows.append(
            {
                "Limit": f"{rule.label[:1].upper()}{rule.label[1:]}",
                "Asked": f"{'at least' if rule.at_least else 'at most'} {texts['limit']}",
                "Estimated": f"{texts['value']}{mark}",
                "Likely range": f"{texts['low']} – {texts['high']}{mark}",
                "Left": UNKNOWN if rest is None else share_text(rest),
            }
        )
    return rows
