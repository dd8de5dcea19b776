"""Results on prompts found in a cache, and on tiers below the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.estimates.prediction import Amount, Count, Known, Part, Seconds, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplicas(Part):
    """The replicas that the policy came to when ``recipe simulate`` looked at its load."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(Part):
    """Seconds, and the ends of the band that holds 80 % of published ones."""

    value: Amount
    """Seconds that are expected."""
    low: Amount
    """Lower end of the band."""
    high: Amount
    """Upper end of the band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionEstimate(Part):
    """Making the checkpoint that a layout needs, once."""

    tool: str
    """Program that makes it."""
    technique: str
    """What is made, by its name in published tables."""
    method: str
    """Algorithm."""
    seconds: Duration
    """Time on one device, without downloads."""
    device_bytes: Count
    """Peak memory of a device in bytes; 0 where the host's processor does it."""
    host_bytes: Count
    """Peak memory of the host in bytes."""
    disk_bytes: Count
    """Disk that is filled on the way, beside the base, in bytes."""
    output_bytes: Count
    """Size of the result in bytes."""
    phases_s: Seconds
    """Seconds by what they are spent on."""
    usd: Known = None
    """What the devices cost in that time; null where no price is known."""


Verdict = Literal["helps", "hurts", "mixed", "neutral"]
Change = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class PrefixCache(Part):
    """Share of the prompts that a layout finds, by the reuse that the workload states."""

    hit: Share
    """Share of prompt tokens that are found, in the devices' cache and in all tiers below."""
    device_hit: Share
    """Share of prompt tokens that the devices' cache finds."""
    free_tokens: Amount
    """Tokens of a replica's cache that running requests leave for reuse."""
    seen_tokens: Amount
    """Size of the cache that counts, in tokens: of all replicas where requests are routed by
    prefix, else of one."""


@dataclass(frozen=True, slots=True)
class KvTier(Part):
    """One tier below the devices' cache: what it adds, what it costs, whether it is worth it."""

    name: Literal["host", "disk", "remote"]
    """Which tier: memory of the host, drives of the node, a store over the network."""
    capacity_tokens: Amount
    """Tokens of cache that it holds: of a server, or of a store for all servers."""
    hit: Share
    """Share of prompt tokens found in it and in what is above it."""
    hit_added: Share
    """Share of prompt tokens that it finds and nothing above it does."""
    load_s_per_token: Amount
    """Time to bring a token back to the devices, in seconds, without latency."""
    recompute_s_per_token: Amount
    """Time to compute it instead, in seconds."""
    load_s: Amount
    """Time to bring back what a mean request finds in it, in seconds, latency included."""
    ttft_change_s: Change
    """Change of the time to first token by this tier, in seconds; negative is faster."""
    tpot_change_s: Change
    """Change of the time per output token by this tier, in seconds."""
    throughput_change: Change
    """Change of the output tokens per second by this tier, as a share: 0.1 is a tenth more."""
    step_slowdown: Amount
    """Share of the devices' time that moving blocks takes, with this tier and those above it."""
    read_bytes_per_s: Amount
    """Bytes per second that all servers read from it."""
    write_bytes_per_s: Amount
    """Bytes per second that all servers write to it."""
    busy: Amount
    """Share of the time that its link or drives are busy with reads: 1 is saturated."""
    verdict: Verdict
    """Whether it ``helps`` or ``hurts`` (a time or the throughput by more than a fiftieth), does
    both (``mixed``), or neither (``neutral``)."""
    because: str
    """Why, in a sentence with its numbers."""
    storage: str | None = None
    """Name of its storage tier."""
