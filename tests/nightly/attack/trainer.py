"""SIGKILL of the embedded trainer while it writes a checkpoint every step.

After each kill: the newest whole checkpoint is whole, the next start goes on with the step after
it, and every step that runs again has the loss of an undisturbed run, to the last digit. Of every
tenth the newest checkpoint is damaged too: the next start must say so and use the one before it; of
every tenth the record of steps has a byte that is no text, or ends in zeros as after power loss.
"""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recipe_core.payload.trainer.checkpoint import (
    damage,
    list_checkpoint_folders,
    list_complete_checkpoints,
)
from tests.fixtures.ports import free_port
from tests.nightly.attack.harness import Order, Result, Tally
from tests.payload.trainer.conftest import CONFIG, Job

STEPS = 100_000
LIMIT_S = 180.0
FIRST = re.compile(r"^step (\d+) of", re.MULTILINE)
"""The line of a step that was done."""
SMALLER = CONFIG | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def job_of(root: Path, **parts: object) -> Job:
    """A tiny model's run; ``parts`` replace those of train.json."""
    plain = {
        "model": {"config": SMALLER, "tokenizer": "data"},
        "batch": {"sequence_length": 16, "global_batch": 2, "micro_batch": 2},
        "steps": STEPS,
        "checkpoints": {"every_steps": 1, "keep": 3},
    }
    return Job(root, **(plain | parts))


def start(job: Job, log: Path) -> subprocess.Popen[bytes]:
    """The one process of the run, without torchrun in between."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    env = {**os.environ, **place, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "train.py", "--config", "train.json"]
    with log.open("wb") as output:
        return subprocess.Popen(words, cwd=job.root, stdout=output, stderr=output, env=env)


def losses(job: Job) -> dict[int, str]:
    """Every complete row of the run's record, to the last digit."""
    path = job.run_folder / "metrics.csv"
    # At once: it may be written meanwhile; and it may have been damaged.
    text = path.read_text(errors="replace").replace("\0", "") if path.is_file() else ""
    rows = [row for row in csv.DictReader(text.splitlines()) if None not in row.values()]
    return {int(r["step"]): r["loss"] for r in rows if r["step"].isdigit() and r["loss_scale"]}


@dataclass(kw_only=True)
class Attack(Tally):
    """One run, killed again and again; findings have the index of their kill."""

    folder: Path
    rng: random.Random
    known: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = job_of(self.folder / "job")
        self.checkpoints = self.job.run_folder / "checkpoints"
        self.log = self.folder / "log"
        self.damaged: str | None = None
        self.resumed = 0

    def kill(self, index: int) -> None:
        """Start, see that it goes on where it must, kill it, look at what it left."""
        whole = [step for step, _ in list_complete_checkpoints(self.checkpoints)]
        process, began = start(self.job, self.log), time.monotonic()
        try:
            if not self._wait(process, lambda: bool(FIRST.search(self._text()))):
                self._fail(index, f"it ends or hangs before its first step: {self._text()[-400:]}")
                return
            spent = round(time.monotonic() - began, 3)
            self._look_at_resume(index, whole)
            outcome = "resumed" if self.resumed else "started"
            self.results.append(Result("SIGKILL of the trainer", outcome=outcome, seconds=spent))
            if not index:  # the kills after the first have something to go on from
                self._wait(process, lambda: bool(list_complete_checkpoints(self.checkpoints)))
            self._moment(process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.tried["kills"] += 1
        self._losses(index)
        for step, path in list_complete_checkpoints(self.checkpoints):
            if fault := damage(path, 0, 1):
                self._fail(index, f"step-{step} counts as complete, but {fault}")
        incomplete = len(list_checkpoint_folders(self.checkpoints)) - len(
            list_complete_checkpoints(self.checkpoints)
        )
        self.tried["left a checkpoint cut short"] += incomplete > 0
        self.damaged = None
        if index % 10 == 9 and len(list_complete_checkpoints(self.checkpoints)) > 1:
            self._damage()
        if index % 10 == 4:
            self.tried["damaged records"] += 1
            with (self.job.run_folder / "metrics.csv").open("ab") as file:
                file.write(self.rng.choice((b"7\xff,1.0\n", bytes(200_000))))

    def _moment(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for a random moment, or for one in the middle of a checkpoint."""
        moment = self.rng.choice(("time", "first file", "data", "metadata"))
        time.sleep(self.rng.uniform(0, 0.4))
        seen = {
            "time": lambda: True,
            "first file": lambda: (
                len(list_checkpoint_folders(self.checkpoints))
                > len(list_complete_checkpoints(self.checkpoints))
            ),
            "data": lambda: any(
                any(path.glob("*.distcp")) and not (path / ".metadata").exists()
                for _, path in list_checkpoint_folders(self.checkpoints)
            ),
            "metadata": lambda: any(self.checkpoints.glob("step-*/.metadata.tmp")),
        }[moment]
        self._wait(process, seen, 10.0)
        self.tried[f"at {moment}"] += 1
        time.sleep(self.rng.choice((0.0, self.rng.uniform(0, 0.01))))

    def _wait(self, process, seen: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        deadline = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < deadline:
            if seen():
                return True
            time.sleep(0.0005)
        return False

    def _look_at_resume(self, index: int, whole: list[int]) -> None:
        text = self._text()
        if self.damaged:
            self.tried["damaged checkpoints stepped over"] += 1
            if f"{self.damaged} is damaged" not in text:
                self._fail(index, f"{self.damaged} was damaged and nothing says so: {text[-500:]}")
            whole = whole[:-1]
        match = re.search(r"resuming after step (\d+)", text)
        self.resumed = step = int(match[1]) if match else 0
        newest = whole[-1] if whole else 0
        self.tried["resumed"] += step > 0
        if step != newest:
            self._fail(index, f"resumed after step {step}, the newest is {newest}")
        first = FIRST.search(text)
        if first and int(first.group(1)) != step + 1:
            self._fail(index, f"went on with step {first.group(1)} after step {step}")

    def _text(self) -> str:
        return self.log.read_text(errors="replace")

    def _losses(self, index: int) -> None:
        for step, loss in losses(self.job).items():
            if not loss.replace(".", "").replace("e-", "").isdigit():
                self._fail(index, f"step {step} has the loss {loss}")
            if step in self.known and step > self.resumed:
                self.tried["steps that ran again"] += 1
            if self.known.setdefault(step, loss) != loss:
                self._fail(index, f"step {step} again: {loss}, before {self.known[step]}")

    def _damage(self) -> None:
        _, path = list_complete_checkpoints(self.checkpoints)[-1]
        self.damaged = str(path)
        victim = self.rng.choice([*sorted(path.glob("*.distcp")), path / ".metadata"])
        os.truncate(victim, self.rng.randrange(victim.stat().st_size))

    def reference(self) -> None:
        """The same steps without a kill have the same losses."""
        steps = max(self.known, default=0)
        job = job_of(self.folder / "whole", checkpoints={"every_steps": STEPS, "keep": 1})
        process = start(job, self.folder / "whole.log")
        try:
            self._wait(process, lambda: max(losses(job), default=0) >= steps, 10 * LIMIT_S)
        finally:
            process.kill()
            process.wait()
        undisturbed = losses(job)
        for step, loss in self.known.items():
            self.tried["steps compared with an undisturbed run"] += 1
            if undisturbed.get(step) != loss:
                self._fail(-1, f"step {step}: {loss}, undisturbed {undisturbed.get(step)}")

    def _fail(self, index: int, text: str) -> None:
        self.findings.append(f"kill {index}: {text}")


def attack(order: Order) -> Attack:
    """Kills of one run."""
    with tempfile.TemporaryDirectory(prefix="recipe-attack-", ignore_cleanup_errors=True) as folder:
        run = Attack(folder=Path(folder), rng=random.Random(order.seed))
        for index in range(order.count):
            run.kill(index)
        run.reference()
    return run
