"""Processes by an identity that survives recycled pids: the pid and its start tick."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "RECIPE_LAUNCH_ID"
"""The variable with the mark of a start: every process of it inherits it."""
PART = "RECIPE_LAUNCH_PART"
"""The variable with the mark and the group of a process, by which one group can be ended alone."""
KILLED_S = 5.0
"""How long the kernel may take to end what was killed."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The used fields of /proc/PID/stat; ``started`` is the tick at which the kernel started it."""

    pid: int
    state: str
    group: int
    started: int


def read_stat(pid: int) -> Stat | None:
    """The kernel's line about a process, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself contain them; field 3 follows the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[2]), int(fields[19]))


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


def family(leaders: Sequence[Identity], mark: str, variable: str = MARK) -> set[Identity]:
    """The process groups of living leaders, and every process with our mark and its group.

    An engine's workers outlive a crashed parent and may leave its group; the mark in their
    environment, in ``variable``, still identifies them. So it does a leader that its launcher could
    not record.
    """
    groups = {pid for pid, started in leaders if alive(pid, started)}
    running = [stat for stat in _processes() if stat.pid != os.getpid()]
    marked = {stat.pid for stat in running if _marked(stat.pid, mark, variable)}
    groups |= {stat.group for stat in running if stat.pid in marked and stat.group in marked}
    return {
        (stat.pid, stat.started) for stat in running if stat.group in groups or stat.pid in marked
    }


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


def unrecorded(leaders: Sequence[Identity], mark: str) -> list[int]:
    """Pids with our mark outside of the leaders' groups: such as a killed launcher left."""
    known = {pid for pid, _ in leaders}
    return sorted(
        stat.pid for stat in _processes() if stat.group not in known and _marked(stat.pid, mark)
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
) -> tuple[set[Identity], set[Identity]]:
    """SIGTERM to the groups and marked processes, SIGKILL after ``grace_s``.

    For ``settle_s`` seconds it looks again: a process shows its mark only once its program is
    loaded, which may be after its launcher was killed. ``variable`` is where the mark is: that of
    a start, or of one of its groups.

    Returns the processes that were running, and those that still are (a driver holds them).
    """
    members = family(leaders, mark, variable)
    seen = set(members)
    _end(members)
    began = time.monotonic()
    while time.monotonic() - began < (grace_s if members else settle_s):
        time.sleep(0.05)
        late = family(leaders, mark, variable) - seen
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
