"""What a run does when its loss broke, and what it leaves for whoever started it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .errors import RolledBackError, TrainError
from .guard import Event
from .rollbacks import read_record
from .settings import Guard

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


def tell_end(run: Path, error: TrainError) -> None:
    """Leave the exit code and the reason beside the run's record; a full disk changes nothing."""
    part = run / f".{END_FILE}.{os.getpid()}"
    values = {"schema_version": 1, "code": error.exit_code, "message": str(error)}
    with suppress(OSError):
        run.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(values) + "\n", encoding="utf-8")
        part.replace(run / END_FILE)
