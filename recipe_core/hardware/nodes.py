"""Devices in nodes with what joins them, and what an hour of one costs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import usd
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import PRICE_NOTES, UNKNOWN, Price
from recipe_core.hardware.profile import Commitment, Device, Fabric
from recipe_core.hardware.request import HardwareRequest


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in nodes, what joins them, and what an hour of one costs.

    ``beyond`` joins the fabric's domains inside a node; None where a domain holds the node.
    """

    device: Device
    per_node: int
    nodes: int
    fabric: Fabric
    network: Fabric
    price: Price = UNKNOWN
    beyond: Fabric | None = None
    request: HardwareRequest | None = None

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes

    @property
    def usd_per_device_hour(self) -> float | None:
        """Dollars per hour of a device; None where the price is unknown."""
        return self.price.usd_per_device_hour

    @property
    def price_basis(self) -> str | None:
        """Return where the price is from: name, terms, date, status if not published, and note."""
        return self.price.basis

    @property
    def commitment(self) -> Commitment | None:
        return self.price.commitment

    @property
    def offer(self) -> Offer | None:
        """The offer of the price; None for one of one's own, and where it is unknown."""
        return self.price.offer

    @property
    def unit(self) -> int:
        """Devices that are rented at once: those of a machine, where it is rented whole."""
        return self.offer.devices_per_node if self.offer else 1

    def rented(self, replicas: Float | int, devices: int) -> Float:
        """Devices that are paid for so many replicas of so many devices, packed into nodes.

        Replicas share a node where there is room, and one that spans nodes has them for itself.
        Where machines are rented whole, all of their devices are paid.
        """
        count, unit = np.asarray(replicas, dtype=np.float64), self.unit
        if unit < self.per_node:
            occupied = count * devices
        else:
            sharing, spanned = max(self.per_node // devices, 1), -(-devices // self.per_node)
            occupied = np.ceil(count / sharing) * spanned * self.per_node
        return np.asarray(np.ceil(occupied / unit) * unit) if unit > 1 else count * devices

    @property
    def price_note(self) -> str | None:
        """Say what to know of the price, the same on every day; None for nothing."""
        priced = self.usd_per_device_hour is not None
        of_kind = PRICE_NOTES.get(self.commitment) if self.commitment and priced else None
        return " ".join(filter(None, (of_kind, self.price.remark))) or None

    def price_text(self, today: date | None = None) -> str:
        """The price with its basis, and on a day what to doubt."""
        if self.usd_per_device_hour is None:
            return f"unknown. {self.price.remark}" if self.price.remark else "unknown"
        marks = self.offer.marks(today) if self.offer else ()
        # The basis says already which are unverified or second-hand.
        doubts = self.offer.doubts if self.offer else ()
        old = "".join(f", {mark}" for mark in marks if mark not in doubts)
        basis = f" ({self.price_basis})" if self.price_basis else ""
        return f"{usd(self.usd_per_device_hour)} per device-hour{old}{basis}"

    @property
    def rack_scale(self) -> bool:
        """Return whether the fabric joins devices of several nodes (NVL72).

        Then only its domain bounds a fast group.
        """
        return self.fabric.spans_nodes

    @property
    def machine_devices(self) -> int:
        """Devices of a machine; of a rack whose fabric joins its nodes all that this joins."""
        return (self.fabric.domain or self.per_node) if self.rack_scale else self.per_node


def cluster_beside(hardware: HardwareRequest, first: Cluster) -> HardwareRequest:
    """A cluster that stands beside the first one of a request: priced under the same commitment.

    Unless it states a price, an offer or a commitment of its own.
    """
    if hardware.states_price or first.commitment in (None, "on-demand"):
        return hardware
    term = first.price.term_months
    return hardware.model_copy(update={"commitment": first.commitment, "term_months": term})
