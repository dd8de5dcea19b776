"""What a compression job takes, as estimates and their JSON have it."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.estimates.prediction import Amount, Count, Known, Part, Seconds


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
    """Making the checkpoint that a split needs, once."""

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
