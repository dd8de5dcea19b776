"""An engine's support of an architecture, as a release's code, or its documents, answer.

One table a release under ``support/``, made by ``scripts/engine_support``; a release's file holds
what changed since the next older one, and the oldest holds all. Kinds of questions:

* ``attention``: a kind of attention with a cache format ("sparse-mla fp8", "gqa 128 auto")
* ``weights``: a stored format of dense layers or of experts ("experts awq-g128")
* ``cut``: the same where a rank's share cuts a group or block of the format
* ``model``: what a release refuses of a family of models on an architecture
* ``build``: whether the release holds code for the architecture at all

"yes" means that the engine takes it, not that a kernel ran. Three answers: what nobody asked, or
what changed between two releases that were asked, is "unknown".
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, cast

from recipe_core.engines.release import release_key

FOLDER = Path(__file__).with_name("support")
Kind = Literal["attention", "weights", "cut", "model", "build"]
Verdict = Literal["yes", "no", "unknown"]
COLUMNS = ("kind", "subject", "architectures", "answer", "chosen", "words", "source")
RELEASE_FILE = re.compile(r"(?P<engine>[a-z-]+)-(?P<release>b?\d[\d.]*)")
# What kernels have in their names that unpack weights before every product.
EMULATED = "emulat"
# The same of those for experts that no format and no architecture was tuned for.
GENERIC = "MoeWNA16"
# Architectures whose kernels were there before the oldest release that was asked.
SETTLED = ("sm_80", "sm_86", "sm_89", "sm_90")
# What subjects have in them that came to engines with their last releases, everywhere.
RECENT = ("fp4", "sinks", "sparse", "compressed", "delta", "kda", "conv")
# How subjects of attention with heads of a width begin: "gqa 128 auto".
HEADS = "gqa "


@dataclass(frozen=True, slots=True)
class Answer:
    """A release's answer to one question.

    ``backends``: backends and kernels that it takes. ``words``: its own where it refuses, or what
    is not known. ``release``: the one that was asked. ``from_table``: False where the answer is
    that of other releases, as no table has the one in question.
    """

    verdict: Verdict
    backends: str = ""
    words: str = ""
    source: str = ""
    release: str = ""
    from_table: bool = True

    @property
    def runs(self) -> bool:
        return self.verdict == "yes" and not self.emulates

    @property
    def emulates(self) -> bool:
        return EMULATED in self.backends.casefold()

    @property
    def generic(self) -> bool:
        return GENERIC in self.backends


def releases_asked(engine: str) -> tuple[str, ...]:
    """Releases of an engine that have a table, oldest first."""
    matches = (RELEASE_FILE.fullmatch(path.stem) for path in _support_tables())
    names = [match["release"] for match in matches if match and match["engine"] == engine]
    return tuple(sorted(names, key=_support_release_key))


def architectures_asked(engine: str, release: str) -> tuple[str, ...]:
    """Architectures that the table of a release that was asked names, in alphabetical order."""
    return tuple(sorted({architecture for _, _, architecture in _support_table(engine, release)}))


def support_answer(
    engine: str, release: str, architecture: str, kind: Kind, subject: str
) -> Answer | None:
    """Look up a release's answer to a question; None where nobody asked the engine.

    A release without a table has the answer of its neighbours where these agree; one that is newer
    than all that of the newest if it is a yes. Of one that is older than all nothing is known but
    what is not ``RECENT`` on ``SETTLED`` architectures: kernels come with time. Heads of a width
    that was not asked have the answer of the next wider and the next narrower ones, or of "gqa *",
    any width.
    """
    table_releases = releases_asked(engine)
    if not table_releases:
        return None
    if release in table_releases:
        return _release_answer(engine, release, architecture, kind, subject)
    try:
        place = sum(
            _support_release_key(neighbour) < _support_release_key(release)
            for neighbour in table_releases
        )
    except ValueError:  # a build that is no release
        return Answer("unknown", words=f"{release} is no release that was asked", from_table=False)
    nearest = table_releases[max(place - 1, 0) : place + 1]
    neighbours = [
        _release_answer(engine, neighbour, architecture, kind, subject) for neighbour in nearest
    ]
    answers = [neighbour for neighbour in neighbours if neighbour is not None]
    if not answers:
        return None
    same = {neighbour.verdict for neighbour in answers}
    settled = architecture in SETTLED and not any(word in subject for word in RECENT)
    older = place == 0 and not settled
    if len(same) == 1 and (len(neighbours) == 2 or (same == {"yes"} and not older)):
        return replace(answers[-1], from_table=False)
    verdicts = ", ".join(f"{neighbour.verdict} in {neighbour.release}" for neighbour in answers)
    words = f"{verdicts}; {release} was not asked"
    return replace(answers[-1], verdict="unknown", words=words, from_table=False)


def _release_answer(
    engine: str, release: str, architecture: str, kind: Kind, subject: str
) -> Answer | None:
    """Return what the table of a release says; "unknown" for an architecture that was left out."""
    table = _support_table(engine, release)
    table_answer = table.get((kind, subject, architecture)) or _neighbour_width_answer(
        table, architecture, kind, subject
    )
    if table_answer is not None:
        return replace(table_answer, release=release)
    if kind in ("model", "build"):
        return None
    if (kind, subject) in _asked_subjects(engine, release):
        words = f"nobody asked about {architecture}"
        return Answer("unknown", words=words, release=release)
    return None


def _neighbour_width_answer(
    table: dict[tuple[str, str, str], Answer], architecture: str, kind: str, subject: str
) -> Answer | None:
    """The common answer of heads that are the next wider and the next narrower ones."""
    words = subject.split(" ")
    if kind != "attention" or not subject.startswith(HEADS) or not words[1].isdigit():
        return None
    if any_width := table.get((kind, f"{HEADS}* {words[-1]}", architecture)):
        return any_width
    if len(words) > 3:  # with sinks: what holds of the width alone is not known to hold
        return None
    widths = sorted(
        int(of[1])
        for where, row_subject, arch in table
        if where == kind and arch == architecture and row_subject.startswith(HEADS)
        if len(of := row_subject.split(" ")) == 3 and of[2] == words[2]
    )
    width = int(words[1])
    neighbours = [w for w in widths if w < width][-1:] + [w for w in widths if w > width][:1]
    answers = [table[kind, f"{HEADS}{w} {words[2]}", architecture] for w in neighbours]
    if len({neighbour.verdict for neighbour in answers}) == 1:
        return answers[0]
    return None


@cache
def _support_tables() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.csv")))


def _support_release_key(release: str) -> tuple[int, ...]:
    """Numbers that sort releases by age; raises ValueError for what is no release."""
    return release_key(release.removeprefix("b"))


@cache
def _asked_subjects(engine: str, release: str) -> frozenset[tuple[str, str]]:
    return frozenset((kind, subject) for kind, subject, _ in _support_table(engine, release))


@cache
def _support_table(engine: str, release: str) -> dict[tuple[str, str, str], Answer]:
    table_releases = releases_asked(engine)
    place = table_releases.index(release)
    answers = dict(_support_table(engine, table_releases[place - 1])) if place else {}
    with (FOLDER / f"{engine}-{release}.csv").open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            verdict, backends, words, source = (row[name] for name in COLUMNS[3:])
            row_answer = Answer(cast(Verdict, verdict), backends, words, source)
            for architecture in row["architectures"].split():
                answers[row["kind"], row["subject"], architecture] = row_answer
    return answers
