"""What a policy sees, and how it answers.

Everything is an array with one number a column. A column is a fleet of its own: a search simulates
hundreds of parameter sets side by side, a request-by-request simulation has one.
"""

from __future__ import annotations

from collections.abc import Callable
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
    that have arrived since the start. times_s: seconds to the first token and between tokens of a
    request that arrives now, infinite where nothing is ready; called, as few policies look at them.
    """

    at_s: float
    hour: float
    ready: Float
    starting: Float
    running: Float
    waiting: Float
    kv_usage: Float
    arrived: Float
    times_s: Callable[[], tuple[Float, Float]]


class Controller(Protocol):
    """A policy at work. It is asked every ``interval_s`` seconds and keeps its own memory."""

    interval_s: float

    def decide(self, signals: Signals) -> Float:
        """Replicas that should be there (ready and starting), one number a column, whole."""
        ...
