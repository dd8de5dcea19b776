"""Which revision of a model on the hub is meant: ``owner/name@revision``, or a snapshot folder of the hub's cache."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REVISED = re.compile(r"([\w.-]+/[\w.-]+)@([\w][\w./-]{0,127})")
_SNAPSHOT = re.compile(
    r"(?:^|[\\/])models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]?$"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model's id on the hub and the revision that a folder holds."""

    id: str
    revision: str


def split_revision(model: str) -> tuple[str, str | None]:
    """A model without its revision, and the revision: a commit, a tag or a branch; None where none is named."""
    found = _REVISED.fullmatch(model)
    return (found[1], found[2]) if found else (model, None)


def snapshot_of(folder: str) -> Snapshot | None:
    """What a folder of the hub's cache is a snapshot of; None for any other folder."""
    found = _SNAPSHOT.search(folder)
    return Snapshot(f"{found[1]}/{found[2]}", found[3]) if found else None
