"""What areas of the attack share: an order, what came of each trial, and the one report of all."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.payload.launcher.bench import quantile
from tests.fixtures.paths import ROOT

INTERRUPTED = "interrupted: not all was tried"
SHARES = {"p50_s": 0.5, "p90_s": 0.9, "max_s": 1.0}


@dataclass(frozen=True, kw_only=True)
class Order:
    """How much one area is to try.

    ``cases``: only these, by the names that findings give them. ``short``: as few as a day's run
    has time for. ``kinds``: of deployments. ``keep``: where bundles with findings are copied to.
    """

    count: int
    seed: int = 1
    cases: tuple[str, ...] = ()
    short: bool = False
    workers: int = 2
    kinds: tuple[str, ...] = ()
    keep: Path | None = None

    def indices(self) -> Iterator[int]:
        """The numbers of the cases to draw."""
        return iter([int(case) for case in self.cases] or range(self.count))


@dataclass
class Result:
    """What became of one trial; ``seconds`` until all was well again."""

    fault: str
    where: str = ""
    outcome: str = "?"
    cause: str = ""
    seconds: float | None = None
    findings: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """What one area tried, by names; findings with what repeats each; figures that it measured."""

    tried: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Count a trial, and say what became of it."""
        self.results.append(result)
        self.findings += [f"{result.fault} ({result.where}): {text}" for text in result.findings]
        spent = "" if result.seconds is None else f"{result.seconds:6.1f} s"
        line = f"{len(self.results):4} {result.where:8} {result.fault:44.44}"
        print(f"{line} {result.outcome:10} {spent:9} {result.cause[:60]}", flush=True)
        for finding in result.findings:
            print(f"       FOUND {finding[:900]}", flush=True)

    def lines(self) -> list[str]:
        """The counts, for people."""
        return [", ".join(f"{name}: {count}" for name, count in self.tried.items()), *self.notes]

    def faults(self) -> dict[str, dict[str, Any]]:
        """By faults: how often, the outcomes, and how recovery times are distributed."""
        groups: dict[str, list[Result]] = defaultdict(list)
        for result in self.results:
            groups[result.fault].append(result)
        return {name: _summary(group) for name, group in sorted(groups.items())}

    def to_json(self) -> dict[str, Any]:
        """What the report holds of an area, and each trial in which something was found."""
        return {
            "tried": dict(self.tried),
            "seconds": round(self.seconds, 1),
            "findings": self.findings,
            "faults": self.faults(),
            "notes": self.lines(),
            "found": [asdict(result) for result in self.results if result.findings],
        }


def _summary(group: Sequence[Result]) -> dict[str, Any]:
    spent = sorted(result.seconds for result in group if result.seconds is not None)
    times = {name: quantile(spent, share) for name, share in SHARES.items()}
    outcomes = dict(Counter(result.outcome for result in group))
    return {"count": len(group), "outcomes": outcomes} | {
        name: None if value is None else round(value, 3) for name, value in times.items()
    }


def origin() -> dict[str, Any]:
    """The commit that is attacked, whether files differ from it, and the machine."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    load = os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, load {load:.1f}"
    changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"commit": git("rev-parse", "--short=12", "HEAD"), "changed": changed, "on": machine}


def shown(about: Mapping[str, Any], tallies: Mapping[str, Tally]) -> str:
    """The report of all areas, for people."""
    state = "with changes" if about["changed"] else "clean"
    head = f"{about['date']}, commit {about['commit']} ({state}), {about['on']}"
    lines = [head, f"{about['command']}, seed {about['seed']}"]
    for area, tally in tallies.items():
        found = len(tally.findings)
        lines += ["", f"== {area}: {tally.seconds:.0f} s, {found} findings", *tally.lines()]
        if faults := tally.faults():
            lines.append(f"{'fault':44} {'n':>4} {'p50 s':>7} {'p90 s':>7} {'max s':>7}  outcomes")
            lines += [_row(name, summary) for name, summary in faults.items()]
        lines += [f"FOUND {finding[:1500]}" for finding in tally.findings]
    total = sum(len(tally.findings) for tally in tallies.values())
    spent = sum(tally.seconds for tally in tallies.values())
    return "\n".join([*lines, "", f"{total} findings in {len(tallies)} areas, {spent:.0f} s"])


def _row(name: str, summary: Mapping[str, Any]) -> str:
    times = [f"{t:7.2f}" if (t := summary[key]) is not None else " " * 7 for key in SHARES]
    ends = ", ".join(f"{count} {end}" for end, count in summary["outcomes"].items())
    return f"{name:44.44} {summary['count']:>4} {' '.join(times)}  {ends}"


def written(path: Path, about: Mapping[str, Any], tallies: Mapping[str, Tally]) -> None:
    """Write the report as JSON; whole or as it was before."""
    areas = {name: tally.to_json() for name, tally in tallies.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps({**about, "areas": areas}, indent=1) + "\n")
    part.replace(path)
