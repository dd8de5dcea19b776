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
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
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
from tests.fixtures.patience import PATIENCE, comes
from tests.fixtures.ports import free_port, is_free

TOKEN = "RECIPE_ATTACK"
"""A variable that everything a trial starts inherits: what has it afterwards is an orphan."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT)
CLEAN = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals after which the launcher itself leaves nothing behind."""
KINDS = ("one server", "two servers", "server on two nodes", "training", "training on two nodes")
COMMANDS = ("up", "up --foreground", "bench", "down")
SPANS_S = {"up": 1.6, "up --foreground": 3.0, "bench": 4.0, "down": 0.8}
"""Within these seconds of its start a signal meets a command anywhere, and sometimes after it."""


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
            self._start(["up", *self.node, *self.head]).communicate(timeout=PATIENCE)
        words = self.case.command.split()
        measured = ["--steps", "5"] if "training" in self.case.kind else ["--requests", "12"]
        words += measured if words[0] == "bench" else []
        process = self._start([*words, *self.node, *self.head])
        try:
            self._send(process)
            _, errors = process.communicate(timeout=PATIENCE)
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
        moment, deadline = self.case.moment, time.monotonic() + 6.0
        event = EVENTS[moment] if isinstance(moment, str) else None
        if isinstance(moment, float):
            deadline = time.monotonic() + moment
        while process.poll() is None and time.monotonic() < deadline:
            if event is not None and event(self, process.pid):
                break
            time.sleep(0.0005)
        time.sleep(self.case.delay)
        self.hit = process.poll() is None
        for _ in range(1 + self.case.twice):
            if process.poll() is None:
                process.send_signal(self.case.number)
                time.sleep(0.002)

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
        # What asked the engine for its version ends by itself.
        if left is None and not comes(lambda: not self.processes()):
            self.faults.append(f"no state, but running: {self.processes()}")
        alive = self.processes()
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
        taken = [port for port in (self.port, self.port + 1) if not is_free(port, reuse=True)]
        self.faults += [f"port {port} is not free" for port in taken]

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
    cases: Iterable[Case], tell: Callable[[str], None] = lambda _: None
) -> tuple[Counter[str], list[str]]:
    """How many of which kind were tried, and failures with the index that repeats each."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="recipe-attack-", ignore_cleanup_errors=True) as at:
            trial = Trial(case, Path(at))
            faults = trial.run()
        tried.update([case.number.name, case.command, case.kind])
        tried["met a live launcher"] += trial.hit
        failures += [f"{case.index}: {case}: {fault}" for fault in faults]
        if faults:
            tell(failures[-1])
    return tried, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first trial")
    options = parser.parse_args()
    began, numbers = time.monotonic(), range(options.first, options.first + options.count)
    tried, failures = attack((Case.draw(options.seed, index) for index in numbers), tell=print)
    print(f"{options.count} trials, seed {options.seed}, {time.monotonic() - began:.0f} s")
    print(", ".join(f"{name}: {times}" for name, times in tried.items()))
    print(f"{len(failures)} failures", *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
