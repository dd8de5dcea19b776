"""Stated probabilities of a start against starts and failures that are known.

    python scripts/start_reliability.py

Prints the table of docs/reference/check.md: published runs (all of them started, ``recipe
validate``), and public outcomes of commands (``tests/data/tables/known.yaml``), by the probability
that the answer states; a refused command counts as 0.
"""

from collections import Counter
from pathlib import Path

import yaml

from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.commands.verdict import OK
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.estimates.measured.runs import published_runs
from recipe_core.plans.plans import estimate_batch

OUTCOMES = Path(__file__).parents[1] / "tests/data/tables/known.yaml"
BUCKETS = (
    (0.95, "0.95 and more"),
    (0.9, "0.9 to 0.95"),
    (0.1, "0.1 to 0.9"),
    (0.05, "0.05 to 0.1"),
)
LAST = "less than 0.05"


def bucket(chance: float) -> str:
    return next((name for lower_end, name in BUCKETS if chance >= lower_end), LAST)


def main() -> None:
    counts: dict[str, Counter[str]] = {name: Counter() for _, name in BUCKETS} | {LAST: Counter()}
    with without_corrections():
        answers = estimate_batch([run.request() for run in published_runs()])
    for answer in answers:
        if "memory" in answer:
            chance = answer["memory"]["start_probability"] if answer["feasible"] else 0.0
            counts[bucket(chance)]["runs"] += 1
    for command, hardware, gpus, started in yaml.safe_load(OUTCOMES.read_text())["outcomes"]:
        answer = judge_command(
            command, CommandContext.of(hardware=hardware, gpus=gpus), folders=False
        )
        refused = OK[answer["verdict"]] is False
        chance = 0.0 if refused else answer["start_probability"]
        counts[bucket(chance)]["started" if started else "failed"] += 1
    print("| stated | published runs (all started) | commands that started | that failed |")
    print("| --- | --- | --- | --- |")
    for name, of in counts.items():
        print(f"| {name} | {of['runs']:,} | {of['started']} | {of['failed']} |")


main()
