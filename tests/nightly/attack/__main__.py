"""Attack everything, or some areas, and report once.

    python -m tests.nightly.attack                                   # every area, at its usual size
    python -m tests.nightly.attack launcher --count 400 --seed 1 -o report.json
    python -m tests.nightly.attack --short                           # under a minute, as by day
    CHAOS_VLLM=VENV/bin python -m tests.nightly.attack launcher --kinds vllm --case "kill*"

Areas run one after the other, where possible in a namespace of processes of their own: see
``alone``. The report says what was tried, what became of it, how long it took to be well again, and
each finding with the case that repeats it: ``--case`` takes a pattern of names of faults, the
number of a case, FAMILY:INDEX of a bundle, a deployment or a field of a text. Exit code 1 where
something was found. With a seed cases and their order are the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from tests.nightly.attack import alone
from tests.nightly.attack.harness import INTERRUPTED, Order, Tally, origin, shown, written


@dataclass(frozen=True, slots=True)
class Area:
    """A module with ``attack``; how many cases it tries usually, and in short (0 for none)."""

    module: str
    usual: int
    short: int | tuple[str, ...] = 0
    needs: str = "recipe_core"

    @property
    def is_there(self) -> bool:
        """Whether its module and what it needs are installed."""
        try:
            return all(map(importlib.util.find_spec, (self._name, self.needs)))
        except ModuleNotFoundError:
            return False

    @property
    def _name(self) -> str:
        return f"tests.nightly.attack.{self.module}"

    def run(self, order: Order) -> Tally:
        """What came of it; what it raises is a finding."""
        began = time.monotonic()
        try:
            tally: Tally = import_module(self._name).attack(order)
        except KeyboardInterrupt:
            tally = Tally(findings=[INTERRUPTED])
        except Exception:
            tally = Tally(findings=[f"the attack ended: {traceback.format_exc()}"])
        tally.seconds = time.monotonic() - began
        return tally


FAMILIES = tuple(f"{name}:0" for name in ("zip-cut", "names", "folders", "manifests"))
AREAS = {
    "launcher": Area("launcher.campaign", 400, short=4),
    "signals": Area("signals", 300, short=("805", "1383")),
    "trainer": Area("trainer", 100, needs="torch"),
    "bodies": Area("api", 3500, short=20),
    "contract": Area("contract", 100, needs="schemathesis"),
    "bundles": Area("bundles", 2000, short=FAMILIES),
    "texts": Area("injection", 400),
    "estimates": Area("estimates", 1600),
    "load": Area("load", 200),
    "writers": Area("writers", 150, short=4),
    "unsynced": Area("unsynced", 150, short=1),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of: {', '.join(AREAS)}")
    parser.add_argument("--count", type=int, help="cases of each area")
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", action="append", default=[], help="only this one, of one area")
    parser.add_argument("--short", action="store_true", help="what a day's run has time for")
    parser.add_argument("--workers", type=int, default=2, help="launchers attacked at a time")
    parser.add_argument("--kinds", action="append", default=[], help="of deployments")
    parser.add_argument("--keep", type=Path, help="copy bundles with findings to this folder")
    parser.add_argument("-o", "--output", type=Path, help="write the report as JSON, too")
    options = parser.parse_args()
    if unknown := set(options.areas) - set(AREAS):
        parser.error(f"no area {', '.join(sorted(unknown))}; there are: {', '.join(AREAS)}")
    alone.go_there([sys.executable, "-m", "tests.nightly.attack", *sys.argv[1:]])
    os.environ |= {"HF_HUB_OFFLINE": "1", "RECIPE_BUILDER_CALIBRATION": ""}  # as tests have it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = shlex.join(["python", "-m", "tests.nightly.attack", *sys.argv[1:]])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"date": now, "command": command, "seed": options.seed, **origin()}
    about["alone"] = alone.is_alone()
    tallies: dict[str, Tally] = {}
    for name in options.areas or AREAS:
        area = AREAS[name]
        cases, usual = tuple(options.case), round(area.usual * options.scale)
        if options.short and isinstance(area.short, tuple):
            cases = cases or area.short
        elif options.short:
            usual = area.short
        if not area.is_there and name in options.areas:
            parser.error(f"{name} cannot be tried: {area.module} or {area.needs} is missing")
        if not area.is_there or (options.short and not area.short):
            print(f"== {name}: left out{'' if area.is_there else ', as something is missing'}")
            continue
        print(f"== {name}", flush=True)
        tallies[name] = area.run(
            Order(
                count=options.count or usual,
                seed=options.seed,
                cases=cases,
                short=options.short,
                workers=options.workers,
                kinds=tuple(options.kinds),
                keep=options.keep,
            )
        )
        if options.output:  # after each: what was found is not lost with what follows
            written(options.output, about, tallies)
        if INTERRUPTED in tallies[name].findings:
            break
    print("\n" + shown(about, tallies))
    return 1 if any(tally.findings for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
