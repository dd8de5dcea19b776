"""Processes by an identity that survives recycled pids: the pid and its start tick."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "RECIPE_LAUNCH_ID"


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


def family(leader: tuple[int, int], mark: str) -> set[tuple[int, int]]:
    """The leader's process group, while the leader lives, and every process with our mark.

    An engine's workers outlive a crashed parent and may leave its group; the mark in their
    environment still identifies them.
    """
    ours = alive(*leader)
    members = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        stat = read_stat(int(entry.name))
        if stat is None or stat.state in "ZX":
            continue
        if (ours and stat.group == leader[0]) or _marked(stat.pid, mark):
            members.add((stat.pid, stat.started))
    return members


def _marked(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(members: Iterable[tuple[int, int]], number: signal.Signals) -> None:
    """Signal every process that is still the one we know."""
    for pid, started in members:
        if alive(pid, started):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def terminate(leader: tuple[int, int], mark: str, *, grace_s: float) -> bool:
    """SIGTERM to a process group and its marked processes, SIGKILL after ``grace_s``.

    True when something was running.
    """
    members = family(leader, mark)
    running = bool(members)
    send(members, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while members and time.monotonic() < deadline:
        time.sleep(0.05)
        reap(leader[0])
        members = {member for member in members | family(leader, mark) if alive(*member)}
    send(members, signal.SIGKILL)
    _wait_gone(leader, members)
    return running


def _wait_gone(
    leader: tuple[int, int], members: set[tuple[int, int]], limit_s: float = 5.0
) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and any(alive(*member) for member in members):
        reap(leader[0])
        time.sleep(0.02)
