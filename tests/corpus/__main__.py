"""The frozen corpus: what the product answers to some two hundred requests, held number by number.

    make corpus                                   # compare all answers with the recorded ones
    make corpus-accept REASON="…"                 # record those that differ, and say why
    python -m tests.corpus compare --only plans   # those whose name holds a text

Requests stand in ``requests/FILE.yaml``, answers in ``answers/FILE/NAME.json``: numbers, names and
codes, in place of words that there are some, sums of long lists, digests of bundles' files.
``HISTORY.md`` has the date and the reason of each recording, and the answers that it changed.
"""

import argparse
import datetime
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from tests.corpus.values import NOTHING, differences
from tests.corpus.world import settle

FOLDER = Path(__file__).parent
HISTORY = FOLDER / "HISTORY.md"
SHOWN = 20  # differences of one answer that are printed
PROCESSES = 2


def main(words=None):
    """Compare or accept; the exit code is 1 where answers differ and 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus")
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("compare", "accept"):
        action = actions.add_parser(name)
        action.add_argument("--only", action="append", default=[], metavar="TEXT")
        action.add_argument("--but", action="append", default=[], metavar="TEXT")
        action.add_argument("--processes", type=int, default=PROCESSES)
    actions.choices["accept"].add_argument("--reason", required=True)
    arguments = parser.parse_args(words)
    if arguments.action == "accept" and not arguments.reason.strip():
        parser.error('an empty reason; say why answers change: REASON="…"')
    settle()
    meant = arguments.only, arguments.but
    now = answers_now(*meant, processes=arguments.processes)
    changed = compare(recorded(*meant), now)
    sys.stdout.write(f"{report(changed, len(now))}\n")
    if arguments.action == "compare":
        return int(bool(changed))
    if changed:
        accept({name: now.get(name, NOTHING) for name in changed}, arguments.reason)
    return 0


def answers_now(only=(), but=(), processes=PROCESSES):
    """The answers of today to the requests that are meant: see ``is_meant``."""
    from tests.corpus.asking import answer, entries

    asked = {name: values for name, values in entries().items() if is_meant(name, only, but)}
    if processes < 2:
        return {name: answer(values) for name, values in asked.items()}
    with ProcessPoolExecutor(processes, initializer=settle) as pool:
        return dict(zip(asked, pool.map(answer, asked.values()), strict=True))


def recorded(only=(), but=(), folder=FOLDER / "answers"):
    """The recorded answers by name."""
    from recipe_core.base.documents import parse_json

    found = {f"{path.parent.name}/{path.stem}": path for path in sorted(folder.glob("*/*.json"))}
    return {
        name: parse_json(path.read_text(encoding="utf-8"), name)
        for name, path in found.items()
        if is_meant(name, only, but)
    }


def is_meant(name, only, but=()):
    """Whether a name holds one of the texts of ``only``, or there are none, and none of ``but``."""
    return (not only or any(text in name for text in only)) and not any(t in name for t in but)


def compare(before, now):
    """The differences of each answer that has some."""
    found = {
        name: list(differences(before.get(name, NOTHING), now.get(name, NOTHING)))
        for name in sorted(before.keys() | now.keys())
    }
    return {name: changes for name, changes in found.items() if changes}


def report(changed, count):
    """What differs, for people: the first differences of each answer, and how many there are."""
    lines = []
    for name, found in changed.items():
        lines.append(f"{name}: {len(found)} difference{'s' * (len(found) > 1)}")
        lines += [f"  {difference}" for difference in islice(found, SHOWN)]
        if len(found) > SHOWN:
            lines.append(f"  … and {len(found) - SHOWN} more")
    return "\n".join([*lines, f"{len(changed)} of {count} answers differ."])


def accept(answers, reason, folder=FOLDER):
    """Record answers, remove those that are ``NOTHING``, and add to the history why."""
    from recipe_core.base.documents import to_json

    for name, answer in answers.items():
        path = folder / "answers" / f"{name}.json"
        if answer is NOTHING:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = json.loads(json.dumps(answer, sort_keys=True))  # so a recording shows no more
        path.write_text(f"{to_json(ordered)}\n", encoding="utf-8")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    history = folder / HISTORY.name
    older = history.read_text(encoding="utf-8") if history.exists() else "# Recordings\n"
    names = "\n".join(f"- {name}" for name in answers)
    entry = f"\n## {today}: {reason.strip()}\n\n{names}\n"
    history.write_text(older + entry, encoding="utf-8")
    sys.stdout.write(f"{len(answers)} answers recorded.\n")


if __name__ == "__main__":
    sys.exit(main())
