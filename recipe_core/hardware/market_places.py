"""Market places: providers that rent out machines of others (``offers/market_places.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from recipe_core.base.data_files import DataRow
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import shipped_path
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.profile import Name, read_profile_file


class MarketPlace(DataRow):
    """A provider whose machines are those of hosts or of other clouds.

    ``only``: a word in the name of those of its offers of which that is true; None: of all.
    """

    only: Name | None = None
    source: str


class MarketPlaces(Sourced):
    """The file: market places by the provider that offers name."""

    market_places: dict[str, MarketPlace]


@cache
def market_places() -> Mapping[str, MarketPlace]:
    path = shipped_path("hw_profiles") / "offers" / "market_places.yaml"
    return read_profile_file(path, MarketPlaces).market_places


def is_on_market_place(offer: Offer) -> bool:
    """Return whether an offer is for a machine of somebody else than its provider.

    What was quoted to whoever keeps a table of prices is not.
    """
    place = market_places().get(offer.provider)
    if place is None or offer.status == "quoted":
        return False
    return place.only is None or place.only in offer.name.split("-")
