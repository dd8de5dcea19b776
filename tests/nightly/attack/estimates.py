"""Estimates of random requests, each with seven neighbours: properties, and what looks odd.

    python -m tests.nightly.attack.estimates --count 6000 --seed 1

Every estimate is held against the properties of ``estimate_properties``, every pair against the
oddities of ``estimate_oddities``; what is odd needs a reason that ``estimate_reasons`` finds in the
estimates themselves. Exit code 1 where a property fails or an oddity has no reason.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from recipe_core.search.plans import estimate_batch
from tests.nightly.attack.estimate_draws import Request, draw
from tests.nightly.attack.estimate_oddities import ODDITIES, OVER, Case, Pair, over
from tests.nightly.attack.estimate_properties import PROPERTIES
from tests.nightly.attack.estimate_reasons import over_reason, reason_for

CHUNK = 200
"""Requests, each with its neighbours, that are estimated together."""
SHOWN = 5
"""Reproductions that are printed of each kind."""


@dataclass
class Findings:
    """Counts of a run; ``failures`` by what failed, each as seed/index and neighbour."""

    requests: int = 0
    feasible: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    explained: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def hold(self, place: str, draws: dict[str, Request], cases: dict[str, Case]) -> None:
        """Properties of each case, and oddities of their pairs."""
        self.requests += len(draws)
        self.feasible += len(cases)
        for name, case in cases.items():
            self._hold_properties(f"{place} {name}", case)
            self.tried[OVER] += 1
            if over(case):
                self._explain(OVER, f"{place} {name}", over_reason(case))
        for oddity in ODDITIES:
            if not (oddity.applies(draws["base"]) and cases.keys() >= {*oddity.compares}):
                continue
            pair = Pair(*(cases[name] for name in oddity.compares))
            self.tried[oddity.name] += 1
            if oddity.seen(pair):
                names = " → ".join(oddity.compares)
                self._explain(oddity.name, f"{place} {names}", reason_for(oddity, pair))

    def _hold_properties(self, place: str, case: Case) -> None:
        for name, holds in PROPERTIES.items():
            verdict = holds(case.request, case.answer)
            self.tried[name] += verdict is not None
            if verdict is False:
                self.failures[name].append(place)

    def _explain(self, oddity: str, place: str, reason: str | None) -> None:
        self.odd[oddity] += 1
        if reason is None:
            self.failures[oddity].append(place)
        else:
            self.explained[oddity][reason] += 1

    def text(self) -> str:
        """The counts as lines."""
        lines = [f"{self.requests:,} requests, {self.feasible:,} feasible estimates", ""]
        lines += [
            f"{self.tried[name]:>8,} tried, {len(self.failures[name])} failed: {name}"
            for name in PROPERTIES
        ]
        lines.append("")
        for name in (OVER, *(oddity.name for oddity in ODDITIES)):
            unexplained = len(self.failures[name])
            counts = f"{self.odd[name]} odd, {unexplained} unexplained"
            lines.append(f"{self.tried[name]:>8,} tried, {counts}: {name}")
            for reason, count in self.explained[name].most_common():
                lines.append(f"{'':>12}{count:>6,} {reason}")
        for name, places in self.failures.items():
            lines += [f"FAILED {name}: {place}" for place in places[:SHOWN]]
        return "\n".join(lines)

    @property
    def failed(self) -> bool:
        """Whether a property failed or an oddity has no reason."""
        return any(self.failures.values())


def attack(seed: int, indices: range) -> Findings:
    """The requests of a run with these indices."""
    findings = Findings()
    for start in range(0, len(indices), CHUNK):
        chosen = indices[start : start + CHUNK]
        draws = {index: draw(seed, index) for index in chosen}
        names = [(index, name) for index, requests in draws.items() for name in requests]
        answers = estimate_batch(draws[index][name] for index, name in names)
        cases: dict[int, dict[str, Case]] = defaultdict(dict)
        for (index, name), answer in zip(names, answers, strict=True):
            if answer.get("feasible"):
                cases[index][name] = Case(draws[index][name], answer)
        for index, requests in draws.items():
            findings.hold(f"{seed}/{index}", requests, cases[index])
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=6000, help="requests, each with neighbours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first request")
    asked = parser.parse_args()
    findings = attack(asked.seed, range(asked.first, asked.first + asked.count))
    print(findings.text())
    return int(findings.failed)


if __name__ == "__main__":
    sys.exit(main())
