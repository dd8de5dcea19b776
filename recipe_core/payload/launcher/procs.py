"""Processes by an identity that survives recycled pids: looked at, started, ended; and the time."""

from __future__ import annotations

import os
import signal
import stat as modes
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO


class Clock:
    """The clock of this machine; ``waits`` is called before every wait."""

    waits: Callable[[], object] = staticmethod(lambda: None)

    def monotonic(self) -> float:
        """Seconds on a clock that nobody sets."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits()
        time.sleep(seconds)

    def now(self) -> datetime:
        return datetime.now().astimezone()


CLOCK = Clock()


# The variable with the mark of a start: every process of it inherits it.
MARK = "RECIPE_LAUNCH_ID"
# The variable with the mark and the group of a process, by which one group can be ended alone.
PART = "RECIPE_LAUNCH_PART"
_LONGEST_NAME = 80
# How long the kernel may take to end what was killed: it frees pinned memory first.
KILLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Stat:
    """The used fields of /proc/PID/stat; ``started`` is the tick at which the kernel started it."""

    pid: int
    state: str
    group: int
    session: int
    started: int


# A pid and its start tick.
Identity = tuple[int, int]
# A file by its device and inode, which no other file has while somebody holds it open.
Place = tuple[int, int]


def plain_file_place(path: str | Path) -> Place | None:
    """Return the place of a plain file with one name; None for a link, a device, or nothing."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return _status_place(status) if modes.S_ISREG(status.st_mode) and status.st_nlink == 1 else None


def places_of(logs: Iterable[str | Path]) -> frozenset[Place]:
    """Return where logs lie, and those of the start before, which what outlived it writes to."""
    places = (plain_file_place(path) for log in logs for path in (log, f"{log}.1"))
    return frozenset(place for place in places if place is not None)


def _status_place(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def read_process_name(pid: int) -> str:
    """The name that a process gives itself; empty once it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        text = text or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return ""
    return text.decode("utf-8", errors="replace").strip()[:_LONGEST_NAME]


class Processes:
    """The processes of this machine: looked at, started, signalled, and ended."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self.clock = clock
        self._exits: dict[int, int] = {}
        """Exit codes of collected children, by pid."""

    # What the kernel is asked

    def read_stat(self, pid: int) -> Stat | None:
        """The kernel's line about a process, or None when there is none."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The name, in parentheses, may itself contain them; field 3 follows the last one.
        fields = text[text.rindex(")") + 2 :].split()
        return Stat(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))

    def running(self) -> Iterator[Stat]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                stat = self.read_stat(int(entry.name))
                if stat is not None and stat.state not in "ZX":
                    yield stat

    def marked(self, pid: int, mark: str, variable: str = MARK) -> bool:
        """Return whether a process shows a mark in its environment."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{variable}={mark}".encode() in environment.split(b"\0")

    def writes(self, pid: int, outputs: Collection[Place]) -> bool:
        """Return whether a process inherited one of our logs as its standard output or error.

        The launcher alone opens a log with ``O_NOFOLLOW``, and whoever inherits it keeps that flag.
        Who opened the file by its name, as a shell does for ``>>``, is somebody else's.
        """
        for number in (1, 2) if outputs else ():
            with suppress(OSError, ValueError):
                status = Path(f"/proc/{pid}/fd/{number}").stat()
                ours = modes.S_ISREG(status.st_mode) and status.st_nlink <= 1
                if (
                    ours
                    and _status_place(status) in outputs
                    and _flags(pid, number) & os.O_NOFOLLOW
                ):
                    return True
        return False

    def start(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[bytes]
    ) -> Identity:
        """Start a program in a session of its own.

        Raises:
            OSError: where it cannot be started.
        """
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        stat = self.read_stat(child.pid)
        # The pid and its start tick identify it from here on; the object would warn when dropped.
        child.returncode = 0
        return child.pid, stat.started if stat else 0

    def kill(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

    def reap(self, pid: int) -> int | None:
        """Collect a child that ended.

        Returns its exit code, None while it runs or where it is not a child.
        """
        with suppress(ChildProcessError):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._exits[pid] = os.waitstatus_to_exitcode(status)
        return self._exits.get(pid)

    # What follows from it

    def alive(self, pid: int, started: int) -> bool:
        """True while this very process runs; a zombie does not."""
        stat = self.read_stat(pid)
        return stat is not None and stat.started == started and stat.state not in "ZX"

    def family(
        self,
        leaders: Sequence[Identity],
        mark: str,
        variable: str = MARK,
        *,
        outputs: Collection[Place] = (),
    ) -> set[Identity]:
        """The groups and sessions of leaders, and every process that shows to be of the start.

        An engine's workers outlive a crashed parent and may leave its group. They show our mark in
        their environment, in ``variable``, or inherited one of our logs, ``outputs``: engines that
        name their processes overwrite the environment that the kernel shows. Of a leader that has
        ended, the group counts once one member shows so, because the kernel gives no new process
        the number of a group that still has members.
        """
        running = [stat for stat in self.running() if stat.pid != os.getpid()]
        leader_pids = {pid for pid, _ in leaders}
        shown = {
            s.pid
            for s in running
            if self.marked(s.pid, mark, variable) or self.writes(s.pid, outputs)
        }
        groups = {pid for pid, started in leaders if self.alive(pid, started)}
        for stat in running:
            if stat.pid in shown:
                groups |= {stat.group, stat.session} & (leader_pids | shown)
        return {
            (stat.pid, stat.started)
            for stat in running
            if stat.pid in shown or stat.group in groups or stat.session in groups
        }

    def left_behind(
        self, leaders: Sequence[Identity], mark: str, *, outputs: Collection[Place] = ()
    ) -> list[int]:
        """Pids of a start that outlive their leader: those that no group of a living one holds."""
        groups = {pid for pid, started in leaders if self.alive(pid, started)}
        members = self.family(leaders, mark, outputs=outputs)
        ended = {pid for pid, _ in leaders} - groups
        survivors = []
        for pid, _ in members:
            stat = self.read_stat(pid)
            if stat is not None and not {stat.group, stat.session} & groups:
                survivors += [pid] if not groups or {stat.group, stat.session} & ended else []
        return sorted(survivors)

    def unrecorded(
        self, leaders: Sequence[Identity], mark: str, *, outputs: Collection[Place] = ()
    ) -> list[int]:
        """Pids of the start outside of the leaders' groups: such as a killed launcher left."""
        leader_pids = {pid for pid, _ in leaders}
        return sorted(
            stat.pid
            for stat in self.running()
            if stat.group not in leader_pids
            and (self.marked(stat.pid, mark) or self.writes(stat.pid, outputs))
        )

    def send(self, members: Iterable[Identity], number: signal.Signals) -> None:
        for pid, started in members:
            if self.alive(pid, started):
                self.kill(pid, number)

    def terminate(
        self,
        leaders: Sequence[Identity],
        mark: str,
        *,
        grace_s: float,
        settle_s: float = 0.0,
        variable: str = MARK,
        outputs: Collection[Place] = (),
    ) -> tuple[set[Identity], set[Identity]]:
        """SIGTERM to the groups and marked processes, SIGKILL after ``grace_s``.

        For ``settle_s`` seconds it looks again: a process shows its mark only once its program is
        loaded, which may be after its launcher was killed. ``variable`` is where the mark is: that
        of a start, or of one of its groups, whose logs ``outputs`` are then.

        Returns the processes that were running, and those that still are (a driver holds them).
        """
        members = self.family(leaders, mark, variable, outputs=outputs)
        family = set(members)
        self._end(members)
        began = self.clock.monotonic()
        while self.clock.monotonic() - began < (grace_s if members else settle_s):
            self.clock.sleep(0.05)
            late = self.family(leaders, mark, variable, outputs=outputs) - family
            self._end(late)
            family |= late
            members = self._list_survivors(leaders, family)
        self.send(members, signal.SIGKILL)
        deadline = self.clock.monotonic() + KILLED_S
        while members and self.clock.monotonic() < deadline:
            self.clock.sleep(0.02)
            members = self._list_survivors(leaders, family)
        return family, members

    def _end(self, members: Iterable[Identity]) -> None:
        """SIGTERM, which a process that is stopped heeds once it goes on."""
        members = tuple(members)
        self.send(members, signal.SIGTERM)
        self.send(members, signal.SIGCONT)

    def _list_survivors(self, leaders: Sequence[Identity], members: set[Identity]) -> set[Identity]:
        """Those that still run; ended children are collected."""
        for pid, _ in leaders:
            self.reap(pid)
        return {member for member in members if self.alive(*member)}


def _flags(pid: int, number: int) -> int:
    """With which flags a process's file was opened."""
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="utf-8")
    return next(int(row.split()[1], 8) for row in text.splitlines() if row.startswith("flags:"))


HERE = Processes()
read_stat, alive, reap, terminate = HERE.read_stat, HERE.alive, HERE.reap, HERE.terminate


def ask_program(
    argv: Sequence[str], *, timeout_s: float | None = None, env: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Run a program that only answers: its exit code, output, and errors.

    None for one that cannot be started, or does not end in ``timeout_s``: then the errors say why.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, "", str(error)
    return done.returncode, done.stdout, done.stderr
