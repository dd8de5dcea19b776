"""A price offer: what somebody asks for a device, since when it is known, and what to doubt."""

from __future__ import annotations

import calendar
import datetime
import os
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from recipe_core.base.data_files import DataRow
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import Positive
from recipe_core.hardware.profile import Commitment, Line, Name

# The environment variable with the day by which prices age, to repeat an answer of that day.
TODAY = "RECIPE_BUILDER_TODAY"
# Days after which the age of a price is said with it, and younger ones are counted with first.
STALE_DAYS = 90
# Days after which a choice that a price decides says so.
AGED_DAYS = 180
# What a note says of a figure that is not the provider's own.
SECOND_HAND = "second-hand"
OfferStatus = Literal["published", "quoted", "unverified"]


def current_day() -> datetime.date:
    """Return the day by which prices age: that of ``RECIPE_BUILDER_TODAY``, else today.

    Raises:
        InputError: for a value that is no day.
    """
    text = os.environ.get(TODAY)
    try:
        return datetime.date.fromisoformat(text) if text else datetime.date.today()
    except ValueError:
        hint = "Give a day such as 2026-11-20, or leave it out."
        raise InputError(f"{text!r:.40} is no day.", field=TODAY, hint=hint) from None


@lru_cache(maxsize=4096)
def last_day(text: str) -> datetime.date:
    """The last day of a date: of ``2026-10-03``, ``2025-06``, ``2025`` or ``2026-09 or before``.

    Raises:
        ValueError: for any other text.
    """
    parts = text.removesuffix(" or before").split("-")
    widths = [len(part) for part in parts]
    if widths not in ([4], [4, 2], [4, 2, 2]) or not all(map(_digits, parts)):
        raise ValueError("a date is 2026-10-03, 2026-10, 2026 or one of these with ' or before'")
    year, *rest = map(int, parts)
    month = rest[0] if rest else 12
    if not 1 <= month <= 12 or year < 2000:
        raise ValueError("there is no such month")
    return datetime.date(year, month, rest[1] if rest[1:] else calendar.monthrange(year, month)[1])


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _check_date(text: str) -> str:
    last_day(text)
    return text


Day = Annotated[str, AfterValidator(_check_date)]


class Offer(DataRow):
    """A price at which somebody rents a device out.

    ``on-demand``: by the hour, as long as it is wanted; ``spot``: until the provider wants it back;
    ``reserved``: paid for ``term_months``, used or not (None: the provider does not publish the
    term).

    What is rented is a machine of ``devices_per_node``; where a provider rents machines of several
    sizes at one price per device, that is the smallest and ``most_per_node`` the largest.

    ``status``: ``published`` in a price list or table that ``source`` names; ``quoted`` to whoever
    keeps the table; ``unverified``: without a document, replaced by a later list, or of a part of
    the machine only.
    """

    provider: Line
    name: Name
    device: Name
    usd_per_device_hour: Positive
    commitment: Commitment
    term_months: Annotated[int, Field(ge=1, le=120)] | None = None
    devices_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    most_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    instance: Line | None = None
    region: Line | None = None
    date: Day
    source: Line
    status: OfferStatus = "published"
    note: Line | None = None

    @property
    def terms(self) -> str:
        return offer_terms(self.commitment, self.term_months)

    @property
    def largest(self) -> int:
        return self.most_per_node or self.devices_per_node

    @property
    def usd_per_machine_hour(self) -> float:
        return self.usd_per_device_hour * self.devices_per_node

    @property
    def basis(self) -> str:
        """Name, terms, date, status if it is not published, and note; the same on every day."""
        status = None if self.status == "published" else self.status
        remarks = "; ".join(filter(None, (status, self.note)))
        text = f"{self.name}, {self.terms}, {self.date}"
        return f"{text}: {remarks}" if remarks else text

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since the last day of its date."""
        return max(((today or current_day()) - last_day(self.date)).days, 0)

    def is_stale(self, today: datetime.date | None = None) -> bool:
        """Return whether it is older than ``STALE_DAYS``."""
        return self.age_days(today) > STALE_DAYS

    def is_trusted(self, *, older: bool = False) -> bool:
        """Return whether a price is verified and, unless ``older`` ones do, 90 days old at most."""
        return self.status != "unverified" and (older or not self.is_stale())

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return what to doubt on every day, in short words: ``unverified``, ``second-hand``."""
        unverified = ("unverified",) if self.status == "unverified" else ()
        return unverified + ((SECOND_HAND,) if SECOND_HAND in (self.note or "") else ())

    def marks(self, today: datetime.date | None = None) -> tuple[str, ...]:
        """Return doubts in short words: ``unverified``, ``second-hand``, ``142 days old``."""
        old = (f"{self.age_days(today)} days old",) if self.is_stale(today) else ()
        return self.doubts + old

    def warning(self, today: datetime.date | None = None) -> str | None:
        """Say what to doubt of a choice that this price decides; None where there is little."""
        aged = (f"{self.age_days(today)} days old",) if self.age_days(today) > AGED_DAYS else ()
        doubts = " and ".join(aged + self.doubts)
        return f"The price that decides, {self.name}, is {doubts}." if doubts else None

    @model_validator(mode="after")
    def _makes_sense(self) -> Offer:
        if self.term_months is not None and self.commitment != "reserved":
            raise ValueError("only a reserved offer has a term")
        if self.most_per_node is not None and self.most_per_node < self.devices_per_node:
            raise ValueError("most_per_node is less than devices_per_node")
        return self


def offer_terms(commitment: Commitment, term_months: int | None = None) -> str:
    """``on-demand``, ``spot``, ``reserved for 12 months``."""
    return f"{commitment} for {term_months} months" if term_months else commitment
