"""Machines that fail or are taken back, and the spare replicas that keep enough of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.failures import (
    NodeFailures,
    SpotMarket,
    node_failures,
    repair_hours,
    spot_market,
)
from recipe_core.request.size import AvailabilityRequest
from recipe_core.sizing.availability import Domains, Spares, node_availability, spares, spot

RESTART_S = 600.0
"""From a new machine to replicas that serve; assumed, as long as a restart of a training run."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How replicas on the machines of a cluster stay up.

    ``asked``: None where the request does not ask, so that only what a spot market takes back
    counts, on average.
    """

    place: Cluster
    owned: bool
    asked: AvailabilityRequest | None

    @property
    def market(self) -> SpotMarket | None:
        """How often machines are taken back; None where they are not."""
        if self.place.commitment != "spot" or self.place.offer is None:
            return None
        return spot_market(self.place.device.architecture)

    @property
    def failures(self) -> NodeFailures:
        """How often machines fail, unless the request says it."""
        return node_failures(self.place.device.architecture, self.place.per_node)

    @property
    def mtbf_hours(self) -> float:
        """Mean time between failures of a machine."""
        stated = self.asked.node_mtbf_hours if self.asked else None
        return stated or self.failures.mtbf_hours

    @property
    def repair_hours(self) -> float:
        """Mean time from a failure until the replicas of a machine serve again."""
        if self.asked is not None and self.asked.repair_hours is not None:
            return self.asked.repair_hours
        return repair_hours("own" if self.owned else "rented") + RESTART_S / 3600.0

    def domains(self, replicas: int, devices: int) -> Domains:
        """How replicas lie on what is lost at once: machines, or what of them is rented as spot."""
        per_node = self.place.per_node
        if self.market is not None:
            whole = -(-devices // self.place.unit) * self.place.unit
            per_node = min(per_node, max(whole, self.place.unit))
        return Domains.of(replicas, devices, per_node)

    @property
    def up(self) -> float:
        """The share of time that a machine is up: not failed, and not taken back."""
        down = 0.0
        if self.asked is not None:
            down = 1 / node_availability(self.mtbf_hours, self.repair_hours) - 1
        if self.market is not None:
            down += self.market.reclaims_per_hour * RESTART_S / 3600.0
        return 1 / (1 + down)

    def spares(self, replicas: int, devices: int) -> Spares:
        """Spare replicas beside those that carry the load.

        So many that enough are up for the share of time that is asked for; without one, on average.

        Raises:
            InputError: where no number of them is enough.
        """
        target = self.asked.target if self.asked else None
        return spares(self.domains(replicas, devices), self.up, target)

    def rented(self, replicas: int, devices: int) -> int:
        """Devices that are rented for so many replicas, in whole units."""
        return int(self.place.rented(replicas, devices))

    def spot_json(self, replicas: int, devices: int) -> dict[str, Any] | None:
        """What reclaims cost, where machines are taken back."""
        if (market := self.market) is None:
            return None
        held = spot(
            market.reclaims_per_hour,
            RESTART_S,
            usd_per_hour=self.place.usd_per_device_hour,
            devices=replicas * devices,
            devices_per_instance=self.place.unit,
            instances_per_replica=self.domains(replicas, devices).nodes_per_replica,
            held=market.held,
        )
        return {**held.to_json(), "basis": market.basis}
