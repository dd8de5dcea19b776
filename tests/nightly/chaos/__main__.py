"""Hundreds of random faults against the launcher; by hand, on any machine.

    python -m tests.nightly.chaos [--faults 300] [--seed 1] [--workers 2] [--only NAME] [-o FILE]
    CHAOS_VLLM=VENV/bin python -m tests.nightly.chaos --kinds embedded --kinds vllm --faults 30

Starts bundles of a fake engine (a server with ranks, replicas behind a router, devices with a
fallback), breaks what runs or a command, and checks after each fault: nothing runs that no state
records, the state is true, events explain what became of it, and `up` works once the fault is gone.
Each result is a line of JSON in FILE; a summary is printed. Exit code 1 where something was found.
Real engines are taken where `--kinds` names them: `embedded` (transformers serve) and `vllm` (its
CPU build, whose programs lie in $CHAOS_VLLM). With a seed the faults and their order are the same;
what they hit at which moment is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from recipe_core.launcher.metrics import quantile
from tests.fixtures.ports import is_free
from tests.nightly.chaos import real
from tests.nightly.chaos.deployments import KINDS, Deployment, make
from tests.nightly.chaos.faults import FAULTS, Fault
from tests.nightly.chaos.play import Result, play
from tests.nightly.chaos.trial import LateError, Trial

REAL = ("embedded", "vllm")
WORDS = {
    "orphans": "orphan",
    "lost_states": "lost state",
    "unexplained": "unexplained",
    "unexpected": "unexpected outcome",
}
"""What findings say, by the names of their counts."""
MOST_AT_ONCE = 6
"""Faults that one deployment meets, one after the other."""
FIRST_PORT, PORTS = 27_000, 4
"""Each deployment has a few ports from here on, below those that the system gives to clients."""


class Record:
    """Results as they come, and faults that are left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.left, self.results = options.faults, list[Result]()
        self._file = options.output.open("a") if options.output else None
        self._lock = threading.Lock()
        self._chance = random.Random(options.seed)
        self._only = options.only
        self._kinds = options.kinds or list(KINDS)
        self.episodes = 0

    def draw(self) -> tuple[int, str, list[Fault], int] | None:
        """The next deployment, what to do to it, and a seed; None once there are enough."""
        with self._lock:
            if self.left <= 0:
                return None
            self.episodes += 1
            asked = self._only or list(FAULTS)
            names = [n for n in asked if any(_suits(FAULTS[n], kind) for kind in self._kinds)]
            name = self._chance.choice(names)
            kind = self._chance.choice([k for k in self._kinds if _suits(FAULTS[name], k)])
            suited = [fault for fault in (FAULTS[n] for n in names) if _suits(fault, kind)]
            count = min(self.left, self._chance.randint(1, MOST_AT_ONCE))
            more = [self._chance.choice(suited) for _ in range(count - 1)]
            self.left -= count
            return self.episodes, kind, [FAULTS[name], *more], self._chance.randrange(1 << 30)

    def give_back(self, count: int) -> None:
        """Faults that were drawn and not done."""
        with self._lock:
            self.left += count

    def add(self, result: Result) -> None:
        """Write a result down, and say it."""
        with self._lock:
            self.results.append(result)
            if self._file:
                print(json.dumps(result.to_json()), file=self._file, flush=True)
            spent = "" if result.seconds is None else f"{result.seconds:6.1f} s"
            line = f"{len(self.results):4} {result.deployment:8} {result.fault:34}"
            print(f"{line} {result.outcome:10} {spent:9} {result.cause[:60]}", flush=True)
            for finding in result.findings:
                print(f"       FOUND {finding[:900]}", flush=True)


def build(kind: str, folder: Path, port: int) -> Deployment:
    """A deployment of a fake engine or of a real one."""
    if kind in KINDS:
        return make(kind, folder, port)
    programs = os.environ.get("CHAOS_VLLM")
    return real.make(kind, folder, port, Path(programs) if programs else None)


@cache
def _features(kind: str) -> frozenset[str]:
    if kind in REAL:
        return frozenset({"ranks"} if kind == "vllm" else ())
    with tempfile.TemporaryDirectory() as folder:
        return make(kind, Path(folder), FIRST_PORT).features


def _suits(fault: Fault, kind: str) -> bool:
    return fault.needs <= _features(kind)


def free_ports(start: int, taken: set[int]) -> int:
    """The first of a few ports from ``start`` on that nobody listens on."""
    for first in range(start, start + 900, PORTS):
        ports = range(first, first + PORTS)
        if first not in taken and all(is_free(port, reuse=True) for port in ports):
            taken.add(first)
            return first
    raise RuntimeError("no ports are free")


def episode(record: Record, port: int, keep: Path | None) -> bool:
    """One deployment's life; whether there was one."""
    drawn = record.draw()
    if drawn is None:
        return False
    number, kind, faults, seed = drawn
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{number}-"))
    trial = Trial(build(kind, folder, port), random.Random(seed))
    found = False
    try:
        trial.require("up")
        trial.wait("it serves", trial.serves)
        while faults and not found:  # what follows a finding would be found again
            result = play(trial, faults.pop(0))
            record.add(result)
            found = bool(result.findings)
    except Exception as error:
        expected = isinstance(error, LateError)
        words = str(error) if expected else traceback.format_exc()
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


def summary(results: Iterable[Result]) -> dict[str, Any]:
    """Counts of outcomes and findings, and how recovery times are distributed, by fault."""
    by_fault: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_fault[result.fault].append(result)
    every = [result for group in by_fault.values() for result in group]
    findings = [finding for result in every for finding in result.findings]
    counts = {name: sum(word in f for f in findings) for name, word in WORDS.items()}
    return {
        "faults": sum(not result.fault.startswith("(") for result in every),
        "outcomes": dict(Counter(result.outcome for result in every)),
        **counts,
        "cause_not_known": sum(result.cause == "unknown" for result in every),
        "other": sum(not any(word in finding for word in WORDS.values()) for finding in findings),
        "by_fault": {name: _row(group) for name, group in sorted(by_fault.items())},
    }


def _row(group: list[Result]) -> dict[str, Any]:
    spent = [result.seconds for result in group if result.seconds is not None]
    times = (median(spent), quantile(spent, 0.9) or 0.0, max(spent)) if spent else ()
    return {
        "count": len(group),
        "outcomes": dict(Counter(result.outcome for result in group)),
        "recovery_s": dict(zip(("p50", "p90", "max"), (round(t, 2) for t in times), strict=False)),
    }


def table(rows: dict[str, Any]) -> str:
    """The distribution by fault, for people."""
    lines = [f"{'fault':34} {'n':>4} {'p50 s':>7} {'p90 s':>7} {'max s':>7}  outcomes"]
    for name, row in rows.items():
        figures = " ".join(f"{row['recovery_s'].get(key, ''):>7}" for key in ("p50", "p90", "max"))
        counts = ", ".join(f"{count} {word}" for word, count in row["outcomes"].items())
        lines.append(f"{name:34} {row['count']:>4} {figures}  {counts}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), metavar="NAME")
    parser.add_argument("--kinds", action="append", choices=sorted((*KINDS, *REAL)), metavar="KIND")
    parser.add_argument("--keep", type=Path, help="copy bundles with findings to this folder")
    parser.add_argument("--first-port", type=int, default=FIRST_PORT, help="for runs side by side")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    record, began = Record(options), time.monotonic()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    taken: set[int] = set()
    ports = [free_ports(options.first_port, taken) for _ in range(options.workers)]

    def work(port: int) -> None:
        while episode(record, port, options.keep):
            pass

    with ThreadPoolExecutor(options.workers) as pool:
        try:
            list(pool.map(work, ports))
        except KeyboardInterrupt:
            record.left = 0
            print("interrupted: ending what runs", file=sys.stderr)
    data = summary(record.results) | {"seconds": round(time.monotonic() - began)}
    print(table(data["by_fault"]))
    print(json.dumps({name: value for name, value in data.items() if name != "by_fault"}))
    return 1 if any(result.findings for result in record.results) else 0


if __name__ == "__main__":
    sys.exit(main())
