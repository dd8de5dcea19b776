"""What a policy of scaling rents, as estimates of recipes and their JSON have it."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.estimates.prediction import Amount, Count, Known, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplicas(Part):
    """What the policy came to when ``recipe simulate`` looked at its load."""

    of: str
    """Digest of what was simulated."""
    current: bool
    """Whether it was this request; false where it was changed since."""
    min_replicas: Amount
    """Fewest replicas, starting ones included."""
    mean_replicas: Amount
    """Replicas on average."""
    max_replicas: Amount
    """Most replicas."""
    device_hours_per_month: Amount
    """Hours of devices that are paid in a month of 365.25 / 12 days."""
    attainment: Amount
    """Share of requests that kept every limit on time."""
    usd_per_month: Known
    """These hours at the price of the estimate, in US dollars; null where no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedReplicas(Part):
    """Replicas, devices and money at the bounds of a policy, and as it was simulated.

    The estimate beside it is that of one replica.
    """

    policy: str
    """The policy."""
    min_replicas: Count
    """Fewest replicas."""
    max_replicas: Count
    """Most replicas."""
    devices_per_replica: Count
    """Devices of one replica."""
    devices_rented_at_least: Count
    """Devices that are paid for with the fewest replicas, of whole machines where these are
    rented."""
    devices_rented_at_most: Count
    """The same with the most replicas."""
    usd_per_month_at_least: Known
    """A month of 365.25 / 12 days with the fewest replicas, in US dollars; null without a price."""
    usd_per_month_at_most: Known
    """A month with the most replicas, in US dollars; null without a price."""
    simulated: SimulatedReplicas | None = None
    """As the policy was simulated over its load; null where it was not."""
