"""Processes by an identity that survives recycled pids: the pid and its start tick."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "RECIPE_LAUNCH_ID"
"""The variable with the mark of a start: every process of it inherits it."""
PART = "RECIPE_LAUNCH_PART"
"""The variable with the mark and the group of a process, by which one group can be ended alone."""
_LONGEST_NAME = 80
KILLED_S = 5.0
"""How long the kernel may take to end what was killed."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The used fields of /proc/PID/stat; ``started`` is the tick at which the kernel started it."""

    pid: int
    state: str
    group: int
    session: int
    started: int


def read_stat(pid: int) -> Stat | None:
    """The kernel's line about a process, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself contain them; field 3 follows the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def name_of(pid: int) -> str:
    """The name that a process gives itself; empty once it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        text = text or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return ""
    return text.decode("utf-8", errors="replace").strip()[:_LONGEST_NAME]


def alive(pid: int, started: int) -> bool:
    """True while this very process runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started and stat.state not in "ZX"


_EXITS: dict[int, int] = {}
"""Exit codes of collected children, by pid."""


def reap(pid: int) -> int | None:
    """Collect a child that ended.

    Returns its exit code, None while it runs or where it is not a child.
    """
    with suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _EXITS[pid] = os.waitstatus_to_exitcode(status)
    return _EXITS.get(pid)


Identity = tuple[int, int]
"""A pid and its start tick."""


def family(
    leaders: Sequence[Identity],
    mark: str,
    variable: str = MARK,
    *,
    logs: Collection[str] = (),
) -> set[Identity]:
    """The process groups and sessions of leaders, and every process that shows to be of the start.

    An engine's workers outlive a crashed parent and may leave its group. They show our mark in
    their environment, in ``variable``, or write to one of our ``logs``: engines that name their
    processes overwrite the environment that the kernel shows. Of a leader that has ended, the
    group counts once one member shows so, because the kernel gives no new process the number of a
    group that still has members.
    """
    running = [stat for stat in _processes() if stat.pid != os.getpid()]
    known = {pid for pid, _ in leaders}
    outputs = _log_names(logs)
    shown = {s.pid for s in running if _marked(s.pid, mark, variable) or _writes(s.pid, outputs)}
    groups = {pid for pid, started in leaders if alive(pid, started)}
    for stat in running:
        if stat.pid in shown:
            groups |= {stat.group, stat.session} & (known | shown)
    return {
        (stat.pid, stat.started)
        for stat in running
        if stat.pid in shown or stat.group in groups or stat.session in groups
    }


def left_behind(leaders: Sequence[Identity], mark: str, *, logs: Collection[str] = ()) -> list[int]:
    """Pids of a start that outlive their leader: those that no group of a living one holds."""
    groups = {pid for pid, started in leaders if alive(pid, started)}
    members = family(leaders, mark, logs=logs)
    ended = {pid for pid, _ in leaders} - groups
    left = []
    for pid, _ in members:
        stat = read_stat(pid)
        if stat is not None and not {stat.group, stat.session} & groups:
            left += [pid] if not groups or {stat.group, stat.session} & ended else []
    return sorted(left)


def _processes() -> Iterator[Stat]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = read_stat(int(entry.name))
            if stat is not None and stat.state not in "ZX":
                yield stat


def _marked(pid: int, mark: str, variable: str = MARK) -> bool:
    try:
        return f"{variable}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _log_names(logs: Collection[str]) -> frozenset[str]:
    """The names that the kernel shows for open logs: resolved, also of a log that was removed."""
    real = {os.path.realpath(log) for log in logs}
    return frozenset({*real, *(f"{log} (deleted)" for log in real)})


def _writes(pid: int, outputs: Collection[str]) -> bool:
    """Whether a process's standard output or error goes to one of our logs.

    Who only reads a log has it open under another number.
    """
    for number in (1, 2) if outputs else ():
        with suppress(OSError):
            if str(Path(f"/proc/{pid}/fd/{number}").readlink()) in outputs:
                return True
    return False


def unrecorded(leaders: Sequence[Identity], mark: str, *, logs: Collection[str] = ()) -> list[int]:
    """Pids of the start outside of the leaders' groups: such as a killed launcher left."""
    known = {pid for pid, _ in leaders}
    outputs = _log_names(logs)
    return sorted(
        stat.pid
        for stat in _processes()
        if stat.group not in known and (_marked(stat.pid, mark) or _writes(stat.pid, outputs))
    )


def send(members: Iterable[Identity], number: signal.Signals) -> None:
    """Signal every process that is still the one we know."""
    for pid, started in members:
        if alive(pid, started):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def terminate(
    leaders: Sequence[Identity],
    mark: str,
    *,
    grace_s: float,
    settle_s: float = 0.0,
    variable: str = MARK,
    logs: Collection[str] = (),
) -> tuple[set[Identity], set[Identity]]:
    """SIGTERM to the groups and marked processes, SIGKILL after ``grace_s``.

    For ``settle_s`` seconds it looks again: a process shows its mark only once its program is
    loaded, which may be after its launcher was killed. ``variable`` is where the mark is: that of
    a start, or of one of its groups, whose ``logs`` are then meant.

    Returns the processes that were running, and those that still are (a driver holds them).
    """
    members = family(leaders, mark, variable, logs=logs)
    seen = set(members)
    _end(members)
    began = time.monotonic()
    while time.monotonic() - began < (grace_s if members else settle_s):
        time.sleep(0.05)
        late = family(leaders, mark, variable, logs=logs) - seen
        _end(late)
        seen |= late
        members = _running(leaders, seen)
    send(members, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_S
    while members and time.monotonic() < deadline:
        time.sleep(0.02)
        members = _running(leaders, seen)
    return seen, members


def _end(members: Iterable[Identity]) -> None:
    """SIGTERM, which a process that is stopped heeds once it goes on."""
    members = tuple(members)
    send(members, signal.SIGTERM)
    send(members, signal.SIGCONT)


def _running(leaders: Sequence[Identity], members: set[Identity]) -> set[Identity]:
    """Those that still run; ended children are collected."""
    for pid, _ in leaders:
        reap(pid)
    return {member for member in members if alive(*member)}
