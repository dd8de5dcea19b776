"""Price tables of others, read as offers: SkyPilot's catalogues, and tables of one's own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, ValidationError

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_text, write_whole
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.provenance import Positive
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.offer_tables import (
    COLUMNS,
    offer_name,
    offer_of,
    read_csv_rows,
    shipped_offers,
    to_table,
)
from recipe_core.hardware.offers import Day, Offer, OfferStatus, current_day

MOST_LINES = 1_000_000
MOST_BYTES = 256 << 20
FIELD = "import"
PRICE = "usd_per_device_hour"


@dataclass(frozen=True, slots=True)
class Imported:
    """The offers of a table, and the lines that became none: how many by accelerator or reason."""

    offers: list[Offer] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Both in sentences."""
        out = [f"{len(self.offers):,} offers"]
        for counts, text in ((self.unknown, "not known"), (self.skipped, "left out")):
            if counts:
                listed = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
                out.append(f"{text}: {listed}")
        return out

    def to_json(self) -> dict[str, Any]:
        """Return how many offers, and how many lines became none."""
        return {"offers": len(self.offers), "unknown": self.unknown, "skipped": self.skipped}


def import_offer_file(table: Path, output: Path, terms: Mapping[str, Any]) -> Imported:
    """Read a table and write its offers to ``output``, whole or not at all.

    Args:
        table: the CSV of others.
        output: the CSV of offers.
        terms: the fields of ``Terms``; None leaves one out.

    Raises:
        InputError: as ``import_table``, and for files that cannot be read or written.
    """
    known_terms = {name: value for name, value in terms.items() if value is not None}
    table_terms = Terms.of(**known_terms)
    shipped_names = {offer.name for offer in shipped_offers()}
    text = read_text(table, field=FIELD, limit=MOST_BYTES)
    done = import_table(text, table.name, table_terms, shipped_names)
    write_whole(output, to_table(done.offers).encode())
    return done


def import_table(
    text: str, name: str, terms: Terms, taken_names: set[str] | None = None
) -> Imported:
    """A SkyPilot catalogue, or a table with our columns or provider, device and price, as offers.

    Args:
        text: the CSV.
        name: what errors and sources call it.
        terms: what the table does not say.
        taken_names: names that offers must not get.

    Raises:
        InputError: for a table of another kind, a wrong value (names line, column, value and fix),
            and where no line is an offer.
    """
    rows = list(read_csv_rows(text, name, None, (), FIELD, max_rows=MOST_LINES))
    headings = set().union(*(row for _, row in rows[:1000])) if rows else set()
    reader = _table_offers
    if "AcceleratorName" in headings:
        reader = _skypilot_offers
        if terms.provider is None:
            raise InputError(
                "a SkyPilot catalogue does not name its provider.",
                field="provider",
                hint="Set --provider, such as --provider 'Amazon Web Services'.",
            )
    done, names = Imported(), set(taken_names or ())
    for offer_values in list(reader(rows, name, terms, done)):
        where = offer_values.pop("where")
        if "name" not in offer_values or offer_values["name"] in names:
            offer_values["name"] = offer_name(offer_values, names)
        done.offers.append(offer_of(offer_values, where, FIELD))
        names.add(offer_values["name"])
    if not done.offers:
        lost = (done.unknown + done.skipped).most_common(12)
        why = ", ".join(f"{reason:.60} ({count})" for reason, count in lost)
        raise InputError(
            f"{name} has no offer for a known device{f': {why}' if why else ''}.",
            field=FIELD,
            hint=f"Columns: {', '.join(COLUMNS)}; or those of a SkyPilot catalogue.",
        )
    return done


def _cell_number(row: Mapping[str, str], column: str, where: str) -> float:
    """A cell as a number; 0 where it is empty."""
    cell = row.get(column, "0")
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(
            f"{where}, {column}: {cell!r:.80} is not a number.",
            field=FIELD,
            hint="Give a plain number such as 2.49.",
        )
    return value


def _skypilot_offers(
    rows: list[tuple[int, dict[str, str]]], name: str, terms: Terms, done: Imported
) -> Iterator[dict[str, Any]]:
    """Offers of a catalogue: the cheapest zone of each instance, region and commitment.

    Its prices are of the whole instance.
    """
    cheapest: dict[tuple[str, ...], dict[str, Any]] = {}
    for line, row in rows:
        where = f"{name}, line {line}"
        accelerator_name = row.get("AcceleratorName", "")
        if not accelerator_name:
            done.skipped["without accelerators"] += 1
            continue
        instance = row.get("InstanceType", "")
        if not instance:
            done.skipped["accelerators without a machine"] += 1
            continue
        devices = _cell_number(row, "AcceleratorCount", where)
        if devices < 1 or devices != int(devices):
            done.skipped["parts of an accelerator"] += 1
            continue
        device_name, assumed = accelerator_device(
            accelerator_name, f"{instance} {row.get('GpuInfo', '')}", terms.accelerators
        )
        if device_name is None:
            done.unknown[f"{accelerator_name}{assumed}"] += 1
            continue
        prices = {
            "on-demand": _cell_number(row, "Price", where),
            "spot": _cell_number(row, "SpotPrice", where),
        }
        if not any(prices.values()):
            done.skipped["without a price"] += 1
        for commitment, price in prices.items():
            key = (instance, device_name, row.get("Region", ""), commitment)
            if not price:
                continue
            usd = terms.usd(price / devices)
            previous = cheapest.get(key)
            several = previous is not None and previous[PRICE] != usd
            if previous is None or usd < previous[PRICE]:
                cheapest[key] = {
                    "where": where,
                    "provider": terms.provider,
                    "device": device_name,
                    PRICE: usd,
                    "commitment": commitment,
                    "devices_per_node": int(devices),
                    "instance": instance,
                    "date": terms.day,
                    "source": f"SkyPilot catalogue {name}",
                    "status": terms.status,
                    "note": terms.note(assumed),
                }
                if row.get("Region"):
                    cheapest[key]["region"] = row["Region"]
            if several:
                cheapest[key]["note"] = terms.note(assumed, "cheapest zone of the region")
    yield from cheapest.values()


def _table_offers(
    rows: list[tuple[int, dict[str, str]]], name: str, terms: Terms, done: Imported
) -> Iterator[dict[str, Any]]:
    """Offers of a table with our columns; ``price`` is that of a device."""
    for line, row in rows:
        where = f"{name}, line {line}"
        if unknown_columns := sorted(set(row) - {*COLUMNS, "price"}):
            raise InputError(
                f"{where}: unknown column {unknown_columns[0]!r:.80}.",
                field=FIELD,
                hint=f"Columns: {', '.join(COLUMNS)} or price.",
            )
        column = "price" if "price" in row else PRICE
        if not (price := _cell_number(row, column, where)):
            done.skipped["without a price"] += 1
            continue
        device_text = row.get("device", "")
        device_name, assumed = accelerator_device(
            device_text, row.get("instance", ""), terms.accelerators
        )
        if device_name is None:
            done.unknown[f"{device_text or 'no device'}{assumed}"] += 1
            continue
        values: dict[str, Any] = {
            "commitment": "on-demand",
            "date": terms.day,
            "source": name,
            "status": terms.status,
            **({"provider": terms.provider} if terms.provider else {}),
            **row,
            "device": device_name,
            PRICE: terms.usd(price),
            "note": terms.note(row.get("note", ""), assumed),
            "where": where,
        }
        values.pop("price", None)
        yield values


# Names that several profiles share, and those profiles by their form.
_WHOLE = {
    **dict.fromkeys(("h100", "h10080gb"), "h100-{}"),
    "h200": "h200-{}",
    **dict.fromkeys(("a100", "a10040gb"), "a100-{}-40gb"),
    "a10080gb": "a100-{}-80gb",
    **dict.fromkeys(("a800", "a80080gb"), "a800-{}-80gb"),
    **dict.fromkeys(("v100", "v10016gb"), "v100-{}-16gb"),
    "v10032gb": "v100-{}-32gb",
}
# What an instance or a description says of the form.
_FORMS = (
    (
        "sxm",
        re.compile(r"sxm|hgx|hbm3\b|\bp3(dn)?\.|\bp4de?\.|\bp5\w*\.|\ba2-|\ba3-|\bstandard_nd"),
    ),
    ("pcie", re.compile(r"pcie|\bstandard_nc\d+ads_a100")),
    ("nvl", re.compile(r"nvl(?!ink)|\bstandard_nc\w*_h100")),
)


def accelerator_device(
    name: str, description: str, caller_devices: Mapping[str, str]
) -> tuple[str | None, str]:
    """The device that a table calls ``name``, by what it says of it beside; and what is assumed.

    None where it is unknown, or where SXM and PCIe share the name and nothing says which. ``own``:
    devices by names of the caller, before all others.
    """
    if name in caller_devices:
        return device_profile(caller_devices[name]).name, ""
    if name in device_names():
        return name, ""
    word = _letters_and_digits(name)
    pattern = _WHOLE.get(word)
    if pattern is None:
        return _devices_by_word().get(word), ""
    text = description.casefold()
    if word == "a100" and "81920" in text:
        pattern = _WHOLE["a10080gb"]
    forms = [form for form, shown in _FORMS if shown.search(text)]
    if not forms and word == "h200":
        return "h200-sxm", "form unstated, SXM assumed"
    device_name = pattern.format(forms[0]) if len(forms) == 1 else ""
    return (device_name, "") if device_name in device_names() else (None, " of an unknown form")


@cache
def _devices_by_word() -> dict[str, str]:
    """Devices by their names and aliases in letters and digits."""
    devices: dict[str, str] = {}
    for name in device_names():
        for alias in (name, *device_profile(name).aliases):
            devices.setdefault(_letters_and_digits(alias), name)
    return devices


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


class Terms(DataRow):
    """The terms that a table does not state itself.

    ``usd_per_unit``: dollars for one unit of ``currency``. ``accelerators``: devices by the names
    that the table has for them, before all others.
    """

    provider: str | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Za-z]{3}$")] = "USD"
    usd_per_unit: Positive | None = None
    date: Day | None = None
    status: OfferStatus = "quoted"
    accelerators: Mapping[str, str] = {}

    @classmethod
    def of(cls, **values: Any) -> Terms:
        """From plain values.

        Raises:
            InputError: for a value that is none, and a currency without its rate.
            HardwareError: for a device that there is not.
        """
        try:
            terms = cls.model_validate(values)
        except ValidationError as error:
            problem = first_problem(error)
            hint = _HINTS.get(problem.field)
            raise InputError(f"{problem.text}.", field=problem.field, hint=hint) from None
        if (terms.currency.upper() != "USD") != (terms.usd_per_unit is not None):
            message = f"prices in {terms.currency} need a rate; those in USD have none."
            raise InputError(message, field="usd_per_unit", hint=_HINTS["usd_per_unit"])
        for device_name in terms.accelerators.values():
            try:
                device_profile(device_name)
            except HardwareError as error:
                raise HardwareError(error.message, field="accelerator", hint=error.hint) from None
        return terms

    @property
    def day(self) -> str:
        return self.date or current_day().isoformat()

    def usd(self, price: float) -> float:
        return round(price * (self.usd_per_unit or 1.0), 6)

    def note(self, *remarks: str) -> str | None:
        """Say what an offer says, with the exchange if there was one."""
        rate = f"{self.currency.upper()} at {self.usd_per_unit:g} USD" if self.usd_per_unit else ""
        return "; ".join(filter(None, (*remarks, rate))) or None


_HINTS = {
    "currency": "Such as EUR.",
    "usd_per_unit": "For example --currency EUR --usd-per-unit 1.08.",
    "date": "Such as 2026-11-20.",
    "status": f"Available: {', '.join(get_args(OfferStatus))}.",
}
