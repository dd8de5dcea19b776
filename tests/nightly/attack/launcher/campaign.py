"""Random faults against the launcher, beside processes that it must leave alone.

Breaks what runs of a bundle, or a command, and checks after each fault: nothing runs that no state
records, the state is true, events explain what became of it, `up` works once the fault is gone,
and no process that another started was ended. With a seed the faults and their order are the same;
what they hit at which moment is not. Kinds of deployments that are only taken where they are named
are those of real engines: `embedded` (transformers serve) and `vllm` (its CPU build, whose programs
lie in $CHAOS_VLLM).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from tests.fixtures.ports import is_free
from tests.nightly.attack import alone
from tests.nightly.attack.harness import INTERRUPTED, Order, Result, Tally
from tests.nightly.attack.launcher.bystanders import Neighbour
from tests.nightly.attack.launcher.deployments import KINDS, REAL, make
from tests.nightly.attack.launcher.faults import Fault
from tests.nightly.attack.launcher.judge import play
from tests.nightly.attack.launcher.places import FAULTS
from tests.nightly.attack.launcher.trial import LateError, Trial

FEATURES = KINDS | REAL
MOST_AT_ONCE = 6
"""Faults that one deployment meets, one after the other."""
FIRST_PORT, PORTS, NEIGHBOUR = 27_000, 12, 8
"""A worker has a few ports from here on, below those that the system gives to clients."""
SHORT = {
    "one": (
        *("up: log is a link to /dev/null", "restart: log is a link to /dev/null"),
        *("down in a copy of a running bundle", "stop the keeper and kill a server"),
    )
}
"""What a day's run does; signals kill launchers besides."""


class Record(Tally):
    """Results as they come, and faults that are left."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.keep, self.short, self.left = order.keep, order.short, order.count
        self._lock, self._chance = threading.Lock(), random.Random(order.seed)
        kinds = order.kinds or tuple(SHORT if order.short else KINDS)
        wanted = order.cases or ("*",)
        asked = [f for name, f in FAULTS.items() if any(fnmatch(name, each) for each in wanted)]
        here = [each for each in asked if alone.is_alone() or not each.alone]
        if left_out := len(asked) - len(here):
            self.notes.append(f"NOT TRIED, without a namespace of processes: {left_out} kinds")
        self._suited = {k: [f for f in here if f.needs <= FEATURES[k]] for k in kinds}
        self._deck: list[Fault] = []
        self._fixed = list(SHORT.items()) if order.short else []

    def draw(self) -> tuple[str, list[Fault], int] | None:
        """The next deployment, what to do to it, and a seed; None once there are enough."""
        with self._lock:
            possible = {f.name: f for suited in self._suited.values() for f in suited}
            if self.left <= 0 or not possible:
                return None
            seed = self._chance.randrange(1 << 30)
            if self._fixed:
                kind, names = self._fixed.pop()
                self.left = len(self._fixed)
                return kind, [possible[name] for name in names if name in possible], seed
            first = self._next([*possible.values()])
            kind = self._chance.choice([k for k in self._suited if first in self._suited[k]])
            count = min(self.left, self._chance.randint(1, MOST_AT_ONCE))
            self.left -= count
            return kind, [first, *(self._next(self._suited[kind]) for _ in range(count - 1))], seed

    def _next(self, suited: list[Fault]) -> Fault:
        """Each once, in random order, before any comes again."""
        if not (left := [each for each in self._deck if each in suited]):
            left = self._chance.sample(suited, len(suited))
            self._deck += left
        self._deck.remove(left[-1])
        return left[-1]

    def give_back(self, count: int) -> None:
        """Faults that were drawn and not done."""
        with self._lock:
            self.left += count

    def add(self, result: Result) -> None:
        """Write a result down, and say it."""
        with self._lock:
            done = not result.fault.startswith("(")
            self.tried["faults"] += done
            self.tried["cause unknown"] += done and result.cause == "unknown"
            super().add(result)


def free_ports() -> Iterator[int]:
    """The first of a few ports each that nobody listens on."""
    for first in range(FIRST_PORT, FIRST_PORT + 960, PORTS):
        if all(is_free(port, reuse=True) for port in range(first, first + PORTS)):
            yield first


def episode(record: Record, port: int, folder: Path, neighbour: Neighbour | None) -> bool:
    """One deployment's life; whether there was one."""
    drawn = record.draw()
    if drawn is None:
        return False
    kind, faults, seed = drawn
    place = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))
    trial, found = Trial(make(kind, place, port), random.Random(seed)), False
    try:
        trial.require("up")
        trial.wait("it serves", trial.serves)
        while faults and not found:  # what follows a finding would be found again
            result = play(trial, faults.pop(0))
            result.findings += neighbour.ended() if neighbour else []
            record.add(result)
            found = bool(result.findings)
    except Exception as error:
        words = str(error) if isinstance(error, LateError) else traceback.format_exc()
        record.add(Result("(start)", kind, "late", findings=[words]))
        found = True
    finally:
        record.give_back(len(faults))
        for finding in trial.end():
            record.add(Result("(end)", kind, findings=[finding]))
            found = True
        if found and record.keep:
            shutil.copytree(place, record.keep / place.name, symlinks=True)
        shutil.rmtree(place, ignore_errors=True)
    return True


def worked(record: Record, port: int) -> None:
    """One deployment after the other, in folders beside a neighbour that nothing may touch."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as at:
        folder, neighbour = Path(at), None
        if not record.short:  # there, copies are what may be taken for another
            deployment = make("one", folder / "neighbour", port + NEIGHBOUR)
            neighbour = Neighbour(Trial(deployment, random.Random(0)))
        try:
            while episode(record, port, folder, neighbour):
                pass
        finally:
            for finding in neighbour.trial.end() if neighbour else ():
                record.add(Result("(neighbour)", "one", findings=[finding]))


def attack(order: Order) -> Tally:
    """Faults at random, done by a few workers; where it is interrupted, nothing runs on."""
    record = Record(order)
    workers = 1 if order.short else order.workers
    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(lambda port: worked(record, port), islice(free_ports(), workers)))
        except KeyboardInterrupt:
            record.left = 0
            record.findings.append(INTERRUPTED)
    return record
