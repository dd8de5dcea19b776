"""The groups of a bundle that runs: plan, state and tracks, which a keeper changes under a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import events, state, tracks
from .errors import LauncherError
from .plan import LaunchPlan
from .state import State
from .tracks import Phase, Track


class Gone(Exception):  # noqa: N818 - it is how a keeper ends, not an error
    """There is nothing to keep any more, or somebody else keeps it."""


class Groups:
    """The groups that ``current`` records of ``plan``, each with its track.

    ``refusing``: why no requests are welcome, if so.
    """

    def __init__(self, plan: LaunchPlan, current: State) -> None:
        self.plan, self.current = plan, current
        self.trains = plan.kind == "training"
        self.tracks: dict[int, Track] = {}
        self.refusing = ""

    @property
    def own(self) -> Path:
        return self.plan.own

    def active(self) -> list[int]:
        """Groups that run, or are to."""
        resting = (Phase.RESTING, Phase.PARKED)
        return [group for group, track in self.tracks.items() if track.phase not in resting]

    def name(self, group: int) -> str:
        """Say what people call a group: its first process."""
        names = [process.name for process in self.plan.processes if process.group == group]
        return names[0] if names else f"group {group}"

    def event(self, kind: str, group: int, **fields: object) -> None:
        events.append(self.own, kind, group=group, name=self.name(group), **fields)

    def serves(self, *, without: int | None = None) -> bool:
        """Return whether requests can be answered, also without a group."""
        roles = {p.group: p.role for p in reversed(self.plan.processes) if p.role != "worker"}
        serving = (Phase.SERVING, Phase.DRAINING)
        return tracks.serves(
            (roles.get(group, "server"), group != without and track.phase in serving)
            for group, track in self.tracks.items()
        )

    def summary(self) -> str:
        """Say how much serves, in a line."""
        if self.trains:
            return f"keeps a training run, choice {self.plan.choice}"
        well = sum(track.phase is Phase.SERVING for track in self.tracks.values())
        text = f"{well} of {len(self.tracks)} groups serve, choice {self.plan.choice}"
        return f"{self.refusing}; {text}" if self.refusing else text

    def check_ours(self) -> None:
        """Raise where another launcher has stopped or replaced what is kept."""
        with suppress(LauncherError):  # damaged: it is written again with the next change
            saved = state.load_state(self.own)
            if saved is None or saved.mark != self.current.mark:
                raise Gone("another launcher stopped the servers")

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Be the only one who starts or stops anything."""
        with state.exclusive(self.own):
            self.check_ours()
            yield

    def save(self, current: State) -> None:
        """Write the state; it counts once it is written."""
        state.save_state(self.own, current)
        self.current = current

    def without(self, group: int, **changes: Any) -> State:
        names = {process.name for process in self.plan.processes if process.group == group}
        servers = tuple(s for s in self.current.servers if s.name not in names)
        return replace(self.current, servers=servers, ready=False, **changes)


def groups_of(plan: LaunchPlan) -> list[int]:
    """The groups of a plan, in the order that they start in."""
    return list(dict.fromkeys(process.group for process in plan.processes))
