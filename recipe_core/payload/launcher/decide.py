"""What to do about what a group of processes shows: no clock, no file, no process in here.

A group is what starts and stops together: one replica, one pool, or the router. Its ``Track`` is
all that is remembered of it. ``judge_group`` says whether a look at it shows trouble,
``respond_for_group`` what to do about trouble, and ``service`` whether the groups that are left
still serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from .sections import Supervision

# Looks in a row that must show a hang: one late answer on a busy machine is none, and neither is
# the first look after the machine slept.
MISSES = 3
# A prompt may take this many times the recipe's time to first token before it counts as stuck.
_ROUNDS = 3.0
# Measured times per token below which a window says nothing.
_ENOUGH = 3.0


class Phase(Enum):
    """What a group is doing."""

    STARTING = "starting"
    SERVING = "serving"
    RESTING = "resting"  # it failed, and is started again later
    DRAINING = "draining"  # it finishes its requests before it is restarted
    PARKED = "parked"  # it failed, and is not started again while others serve


class Kind(Enum):
    """What is wrong."""

    DIED = "died"
    KILLED = "killed"  # by the kernel, for want of memory
    HUNG = "hung"
    SLOW = "slow"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a group.

    ``ended``: names of processes that do not run, ``codes`` their exit codes where known (below 0
    the signal). ``out_of_memory``: the kernel killed for want of memory since the last look.
    ``answers``: every process with an address answered its health path; None where none was asked
    this time. Figures are None where the
    engine publishes none. ``unanswered_s``: for how long an idle server has not answered a request
    for one token, 0 while that may take so long.
    """

    ended: tuple[str, ...] = ()
    codes: tuple[int | None, ...] = ()
    out_of_memory: bool = False
    answers: bool | None = True
    tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
    unanswered_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What the recipe expects of one group; None where it does not say.

    ``tpot_most_s``: the upper end of the band of times per token, at up to ``load_most`` requests
    at once. ``tpot_s`` and ``first_token_s``: time per token and to the first, as planned.
    """

    tpot_most_s: float | None = None
    load_most: float | None = None
    first_token_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The engine's sum and count of times per token at one moment."""

    at: float
    sum_s: float
    count: float


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of a group; times on one monotonic clock.

    ``since``: when the phase began; ``until``: when its rest, start or drain is over. ``failures``:
    times of failures within the window; ``attempt``: restarts since it was last stable.
    """

    phase: Phase
    since: float
    until: float = float("inf")
    failures: tuple[float, ...] = ()
    attempt: int = 0
    answered_at: float = 0.0
    missed: int = 0
    tokens: float | None = None
    moved_at: float = 0.0
    stuck: int = 0
    silent: int = 0
    paces: tuple[Pace, ...] = ()
    slow_before: bool = False
    told_slow: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a group, in words."""

    kind: Kind
    reason: str


class Step(Enum):
    """What to do about trouble."""

    RESTART = "restart"
    PARK = "park"
    LEAVE = "leave"  # this choice: take the next one, or stop
    KEEP = "keep"  # it serves, if badly


def starting(now: float, timeout_s: float, before: Track | None = None) -> Track:
    """A group that was just started; it keeps what counts against it."""
    track = Track(Phase.STARTING, now, now + timeout_s)
    if before is None:
        return track
    return replace(
        track,
        failures=before.failures,
        attempt=before.attempt,
        slow_before=before.slow_before,
    )


def track_serving_group(now: float, before: Track | None = None) -> Track:
    """A group that answers from now on."""
    track = before or Track(Phase.SERVING, now)
    return replace(
        track,
        phase=Phase.SERVING,
        since=now,
        until=float("inf"),
        answered_at=now,
        moved_at=now,
        missed=0,
        stuck=0,
        silent=0,
        tokens=None,
        paces=(),
        told_slow=False,
    )


def judge_group(
    track: Track, observation: Seen, now: float, limits: Supervision, target: Target
) -> tuple[Track, Trouble | None]:
    """The track after a look, and the trouble that the look shows."""
    if track.phase in (Phase.RESTING, Phase.PARKED):
        return track, None
    if observation.ended:
        return track, _death(observation)
    if observation.answers is None:
        return track, None
    if track.phase is Phase.STARTING:
        if observation.answers:
            return track_serving_group(now, track), None
        if now >= track.until:
            return track, Trouble(Kind.LATE, f"not ready after {now - track.since:.0f} s")
        return track, None
    track = _with_answer(_stable(track, now, limits), observation, now)
    if track.phase is Phase.DRAINING:
        return track, None
    if track.missed >= MISSES and now - track.answered_at >= limits.hang_s:
        return track, Trouble(Kind.HUNG, f"no answer for {now - track.answered_at:.0f} s")
    patience = max(limits.hang_s, _ROUNDS * (target.first_token_s or 0.0))
    if track.stuck >= MISSES and now - track.moved_at >= patience:
        requests = (observation.running or 0.0) + (observation.waiting or 0.0)
        count = f"{requests:.0f} requests" if requests != 1 else "1 request"
        return track, Trouble(Kind.HUNG, f"{count}, no new token for {now - track.moved_at:.0f} s")
    if track.silent >= MISSES - 1:
        return track, Trouble(Kind.HUNG, f"idle, and no token for {observation.unanswered_s:.0f} s")
    return _with_pace(track, observation, now, limits, target)


def _death(observation: Seen) -> Trouble:
    ends = ", ".join(
        f"{name} {_how(code)}"
        for name, code in zip(observation.ended, observation.codes, strict=True)
    )
    if observation.out_of_memory:
        return Trouble(Kind.KILLED, f"{ends}; the kernel killed for want of memory")
    return Trouble(Kind.DIED, ends)


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _stable(track: Track, now: float, limits: Supervision) -> Track:
    """Failures are forgotten after enough time of service."""
    if not (track.failures or track.attempt) or now - track.since < limits.stable_s:
        return track
    return replace(track, failures=(), attempt=0)


def _with_answer(track: Track, observation: Seen, now: float) -> Track:
    """What health and the engine's count of tokens say."""
    if observation.answers:
        track = replace(track, answered_at=now, missed=0)
    else:
        track = replace(track, missed=track.missed + 1)
    track = replace(track, silent=track.silent + 1 if observation.unanswered_s else 0)
    if observation.running is None or observation.tokens is None:  # not known now
        return replace(track, moved_at=now, stuck=0) if observation.answers else track
    if not (observation.running or observation.waiting) or observation.tokens != track.tokens:
        return replace(track, tokens=observation.tokens, moved_at=now, stuck=0)
    return replace(track, stuck=track.stuck + 1)


def _with_pace(
    track: Track, observation: Seen, now: float, limits: Supervision, target: Target
) -> tuple[Track, Trouble | None]:
    """The mean time per token over the last ``slow_s``, at loads that were planned for."""
    if (
        target.tpot_most_s is None
        or observation.tpot_sum_s is None
        or observation.tpot_count is None
    ):
        return track, None
    load = (observation.running or 0.0) + (observation.waiting or 0.0)
    overloaded = target.load_most is not None and load > target.load_most
    newest = Pace(now, observation.tpot_sum_s, observation.tpot_count)
    if overloaded or (track.paces and newest.count < track.paces[-1].count):
        return replace(track, paces=()), None  # more than planned, or its counters began anew
    paces = (*track.paces, newest)
    while len(paces) > 1 and now - paces[1].at >= limits.slow_s:
        paces = paces[1:]
    track = replace(track, paces=paces)
    measured = _tpot_s(paces)
    if now - paces[0].at < limits.slow_s or measured is None:
        return track, None
    if measured <= target.tpot_most_s:
        return replace(track, slow_before=False, told_slow=False), None
    if track.told_slow:
        return track, None
    reason = (
        f"{measured * 1e3:.1f} ms per token over {now - paces[0].at:.0f} s, "
        f"planned at most {target.tpot_most_s * 1e3:.1f}"
    )
    return track, Trouble(Kind.SLOW, reason)


def _tpot_s(paces: tuple[Pace, ...]) -> float | None:
    count = paces[-1].count - paces[0].count
    return (paces[-1].sum_s - paces[0].sum_s) / count if count >= _ENOUGH else None


def tpot_s(track: Track) -> float | None:
    """The mean time per token of late, in seconds; None where too few were measured."""
    return _tpot_s(track.paces) if track.paces else None


def respond_for_group(
    track: Track,
    trouble: Trouble,
    now: float,
    limits: Supervision,
    *,
    lasting: bool = False,
    misfit: bool = False,
    others_serve: bool = False,
    jitter: float = 0.5,
) -> tuple[Track, Step]:
    """What to do about a group's trouble, and its track from then on.

    ``lasting``: its cause is one that a restart does not cure (a wrong flag, missing weights);
    ``misfit``: the machine cannot hold the choice any more. ``others_serve``: what is left without
    this group still serves, so it is not stopped for a fallback. ``jitter``: from 0 to 1, so that
    groups that failed together do not come back together.
    """
    if trouble.kind is Kind.SLOW and track.slow_before:
        # A second restart would interrupt for nothing: slow is better than stopped.
        return replace(track, told_slow=True), Step.KEEP if others_serve else Step.LEAVE
    failures = (*(at for at in track.failures if now - at < limits.window_s), now)
    track = replace(track, failures=failures, slow_before=trouble.kind is Kind.SLOW)
    # What has served once was started with the right flags and weights.
    hopeless = lasting and track.phase is Phase.STARTING
    if misfit or hopeless or len(failures) > limits.crash_budget:
        if not others_serve:
            return track, Step.LEAVE
        oldest = failures[0] + limits.window_s
        again = float("inf") if misfit or hopeless else oldest
        return replace(track, phase=Phase.PARKED, since=now, until=again), Step.PARK
    rest = backoff_s(track.attempt, limits, jitter)
    track = replace(
        track, phase=Phase.RESTING, since=now, until=now + rest, attempt=track.attempt + 1
    )
    return track, Step.RESTART


def backoff_s(attempt: int, limits: Supervision, jitter: float) -> float:
    """Seconds of rest before restart number ``attempt`` from 0: doubled each time, to a limit.

    Half of it is fixed and half is chance.
    """
    full = min(limits.backoff_most_s, limits.backoff_s * 2.0 ** min(attempt, 30))
    return full * (0.5 + 0.5 * jitter)


def due(track: Track, now: float) -> bool:
    return track.phase in (Phase.RESTING, Phase.PARKED) and now >= track.until


def serves(roles: Iterable[tuple[str, bool]]) -> bool:
    """Whether requests can be answered, from the role of each group and whether it serves.

    A router is needed where there is one, and one group of every other role.
    """
    serving_of: dict[str, list[bool]] = {}
    for role, well in roles:
        serving_of.setdefault(role, []).append(well)
    return bool(serving_of) and all(any(well) for well in serving_of.values())
