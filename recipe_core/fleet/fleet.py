"""What is simulated: a replica's service, its cold start, its price, and the limits on requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recipe_core.base.arrays import Float


@dataclass(frozen=True, slots=True)
class Service:
    """How fast one replica serves: continuous batching as a shared processor.

    A step gives each of the ``n`` requests that decode one token and takes ``step_s[n]``; while
    prompts wait, it also computes up to ``chunk_tokens`` of them, which adds ``token_s`` for each.
    Prompts come first come first served; a request enters while fewer than ``slots`` are inside
    and the cache of ``pool_tokens`` has room for it.

    step_s: seconds of a step for 0, 1, … slots requests that decode (index 0: none, the fixed time
    of a step that only computes prompts). token_s: seconds that a prompt token adds to its step.
    request_s: from sending a request to the scheduler. prefix_hit: share of prompt tokens found in
    the cache. ttft_scale, tpot_scale: what own runs taught (1 without).
    """

    slots: int
    step_s: Float
    token_s: float
    chunk_tokens: float
    pool_tokens: float
    request_s: float = 0.0
    prefix_hit: float = 0.0
    ttft_scale: float = 1.0
    tpot_scale: float = 1.0


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

    devices: of one replica. usd_per_hour: of one replica while it is ordered, starting, up or
    draining (None: unknown). kept_s: seconds for which a node is paid after its replica ended.
    limits_s: seconds by figure (``ttft_s``, ``tpot_s``, ``request_latency_s``) that a request must
    keep to count.
    """

    service: Service
    start: StartTime
    devices: int
    usd_per_hour: float | None
    limits_s: Mapping[str, float]
    kept_s: float = 0.0
    events: Events = field(default_factory=Events)
