"""Rollbacks of a run whose loss broke: how that is seen, and which batches are left out.

A run that simply repeated the stretch would fail in the same place. As Chowdhery et al. (PaLM,
arXiv:2204.02311, section 5.1) did by hand, it goes on from a checkpoint before the event and skips
the batches around it: those of the event, and up to 100 before it, as it is batches and state
together that break a run, not one bad batch. The record alone decides what every later start does,
so a run goes on in the same way under any supervisor, and on any number of devices.

A spike is told by robust statistics, so that one odd step among the usual ones moves neither the
middle nor the spread: a loss above median + k · 1.4826 · MAD of the last calm steps (1.4826 makes
the median absolute deviation the standard deviation of a normal distribution; Rousseeuw and Croux,
J. Am. Stat. Assoc. 88, 1993), for several steps in a row.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from .disk import put_in_place
from .errors import RolledBackError, TrainError
from .settings import STOPPED_EXIT, Guard

# What a step was: as usual; perhaps the first of a spike, so nothing is saved; the run stops.
CALM, SUSPICIOUS, BROKEN = 0, 1, 2
# Calm steps before losses can be unusual.
_FEWEST = 10
# Of the median: a curve that became flat has hardly any spread of its own.
_LEAST_SPREAD = 0.01
_NORMAL = 1.4826
# Steps in a row: 16 halvings bring fp16's first loss scale, 65,536, to 1.
_SCALED_GRADIENTS = 20


@dataclass(frozen=True)
class Event:
    """The reason a run stopped: ``kind`` nan, gradient or spike, and its first and last step.

    ``loss`` is the last one, None where it is no number; ``usual`` the median before it (nats).
    """

    kind: str
    first: int
    last: int
    loss: float | None
    usual: float | None

    def __str__(self) -> str:
        if self.kind == "nan":
            return f"the loss of step {self.last} is not a number"
        if self.kind == "gradient":
            return f"the gradients of steps {self.first} to {self.last} are not finite"
        figures = f"{self.loss:.4f} after {self.usual:.4f}"
        return f"the loss of steps {self.first} to {self.last} is a spike ({figures})"


class Watch:
    """Sees every step of a run, on one rank; ``earlier`` are the losses of the steps before."""

    def __init__(self, guard: Guard, earlier: Iterable[float] = (), *, scaled: bool = False):
        self.guard = guard
        self.calm: deque[float] = deque(filter(math.isfinite, earlier), maxlen=guard.window)
        self.gradients = _SCALED_GRADIENTS if scaled else guard.patience
        self.event: Event | None = None
        self._first: int | None = None
        self._lost = 0

    def see(self, step: int, loss: float, gradient_norm: float) -> int:
        """Judge a step (counted from 1) by its mean loss and the norm of its gradient."""
        if not math.isfinite(loss):
            return self._broken("nan", self._first or step, step, None)
        self._lost = 0 if math.isfinite(gradient_norm) else self._lost + 1
        if self._lost >= self.gradients:
            return self._broken("gradient", step - self._lost + 1, step, loss)
        limit = self.limit()
        if limit is None or loss <= limit:
            self.calm.append(loss)
            self._first = None
            return CALM
        self._first = self._first or step
        if step - self._first + 1 >= self.guard.patience:
            return self._broken("spike", self._first, step, loss)
        return SUSPICIOUS

    def limit(self) -> float | None:
        """The largest usual loss; None while too few steps are known, or spikes are not judged."""
        if len(self.calm) < min(_FEWEST, self.guard.window) or not self.guard.deviations:
            return None
        middle = median(self.calm)
        spread = _NORMAL * median(abs(loss - middle) for loss in self.calm)
        return middle + self.guard.deviations * max(spread, _LEAST_SPREAD * abs(middle))

    def _broken(self, kind: str, first: int, last: int, loss: float | None) -> int:
        self.event = Event(kind, first, last, loss, median(self.calm) if self.calm else None)
        return BROKEN


FILE = "rollbacks.json"
# Steps before the event whose batches are left out too, where no checkpoint is nearer.
SKIPPED_BEFORE = 100
_MOST_BYTES = 1 << 20

# Batches from the first to before the second, counted from 0 without anything left out.
Stretch = tuple[int, int]


@dataclass(frozen=True)
class Rollback:
    """An event, the step of the checkpoint to go on from (0: the start), and what is left out."""

    kind: str
    first: int
    last: int
    loss: float | None
    usual: float | None
    checkpoint: int
    skipped: Stretch
    time: str


class Skips:
    """Batches that are left out, and so which batch a step takes."""

    def __init__(self, stretches: Sequence[Stretch] = ()) -> None:
        self.stretches: list[Stretch] = []
        for start, end in sorted(stretches):
            if self.stretches and start <= self.stretches[-1][1]:
                before = self.stretches.pop()
                start, end = before[0], max(before[1], end)
            self.stretches.append((start, end))

    def batch(self, step: int) -> int:
        """The batch of a step; both count from 0."""
        batch = step
        for start, end in self.stretches:
            if batch < start:
                break
            batch += end - start
        return batch


class Record:
    """The rollbacks of a run, oldest first."""

    def __init__(self, path: Path, rollbacks: tuple[Rollback, ...]) -> None:
        self.path, self.rollbacks = path, rollbacks

    @property
    def skips(self) -> Skips:
        return Skips([rollback.skipped for rollback in self.rollbacks])

    @property
    def in_a_row(self) -> int:
        """Rollbacks since the run last got past one with a checkpoint."""
        count, later = 0, None
        for rollback in reversed(self.rollbacks):
            if later is not None and later.checkpoint > rollback.last:
                break
            count, later = count + 1, rollback
        return count

    def check(self, limit: int) -> None:
        """Let a run go on.

        Raises:
            TrainError: when it was rolled back more than ``most`` times without getting further.
        """
        count = self.in_a_row
        if count <= limit:
            return
        last = self.rollbacks[-1]
        event = Event(last.kind, last.first, last.last, last.loss, last.usual)
        raise TrainError(
            f"{event}, after {count - 1} rollbacks that did not help.",
            hint="Lower learning_rate or lengthen warmup_steps and plan again, or look at the data"
            f" of batches {last.skipped[0]} to {last.skipped[1] - 1}; to try once more, remove"
            f" {self.path}.",
        )

    def roll_back(self, event: Event, checkpoints: Sequence[int]) -> tuple[Record, Rollback]:
        """The record with one more: to the newest checkpoint before the event.

        Where the last rollback went to that checkpoint too, it is the one before, if there is one.
        """
        before = sorted(step for step in checkpoints if step < event.first)
        repeated = self.rollbacks and before and self.rollbacks[-1].checkpoint == before[-1]
        if repeated and len(before) > 1:
            before.pop()
        checkpoint = before[-1] if before else 0
        start = max(checkpoint, event.first - 1 - SKIPPED_BEFORE)
        skipped = (self.skips.batch(start), self.skips.batch(event.last - 1) + 1)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        rollback = Rollback(**asdict(event), checkpoint=checkpoint, skipped=skipped, time=now)
        return Record(self.path, (*self.rollbacks, rollback)), rollback

    def write(self) -> None:
        """Replace the file."""
        values = [asdict(rollback) for rollback in self.rollbacks]
        part = self.path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"schema_version": 1, "rollbacks": values}, indent=2) + "\n")
        put_in_place(part, self.path)


def read_record(run: Path) -> Record:
    """The record of a run, empty where there was no rollback.

    Raises:
        TrainError: for a file that is not one; without it the run would repeat what broke it.
    """
    path = run / FILE
    if not path.exists():
        return Record(path, ())
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        items = json.loads(path.read_text(encoding="utf-8"))["rollbacks"]
        return Record(path, tuple(_rollback(item) for item in items))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainError(
            f"{path} cannot be read ({error}).", hint="Restore it, or remove it to skip no data."
        ) from None


def _rollback(item: dict[str, Any]) -> Rollback:
    start, end = (_parse_rollback_count(number) for number in item["skipped"])
    if end < start:
        raise ValueError(f"batches {start} to {end} are in the wrong order")
    loss, usual = (None if item[name] is None else float(item[name]) for name in ("loss", "usual"))
    return Rollback(
        kind=str(item["kind"]),
        first=_parse_rollback_count(item["first"]),
        last=_parse_rollback_count(item["last"]),
        loss=loss,
        usual=usual,
        checkpoint=_parse_rollback_count(item["checkpoint"]),
        skipped=(start, end),
        time=str(item["time"]),
    )


def _parse_rollback_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number of at least 0")
    return value


# Before the name of a checkpoint that a rollback went behind, until one is written later on.
LEFT = "rolled-back-"
# In the run folder: why the last start ended, as a launcher may not see the exit code.
END_FILE = "end.json"

# Steps and folders.
Checkpoints = Sequence[tuple[int, Path]]


def remove_left(folder: Path) -> None:
    for path in folder.glob(f"{LEFT}*"):
        shutil.rmtree(path, ignore_errors=True)


def roll_back(
    run: Path, event: Event, complete: Checkpoints, checkpoints: Checkpoints, guard: Guard
) -> TrainError:
    """Record a rollback and put aside what is behind it, so that no start goes on from there.

    ``whole`` are the checkpoints that were written to the end, ``every`` those and the others.
    Returns how this process ends: rolled back, or, after too many, diverged.
    """
    record, rollback = read_record(run).roll_back(event, [step for step, _ in complete])
    record.write()
    for step, path in checkpoints:
        if step > rollback.checkpoint:
            aside = path.with_name(LEFT + path.name)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    try:
        record.check(guard.rollbacks)
    except TrainError as error:
        return error
    start, end = rollback.skipped
    place = f"step {rollback.checkpoint}" if rollback.checkpoint else "the start"
    message = f"{event}; the next start goes on from {place}"
    return RolledBackError(f"{message} and leaves out batches {start} to {end - 1}.")


def end_with_code(run: Path, train: Callable[[], bool]) -> int:
    """Train, and return the exit code; an error is printed, and left beside the run's record."""
    try:
        finished = train()
    except TrainError as error:
        if isinstance(error, RolledBackError) and os.environ.get("RANK", "0") != "0":
            return error.exit_code  # the first rank tells
        print(f"train: {error}", file=sys.stderr, flush=True)
        tell_end(run, error)
        return error.exit_code
    return 0 if finished else int(os.environ.get(STOPPED_EXIT, "0"))


def tell_end(run: Path, error: TrainError) -> None:
    """Leave the exit code and the reason beside the run's record; a full disk changes nothing."""
    part = run / f".{END_FILE}.{os.getpid()}"
    values = {"schema_version": 1, "code": error.exit_code, "message": str(error)}
    with suppress(OSError):
        run.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(values) + "\n", encoding="utf-8")
        part.replace(run / END_FILE)
