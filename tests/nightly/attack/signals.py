"""Signals at random moments of a bundle's launcher: while it starts, measures, follows and stops.

``python -m tests.nightly.attack.signals --count 300 --seed 1``. Servers and trainers are fakes
without a model; everything else is as a bundle has it. After each signal: the state file is whole
or absent, `status` answers, `down` ends everything, and no process, port or state is left.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.launcher import state
from recipe_core.launcher.main import main as launcher
from tests.fixtures.bundles import (
    Bundle,
    serving_bundle,
    training_bundle,
    usual_signals,
    with_variable,
)
from tests.fixtures.ports import free_port

TOKEN = "RECIPE_ATTACK"
"""A variable that everything a trial starts inherits: what has it afterwards is an orphan."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT)
CLEAN = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals after which the launcher itself leaves nothing behind."""
KINDS = ("one server", "two servers", "server on two nodes", "training", "training on two nodes")
COMMANDS = ("up", "up --foreground", "bench", "down")
SPANS_S = {"up": 1.6, "up --foreground": 3.0, "bench": 4.0, "down": 0.8}
"""Within these seconds of its start a signal meets a command anywhere, and sometimes after it."""
LIMIT_S = 60.0
"""A process that nothing stops lives longer."""


@dataclass(frozen=True)
class Case:
    """What one trial does. ``moment``: seconds, or the event at which the signal is sent."""

    index: int
    kind: str
    command: str
    number: signal.Signals
    moment: float | str
    delay: float
    twice: bool

    @classmethod
    def draw(cls, seed: int, index: int) -> Case:
        rng = random.Random(f"{seed}/{index}")
        command = rng.choice(COMMANDS)
        moment: float | str = rng.uniform(0.02, SPANS_S[command])
        if rng.random() < 0.5:  # between the start of a process and its record, for example
            moment = rng.choice(tuple(EVENTS))
        return cls(
            index,
            rng.choice(KINDS),
            command,
            rng.choice(SIGNALS),
            moment,
            rng.choice((0.0, rng.uniform(0, 0.02))),
            rng.random() < 0.2,
        )

    def __str__(self) -> str:
        moment = self.moment if isinstance(self.moment, str) else f"{self.moment:.3f} s"
        times = " twice" if self.twice else ""
        return f"{self.kind}: {self.command}, {self.number.name}{times} at {moment}"


@dataclass
class Trial:
    """A bundle of its own, one signal, and what is wrong afterwards."""

    case: Case
    folder: Path
    port: int = field(default_factory=free_port)
    faults: list[str] = field(default_factory=list)
    hit: bool = False

    def __post_init__(self) -> None:
        self.token = f"{os.getpid()}-{self.case.index}-{time.monotonic_ns()}"
        self.bundle = _bundle(self.case.kind, self.folder, self.port)
        self.program = self.bundle.stand_alone()
        self.node = ["--node", "0"] if "nodes" in self.case.kind else []
        self.head = ["--head", "127.0.0.1"] if self.node else []
        self.own = self.bundle.root / "run" / ("node-0" if self.node else "")

    def run(self) -> list[str]:
        """Send the signal and look; the faults, empty where all is well."""
        if self.case.command == "down":
            self._start(["up", *self.node, *self.head]).communicate(timeout=LIMIT_S)
        words = self.case.command.split()
        measured = ["--steps", "5"] if "training" in self.case.kind else ["--requests", "12"]
        words += measured if words[0] == "bench" else []
        process = self._start([*words, *self.node, *self.head])
        try:
            self._send(process)
            _, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.faults.append("the launcher does not end")
            process.kill()
            _, errors = process.communicate()
        self._look(process.returncode, errors)
        self._clean_up()
        return self.faults

    def _start(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.program, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, TOKEN: self.token},
            start_new_session=True,
            preexec_fn=usual_signals,
        )

    def _send(self, process: subprocess.Popen[str]) -> None:
        moment = self.case.moment
        reached: Callable[[], bool]
        if isinstance(moment, str):
            event = EVENTS[moment]
            reached = lambda: event(self, process.pid)  # noqa: E731
        else:
            until = time.monotonic() + moment
            reached = lambda: time.monotonic() >= until  # noqa: E731
        deadline = time.monotonic() + 6.0
        while not reached() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(self.case.delay)
        self.hit = process.poll() is None
        for _ in range(1 + self.case.twice):
            if process.poll() is None:
                process.send_signal(self.case.number)
                time.sleep(0.002)
        if self.case.command == "up --foreground" and not self.hit:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=LIMIT_S)

    def _look(self, code: int, errors: str) -> None:
        trace = re.search(r"(?:Traceback|Exception ignored).*", errors, re.DOTALL)
        # Before the first line of launch.py, a traceback is Python's own.
        if trace and re.search(r"bundle/(launch\.py|launcher/)", trace[0]):
            self.faults.append(trace[0][:3000])
        try:
            left = state.load(self.own)
        except Exception as error:  # any is a fault to report
            self.faults.append(f"state: {error}")
            return
        alive = self.processes()
        deadline = time.monotonic() + LIMIT_S
        while alive and left is None and time.monotonic() < deadline:
            time.sleep(0.05)  # what asked the engine for its version ends by itself
            alive = self.processes()
        if alive and left is None:
            self.faults.append(f"no state, but running: {alive}")
        # `up` may have been done, and `down` not begun.
        began = {"up": code != 0, "down": left is None}.get(self.case.command, True)
        if self.hit and self.case.number in CLEAN and code >= 0 and began and (left or alive):
            name = self.case.number.name
            self.faults.append(f"after {name} and exit code {code} are left: {left}, {alive}")

    def _clean_up(self) -> None:
        """`status` answers, `down` ends everything and `up` works again."""
        code, answer = self._in_process("status")
        if code not in (0, 1) or not isinstance(answer, dict):
            self.faults.append(f"status: exit code {code}, {answer}")
        elif self.processes() and answer["state"] in ("down", "finished", "failed"):
            self.faults.append(f"status says {answer['state']}, but {self.processes()} run")
        code, answer = self._in_process("--json", "down")
        if code != 0:
            self.faults.append(f"down: exit code {code}, {answer}")
        if alive := self.processes():
            self.faults.append(f"orphans after down: {alive}")
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        if (self.own / "state.json").exists():
            self.faults.append("state left after down")
        for port in (self.port, self.port + 1):
            if not _free(port):
                self.faults.append(f"port {port} is not free")

    def _in_process(self, *words: str) -> tuple[int, Any]:
        """The exit code and JSON of a command that nothing disturbs."""
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = launcher([*words, *self.node], root=self.bundle.root)
        try:
            return code, json.loads(output.getvalue())
        except ValueError:
            return code, output.getvalue() + errors.getvalue()

    def processes(self) -> list[int]:
        """Living processes of this trial."""
        return with_variable(TOKEN, self.token)


def _bundle(kind: str, folder: Path, port: int) -> Bundle:
    root, model = folder / "bundle", folder / "model"
    if kind.startswith("training"):
        return training_bundle(root, folder, port, 5000, nodes=2 if "nodes" in kind else 1)
    bundle = serving_bundle(root, model, port)
    if kind == "one server":
        return bundle
    second = {"name": "server-1", "port_offset": 1, "node": int("nodes" in kind)}

    def add(data: dict[str, Any]) -> None:
        data["processes"].append(data["processes"][0] | second)

    bundle.edit(add)
    return bundle


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def _ready(trial: Trial, _pid: int) -> bool:
    path = trial.own / "state.json"
    return path.exists() and '"ready": true' in path.read_text()


EVENTS: dict[str, Callable[[Trial, int], bool]] = {
    "its state appears": lambda trial, _: (trial.own / "state.json").exists(),
    "a log appears": lambda trial, _: any(trial.own.glob("*.log")),
    "a process of its own starts": lambda trial, pid: (
        (trial.own / "state.json").exists() and bool(_children(pid))
    ),
    "it is ready": _ready,
    "a state is being written": lambda trial, _: any(trial.own.glob(".state.json.*")),
    "its state goes": lambda trial, _: (
        (trial.own / "lock").exists() and not (trial.own / "state.json").exists()
    ),
}


def attack(
    count: int, seed: int, first: int = 0, tell: Callable[[str], None] = lambda _: None
) -> tuple[Counter[str], list[str]]:
    """``count`` trials: how many of which kind, and failures with the index that repeats each."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for index in range(first, first + count):
        case = Case.draw(seed, index)
        folder = Path(tempfile.mkdtemp(prefix="recipe-attack-"))
        try:
            trial = Trial(case, folder)
            faults = trial.run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        tried[case.number.name] += 1
        tried[case.command] += 1
        tried[case.kind] += 1
        tried["met a live launcher"] += trial.hit
        failures += [f"{index}: {case}: {fault}" for fault in faults]
        if faults:
            tell(failures[-1])
    return tried, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first trial")
    options = parser.parse_args()
    began = time.monotonic()
    tried, failures = attack(options.count, options.seed, options.first, tell=print)
    print(f"{options.count} trials, seed {options.seed}, {time.monotonic() - began:.0f} s")
    print(", ".join(f"{name}: {times}" for name, times in tried.items()))
    print(f"{len(failures)} failures", *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
