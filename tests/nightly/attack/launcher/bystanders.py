"""Processes beside a bundle that its launcher did not start, and so must never end."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from recipe_core.payload.launcher import procs

SLEEP = str(shutil.which("sleep"))
NOT_OURS = b"a line of another program\n"
"""What stands in the central log before anything is done."""


class Bystanders:
    """Those beside one bundle, each by what it has to do with it; they only sleep.

    ``central`` is a log outside of the bundle that one of them writes.
    """

    def __init__(self, root: Path, own: Path, folder: Path) -> None:
        self.root, self.own, self.central = root, own, folder / "central.log"
        self.central.write_bytes(NOT_OURS)
        self.lives: dict[str, procs.Identity] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._inputs, outside = os.pipe()
        self.terminal, inside = pty.openpty()
        os.set_blocking(self.terminal, False)
        self.pipe, self.slave = outside, inside
        self.start("writes to /dev/null", stdout=subprocess.DEVNULL)
        self.start("writes to a pipe", stdout=outside)
        self.start("writes to a terminal", stdout=inside)
        words = ["python", str(Path(__file__).with_name("engine.py")), "--port"]
        self.start("is named like the engine", name=" ".join(words), cwd=root)
        with self.central.open("ab") as log:
            self.start("writes another log", stdout=log)

    def renew(self) -> None:
        """Start those anew that have a log of the bundle open: it may have been replaced."""
        with suppress(BlockingIOError):  # or commands that write to the terminal would wait
            while os.read(self.terminal, 1 << 16):
                pass
        logs = (log for log in self.own.glob("*-*.log") if log.is_file() and not log.is_symlink())
        for log in sorted(logs)[:1]:
            for name in ("reads its log in run/", "appends to its log by hand"):
                self._end(name)
            with log.open("rb") as file:
                self.start("reads its log in run/", stdin=file, cwd=self.own)
            with log.open("ab") as file:
                self.start("appends to its log by hand", stdout=file)

    def start(
        self,
        what: str,
        *,
        name: str = "sleep",
        cwd: Path | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.PIPE,
    ) -> int:
        """One that has nothing to do with the bundle but this; its pid."""
        process = subprocess.Popen(
            [name, "100000"],
            executable=SLEEP,
            cwd=cwd or self.central.parent,
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
            start_new_session=True,
        )
        self._started.append(process)
        stat = procs.read_stat(process.pid)
        self.lives[what] = process.pid, stat.started if stat else 0
        return process.pid

    def elsewhere(self) -> Path:
        """A log that another program writes: of a bundle beside this one, if there is one."""
        beside = self.root.parent.parent / "neighbour" / "bundle" / "run" / "server-0.log"
        return beside if beside.exists() and len(self._started) % 2 else self.central

    def ended(self) -> list[str]:
        """Those that somebody has ended, and what was done to their log, once each."""
        gone = [what for what, identity in self.lives.items() if not procs.alive(*identity)]
        for what in gone:
            del self.lives[what]
        found = [f"foreign process ended: one that {what}" for what in gone]
        if not self.central.read_bytes().startswith(NOT_OURS):
            found.append("foreign file changed: another program's log")
            self.central.write_bytes(NOT_OURS)
        return found

    def _end(self, what: str) -> None:
        pid = self.lives.pop(what, (0, 0))[0]
        for process in self._started:
            if process.pid == pid:
                process.kill()
                process.wait()

    def close(self) -> None:
        """End them all."""
        for process in self._started:
            process.kill()
            process.communicate()
        for number in (self._inputs, self.pipe, self.terminal, self.slave):
            os.close(number)


class Neighbour:
    """Another bundle that serves beside those that are attacked, with a keeper of its own."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.trial.require("up")
        self.trial.wait("the neighbour serves", self.trial.serves)
        self.known = self._alive()

    def _alive(self) -> tuple[dict[str, int], int | None]:
        return self.trial.leaders(), self.trial.keeper()

    def ended(self) -> list[str]:
        """Whether anything of it is no longer what it was."""
        before, self.known = self.known, self._alive()
        return [] if before == self.known else [f"foreign process ended: {before}, {self.known}"]
