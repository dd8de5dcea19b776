"""Hundreds of random faults against the launcher; by hand, on any machine.

    python -m tests.nightly.chaos [--faults 300] [--seed 1] [--workers 2] [--only NAME] [-o FILE]
    CHAOS_VLLM=VENV/bin python -m tests.nightly.chaos --kinds embedded --kinds vllm --faults 30

Breaks what runs of a bundle, or a command, and checks after each fault: nothing runs that no state
records, the state is true, events explain what became of it, and `up` works once the fault is gone.
Each result is a line of JSON in FILE; a summary is printed. Exit code 1 where something was found.
Real engines are taken where `--kinds` names them: `embedded` (transformers serve) and `vllm` (its
CPU build, whose programs lie in $CHAOS_VLLM). With a seed the faults and their order are the same;
what they hit at which moment is not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from recipe_core.launcher.metrics import quantile
from tests.fixtures.ports import is_free
from tests.nightly.chaos.deployments import KINDS, REAL, make
from tests.nightly.chaos.faults import FAULTS, Fault, Result, play
from tests.nightly.chaos.trial import LateError, Trial

FEATURES = KINDS | REAL
MOST_AT_ONCE = 6
"""Faults that one deployment meets, one after the other."""
FIRST_PORT, PORTS = 27_000, 4
"""Each deployment has a few ports from here on, below those that the system gives to clients."""
FOUND = ("orphan", "lost state", "unexplained", "unexpected outcome")


class Record:
    """Results as they come, and faults that are left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.left, self.results = options.faults, list[Result]()
        self._file = options.output.open("a") if options.output else None
        self._lock, self._chance = threading.Lock(), random.Random(options.seed)
        self._kinds = options.kinds or list(KINDS)
        asked = [FAULTS[name] for name in options.only or FAULTS]
        self._suited = {k: [f for f in asked if f.needs <= FEATURES[k]] for k in self._kinds}
        self.episodes = 0

    def draw(self) -> tuple[int, str, list[Fault], int] | None:
        """The next deployment, what to do to it, and a seed; None once there are enough."""
        with self._lock:
            if self.left <= 0:
                return None
            self.episodes += 1
            possible = {f.name: f for suited in self._suited.values() for f in suited}
            first = possible[self._chance.choice(sorted(possible))]
            kind = self._chance.choice([k for k in self._kinds if first in self._suited[k]])
            count = min(self.left, self._chance.randint(1, MOST_AT_ONCE))
            self.left -= count
            more = self._chance.choices(self._suited[kind], k=count - 1)
            return self.episodes, kind, [first, *more], self._chance.randrange(1 << 30)

    def give_back(self, count: int) -> None:
        """Faults that were drawn and not done."""
        with self._lock:
            self.left += count

    def add(self, result: Result) -> None:
        """Write a result down, and say it."""
        with self._lock:
            self.results.append(result)
            if self._file:
                print(json.dumps(asdict(result)), file=self._file, flush=True)
            spent = "" if result.seconds is None else f"{result.seconds:6.1f} s"
            line = f"{len(self.results):4} {result.deployment:8} {result.fault:34}"
            print(f"{line} {result.outcome:10} {spent:9} {result.cause[:60]}", flush=True)
            for finding in result.findings:
                print(f"       FOUND {finding[:900]}", flush=True)


def free_ports(start: int) -> Iterator[int]:
    """The first of a few ports each, from ``start`` on, that nobody listens on."""
    for first in range(start, start + 900, PORTS):
        if all(is_free(port, reuse=True) for port in range(first, first + PORTS)):
            yield first


def episode(record: Record, port: int, keep: Path | None) -> bool:
    """One deployment's life; whether there was one."""
    drawn = record.draw()
    if drawn is None:
        return False
    number, kind, faults, seed = drawn
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{number}-"))
    trial, found = Trial(make(kind, folder, port), random.Random(seed)), False
    try:
        trial.require("up")
        trial.wait("it serves", trial.serves)
        while faults and not found:  # what follows a finding would be found again
            result = play(trial, faults.pop(0))
            record.add(result)
            found = bool(result.findings)
    except Exception as error:
        words = str(error) if isinstance(error, LateError) else traceback.format_exc()
        record.add(Result("(start)", kind, "late", findings=[words]))
        found = True
    finally:
        record.give_back(len(faults))
        for finding in trial.end():
            record.add(Result("(end)", kind, "?", findings=[finding]))
            found = True
        if found and keep:
            shutil.copytree(folder, keep / folder.name, symlinks=True)
        shutil.rmtree(folder, ignore_errors=True)
    return True


def report(results: list[Result]) -> None:
    """How recovery times are distributed by fault, and counts of outcomes and findings."""
    by_fault: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_fault[result.fault].append(result)
    print(f"{'fault':34} {'n':>4} {'p50 s':>7} {'p90 s':>7} {'max s':>7}  outcomes")
    for name, group in sorted(by_fault.items()):
        spent = sorted(result.seconds for result in group if result.seconds is not None)
        times = [f"{quantile(spent, share):7.2f}" if spent else " " * 7 for share in (0.5, 0.9, 1)]
        ends = Counter(result.outcome for result in group)
        outcomes = ", ".join(f"{count} {end}" for end, count in ends.items())
        print(f"{name:34} {len(group):>4} {' '.join(times)}  {outcomes}")
    findings = [finding for result in results for finding in result.findings]
    kinds = Counter(next((k for k in FOUND if k in finding), "other") for finding in findings)
    faults = sum(not result.fault.startswith("(") for result in results)
    unknown = sum(result.cause == "unknown" for result in results)
    print(json.dumps({"faults": faults, "cause unknown": unknown, "findings": kinds}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), metavar="NAME")
    parser.add_argument("--kinds", action="append", choices=sorted(FEATURES), metavar="KIND")
    parser.add_argument("--keep", type=Path, help="copy bundles with findings to this folder")
    parser.add_argument("--first-port", type=int, default=FIRST_PORT, help="for runs side by side")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    record = Record(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def work(port: int) -> None:
        while episode(record, port, options.keep):
            pass

    with ThreadPoolExecutor(options.workers) as pool:
        try:
            list(pool.map(work, islice(free_ports(options.first_port), options.workers)))
        except KeyboardInterrupt:
            record.left = 0
            print("interrupted: ending what runs", file=sys.stderr)
    report(record.results)
    return 1 if any(result.findings for result in record.results) else 0


if __name__ == "__main__":
    sys.exit(main())
