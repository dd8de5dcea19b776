"""Signals at random moments of a bundle's launcher: while it starts, measures, follows and stops.

Servers and trainers are fakes without a model; everything else is as a bundle has it. After each
signal: the state file is whole or absent, `status` answers, `down` ends everything, no process,
port or state is left, and no process of others was ended.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.bundles import Bundle, serving_bundle, training_bundle
from tests.fixtures.patience import PATIENCE
from tests.fixtures.ports import free_port, is_free
from tests.nightly.attack.harness import Order, Result, Tally
from tests.nightly.attack.launcher.deployments import Deployment
from tests.nightly.attack.launcher.trial import LateError, Trial, own_traceback

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT)
CLEAN = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals after which the launcher itself leaves nothing behind."""
KINDS = ("one server", "two servers", "server on two nodes", "training", "training on two nodes")
SPANS_S = {"up": 1.6, "up --foreground": 3.0, "bench": 4.0, "down": 0.8}
"""Within these seconds of its start a signal meets a command anywhere, and sometimes after it."""


@dataclass(frozen=True)
class Case:
    """What one trial does. ``moment``: seconds, or the event at which the signal is sent."""

    index: int
    kind: str
    words: str
    number: signal.Signals
    moment: float | str
    delay: float
    twice: bool

    @classmethod
    def draw(cls, seed: int, index: int) -> Case:
        rng = random.Random(f"{seed}/{index}")
        words = rng.choice(list(SPANS_S))
        moment: float | str = rng.uniform(0.02, SPANS_S[words])
        if rng.random() < 0.5:  # between the start of a process and its record, for example
            moment = rng.choice(tuple(EVENTS))
        kind, number = rng.choice(KINDS), rng.choice(SIGNALS)
        delay, twice = rng.choice((0.0, rng.uniform(0, 0.02))), rng.random() < 0.2
        return cls(index, kind, words, number, moment, delay, twice)

    def __str__(self) -> str:
        moment = self.moment if isinstance(self.moment, str) else f"{self.moment:.3f} s"
        times = " twice" if self.twice else ""
        return f"{self.kind}: {self.words}, {self.number.name}{times} at {moment}"


def met(case: Case, folder: Path) -> tuple[bool, list[str]]:
    """Whether the signal met a living launcher of a bundle of its own, and what is wrong then."""
    several = "nodes" in case.kind
    bundle = _bundle(case.kind, folder, free_port())
    bundle.stand_alone()
    options, node = (("--node", "0"), "node-0") if several else ((), "")
    trial = Trial(Deployment(case.kind, bundle, folder), random.Random(0), options, node)
    head = ["--head", "127.0.0.1"] if several else []
    faults, hit = [], False
    try:
        if case.words == "down":
            trial.run("up", *head)
        words = case.words.split()
        if words[0] == "bench":
            words += ["--steps", "5"] if "training" in case.kind else ["--requests", "12"]
        process = trial.spawn(*words, *head)
        hit = _send(case, trial, process)
        _, errors = process.communicate(timeout=PATIENCE)
        faults += _look(case, trial, process.returncode, errors, hit=hit)
        trial.others.renew()
        faults += _clean_up(trial)
    except (LateError, subprocess.TimeoutExpired) as error:
        faults.append(str(error))
    faults += trial.end()
    ports = [port for port in (bundle.port, bundle.port + 1) if not is_free(port, reuse=True)]
    return hit, faults + [f"port {port} is not free" for port in ports]


def _send(case: Case, trial: Trial, process: subprocess.Popen[str]) -> bool:
    """Send the signal at its moment, or when it has not come for a while; whether it was met."""
    seconds = case.moment if isinstance(case.moment, float) else 6.0
    deadline, seen = time.monotonic() + seconds, EVENTS.get(case.moment, lambda *_: False)
    while process.poll() is None and time.monotonic() < deadline:
        if seen(trial.own, process.pid):
            break
        time.sleep(0.0005)
    time.sleep(case.delay)
    hit = process.poll() is None
    for _ in range(1 + case.twice):
        if process.poll() is None:
            process.send_signal(case.number)
            time.sleep(0.002)
    return hit


def _look(case: Case, trial: Trial, code: int, errors: str, *, hit: bool) -> list[str]:
    # Before the first line of launch.py, a traceback is Python's own.
    trace = own_traceback(errors)
    faults = [trace[:3000]] if trace else []
    try:
        left = trial.state()
    except Exception as error:  # any is a fault to report
        return [*faults, f"state: {error}"]
    if left is None:  # what asked the engine for its version ends by itself
        trial.wait("nothing runs without a state", lambda: not trial.pids())
    alive = trial.pids()
    # `up` may have been done, and `down` not begun.
    began = {"up": code != 0, "down": left is None}.get(case.words, True)
    if hit and case.number in CLEAN and code >= 0 and began and (left or alive):
        faults.append(f"after {case.number.name} and exit code {code} are left: {left}, {alive}")
    return faults


def _clean_up(trial: Trial) -> list[str]:
    """`status` answers, and `down` ends everything at once."""
    process = trial.spawn("status")
    answer, errors = process.communicate(timeout=PATIENCE)
    fine = process.returncode in (0, 1) and answer.startswith("{")
    faults = [] if fine else [f"status: exit code {process.returncode}, {answer}{errors}"]
    state = json.loads(answer)["state"] if fine else ""
    if (alive := trial.pids()) and state in ("down", "finished", "failed"):
        faults.append(f"status says {state}, but {alive} run")
    code, answer = trial.run("--json", "down")
    return [*faults, f"down: exit code {code}, {answer}"] if code else faults


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
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def _recorded(own: Path) -> str:
    with suppress(OSError):
        return (own / "state.json").read_text()
    return ""


EVENTS: dict[str, Callable[[Path, int], bool]] = {
    "its state appears": lambda own, _: bool(_recorded(own)),
    "a log appears": lambda own, _: any(own.glob("*.log")),
    "a process of its own starts": lambda own, pid: bool(_recorded(own) and _children(pid)),
    "it is ready": lambda own, _: '"ready": true' in _recorded(own),
    "a state is being written": lambda own, _: any(own.glob(".state.json.*")),
    "its state goes": lambda own, _: (own / "lock").exists() and not _recorded(own),
}


def attack(order: Order) -> Tally:
    """Signals at random; findings have the index that repeats each."""
    found = Tally()
    for case in (Case.draw(order.seed, index) for index in order.indices()):
        with tempfile.TemporaryDirectory(prefix="recipe-attack-", ignore_cleanup_errors=True) as at:
            began = time.monotonic()
            hit, faults = met(case, Path(at))
        found.tried.update([case.number.name, case.kind])
        found.tried["met a live launcher"] += hit
        result = Result(f"{case.words}, {case.number.name}", f"case {case.index}")
        result.outcome, result.cause = "met" if hit else "late", str(case)
        result.seconds, result.findings = round(time.monotonic() - began, 3), faults
        found.add(result)
    return found
