"""``run/rollbacks.json``: where a run was rolled back, and which batches it leaves out since then.

A run that simply repeated the stretch would fail in the same place. As Chowdhery et al. (PaLM,
arXiv:2204.02311, section 5.1) did by hand, it goes on from a checkpoint before the event and skips
the batches around it: those of the event, and up to 100 before it, as it is batches and state
together that break a run, not one bad batch. The record alone decides what every later start does,
so a run goes on in the same way under any supervisor, and on any number of devices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .disk import put_in_place
from .errors import TrainError
from .guard import Event

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
