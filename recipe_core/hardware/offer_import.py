"""Price tables of others, read as offers: SkyPilot's catalogues, and tables of one's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from recipe_core.base.documents import read_text, write_whole
from recipe_core.base.errors import InputError, unknown
from recipe_core.hardware.accelerators import accelerator
from recipe_core.hardware.offer_tables import (
    COLUMNS,
    offer_name,
    offer_of,
    read_rows,
    shipped_offers,
    to_table,
)
from recipe_core.hardware.offer_terms import Terms
from recipe_core.hardware.offers import Offer, OfferStatus, last_day

MOST_LINES = 1_000_000
MOST_BYTES = 256 << 20
FIELD = "import"
PRICE = "usd_per_device_hour"


@dataclass(frozen=True, slots=True)
class Imported:
    """The offers of a table, and the lines that became none: how many by accelerator or reason."""

    offers: tuple[Offer, ...]
    unknown: dict[str, int]
    skipped: dict[str, int]

    def lines(self) -> list[str]:
        """Both in sentences."""
        out = [f"{len(self.offers):,} offers"]
        for counts, text in ((self.unknown, "not known"), (self.skipped, "left out")):
            if counts:
                listed = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
                out.append(f"{text}: {listed}")
        return out

    def to_json(self) -> dict[str, Any]:
        """How many offers, and how many lines became none."""
        return {"offers": len(self.offers), "unknown": self.unknown, "skipped": self.skipped}


def imported_table(
    table: Path,
    output: Path,
    accelerators: Sequence[str],
    status: str | None,
    terms: Mapping[str, Any],
) -> Imported:
    """Read a table and write its offers to ``output``, whole or not at all.

    Args:
        table: the CSV of others.
        output: the CSV of offers.
        accelerators: ``NAME=DEVICE`` each.
        status: of offers that state none; None: quoted.
        terms: the other fields of ``Terms``.

    Raises:
        InputError: as ``import_table``, and for files that cannot be read or written.
    """
    pairs = [text.partition("=") for text in accelerators]
    for name, _, named in pairs:
        if not (name and named):
            message = f"{name or named!r:.80} is not NAME=DEVICE."
            raise InputError(message, field="accelerator", hint="Such as H100=h100-pcie.")
    status = status or "quoted"
    if status not in get_args(OfferStatus):
        message, hint = unknown("status", status, get_args(OfferStatus))
        raise InputError(message, field="status", hint=hint)
    if terms.get("date") is not None:
        try:
            last_day(terms["date"])
        except ValueError as error:
            raise InputError(f"{error}.", field="date", hint="Such as 2026-11-20.") from None
    known = {name: named for name, _, named in pairs}
    stated = Terms(status=cast(OfferStatus, status), accelerators=known, **terms)
    taken = {offer.name for offer in shipped_offers()}
    text = read_text(table, field=FIELD, limit=MOST_BYTES)
    done = import_table(text, table.name, stated, taken)
    write_whole(output, to_table(done.offers).encode())
    return done


def import_table(text: str, name: str, terms: Terms, taken: set[str] | None = None) -> Imported:
    """A SkyPilot catalogue, or a table with our columns or provider, device and price, as offers.

    Args:
        text: the CSV.
        name: what errors and sources call it.
        terms: what the table does not say.
        taken: names that offers must not get.

    Raises:
        InputError: for a table of another kind, a wrong value (names line, column, value and fix),
            and where no line is an offer.
    """
    rows = list(read_rows(text, name, None, (), FIELD, most=MOST_LINES))
    headings = set().union(*(row for _, row in rows[:1000])) if rows else set()
    reader = _own
    if "AcceleratorName" in headings:
        reader = _skypilot
        if terms.provider is None:
            raise InputError(
                "a SkyPilot catalogue does not name its provider.",
                field="provider",
                hint="Set --provider, such as --provider 'Amazon Web Services'.",
            )
    counts = _Counts()
    values = list(reader(rows, name, terms, counts))
    names = set(taken or ())
    found = []
    for each in values:
        where = each.pop("where")
        if "name" not in each or each["name"] in names:
            each["name"] = offer_name(each, names)
        found.append(offer_of(each, where, FIELD))
        names.add(each["name"])
    if not found:
        why = counts.text()
        raise InputError(
            f"{name} has no offer for a known device{f': {why}' if why else ''}.",
            field=FIELD,
            hint=f"Columns: {', '.join(COLUMNS)}; or those of a SkyPilot catalogue.",
        )
    return Imported(tuple(found), dict(counts.unknown), dict(counts.skipped))


@dataclass(slots=True)
class _Counts:
    """Lines that became no offer."""

    unknown: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        """Both in words."""
        every = self.unknown + self.skipped
        return ", ".join(f"{name:.60} ({count})" for name, count in every.most_common(12))


def _number(row: Mapping[str, str], column: str, where: str) -> float:
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


def _skypilot(
    rows: list[tuple[int, dict[str, str]]], name: str, terms: Terms, counts: _Counts
) -> Iterator[dict[str, Any]]:
    """Offers of a catalogue: the cheapest zone of each instance, region and commitment.

    Its prices are of the whole instance.
    """
    cheapest: dict[tuple[str, ...], dict[str, Any]] = {}
    for line, row in rows:
        where = f"{name}, line {line}"
        named = row.get("AcceleratorName", "")
        if not named:
            counts.skipped["without accelerators"] += 1
            continue
        instance = row.get("InstanceType", "")
        if not instance:
            counts.skipped["accelerators without a machine"] += 1
            continue
        devices = _number(row, "AcceleratorCount", where)
        if devices < 1 or devices != int(devices):
            counts.skipped["parts of an accelerator"] += 1
            continue
        found, assumed = accelerator(
            named, f"{instance} {row.get('GpuInfo', '')}", terms.accelerators
        )
        if found is None:
            counts.unknown[f"{named}{assumed}"] += 1
            continue
        prices = {
            "on-demand": _number(row, "Price", where),
            "spot": _number(row, "SpotPrice", where),
        }
        if not any(prices.values()):
            counts.skipped["without a price"] += 1
        for commitment, price in prices.items():
            key = (instance, found, row.get("Region", ""), commitment)
            if not price:
                continue
            usd = terms.usd(price / devices)
            known = cheapest.get(key)
            several = known is not None and known[PRICE] != usd
            if known is None or usd < known[PRICE]:
                cheapest[key] = {
                    "where": where,
                    "provider": terms.provider,
                    "device": found,
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


def _own(
    rows: list[tuple[int, dict[str, str]]], name: str, terms: Terms, counts: _Counts
) -> Iterator[dict[str, Any]]:
    """Offers of a table with our columns; ``price`` is that of a device."""
    for line, row in rows:
        where = f"{name}, line {line}"
        if other := sorted(set(row) - {*COLUMNS, "price"}):
            raise InputError(
                f"{where}: unknown column {other[0]!r:.80}.",
                field=FIELD,
                hint=f"Columns: {', '.join(COLUMNS)} or price.",
            )
        column = "price" if "price" in row else PRICE
        if not (price := _number(row, column, where)):
            counts.skipped["without a price"] += 1
            continue
        named = row.get("device", "")
        found, assumed = accelerator(named, row.get("instance", ""), terms.accelerators)
        if found is None:
            counts.unknown[f"{named or 'no device'}{assumed}"] += 1
            continue
        values: dict[str, Any] = {
            "commitment": "on-demand",
            "date": terms.day,
            "source": name,
            "status": terms.status,
            **({"provider": terms.provider} if terms.provider else {}),
            **row,
            "device": found,
            PRICE: terms.usd(price),
            "note": terms.note(row.get("note", ""), assumed),
            "where": where,
        }
        values.pop("price", None)
        yield values
