"""Measurements taken into a calibration, and what it knows after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.calibration.compressions import (
    ComparedCompression,
    KeptCompression,
    StoredCompression,
    compare_compressions,
)
from recipe_core.calibration.lessons import LearnedNumber, LeftOneOut, learned_numbers, left_one_out
from recipe_core.calibration.place import VARIABLE, default_path
from recipe_core.calibration.run_files import read_incoming
from recipe_core.calibration.store import Added, Overlay, StoredRun

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Knowledge:
    """A calibration with the numbers it has learned, and how much nearer they bring estimates.

    ``added``: what was just stored, or would be (``dry``). ``removed``: what was just taken back.
    """

    overlay: Overlay
    added: Added | None = None
    removed: tuple[StoredRun | StoredCompression, ...] = ()
    dry: bool = False

    @cached_property
    def _corrections(self) -> Any:
        return self.overlay.corrections()

    @cached_property
    def numbers(self) -> tuple[LearnedNumber, ...]:
        """What the runs that count taught, wide scopes first."""
        return tuple(learned_numbers(self._corrections)) if self._corrections else ()

    @cached_property
    def errors(self) -> tuple[LeftOneOut, ...]:
        """Errors before and after, each run estimated without itself; none of a single run."""
        if self._corrections is None or len(self._corrections.runs) < 2:
            return ()
        return left_one_out(self.overlay.runs, self._corrections)

    def compared(
        self, entries: Sequence[KeptCompression]
    ) -> list[tuple[KeptCompression, ComparedCompression]]:
        """Measured checkpoints, each beside what published figures let expect of it."""
        beside = compare_compressions([entry.measured for entry in entries])
        return list(zip(entries, beside, strict=True))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values: SI units, errors as shares, days as YYYY-MM-DD."""
        added = [entry.to_json() for entry in self.added.entries] if self.added else []
        return {
            "schema_version": SCHEMA_VERSION,
            "path": str(self.overlay.path),
            "dry_run": self.dry,
            "counts": self.overlay.stored._asdict(),
            "added": added,
            "known": list(self.added.repeated_ids) if self.added else [],
            "removed": [run.id for run in self.removed],
            "compressions": [
                {**entry.to_json(), "expected": beside.to_json()}
                for entry, beside in self.compared(self.overlay.compressions)
            ],
            "runs": [entry.to_json() for entry in self.overlay.entries],
            "numbers": [number.to_json() for number in self.numbers],
            "left_one_out": [error.to_json() for error in self.errors],
        }


def calibration_at(path: Path | None) -> Overlay:
    """The calibration at a path, or by default this machine's; empty where there is none yet.

    Raises:
        InputError: where it is damaged, or switched off.
    """
    return Overlay.at(resolve_calibration_path(path))


def resolve_calibration_path(path: Path | None) -> Path:
    """Where a calibration lies: at a stated path, or by default this machine's.

    Raises:
        InputError: where this machine's is switched off.
    """
    place = path or default_path()
    if place is None:
        raise InputError(
            f"the calibration is switched off: {VARIABLE} is empty.",
            field="into",
            hint="Name one by --into, or unset the variable.",
        )
    return place


def calibrate_from_files(
    measurements: Sequence[Path], into: Path | None = None, *, dry: bool = False
) -> Knowledge:
    """Store what files and bundles measured in a calibration.

    Args:
        measurements: what ``read_own_measurements`` reads: tables, bundles,
            ``measurement.json``, ``compression.json``.
        into: the calibration; by default this machine's.
        dry: store nothing, and say what would be.

    Raises:
        InputError: for a file that cannot be read, and as ``Overlay.add``.
    """
    overlay = calibration_at(into)
    incoming = [run for path in measurements for run in read_incoming(path)]
    added = overlay.add(incoming, dry=dry)
    return Knowledge(added.overlay, added, dry=dry)
