"""Tracks of groups, and decisions about trouble: no clock, no file, no process in here.

A group is what starts and stops together: one replica, one pool, the router, or a training run.
Its ``Track`` is all that is remembered of it. Probes say what a look at it shows (``health`` of
servers, ``run_probe`` of training runs), ``respond`` what to do about trouble, and ``serves``
whether the groups that are left still serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from .limits import Supervision


class Phase(Enum):
    """The phase of a group."""

    STARTING = "starting"
    SERVING = "serving"  # a run: training
    RESTING = "resting"  # it failed, and is started again later
    DRAINING = "draining"  # it finishes its requests before it is restarted
    PARKED = "parked"  # it failed, and is not started again while others serve


class Kind(Enum):
    """The kind of a trouble, or of the end of a training run."""

    DIED = "died"
    KILLED = "killed"  # by the kernel, for want of memory
    HUNG = "hung"
    SLOW = "slow"
    LATE = "late"
    FINISHED = "finished"
    STOPPED = "stopped"  # as somebody asked, with a checkpoint
    ROLLED_BACK = "rolled_back"  # by the trainer, as the loss broke
    REFUSED = "refused"  # by the trainer: a person has to change something


@dataclass(frozen=True, slots=True)
class Pace:
    """The engine's sum and count of times per token at one moment."""

    at: float
    sum_s: float
    count: float


@dataclass(frozen=True, slots=True)
class Track:
    """The memory of a group; times on one monotonic clock, in seconds.

    ``since``: when the phase began; ``until``: when its rest, start or drain is over. ``failures``:
    times of failures within the window; ``attempt``: restarts since it was last stable. ``proven``:
    it has served since its start; a run has made a step with its choice. ``moved_at``: when it last
    showed progress.

    Of servers, ``missed``, ``stuck`` and ``silent`` count looks in a row that show a hang. Of runs,
    ``first`` is the step at the last start, and ``fruitless`` the failures since there was a newer
    checkpoint than ``saved``.
    """

    phase: Phase
    since: float
    until: float = float("inf")
    failures: tuple[float, ...] = ()
    attempt: int = 0
    proven: bool = False
    moved_at: float = 0.0
    answered_at: float = 0.0
    missed: int = 0
    tokens: float | None = None
    stuck: int = 0
    silent: int = 0
    paces: tuple[Pace, ...] = ()
    slow_before: bool = False
    told_slow: bool = False
    first: int = 0
    step: int = 0
    growth: int = -1
    fruitless: int = 0
    saved: int = -1


@dataclass(frozen=True, slots=True)
class Trouble:
    """The trouble of a group, in words."""

    kind: Kind
    reason: str


class Step(Enum):
    """The step to take about trouble."""

    RESTART = "restart"
    PARK = "park"
    LEAVE = "leave"  # this choice: take the next one, or stop
    KEEP = "keep"  # it serves, if badly
    STOP = "stop"  # no choice would help
    END = "end"  # it is done, or was stopped


def track_start(
    now: float, timeout_s: float, before: Track | None = None, *, step: int = 0
) -> Track:
    """A group that was just started, a run after ``step``; it keeps what counts against it."""
    track = Track(Phase.STARTING, now, now + timeout_s, moved_at=now, first=step, step=step)
    if before is None:
        return track
    return replace(
        track,
        failures=before.failures,
        attempt=before.attempt,
        slow_before=before.slow_before,
        fruitless=before.fruitless,
        saved=before.saved,
    )


def forget_failures(track: Track, now: float, limits: Supervision) -> Track:
    """Failures are forgotten after enough time of service."""
    if not (track.failures or track.attempt) or now - track.since < limits.stable_s:
        return track
    return replace(track, failures=(), attempt=0)


def respond(
    track: Track,
    trouble: Trouble,
    now: float,
    limits: Supervision,
    *,
    lasting: bool = False,
    misfit: bool = False,
    others_serve: bool = False,
    checkpoint: int | None = None,
    jitter: float = 0.5,
) -> tuple[Track, Step]:
    """Return what to do about a group's trouble, and its track from then on.

    ``lasting``: its cause is one that a restart does not cure (a wrong flag, missing weights);
    ``misfit``: the machine cannot hold the choice any more. ``others_serve``: what is left without
    this group still serves, so it is not stopped for a fallback. ``checkpoint``: the step of a
    run's newest. ``jitter``: from 0 to 1, so that groups that failed together do not come back
    together.
    """
    if trouble.kind in (Kind.FINISHED, Kind.STOPPED):
        return track, Step.END
    if trouble.kind is Kind.REFUSED:
        return track, Step.STOP
    if trouble.kind is Kind.ROLLED_BACK:  # the trainer counts these, and refuses at last
        return _rest(track, max(0, track.attempt - 1), now, limits, jitter), Step.RESTART
    if trouble.kind is Kind.SLOW and track.slow_before:
        # A second restart would interrupt for nothing: slow is better than stopped.
        return replace(track, told_slow=True), Step.KEEP if others_serve else Step.LEAVE
    failures = (*(at for at in track.failures if now - at < limits.window_s), now)
    track = replace(track, failures=failures, slow_before=trouble.kind is Kind.SLOW)
    if checkpoint is not None:
        fruitless = track.fruitless + 1 if checkpoint <= track.saved else 1
        track = replace(track, fruitless=fruitless, saved=max(checkpoint, track.saved))
    # What has served once was started with the right flags and weights.
    hopeless = lasting and not track.proven
    if misfit or hopeless or max(len(failures), track.fruitless) > limits.crash_budget:
        if not others_serve:
            return track, Step.LEAVE
        oldest = failures[0] + limits.window_s
        again = float("inf") if misfit or hopeless else oldest
        return replace(track, phase=Phase.PARKED, since=now, until=again), Step.PARK
    rested = _rest(track, track.attempt, now, limits, jitter)
    return replace(rested, attempt=track.attempt + 1), Step.RESTART


def _rest(track: Track, attempt: int, now: float, limits: Supervision, jitter: float) -> Track:
    until = now + backoff_s(attempt, limits, jitter)
    return replace(track, phase=Phase.RESTING, since=now, until=until)


def backoff_s(attempt: int, limits: Supervision, jitter: float) -> float:
    """Seconds of rest before restart number ``attempt`` from 0: doubled each time, to a limit.

    Half of it is fixed and half is chance.
    """
    full = min(limits.backoff_most_s, limits.backoff_s * 2.0 ** min(attempt, 30))
    return full * (0.5 + 0.5 * jitter)


def is_due(track: Track, now: float) -> bool:
    return track.phase in (Phase.RESTING, Phase.PARKED) and now >= track.until


def serves(roles: Iterable[tuple[str, bool]]) -> bool:
    """Return whether requests can be answered, from the role of each group and whether it serves.

    A router is needed where there is one, and one group of every other role.
    """
    serving_of: dict[str, list[bool]] = {}
    for role, well in roles:
        serving_of.setdefault(role, []).append(well)
    return bool(serving_of) and all(any(well) for well in serving_of.values())
