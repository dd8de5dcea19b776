"""What a keeper keeps: the plan that runs, its recorded state, what is remembered of its groups.

What runs is changed only while the bundle's lock is held, and ``state.json`` is written before
anything is started, so that a keeper can be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import decide, events, state, supervisor
from .choices import Choice
from .decide import Phase, Track
from .diagnosis import LOG_BYTES, last_failure, without_questions
from .errors import LauncherError
from .files import tail
from .health import Look, Observer, Prober, target
from .plan import LaunchPlan
from .sections import Supervision
from .state import State
from .supervisor import Progress
from .world import HERE, World

# Looks in a row without requests after which a group counts as drained.
IDLE_LOOKS = 2
# How often a server that serves is asked within the time that counts as a hang.
_QUESTIONS = 15
_LOG_LINES = 60
_METRICS = ("/metrics", "/prometheus/metrics")


class Gone(Exception):  # noqa: N818 - it is how a keeper ends, not an error
    """Another launcher has stopped or replaced what was kept, or its bundle has gone elsewhere."""


class Kept:
    """The groups of ``plan`` as ``current`` records them; both change with what is done.

    ``refusing``: why no requests are welcome, if so; ``causes``: restarts by their cause.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        current: State,
        limits: Supervision,
        progress: Progress,
        *,
        world: World = HERE,
    ) -> None:
        self.world, self.clock = world, world.clock
        self.plan, self.current, self.limits, self.progress = plan, current, limits, progress
        self.observer, self.look = Observer(world), Look()
        self.prober = Prober(progress.say, world=world)
        self.tracks: dict[int, Track] = {}
        self.causes: dict[str, int] = {}
        self.refusing = ""
        self._asked_at = 0.0
        self.target = target(plan, plan.folder / "expected.json")
        now = self.clock.monotonic()
        for group in groups_of(plan):
            track = decide.track_serving_group(now)
            if not current.ready:
                track = decide.starting(now, plan.startup_timeout_s)
            self.tracks[group] = track

    @property
    def own(self) -> Path:
        return self.plan.own

    def all_tracks(self) -> list[Track]:
        return list(self.tracks.values())

    def active(self) -> list[int]:
        """Groups that run, or are to."""
        resting = (Phase.RESTING, Phase.PARKED)
        return [group for group, track in self.tracks.items() if track.phase not in resting]

    def name(self, group: int) -> str:
        """What people call a group: its first process."""
        names = [process.name for process in self.plan.processes if process.group == group]
        return names[0] if names else f"group {group}"

    def event(self, kind: str, group: int, **fields: object) -> None:
        events.append(self.own, kind, group=group, name=self.name(group), **fields)

    def _roles(self, without: int | None = None) -> list[tuple[str, bool]]:
        roles = {p.group: p.role for p in reversed(self.plan.processes) if p.role != "worker"}
        serving = (Phase.SERVING, Phase.DRAINING)
        return [
            (roles.get(group, "server"), group != without and track.phase in serving)
            for group, track in self.tracks.items()
        ]

    def serves(self, *, without: int | None = None) -> bool:
        """Whether requests can be answered, also without a group."""
        return decide.serves(self._roles(without))

    def summary(self) -> str:
        """How much serves, in a line."""
        well = sum(track.phase is Phase.SERVING for track in self.all_tracks())
        text = f"{well} of {len(self.tracks)} groups serve, choice {self.plan.choice}"
        return f"{self.refusing}; {text}" if self.refusing else text

    def check_ours(self) -> None:
        with suppress(LauncherError):  # damaged: it is written again with the next change
            saved = state.load_state(self.own)
            if saved is None or saved.mark != self.current.mark:
                raise Gone("another launcher stopped the servers")

    @contextmanager
    def acting(self) -> Iterator[None]:
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

    def log_of(self, path: Path) -> str:
        """The end of a log, without the lines that the keeper's own questions left in it."""
        lines = tail(path, LOG_BYTES, limit=LOG_BYTES).splitlines()
        log_lines = without_questions(lines, (self.plan.health, *_METRICS))
        return "\n".join(last_failure(log_lines, _LOG_LINES))

    def is_idle(self, group: int) -> bool:
        """Whether no request runs: by the engine's figures, else by open connections."""
        members = [p for p in self.plan.processes if p.group == group and p.answers]
        by_name = {server.name: server for server in self.current.servers}
        processes = self.world.processes
        alive = [
            p for p in members if p.name in by_name and processes.alive(*by_name[p.name].identity)
        ]
        for process in alive:
            figures = self.look.figures.get(process.name)
            if figures is not None and figures.running is not None:
                if figures.running or figures.waiting:
                    return False
            elif process.name in self.observer.published or self.world.connections([process.port]):
                return False
        return True

    def looked(self, *, asks: bool) -> None:
        """Look at every group; servers that serve are not asked each time, unless it ``asks``.

        That a process has ended shows at once, and engines log every question.
        """
        now = self.clock.monotonic()
        serving = all(track.phase in (Phase.SERVING, Phase.PARKED) for track in self.all_tracks())
        asks = asks or not serving or now - self._asked_at >= self._pause_s
        if asks:
            self._asked_at = now
        before = self.look
        servers = self.current.servers
        self.look = self.observer.look(self.plan, servers, self.active(), asks=asks)
        if not asks:
            self.look.healthy, self.look.figures = before.healthy, before.figures
            return
        for group, track in self.tracks.items():
            if track.phase is Phase.SERVING and group in self.look.observations:
                late_s = self._unanswered_s(group)
                self.look.observations[group] = replace(
                    self.look.observations[group], unanswered_s=late_s
                )

    @property
    def _pause_s(self) -> float:
        """Seconds between two looks that ask servers which serve."""
        return max(self.limits.poll_s, self.limits.hang_s / _QUESTIONS)

    def _unanswered_s(self, group: int) -> float:
        """For how long one of a group's servers has not answered a request for one token."""
        by_name = {server.name: server for server in self.current.servers}
        members = [p for p in self.plan.processes if p.group == group and p.answers]
        waits = (
            self.prober.unanswered_s(
                self.plan,
                process,
                by_name[process.name].identity,
                self.look.figures.get(process.name),
                hang_s=self.limits.hang_s,
                pause_s=self._pause_s,
            )
            for process in members
            if self.look.healthy.get(process.name)
        )
        return max(waits, default=0.0)

    def start(self, group: int, before: Track | None) -> None:
        """Start a group; the caller holds the lock. ``before``: its track, of a restart.

        Raises:
            StartError: where a program of it cannot be started.
        """
        now = self.clock.monotonic()
        restarts = self.current.restarts + (before is not None)
        self.tracks[group] = decide.starting(now, self.plan.startup_timeout_s, before)
        try:
            parked = tuple(
                parked_group for parked_group in self.current.parked if parked_group != group
            )
            began = replace(self.current, restarts=restarts, parked=parked)
            self.current = supervisor.start_group(self.plan, began, group, world=self.world)
        except LauncherError:
            with suppress(LauncherError):
                self.current = state.load_state(self.own) or self.current
            raise
        self.event("start", group, choice=self.plan.choice)

    def begin(self, choice: Choice) -> None:
        """Keep another choice from now on, of which nothing runs yet."""
        self.plan, self.look = choice.plan, Look()
        self.target = target(self.plan, choice.expected)
        now = self.clock.monotonic()
        self.tracks = {
            group: decide.starting(now, self.plan.startup_timeout_s)
            for group in groups_of(self.plan)
        }
        began = replace(
            self.current,
            choice=choice.name,
            servers=(),
            ready=False,
            parked=(),
            logs=supervisor.logs_of(self.plan),
        )
        self.save(began)


def groups_of(plan: LaunchPlan) -> list[int]:
    """The groups of a plan, in the order that they start in."""
    return list(dict.fromkeys(process.group for process in plan.processes))


def rolled_groups(plan: LaunchPlan, names: Sequence[str]) -> list[int]:
    """The groups of named processes; without names every group but the routers."""
    members = [p for p in plan.processes if (p.name in names if names else p.role != "router")]
    return list(dict.fromkeys(process.group for process in members))
