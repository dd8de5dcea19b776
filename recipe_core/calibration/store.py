"""The calibration of a machine or a team: measured runs that correct every answer made beside it.

A folder (``calibration.json`` in it) or one ``.json`` file. It holds the runs themselves, not what
they teach: scales are learned from them anew by each version, so that a better version learns
better, and every number can say which runs it comes from. Writers take turns by a lock beside the
file and replace it whole: readers see the old content or the new.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.calibration import run_checks
from recipe_core.calibration.place import (
    VARIABLE,
    calibration_file,
    calibration_stamp,
    default_path,
)
from recipe_core.calibration.records import (
    FIELD,
    Addition,
    Gate,
    Stored,
    StoredCompression,
    StoredRun,
    calibration_lock,
    read_additions,
    write_additions,
)
from recipe_core.calibration.residuals import MAX_RUNS, Measured, learn_corrections
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.corrections import Stored as StoredCounts
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.recipe.secrets import refuse_secrets


class Incoming(NamedTuple):
    """A run or a measured checkpoint that is to be added, with where it comes from."""

    run: Measured | MeasuredCompression
    source: str
    format: str


@dataclass(frozen=True, slots=True)
class Added:
    """The effect of an addition: new entries, and ids that were there already."""

    entries: tuple[StoredRun, ...]
    repeated_ids: tuple[str, ...]
    overlay: Overlay
    compressions: tuple[StoredCompression, ...] = ()


def machine_corrections() -> Corrections | None:
    """Return what the calibration of this machine teaches, learned once for each state of its file.

    Raises:
        InputError: for a file that is damaged.
    """
    return _cached_machine_corrections(state) if (state := calibration_stamp()) else None


@lru_cache(maxsize=2)
def _cached_machine_corrections(_state: str) -> Corrections | None:
    overlay = Overlay.open()
    return overlay.corrections() if overlay else None


@dataclass(frozen=True, eq=False)
class Overlay:
    """Measured runs at a path, as they were when it was opened; writers return a new one.

    ``today``: the day by which runs expire.
    """

    path: Path
    additions: tuple[Addition, ...]
    today: datetime.date

    @staticmethod
    def open(path: Path | None = None, *, today: datetime.date | None = None) -> Overlay | None:
        """The calibration at a path, or by default this machine's; None where there is none.

        Raises:
            InputError: for a file that is damaged; names it and the fix.
        """
        place = path or default_path()
        if place is None or not calibration_file(place).exists():
            return None
        return Overlay.at(place, today=today)

    @staticmethod
    def at(path: Path | None, *, today: datetime.date | None = None) -> Overlay:
        """The calibration at a path, or by default this machine's; empty where there is no file.

        Raises:
            InputError: for a file that is damaged, or where this machine's is switched off.
        """
        place = _resolve_path(path)
        day = today or datetime.datetime.now(datetime.UTC).date()
        return Overlay(place, read_additions(calibration_file(place)), day)

    @cached_property
    def entries(self) -> tuple[StoredRun, ...]:
        runs = [run for addition in self.additions for run in addition.runs]
        gates = self._gates(runs)
        return tuple(run.gated(gates.get(run.id, run.gate)) for run in runs)

    @cached_property
    def compressions(self) -> tuple[StoredCompression, ...]:
        """All measured checkpoints, oldest first, each with its gate."""
        checkpoints = [entry for addition in self.additions for entry in addition.compressions]
        expired = Gate("expired", f"{VALID_DAYS} days after it was measured")
        return tuple(
            entry.gated(expired) if self.today > entry.expires else entry for entry in checkpoints
        )

    @property
    def compressed(self) -> tuple[MeasuredCompression, ...]:
        return tuple(entry.measured for entry in self.compressions if entry.counts)

    @property
    def runs(self) -> tuple[Measured, ...]:
        return tuple(entry.measured for entry in self.entries if entry.counts)

    @property
    def stored(self) -> StoredCounts:
        states = Counter(entry.gate.state for entry in self.entries)
        return StoredCounts(states["accepted"], states["held"], states["expired"])

    def corrections(
        self, more: Sequence[Measured | MeasuredCompression] = (), *, folders: bool = True
    ) -> Corrections | None:
        """Return what all that counts, and ``more``, teach; None where nothing does.

        ``folders``: whether their models may be named by a path on this machine.
        """
        measurements = (*self.runs, *self.compressed, *more)
        if not measurements:
            return None
        with without_corrections():
            learned = learn_corrections(measurements, folders=folders)
        return replace(learned, stored=self.stored)

    def add(
        self, runs: Iterable[Incoming], *, now: datetime.datetime | None = None, dry: bool = False
    ) -> Added:
        """Store runs; those that are there already are left. ``dry``: say what would be stored.

        Raises:
            InputError: for a path that cannot be written, a secret in a run, or too many runs.
        """
        moment = now or datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        incoming = [_stored_measurement(measurement, moment) for measurement in runs]

        def with_new(before: tuple[Addition, ...]) -> tuple[Addition, ...]:
            stored = {run.id for addition in before for run in addition.all}
            fresh = {run.id: run for run in incoming if run.id not in stored}
            if len(stored) + len(fresh) > MAX_RUNS:
                raise InputError(
                    f"{self.path} would hold {len(stored) + len(fresh):,} runs; at most "
                    f"{MAX_RUNS:,} are used.",
                    field=FIELD,
                    hint="Take some back: recipe calibrate --undo, or start anew: --clear.",
                )
            return (*before, _build_addition(moment, fresh.values())) if fresh else before

        overlay = replace(
            self, additions=with_new(self.additions) if dry else self._changed(with_new)
        )
        ids = {run.id for run in incoming}
        stored_ids = {run.id for addition in self.additions for run in addition.all}
        return Added(
            tuple(entry for entry in overlay.entries if entry.id in ids - stored_ids),
            tuple(sorted(ids & stored_ids)),
            overlay,
            tuple(entry for entry in overlay.compressions if entry.id in ids - stored_ids),
        )

    def undo(self, n: int = 1) -> tuple[Overlay, tuple[Stored, ...]]:
        """Take the latest ``n`` additions back; the calibration without them, and what they held.

        Raises:
            InputError: where there are fewer.
        """
        removed: list[Stored] = []

        def without(before: tuple[Addition, ...]) -> tuple[Addition, ...]:
            if not 1 <= n <= len(before):
                raise InputError(
                    f"{self.path} holds {len(before)} additions; {n} cannot be taken back.",
                    field="undo",
                    hint="See them: recipe calibrate --list.",
                )
            removed.extend(run for addition in before[-n:] for run in addition.all)
            return before[:-n]

        return replace(self, additions=self._changed(without)), tuple(removed)

    @staticmethod
    def cleared(path: Path | None) -> Overlay:
        """The calibration at a path with everything taken back; also of a file that is damaged."""
        place = _resolve_path(path)
        with calibration_lock(place):
            write_additions(calibration_file(place), ())
        return Overlay.at(place)

    def _changed(self, change: Any) -> tuple[Addition, ...]:
        """The additions after a change of what the file holds now, which may be newer."""
        file = calibration_file(self.path)
        with calibration_lock(self.path):
            before = read_additions(file)
            after: tuple[Addition, ...] = change(before)
            if after != before:
                write_additions(file, after)
        return after

    def _gates(self, runs: Sequence[StoredRun]) -> dict[str, Gate]:
        """Gates of runs that do not count: by themselves, by age, then by what the others say."""
        gates: dict[str, Gate] = {}
        drivers = run_checks.driver_expiries(runs)
        for run in runs:
            if expired := run_checks.expiry_reason(run, self.today) or drivers.get(run.id):
                gates[run.id] = Gate("expired", expired)
            elif unsound := run_checks.unsound_reason(run):
                gates[run.id] = Gate("held", unsound)
        sound = [run for run in runs if run.id not in gates]
        for run in sound:
            if reason := run_checks.unconfirmed_version_reason(run, sound):
                gates[run.id] = Gate("held", reason)
        with without_corrections():
            learned = learn_corrections(run.measured for run in sound if run.id not in gates)
        odd = run_checks.odd_runs(learned, {run.id: place for place, run in enumerate(runs)})
        waiting = {run.name: run.reason for run in learned.left_out} | odd
        return gates | {name: Gate("held", reason) for name, reason in waiting.items()}


def _resolve_path(path: Path | None) -> Path:
    place = path or default_path()
    if place is None:
        raise InputError(
            f"the calibration is switched off: {VARIABLE} is empty.",
            field="into",
            hint="Name one by --into, or unset the variable.",
        )
    return place


def _stored_measurement(incoming: Incoming, moment: datetime.datetime) -> Stored:
    run = incoming.run
    if isinstance(run, MeasuredCompression):
        return StoredCompression.of(run, incoming.source, moment)
    refuse_secrets({"request": run.request}, by_name=("request",))
    assumed = run_checks.pinned_version(run)
    return StoredRun.of(run, incoming.source, incoming.format, moment, assumed)


def _build_addition(moment: datetime.datetime, fresh: Iterable[Stored]) -> Addition:
    records = list(fresh)
    return Addition(
        added=moment,
        runs=tuple(record for record in records if isinstance(record, StoredRun)),
        compressions=tuple(record for record in records if isinstance(record, StoredCompression)),
    )
