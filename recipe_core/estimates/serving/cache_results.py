"""What an estimate says of prompts that are found in a cache, and of tiers below the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.estimates.prediction import Amount, Part, Share

Verdict = Literal["helps", "hurts", "mixed", "neutral"]
Change = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class PrefixCache(Part):
    """Share of the prompts that a split finds, by the reuse that the workload states."""

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
