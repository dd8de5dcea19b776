"""Answers of a release as rows of its table: architectures that answer alike share a row.

``by_hand.csv`` holds what a person read where the engine's own answer is known to be blind, or
where it has none: it takes the place of a yes, and its no is a row of its own. A release's file
holds only what differs from the file of the next older release, so that a change is a row; the
oldest holds all.
"""

import csv
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path(__file__).parents[2] / "recipe_core" / "engines" / "support"
COLUMNS = ("kind", "subject", "architectures", "answer", "chosen", "words", "source")
WORST = ("no", "unknown", "yes")


def write_support_table(engine, release, rows, output=None):
    """Write the table of a release from (kind, subject, architecture, answer, …) rows."""
    file = output or FOLDER / f"{engine}-{release}.csv"
    older = {}
    for number in sorted(_releases(engine), key=_release_order):
        if _release_order(number) < _release_order(release):
            older |= _read(FOLDER / f"{engine}-{number}.csv")
    answers = {}
    for kind, subject, arch, *answer in rows:
        key = (kind, subject, arch)
        # Several models may stand for one kind: what refuses one is not sure of the kind.
        if key not in answers or WORST.index(answer[0]) < WORST.index(answers[key][0]):
            answers[key] = tuple(answer)
    for key, answer in _by_hand(engine, release).items():
        replaces = answers[key][0] == "yes" if key in answers else answer[0] == "no"
        if replaces:
            answers[key] = answer
    changed = {key: answer for key, answer in answers.items() if older.get(key) != answer}
    grouped = {}
    for (kind, subject, arch), answer in changed.items():
        grouped.setdefault((kind, subject, answer), []).append(arch)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for (kind, subject, answer), archs in grouped.items():
            writer.writerow((kind, subject, " ".join(archs), *answer))
    print(f"{file}: {len(grouped)} rows, {len(changed)} of {len(answers)} answers are new")


def _by_hand(engine, release):
    """Return what a person read of a release, by kind, subject and architecture."""
    with (HERE / "by_hand.csv").open(newline="", encoding="utf-8") as rows:
        return {
            (row["kind"], row["subject"], arch): (row["answer"], "", row["words"], row["source"])
            for row in csv.DictReader(rows)
            if row["engine"] == engine
            if _release_order(row["from"])
            <= _release_order(release)
            <= _release_order(row["until"])
            for arch in row["architectures"].split()
        }


def _releases(engine):
    return [path.stem.removeprefix(f"{engine}-") for path in FOLDER.glob(f"{engine}-[0-9]*.csv")]


def _release_order(release):
    return tuple(int(part) for part in release.split("."))


def _read(file):
    with file.open(newline="", encoding="utf-8") as rows:
        return {
            (row["kind"], row["subject"], arch): tuple(row[name] for name in COLUMNS[3:])
            for row in csv.DictReader(rows)
            for arch in row["architectures"].split()
        }
