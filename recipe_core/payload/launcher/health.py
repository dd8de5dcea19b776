"""Health of running groups of servers: processes, figures, hangs, slowness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import exposition
from .api import api_headers
from .errors import LauncherError
from .exposition import Figures
from .files import read_object
from .limits import Supervision
from .measurement import expected_bands, predicted_figures
from .plan import LaunchPlan, Process
from .state import Server
from .tracks import Kind, Pace, Phase, Track, Trouble, forget_failures
from .world import HERE, World

# Looks in a row that must show a hang: one late answer on a busy machine is none, and neither is
# the first look after the machine slept.
MISSES = 3
# A prompt may take this many times the recipe's time to first token before it counts as stuck.
_ROUNDS = 3.0
# Measured times per token below which a window says nothing.
_ENOUGH = 3.0
# How long a server may take for its health or its figures.
ANSWER_S = 2.0
_MOST_BYTES = 8 << 20


@dataclass(slots=True)
class Look:
    """One look: a verdict's input for each group, and the figures of servers that publish any."""

    observations: dict[int, Seen] = field(default_factory=dict)
    healthy: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)


class Observer:
    """Looks at groups; all servers of one look are asked at once."""

    def __init__(self, world: World = HERE) -> None:
        self.world = world
        self._pool = world.threads(8, "observe")
        self._killed = world.oom_kills(())
        self.published: set[str] = set()
        """Servers that have published figures: where one stops, it is not for want of any."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def look(
        self,
        plan: LaunchPlan,
        servers: Sequence[Server],
        groups: Iterable[int],
        *,
        asks: bool = True,
    ) -> Look:
        """Return what the processes of ``groups`` show; what they answer only where it ``asks``."""
        by_name = {server.name: server for server in servers}
        group_numbers = set(groups)
        processes = [process for process in plan.processes if process.group in group_numbers]
        codes: dict[str, int | None] = {p.name: None for p in processes}
        alive = {p.name: False for p in processes}
        for name in alive.keys() & by_name.keys():
            codes[name] = self.world.processes.reap(by_name[name].pid)
            alive[name] = self.world.processes.alive(*by_name[name].identity)
        answering = [p for p in processes if asks and p.answers and alive[p.name]]
        answers = list(self._pool.map(lambda process: self._ask(plan, process), answering))
        look = Look()
        for process, (healthy, figures) in zip(answering, answers, strict=True):
            look.healthy[process.name] = healthy
            if figures is not None:
                look.figures[process.name] = figures
        killed = self._out_of_memory(by_name[name] for name in alive if alive[name])
        for group in group_numbers:
            members = [process for process in processes if process.group == group]
            look.observations[group] = _seen(members, alive, codes, look, asks=asks, killed=killed)
        return look

    def _ask(self, plan: LaunchPlan, process: Process) -> tuple[bool, Figures | None]:
        if self.get(plan, process.port, plan.health) is None:
            return False, None
        if process.role == "router":
            return True, None  # its servers' figures count, not its own
        path = exposition.PATHS.get(plan.engine.name, "/metrics")
        text = self.get(plan, process.port, path)
        if text is None:
            return True, None
        figures = exposition.engine_figures(text)
        if figures.generation_tokens is None and figures.running is None:
            return True, None
        self.published.add(process.name)
        return True, figures

    def get(self, plan: LaunchPlan, port: int, path: str) -> str | None:
        """The text that a server here answers with 200; None for anything else."""
        status, payload = self.world.ask(
            plan.client_host,
            port,
            path,
            headers=api_headers(plan.api),
            timeout_s=ANSWER_S,
            most_bytes=_MOST_BYTES,
        )
        return payload.decode("utf-8", errors="replace") if status == 200 else None

    def _out_of_memory(self, servers: Iterable[Server]) -> bool:
        """Return whether the kernel killed something for want of memory since the last look."""
        before = self._killed
        self._killed = self.world.oom_kills([server.pid for server in servers])
        return any(count > before.get(place, count) for place, count in self._killed.items())


def _seen(
    members: Sequence[Process],
    alive: dict[str, bool],
    codes: dict[str, int | None],
    look: Look,
    *,
    asks: bool,
    killed: bool,
) -> Seen:
    """The processes of a group as one."""
    ended = tuple(process.name for process in members if not alive[process.name])
    answering = [process.name for process in members if process.answers]
    figures = [look.figures[name] for name in answering if name in look.figures]
    ends = tuple(codes[name] for name in ended)
    return Seen(
        ended=ended,
        codes=ends,
        # Its own exit code may not be known: the kernel tells only whoever started it.
        out_of_memory=killed and any(code != 0 for code in ends),
        answers=all(look.healthy.get(name, False) for name in answering) if asks else None,
        tokens=sum_given_values(
            [f.generation_tokens for f in figures] + [f.prompt_tokens for f in figures if figures]
        ),
        running=sum_given_values([f.running for f in figures]),
        waiting=sum_given_values([f.waiting for f in figures]),
        tpot_sum_s=sum_given_values([f.tpot_sum_s for f in figures]),
        tpot_count=sum_given_values([f.tpot_count for f in figures]),
    )


def sum_given_values(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def read_target(plan: LaunchPlan, expected: Path) -> Target:
    """Return what the recipe expects of one group: times per token at the load of one replica."""
    try:
        estimate = read_object(expected)
    except LauncherError:
        return Target()
    band = expected_bands(estimate).get("tpot_s")
    predicted = predicted_figures(estimate, "serving")
    load, replicas = plan.workload, _count_replicas(plan)
    at_once: float | None = load.concurrency or load.batch
    if at_once is None and load.request_rate is not None:
        latency = expected_bands(estimate).get("request_latency_s")
        at_once = load.request_rate * latency[1] if latency else None  # Little's law
    if at_once is None and load.mode != "offline":
        band = None  # which load is more than planned is not known
    return Target(
        tpot_most_s=band[1] if band else None,
        load_most=at_once / replicas if at_once is not None else None,
        first_token_s=predicted["ttft_s"],
        tpot_s=predicted["tpot_s"],
    )


def _count_replicas(plan: LaunchPlan) -> int:
    """Groups that share the load: of pools, those that decode."""
    roles = {process.group: process.role for process in plan.processes if process.answers}
    names = list(roles.values())
    return max(1, names.count("decode") or names.count("server"))


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
    """The recipe's expectation of one group; None where it does not say.

    ``tpot_most_s``: the upper end of the band of times per token, at up to ``load_most`` requests
    at once. ``tpot_s`` and ``first_token_s``: time per token and to the first, as planned.
    """

    tpot_most_s: float | None = None
    load_most: float | None = None
    first_token_s: float | None = None
    tpot_s: float | None = None


def track_serving_group(now: float, before: Track | None = None) -> Track:
    """A group that answers from now on."""
    track = before or Track(Phase.SERVING, now)
    return replace(
        track,
        phase=Phase.SERVING,
        proven=True,
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
    track = _with_answer(forget_failures(track, now, limits), observation, now)
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


def _with_answer(track: Track, observation: Seen, now: float) -> Track:
    """Return what health and the engine's count of tokens say."""
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
