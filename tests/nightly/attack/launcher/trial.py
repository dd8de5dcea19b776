"""One deployment under attack: what runs of it, what its files say, and whether both agree."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipe_core.payload.launcher import events, procs, state, supervisor
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.plan import load_plan
from tests.fixtures.bundles import Bundle, usual_signals, with_variable
from tests.fixtures.serve import Server
from tests.nightly.attack.launcher.bystanders import Bystanders
from tests.nightly.attack.launcher.deployments import Deployment

TRIAL = "CHAOS_TRIAL"
"""The variable by which everything of a trial is found, the launcher's processes too."""
_OURS = re.compile(
    r"(?:Traceback|Exception ignored).*?bundle/(?:launch\.py|launcher/).*", re.DOTALL
)
TRUE_AGAIN_S = 10.0
COPY_OFFSET = 4
"""The ports of a copy lie so far above those of its bundle."""


class LateError(Exception):
    """A state that was not reached."""


@dataclass
class Trial:
    """A deployment, everything that was started of it, what stands beside it, and chance.

    ``options`` are those of every command; ``node`` is the one of several that is looked at.
    ``found``: what is wrong with the fault that is being done. ``sessions``: marks of starts by the
    sessions of their servers, for engines that hide their environment.
    """

    deployment: Deployment
    chance: random.Random
    options: tuple[str, ...] = ()
    node: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    sessions: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patience_s = self.deployment.patience_s
        self.trains = "training" in self.deployment.features  # a run is never "ready"
        self.lies_at(self.deployment.bundle.root)
        self.others = Bystanders(self.root, self.own, self.root.parent)

    def lies_at(self, root: Path) -> None:
        """The bundle is in this folder now."""
        self.root, self.own = root, root / "run" / self.node

    def copy(self, root: Path) -> Trial:
        """The bundle copied as it is, everything in ``run/`` too, and a trial of the copy."""
        written = shutil.ignore_patterns(".*.json.*")  # such files come and go
        shutil.copytree(self.root, root, symlinks=True, ignore=written)
        bundle = Bundle(root, self.deployment.bundle.port + COPY_OFFSET)
        deployment = replace(self.deployment, bundle=bundle)
        return Trial(deployment, self.chance)

    def spawn(
        self, *words: str, file_bytes: int | None = None, stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start a command of the bundle's launcher; ``file_bytes`` is the most a file may have."""

        def prepare() -> None:
            usual_signals()
            if file_bytes is not None:
                limit_files(os.getpid(), file_bytes)

        program = [sys.executable, str(self.root / "launch.py"), *words, *self.options]
        env = {**os.environ, **self.deployment.environment, TRIAL: self.mark}
        pipes = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            program, env=env, start_new_session=True, preexec_fn=prepare, **pipes
        )
        self.started.append(process)
        return process

    def run(self, *words: str, **settings: Any) -> tuple[int, str]:
        """Exit code of a command, and what it said; a traceback of its own is found."""
        process, limit_s = self.spawn(*words, **settings), self.patience_s
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise LateError(f"{' '.join(words)} took {limit_s:.0f} s: {errors[-500:]}") from None
        if trace := own_traceback(errors):
            self.found.append(f"traceback of {' '.join(words)}: {trace[-700:]}")
        return process.returncode, (output or "") + errors

    def status(self) -> dict[str, Any]:
        """What the command says; empty where it says nothing."""
        _, text = self.run("status")
        with suppress(ValueError):
            return dict(json.JSONDecoder().raw_decode(text)[0])
        return {}

    def require(self, *words: str) -> str:
        """What a command said that must succeed."""
        code, text = self.run(*words)
        if code:
            raise LateError(f"{' '.join(words)} failed with {code}: {text[-800:]}")
        return text

    def state(self) -> state.State | None:
        current = state.load_state(self.own)
        for server in current.servers if current else ():
            if server.alive:
                self.sessions[server.pid] = current.mark
        return current

    def pids(self) -> list[int]:
        """Everything of this trial that lives, but the commands that the trial waits for."""
        own = {process.pid for process in self.started if process.poll() is None}
        hidden = {stat.pid for stat in procs.HERE.running() if stat.session in self.sessions}
        return sorted({*with_variable(TRIAL, self.mark), *hidden} - own)

    def servers(self) -> list[int]:
        """Processes that a launcher started to serve, with their children."""
        return [pid for pid in self.pids() if self._mark_of(pid) is not None]

    def _mark_of(self, pid: int) -> str | None:
        """The launch that a process belongs to."""
        entries = (entry.partition(b"=") for entry in _read(pid, "environ"))
        marks = [value for name, _, value in entries if name == procs.MARK.encode()]
        if marks:
            return marks[0].decode(errors="replace")
        stat = procs.read_stat(pid)
        return self.sessions.get(stat.session) if stat else None

    def leaders(self, *, routers: bool = False) -> dict[str, int]:
        """Pids of the recorded servers, or of what stands before them, by their names."""
        if (current := self.state()) is None:
            return {}
        processes = load_plan(self.root, choice=current.choice).processes
        names = {process.name for process in processes if (process.role == "router") == routers}
        return {s.name: s.pid for s in current.servers if s.name in names and s.alive}

    def named(self, name: str) -> list[int]:
        """Servers that have given themselves a name that begins so."""
        return [pid for pid in self.servers() if procs.read_process_name(pid).startswith(name)]

    @property
    def log(self) -> Path:
        """The log of the first server or trainer."""
        processes = load_plan(self.root).processes
        return self.own / f"{min(p.name for p in processes if p.role != 'router')}.log"

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
        deadline = time.monotonic() + self.patience_s
        while not holds():
            if time.monotonic() > deadline:
                keys = ("event", "cause", "reason", "name", "choice")
                recent = [{k: v for k, v in e.items() if k in keys} for e in self.events()[-6:]]
                raise LateError(f"not in {self.patience_s:.0f} s: {what}; {json.dumps(recent)}")
            time.sleep(poll_s)

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        return events.read_events(self.own)[since:]

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

    @contextmanager
    def requests(self, most: int = 3) -> Iterator[None]:
        """Requests that run all the time meanwhile, whatever becomes of each."""
        plan, ends = load_plan(self.root), threading.Event()
        body = {"model": plan.api.model, "prompt": "one two", "max_tokens": 400}
        server = Server(self.deployment.bundle.port, None, None)

        def ask() -> None:
            while not ends.wait(0.05):
                with suppress(OSError, http.client.HTTPException):
                    server.ask("POST", plan.api.path, body)

        for _ in range(most):
            threading.Thread(target=ask, daemon=True).start()
        try:
            yield
        finally:
            ends.set()

    def lies(self) -> list[str]:
        """How what is recorded differs from what runs, for longer than it takes to set right.

        A process is seen under its parent's name until its own program is loaded, and a keeper
        beside another loads all of it before it finds that it is not needed.
        """
        deadline = time.monotonic() + TRUE_AGAIN_S
        while (found := self._lies()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _lies(self) -> list[str]:
        try:
            current = self.state()
        except LauncherError as error:
            return [f"lost state: {error}"]
        running = {pid: self._mark_of(pid) for pid in self.servers()}
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
        self.found.clear()
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
        with suppress(LauncherError):  # a copy keeps the state of what it was copied from
            found += ["lost state: it is there after down"] if self.state() else []
        found += self.found + self.others.ended()
        self.others.close()
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


def _read(pid: int, name: str) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    return []


def _names(pids: Iterable[int]) -> str:
    return ", ".join(
        f"{pid} {b' '.join(_read(pid, 'cmdline')[1:4]).decode(errors='replace')}" for pid in pids
    )


def own_traceback(errors: str) -> str:
    """A traceback of the launcher, not of what it shows of a log; empty where there is none."""
    match = _OURS.search(errors)
    return match[0] if match else ""
