"""Writers of one calibration that are killed: what was acknowledged is stored, and stays readable.

In each trial three processes add runs to one file, and most of them kill themselves at a change of
files, before or after it. A count is one of writers killed.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.residuals import Measured, measured_of_rows
from recipe_core.calibration.store import Incoming, Overlay
from recipe_core.estimates.measured.runs import published_runs
from tests.nightly.attack.harness import Order, Tally

WRITERS, ADDITIONS = 3, 4
CHANGES = ("open", "chmod", "fsync", "rename", "replace", "unlink", "close")
"""What files are changed with, beside writing to them and waiting for others."""
LAST_CHANGE = 45
ID = 12


def attack(order: Order) -> Tally:
    """Trials until as many writers as ordered were killed, or those that are named."""
    tally = Tally()
    numbers: Iterator[int] = iter([int(case) for case in order.cases]) if order.cases else count()
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="writers-") as folder:
            killed, found = trial(Path(folder) / "a", random.Random(f"{order.seed}:{number}"))
        tally.tried["trials"] += 1
        tally.tried["writers killed"] += killed
        tally.findings += [f"{number}: {text}" for text in found]
        if not order.cases and tally.tried["writers killed"] >= order.count:
            break
    return tally


def trial(path: Path, r: random.Random) -> tuple[int, list[str]]:
    """How many writers were killed, and what is wrong with what they left."""
    coming(0)  # what they share is made once
    writers = []
    for writer in range(WRITERS):
        runs = [coming(writer * ADDITIONS + n) for n in range(ADDITIONS)]
        last = r.randint(1, LAST_CHANGE) if r.random() < 0.8 else 0
        writers.append(started(path, runs, last, after=r.random() < 0.5))
    acknowledged, ends = set[str](), []
    for pid, pipe in writers:
        with os.fdopen(pipe, "rb") as acks:
            said = acks.read().decode()
        acknowledged |= {said[at : at + ID] for at in range(0, len(said) - ID + 1, ID)}
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    found = [f"a writer ended with {end}" for end in ends if end not in (0, -signal.SIGKILL)]
    try:
        stored = {one.id for one in Overlay.at(path).entries}
        added = {one.id for one in Overlay.at(path).add([coming(-1)]).entries}  # the lock is free
        now = {one.id for one in Overlay.at(path).entries}
    except RecipeError as error:
        return ends.count(-signal.SIGKILL), [*found, f"it cannot be read or written: {error}"]
    if lost := acknowledged - stored:
        found.append(f"{len(lost)} acknowledged runs are lost")
    if len(stored) > WRITERS * ADDITIONS or now != stored | added:
        found.append(f"it holds {len(stored)} runs, and {len(now)} after one more")
    return ends.count(-signal.SIGKILL), found


@cache
def template() -> Measured:
    return measured_of_rows([run for run in published_runs() if run.tpot_ms][:1])[0]


def coming(number: int) -> Incoming:
    """A run of its own, by its time per token."""
    tpot_s = (template().tpot_s or 0.01) * (1 + number / 1e4)
    return Incoming(replace(template(), tpot_s=tpot_s), "x", "table")


def started(path: Path, runs: list[Incoming], last: int, *, after: bool) -> tuple[int, int]:
    """The pid of a writer that ends at its ``last`` change, and where it tells what it added."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, reading
    status = 1
    try:
        changes = count(1)
        for owner, name in (*((os, name) for name in CHANGES), (fcntl, "flock")):
            setattr(owner, name, ending(getattr(owner, name), changes, last, after=after))
        for run in runs:
            [entry] = Overlay.at(path).add([run]).entries
            os.write(writing, entry.id.encode())
        status = 0
    finally:
        os._exit(status)


def ending(function: Callable[..., Any], changes: Iterator[int], last: int, *, after: bool) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        ends = next(changes) == last
        if ends and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*args, **options)
        if ends:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return call
