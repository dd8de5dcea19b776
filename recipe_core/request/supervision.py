"""Supervision: when a start is repeated, how often, and how it is stopped.

The bundle's launcher, systemd and the controllers of clusters are all told the same
(docs/reference/restarts.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel

DAY_S = 86_400
Within = Annotated[int, Field(ge=1, le=7 * DAY_S)]
Brief = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
# Fields that the bundle's launcher reads; the others are for controllers of clusters only.
LAUNCHERS = (
    "crash_budget",
    "window_s",
    "backoff_s",
    "backoff_most_s",
    "stable_s",
    "hang_s",
    "slow_s",
    "drain_s",
    "poll_s",
)


class Supervision(DescribedModel):
    """The restarts of what runs: when, how often, and how it is stopped."""

    crash_budget: Annotated[int, Field(ge=1, le=1000)] = 5
    """Restarts within ``window_s`` after which a server or a run is given up. Controllers that
    know no window (JobSet, SkyPilot) count them over the whole life of a job."""

    window_s: Within = 600
    """Time in which ``crash_budget`` counts, in seconds."""

    backoff_s: Brief = 1.0
    """Wait before the first restart, in seconds; it doubles with each one that follows."""

    backoff_most_s: Brief = 60.0
    """Longest wait before a restart, in seconds."""

    stable_s: Within = 300
    """Time after which a server that runs counts as recovered, in seconds: the wait before a
    restart begins at ``backoff_s`` again."""

    hang_s: Annotated[int, Field(ge=5, le=DAY_S)] = 60
    """Time without an answer, or without progress on the requests that run, after which a server
    counts as hung and is started again, in seconds. Starts are not counted."""

    slow_s: Within = 300
    """Time outside the band of the estimate after which a server counts as slow, in seconds."""

    drain_s: Annotated[int, Field(ge=1, le=DAY_S)] = 30
    """Time that running requests have to finish when a server is stopped, in seconds."""

    poll_s: Brief = 1.0
    """Time from one look of the launcher at its servers to the next, in seconds."""

    min_available: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Replicas that drains of nodes and updates must leave up; left out, all but one, and one of
    one, so that a node with the only replica waits for you. 0 lets a drain take the last one.
    Serving only."""

    requeues: Annotated[int, Field(ge=0, le=1000)] = 3
    """Times that a Slurm job goes back to the queue after a failure; ends of its time limit are not
    counted."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backoff_most_s < self.backoff_s:
            waits = f"backoff_most_s ({self.backoff_most_s:g}) is less than"
            raise ValueError(f"{waits} backoff_s ({self.backoff_s:g}); raise it")
        if self.poll_s > self.hang_s:
            waits = f"poll_s ({self.poll_s:g}) is longer than hang_s ({self.hang_s})"
            raise ValueError(f"{waits}, so no hang would be seen; lower it")
        return self

    def available_of(self, replicas: int) -> int:
        """Of so many replicas, those that must stay up while nodes are drained or updated."""
        if self.min_available is None:
            return max(1, replicas - 1)
        return min(self.min_available, replicas)

    def for_launcher(self) -> dict[str, Any]:
        """The fields that the bundle's launcher reads, for ``launch.json``."""
        return self.model_dump(include=set(LAUNCHERS))
