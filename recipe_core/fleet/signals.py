"""What a policy sees, and how it answers.

Everything is an array with one number a column. A column is a fleet of its own: a search simulates
hundreds of parameter sets side by side, a request-by-request simulation has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recipe_core.base.arrays import Float


@dataclass(frozen=True, slots=True)
class Signals:
    """Figures of all columns at a moment.

    at_s: seconds since the start of the simulation. hour: of the week, 0 to below 168.
    ready: replicas that answer. starting: ordered and not ready. running: requests in the engines
    of all replicas. waiting: requests that no engine has taken, in engines' queues and at the
    gateway. kv_usage: share of the cache in use, mean of the ready replicas. arrived: requests
    that have arrived since the start. ttft_s, tpot_s: of a request that arrives now; infinite
    where nothing is ready.
    """

    at_s: float
    hour: float
    ready: Float
    starting: Float
    running: Float
    waiting: Float
    kv_usage: Float
    arrived: Float
    ttft_s: Float
    tpot_s: Float


class Controller(Protocol):
    """A policy at work. It is asked every ``interval_s`` seconds and keeps its own memory."""

    interval_s: float

    def decide(self, seen: Signals) -> Float:
        """Replicas that should be there (ready and starting), one number a column, whole."""
        ...
