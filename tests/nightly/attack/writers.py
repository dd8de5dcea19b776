"""Writers of one calibration that are killed: what was acknowledged is stored, and stays readable.

In each trial three processes add runs to one file, of which some kill themselves at a change of it,
before or after, and others are killed while they wait or write. A count is one of writers killed.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.own_runs import Measured, of_runs
from recipe_core.measured.serving_runs import published_runs
from recipe_core.recipe.overlay import Incoming, Overlay
from tests.nightly.attack.harness import Order, Tally

WRITERS, ADDITIONS = 3, 4
CHANGES = ("open", "chmod", "fsync", "rename", "replace", "unlink", "close")
"""What files are changed with, beside writing to them."""
LAST_CHANGE = 40
ID = 12


class Fate(NamedTuple):
    """When a writer ends: at a change of files (0: none), or killed after seconds (0: never)."""

    change: int = 0
    after: bool = False
    seconds: float = 0.0


def drawn(r: random.Random) -> Fate:
    if r.random() < 0.2:
        return Fate()
    if r.random() < 0.25:
        return Fate(seconds=r.uniform(0.001, 0.2))
    return Fate(r.randint(1, LAST_CHANGE), r.random() < 0.5)


def attack(order: Order) -> Tally:
    """Trials until as many writers as ordered were killed, or those that are named."""
    tally, template = Tally(), of_runs([run for run in published_runs() if run.tpot_ms][:1])[0]
    numbers: Iterator[int] = iter([int(case) for case in order.cases]) if order.cases else count()
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="writers-") as folder:
            killed, found = trial(Path(folder), random.Random(f"{order.seed}:{number}"), template)
        tally.tried["trials"] += 1
        tally.tried["writers killed"] += killed
        tally.findings += [f"{number}: {text}" for text in found]
        if not order.cases and tally.tried["writers killed"] >= order.count:
            break
    return tally


def trial(folder: Path, r: random.Random, template: Measured) -> tuple[int, list[str]]:
    """How many writers were killed, and what is wrong with what they left."""
    path, writers = folder / "a" / "calibration", []
    for writer in range(WRITERS):
        runs = [run_of(template, writer * ADDITIONS + n) for n in range(ADDITIONS)]
        fate = drawn(r)
        writers.append((*started(path, runs, fate), fate))
    for pid, _, fate in sorted(writers, key=lambda writer: writer[2].seconds):
        if fate.seconds:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            signal.setitimer(signal.ITIMER_REAL, fate.seconds)
            signal.sigwait([signal.SIGALRM])
            os.kill(pid, signal.SIGKILL)
    acknowledged, killed, found = set[str](), 0, list[str]()
    for pid, pipe, fate in writers:
        with os.fdopen(pipe, "rb") as acks:
            said = acks.read()
        acknowledged |= {said[at : at + ID].decode() for at in range(0, len(said) - ID + 1, ID)}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        killed += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            found.append(f"a writer ({fate}) ended with {code}")
    return killed, found + left(path, acknowledged, template)


def left(path: Path, acknowledged: set[str], template: Measured) -> list[str]:
    """What is wrong with a calibration that writers left; the next one has to find it free."""
    last = run_of(template, WRITERS * ADDITIONS)
    try:
        stored = {one.id for one in Overlay.at(path).entries}
        added = {one.id for one in Overlay.at(path).add([Incoming(last, "x", "table")]).entries}
        now = {one.id for one in Overlay.at(path).entries}
    except RecipeError as error:
        return [f"it cannot be read or written: {error}"]
    found = [f"{len(acknowledged - stored)} acknowledged runs are lost"] * (
        not acknowledged <= stored
    )
    if len(stored) > WRITERS * ADDITIONS or now != stored | added:
        found.append(f"it holds {len(stored)} runs, and {len(now)} after one more")
    return found


def run_of(template: Measured, number: int) -> Measured:
    """A run of its own, by its time per token."""
    return replace(template, tpot_s=(template.tpot_s or 0.01) * (1 + number / 1e4))


def started(path: Path, runs: list[Measured], fate: Fate) -> tuple[int, int]:
    """The pid of a writer, and where it tells which runs it has added."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        strike(fate)
        for run in runs:
            [entry] = Overlay.at(path).add([Incoming(run, "x", "table")]).entries
            os.write(writing, entry.id.encode())
        status = 0
    finally:
        os._exit(status)


def strike(fate: Fate) -> None:
    """Have this process end at a change of files, as its fate says."""
    changes = count(1)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            now = next(changes) == fate.change
            if now and not fate.after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = function(*args, **options)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call

    for name in CHANGES if fate.change else ():
        setattr(os, name, around(getattr(os, name)))
