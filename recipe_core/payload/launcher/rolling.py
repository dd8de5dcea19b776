"""A rolling restart: one group after the other is drained, restarted and awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import balancer, supervisor
from .decide import Phase, Track
from .kept import IDLE_LOOKS, Kept, rolled_groups

# How long a router without an interface gets to find that a replica is back.
_BLIND_ROUTER_S = 10.0


class Rolling:
    """The ``groups`` that are still to be restarted on request, the current one first.

    ``start``: starts a group, or answers that it cannot be started.
    """

    def __init__(self, deployment: Kept, start: Callable[[int, Track], None]) -> None:
        self.kept, self._start = deployment, start
        self.groups: list[int] = []
        self.withdrawn: dict[int, tuple[balancer.Withdrawn, ...]] = {}
        self.idle, self.settled_at = 0, 0.0
        self._blind = False

    def forget(self) -> None:
        """Another choice begins: nothing is left to restart."""
        self.groups.clear()
        self.withdrawn.clear()

    def ask(self, names: object) -> None:
        """Queue groups for a rolling restart: those of named processes, or every replica."""
        listed = names if isinstance(names, list) else []
        self.groups = rolled_groups(self.kept.plan, [str(name) for name in listed])
        self.idle = 0

    def step(self) -> None:
        """One step of a rolling restart: one group is drained, restarted and awaited at a time."""
        if not self.groups or self.kept.clock.monotonic() < self.settled_at:
            return
        group, now = self.groups[0], self.kept.clock.monotonic()
        track = self.kept.tracks[group]
        if track.phase is Phase.PARKED and self.idle >= 0:  # whoever asks has seen to its cause
            self._again(group, track)
        elif track.phase in (Phase.RESTING, Phase.PARKED):
            self.kept.event("restart", group, cause="requested", finished=False)
            name = self.kept.name(group)
            self.kept.progress.say(f"{name} did not come back: the rest runs on as it is")
            self.groups.clear()
        elif track.phase is Phase.DRAINING:
            self._drained(group, track, now)
        elif self.idle < 0:  # it was restarted
            if track.phase is Phase.SERVING and group not in self.withdrawn:
                self.groups.pop(0)
                self.idle = 0
                self.settled_at = now + (_BLIND_ROUTER_S if self._blind and self.groups else 0.0)
        elif all(group_track.phase is Phase.SERVING for group_track in self.kept.all_tracks()):
            routed = any(process.role == "router" for process in self.kept.plan.processes)
            withdrawn = balancer.withdraw(self.kept.plan, group, world=self.kept.world)
            self._blind = routed and not withdrawn
            if withdrawn:
                self.withdrawn[group] = withdrawn
            self.kept.event("drain", group, limit_s=self.kept.limits.drain_s)
            self.kept.tracks[group] = replace(
                track, phase=Phase.DRAINING, since=now, until=now + self.kept.limits.drain_s
            )

    def _drained(self, group: int, track: Track, now: float) -> None:
        self.idle = self.idle + 1 if self.kept.is_idle(group) else 0
        if self.idle < IDLE_LOOKS and now < track.until:
            return
        with self.kept.acting():
            self.kept.event("drained", group, finished=self.idle >= IDLE_LOOKS)
        self._again(group, track)

    def _again(self, group: int, track: Track) -> None:
        """Start a group anew, as if it had never failed."""
        with self.kept.acting():
            self.kept.event("restart", group, cause="requested")
            self.kept.causes["requested"] = self.kept.causes.get("requested", 0) + 1
            self.kept.progress.say(f"{self.kept.name(group)} is restarted on request")
            supervisor.stop_group(self.kept.plan, self.kept.current, group, world=self.kept.world)
            self.idle = -1
            self._start(group, replace(track, failures=(), attempt=0))

    def admit(self, group: int) -> None:
        """Put a group that serves again back behind the router."""
        workers = self.withdrawn.get(group)
        if workers and balancer.admit(self.kept.plan, workers, world=self.kept.world):
            del self.withdrawn[group]
