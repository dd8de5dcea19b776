"""What is simulated: a replica's service, its cold start, its price, and the limits on requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from recipe_core.base.arrays import Float

NO_TABLE = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Service:
    """How fast one replica serves: continuous batching as a shared processor.

    A step gives each of the ``n`` requests that decode ``tokens_per_step`` tokens and takes
    ``step_s[n]``; while prompts wait, it also computes up to ``chunk_tokens`` of them (those that
    decode take theirs first), which adds ``token_s`` for each. Prompts come first come first
    served; a request enters between two steps while fewer than ``slots`` are inside and the cache
    of ``pool_tokens`` has room for it.

    step_s: seconds of a step for 0, 1, … slots requests that decode (index 0: none, the fixed time
    of a step that only computes prompts). token_s: seconds that a prompt token adds to its step.
    request_s: from sending a request to the scheduler, and ``request_token_s`` for each token of
    its prompt. prefix_hit: share of prompt tokens found in the cache.

    prompt_tokens, prompt_s: seconds that so many prompt tokens add to a step (one row for each n,
    one column for each of ``prompt_tokens``, which begin with 0), in place of ``token_s``; empty
    without. tokens_per_step: more than 1 where drafts are accepted. held_share: of its answer, for
    which a request holds cache, on average over its stay. chunked: prompts may be split. mixes:
    prompts and decoding share steps. stages, ranks: of a pipeline, and of data-parallel attention
    with shared experts, which share the prompts of a step. late_steps: steps until a token is with
    its client; held_tokens: those that the first waits for before it is sent.
    """

    slots: int
    step_s: Float
    token_s: float
    chunk_tokens: float
    pool_tokens: float
    request_s: float = 0.0
    prefix_hit: float = 0.0
    request_token_s: float = 0.0
    prompt_tokens: Float = field(default_factory=lambda: NO_TABLE)
    prompt_s: Float = field(default_factory=lambda: NO_TABLE)
    tokens_per_step: float = 1.0
    held_share: float = 0.5
    chunked: bool = True
    mixes: bool = True
    stages: int = 1
    ranks: int = 1
    late_steps: float = 0.0
    held_tokens: float = 0.0
    block_tokens: float = 0.0

    def computed(self, input_tokens: Float) -> Float:
        """Tokens of prompts that are not found in the cache; at least one of each."""
        return np.maximum(np.floor(input_tokens * (1 - self.prefix_hit) + 0.5), 1.0)

    def cache_tokens(self, input_tokens: Float, output_tokens: Float) -> Float:
        return input_tokens + self.held_share * output_tokens + self.block_tokens / 2


@dataclass(frozen=True, slots=True)
class StartTime:
    """Seconds from ordering a replica until it answers: the middle, and an 80 % band.

    Starts of a simulation are drawn from a lognormal distribution with this band.
    """

    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Events:
    """What happens to replicas besides scaling, as rates of one replica that is up.

    failures_per_hour: of its nodes; it is away for ``repair_s`` unless a new one is ordered, which
    every policy does, as its count falls. reclaims_per_hour: of spot capacity, after
    ``notice_s``. available: share of orders that capacity exists for.
    """

    failures_per_hour: float = 0.0
    repair_s: float = 0.0
    reclaims_per_hour: float = 0.0
    notice_s: float = 0.0
    available: float = 1.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that a simulation needs besides the load and the policy.

    devices: of one replica. usd_per_hour: of the devices of one replica while it is ordered,
    starting, up or draining (None: unknown). kept_s: seconds for which a node is paid after its
    replica ended. limits_s: seconds by figure (``ttft_s``, ``tpot_s``, ``request_latency_s``) that
    a request must keep to count. rent: devices that are paid for a number of replicas of so many
    devices (``Cluster.rented``); left out, their own.
    """

    service: Service
    start: StartTime
    devices: int
    usd_per_hour: float | None
    limits_s: Mapping[str, float]
    kept_s: float = 0.0
    events: Events = field(default_factory=Events)
    rent: Callable[[Float, int], Float] | None = None

    @property
    def usd_per_device_hour(self) -> float | None:
        """Price of a device; None where it is unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.devices

    def rented(self, replicas: Float) -> Float:
        """Devices that are paid for so many replicas at once."""
        if self.rent is None:
            return np.asarray(replicas * self.devices)
        return self.rent(replicas, self.devices)
