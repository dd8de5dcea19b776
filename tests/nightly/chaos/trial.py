"""One deployment under attack: what runs of it, what its files say, and whether both agree."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.launcher import events, procs, state, supervisor
from recipe_core.launcher.errors import LauncherError
from recipe_core.launcher.plan import load_plan
from tests.fixtures.bundles import usual_signals, with_variable

from .deployments import Deployment

TRIAL = "CHAOS_TRIAL"
"""The variable by which everything of a trial is found, the launcher's processes too."""
PATIENCE_S = 180.0
"""How long anything may take; a state that is not reached by then is a finding."""


class LateError(Exception):
    """A state that was not reached."""


@dataclass
class Trial:
    """A deployment, everything that was started of it, and chance.

    ``options`` are those of every command; ``node`` is the one of several that is looked at.
    """

    deployment: Deployment
    chance: random.Random
    options: tuple[str, ...] = ()
    node: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.deployment.bundle.root
        self.own = self.root / "run" / self.node

    def spawn(self, *words: str, file_bytes: int | None = None) -> subprocess.Popen[str]:
        """Start a command of the bundle's launcher; ``file_bytes`` is the most a file may have."""

        def prepare() -> None:
            usual_signals()
            if file_bytes is not None:
                limit_files(os.getpid(), file_bytes)

        program = [sys.executable, str(self.root / "launch.py"), *words, *self.options]
        env = {**os.environ, **self.deployment.environment, TRIAL: self.mark}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            program, env=env, start_new_session=True, preexec_fn=prepare, **pipes
        )
        self.started.append(process)
        return process

    def run(self, *words: str, file_bytes: int | None = None) -> tuple[int, str]:
        """Exit code of a command, and what it said."""
        process = self.spawn(*words, file_bytes=file_bytes)
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise LateError(f"{' '.join(words)} took {PATIENCE_S:.0f} s: {errors[-500:]}") from None
        return process.returncode, output + errors

    def require(self, *words: str) -> str:
        """What a command said that must succeed."""
        code, text = self.run(*words)
        if code:
            raise LateError(f"{' '.join(words)} failed with {code}: {text[-800:]}")
        return text

    def state(self) -> state.State | None:
        return state.load(self.own)

    def pids(self) -> list[int]:
        """Everything of this trial that lives, but the commands that the trial waits for."""
        own = {process.pid for process in self.started if process.poll() is None}
        return [pid for pid in with_variable(TRIAL, self.mark) if pid not in own]

    def servers(self) -> list[int]:
        """Processes that a launcher started to serve, with their children."""
        return [pid for pid in self.pids() if _mark_of(pid) is not None]

    def leaders(self, role: str = "server") -> dict[str, int]:
        """Pids of the recorded processes of a role, by their names."""
        if (current := self.state()) is None:
            return {}
        processes = load_plan(self.root, choice=current.choice).processes
        names = {process.name for process in processes if process.role == role}
        return {s.name: s.pid for s in current.servers if s.name in names and s.alive}

    def ranks(self) -> list[int]:
        """Children of the servers."""
        current = self.state()
        recorded = {server.pid for server in current.servers} if current else set()
        return [pid for pid in self.servers() if pid not in recorded]

    def keeper(self) -> int | None:
        """The pid of the recorded keeper, if it lives."""
        current = self.state()
        keeper = current.keeper if current else None
        return keeper.pid if keeper and keeper.alive else None

    def serves(self) -> bool:
        """Whether every process of the running choice is alive and answers."""
        with suppress(LauncherError):
            current = self.state()
            if current is None or not current.ready:
                return False
            plan = load_plan(self.root, choice=current.choice)
            alive = {server.name for server in current.servers if server.alive}
            ports = [process.port for process in plan.processes if process.answers]
            return {process.name for process in plan.processes} <= alive and all(
                supervisor.healthy(plan, port, timeout_s=5) for port in ports
            )
        return False

    def wait(self, what: str, holds: Callable[[], object], poll_s: float = 0.05) -> None:
        """Until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                keys = ("event", "cause", "reason", "name", "choice")
                recent = [{k: v for k, v in e.items() if k in keys} for e in self.events()[-6:]]
                raise LateError(f"not in {PATIENCE_S:.0f} s: {what}; {json.dumps(recent)}")
            time.sleep(poll_s)

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        return events.read(self.own)[since:]

    def kinds(self, since: int) -> list[str]:
        return [str(event["event"]) for event in self.events(since)]

    def send(self, pid: int | None, number: signal.Signals) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def condition(self, name: str, text: str | None = "") -> None:
        """Tell the engine to fail, or with None to work again."""
        path = self.deployment.conditions / name
        path.unlink(missing_ok=True) if text is None else path.write_text(text)

    def lies(self) -> list[str]:
        """How what is recorded differs from what runs, once nothing changes any more."""
        try:
            current = self.state()
        except LauncherError as error:
            return [f"lost state: {error}"]
        running = {pid: _mark_of(pid) for pid in self.servers()}
        if current is None:
            return [f"orphans without a state: {_names(running)}"] if running else []
        found = []
        if strangers := [pid for pid, mark in running.items() if mark != current.mark]:
            found.append(f"orphans of another start: {_names(strangers)}")
        dead = [server.name for server in current.servers if not server.alive]
        if dead and current.ready and not current.parked and self.keeper() is not None:
            found.append(f"lost state: recorded as running, but dead: {', '.join(dead)}")
        keepers = [pid for pid in self.pids() if b"keep" in _read(pid, "cmdline")]
        if set(keepers) - {self.keeper()}:
            found.append(f"lost state: keepers {keepers}, recorded {self.keeper()}")
        return found

    def end(self) -> list[str]:
        """Stop everything; what is left is a finding, and is killed."""
        code, text = self.run("down")
        for _ in range(2):  # another command may have held the lock
            if code:
                self.wait("commands end", lambda: all(p.poll() is not None for p in self.started))
                code, text = self.run("down")
        found = [f"down failed with {code}: {text[-500:]}"] if code else []
        with suppress(LateError):  # a killed process's memory takes a moment to go
            self.wait("nothing runs", lambda: not self.pids())
        if left := self.pids():
            found.append(f"orphans after down: {_names(left)}")
        if (self.own / "state.json").exists():
            found.append("lost state: state.json is there after down")
        for process in self.started:
            process.kill()
            process.communicate()
        for pid in left:
            self.send(pid, signal.SIGKILL)
        return found


def limit_files(pid: int, most: int) -> None:
    """Limit how long files of a process may become, as a full disk does; needs no privileges."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


@contextmanager
def full_disk(pids: list[int]) -> Iterator[None]:
    """No file of these processes, or of what they start meanwhile, may grow."""
    for pid in pids:
        with suppress(ProcessLookupError):
            limit_files(pid, 0)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                limit_files(pid, resource.RLIM_INFINITY)


def _mark_of(pid: int) -> str | None:
    """The launch that a process belongs to."""
    entries = (entry.partition(b"=") for entry in _read(pid, "environ"))
    marks = [value for name, _, value in entries if name == procs.MARK.encode()]
    return marks[0].decode(errors="replace") if marks else None


def _read(pid: int, name: str) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    return []


def _names(pids: Iterable[int]) -> str:
    return ", ".join(
        f"{pid} {b' '.join(_read(pid, 'cmdline')[1:4]).decode(errors='replace')}" for pid in pids
    )
