"""The option table that judges a release of an engine, and the changes between releases.

An option that came or went is told by the tables; what took its place is told by the ``gone`` of
the engine's grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from recipe_core.engines.grammar import Successor, grammars
from recipe_core.engines.options import FOLDER, OptionTable, option_table
from recipe_core.engines.release import release_key
from recipe_core.engines.spec import Engine, engine

RELEASE = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")
_START = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4})(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """The release that a command runs, where that is known, and the table that judges it.

    ``exact``: whether the table is that release's own; if not, what it lacks may be there.
    ``moving``: whether the release is that of the day on which the image was pulled.
    """

    version: str | None
    table: OptionTable
    exact: bool
    moving: bool = False

    def to_json(self) -> dict[str, str | bool | None]:
        """``{"version", "table", "exact"}``."""
        return {"version": self.version, "table": self.table.version, "exact": self.exact}


@cache
def releases(name: str) -> tuple[str, ...]:
    """The releases of an engine that have a table of their own, oldest first."""
    names = (path.stem.removeprefix(f"{name}-") for path in FOLDER.glob(f"{name}-*.yaml"))
    return tuple(sorted(filter(RELEASE.fullmatch, names), key=release_key))


def pinned_release_table(name: str) -> ReleaseTable:
    """The release that bundles start."""
    spec = engine(name)
    return ReleaseTable(spec.version, spec.options, exact=not spec.options.partial)


def newest_release_table(name: str) -> ReleaseTable:
    """The newest release that has a table, for a container that moves with releases."""
    table_releases = releases(name)
    if not table_releases:
        return pinned_release_table(name)
    return ReleaseTable(None, option_table(name, table_releases[-1]), exact=True, moving=True)


def release_table(name: str, version: str | None, *, official: bool = True) -> ReleaseTable:
    """The table for a release, as its tag or its user calls it: "0.25.0", "v0.9.1", "0.11.0rc1".

    Without a table of its own it is the nearest one; of an unknown release (None) the pinned one's.
    ``official``: whether it is the project's own build, not one that may differ from it.
    """
    start = _START.fullmatch(version or "")
    if start is None:
        return ReleaseTable(version, engine(name).options, exact=False)
    number = start[1]
    table = option_table(name, number) if number in releases(name) else _same_table(name, number)
    if table is not None:
        return ReleaseTable(
            version and version.removeprefix("v"), table, exact=official and not start[2]
        )
    table_releases = releases(name)
    nearest = min(
        table_releases, key=lambda release: _release_distance(release, number), default=None
    )
    table = option_table(name, nearest) if nearest else engine(name).options
    return ReleaseTable(version and version.removeprefix("v"), table, exact=False)


def _same_table(name: str, version: str) -> OptionTable | None:
    tables = (option_table(name, release) for release in releases(name))
    return next((table for table in tables if version in table.same_in), None)


def _release_distance(release: str, version: str) -> tuple[int, ...]:
    """Return how far two releases are apart, first number first; of equal ones the newer wins."""
    pairs = zip(release_key(release), release_key(version), strict=True)
    newer = release_key(release) > release_key(version)
    return (
        *(abs(release_part - version_part) for release_part, version_part in pairs),
        int(not newer),
    )


def memory_release(spec: Engine, version: str | None) -> str | None:
    """The release whose memory rules an estimate of ``version`` takes; None for the pinned one's.

    Those of a release that the history does not reach are not known.
    """
    start = _START.fullmatch(version or "")
    if start is None or spec.history is None or start[1] == spec.version:
        return None
    newest = release_key(spec.history.newest or spec.version)
    covered = release_key(spec.history.oldest) <= release_key(start[1]) <= newest
    return start[1] if covered else None


def release_of_change(name: str, version: str, flag: str, key: str | None = None) -> str:
    """Say when a lacking flag (or a key of its JSON) came or went, to end a sentence.

    Empty where the tables do not tell: it came only where all newer releases have it, and a flag
    that is gone did not come where a release spells the inverse of a switch like it.
    """
    tables = [option_table(name, release) for release in releases(name)]
    have = [n for n, table in enumerate(tables) if _has_spelling(table, flag, key)]
    gone = grammars()[name].gone_word(flag, key) is not None
    came = [n for n in have if not (gone and flag in tables[n].by_spelling[flag].inverse)]
    is_newest = bool(came) and came[-1] + 1 == len(tables)
    if is_newest and release_key(version) < release_key(tables[came[0]].version) and came[0]:
        return f"; it came with {tables[came[0]].version}"
    left = have[-1] + 1 if have else len(tables)
    if left < len(tables) and release_key(version) >= release_key(tables[left].version):
        return f"; it went with {tables[left].version}"
    return ""


def _has_spelling(table: OptionTable, flag: str, key: str | None) -> bool:
    option = table.by_spelling.get(flag)
    return option is not None and (key is None or key in option.keys)


def option_successor(
    name: str, flag: str, table: OptionTable, *, key: str | None = None, value: str | None = None
) -> Successor | None:
    """Return what takes the place of a gone flag, of a key of its JSON or of one of its values.

    None where nothing does (it is left out), where nothing is known, or where the release of
    ``table`` lacks the successor too.
    """
    gone = grammars()[name].gone_word(flag, key, value)
    if gone is None or gone.use == "nothing":
        return None
    new_flag, _, path = gone.use.partition(".")
    option = table.by_spelling.get(new_flag)
    if option is None or (path and option.keys and path.split(".")[0] not in option.keys):
        return None
    return Successor(option.name, new_flag, path or None, gone.values, gone.note)


def option_replacement(
    name: str, flag: str, table: OptionTable, *, key: str | None = None, value: str | None = None
) -> str | None:
    """Say what to write for a gone word in a table's release, as a sentence; None if unknown."""
    gone = grammars()[name].gone_word(flag, key, value)
    if gone is None:
        return None
    note = f" ({gone.note})" if gone.note else ""
    if gone.use == "nothing":
        return f"Leave it out{note}."
    if option_successor(name, flag, table, key=key, value=value) is None:
        return None
    if not note and len(gone.values) == 1:
        note = f" ({next(iter(gone.values.values()))})"
    return f"Use {gone.use}{note}."
