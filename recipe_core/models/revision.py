"""The revision of a model: ``owner/name@revision``, or a snapshot folder of the hub's cache."""

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
    """A model without its revision, and the revision (commit, tag or branch) or None."""
    match = _REVISED.fullmatch(model)
    return (match[1], match[2]) if match else (model, None)


def snapshot_of(folder: str) -> Snapshot | None:
    """The snapshot that a folder of the hub's cache is; None for any other folder."""
    match = _SNAPSHOT.search(folder)
    return Snapshot(f"{match[1]}/{match[2]}", match[3]) if match else None
