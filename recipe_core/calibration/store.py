"""The calibration of a machine or a team: measured runs that correct every answer made beside it.

A folder (``calibration.json`` in it) or one ``.json`` file. It holds the runs themselves, not what
they teach: scales are learned from them anew by each version, so that a better version learns
better, and every number can say which runs it comes from. Writers take turns by a lock beside the
file and replace it whole: readers see the old content or the new.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.calibration import run_checks
from recipe_core.calibration.additions import (
    FIELD,
    FIGURES,
    Addition,
    StoredRun,
    calibration_lock,
    read_additions,
    write_additions,
)
from recipe_core.calibration.compressions import KeptCompression, StoredCompression
from recipe_core.calibration.place import (
    calibration_file,
    calibration_stamp,
    default_path,
)
from recipe_core.calibration.residuals import MAX_RUNS, Measured, learn_corrections
from recipe_core.calibration.run_checks import Gate
from recipe_core.estimates.columns.corrections import Corrections, Stored
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.recipe.secrets import refuse_secrets


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored run, and whether it counts today.

    ``measured``: its request and figures, named by ``id``. ``source`` and ``format``: the file it
    came from. ``engine`` and ``version``: what ran. ``expires``: its last day. ``gate``: whether it
    is ``accepted``, ``held`` or ``expired``, with the reason.
    """

    id: str
    name: str
    measured: Measured
    source: str
    format: str
    added: datetime.datetime
    engine: str
    version: str
    device: str
    driver: str
    machine: str
    expires: datetime.date
    gate: Gate

    @property
    def counts(self) -> bool:
        return self.gate.counts

    @property
    def expired(self) -> str:
        """Why it has expired; empty where it has not."""
        return self.gate.reason if self.gate.state == "expired" else ""

    def to_json(self) -> dict[str, Any]:
        """The entry as plain values; figures in SI units."""
        run = self.measured
        figures = {name: getattr(run, name) for name in FIGURES}
        return {
            "id": self.id,
            "name": self.name,
            "source": self.source,
            "format": self.format,
            "added": self.added.isoformat(),
            "measured": run.date.isoformat() if run.date else None,
            "expires": self.expires.isoformat(),
            "engine": self.engine,
            "version": self.version,
            "device": self.device,
            "driver": self.driver,
            "machine": self.machine,
            "request": dict(run.request),
            "requests": run.requests,
            "failed": run.failed,
            "figures": {name: value for name, value in figures.items() if value is not None},
            "gate": asdict(self.gate),
        }


class Incoming(NamedTuple):
    """A run or a measured checkpoint that is to be added, with where it comes from."""

    run: Measured | MeasuredCompression
    source: str
    format: str


@dataclass(frozen=True, slots=True)
class Added:
    """What an addition changed: entries that are new, and ids that were there already."""

    entries: tuple[Entry, ...]
    repeated_ids: tuple[str, ...]
    overlay: Overlay
    compressions: tuple[KeptCompression, ...] = ()


def machine_corrections() -> Corrections | None:
    """What the calibration of this machine teaches, learned once for each state of its file.

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
    def at(path: Path, *, today: datetime.date | None = None) -> Overlay:
        """The calibration at a path, empty where there is no file yet.

        Raises:
            InputError: for a file that is damaged; names it and the fix.
        """
        day = today or datetime.datetime.now(datetime.UTC).date()
        return Overlay(path, read_additions(calibration_file(path)), day)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All runs, oldest first, each with its gate."""
        return tuple(self._entries(folders=True))

    @cached_property
    def compressions(self) -> tuple[KeptCompression, ...]:
        """All measured checkpoints, oldest first, each with whether it counts."""
        stored = [checkpoint for addition in self.additions for checkpoint in addition.compressions]
        return tuple(KeptCompression.of(checkpoint, self.today) for checkpoint in stored)

    @property
    def compressed(self) -> tuple[MeasuredCompression, ...]:
        return tuple(entry.measured for entry in self.compressions if entry.counts)

    @property
    def runs(self) -> tuple[Measured, ...]:
        return tuple(entry.measured for entry in self.entries if entry.counts)

    @property
    def stored(self) -> Stored:
        """How many runs count, wait and have expired."""
        states = Counter(entry.gate.state for entry in self.entries)
        return Stored(states["accepted"], states["held"], states["expired"])

    def corrections(
        self,
        more: Sequence[Measured] = (),
        *,
        folders: bool = True,
        compressed: Sequence[MeasuredCompression] = (),
    ) -> Corrections | None:
        """What the runs that count, and ``more``, teach; None where none does.

        ``folders``: whether their models may be named by a path on this machine. ``compressed``:
        measured checkpoints beside those that are kept.
        """
        runs, checkpoints = (*self.runs, *more), (*self.compressed, *compressed)
        if not runs and not checkpoints:
            return None
        with without_corrections():
            learned = learn_corrections(runs, folders=folders, compressed=checkpoints)
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
        for measurement in incoming:
            if isinstance(measurement, StoredRun):
                refuse_secrets({"request": measurement.request}, by_name=("request",))

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

        after = with_new(self.additions) if dry else self._changed(with_new)
        overlay = replace(self, additions=after)
        before = {run.id for addition in self.additions for run in addition.all}
        ids = {run.id for run in incoming}
        return Added(
            tuple(measurement for measurement in overlay.entries if measurement.id in ids - before),
            tuple(sorted(ids & before)),
            overlay,
            tuple(
                measurement
                for measurement in overlay.compressions
                if measurement.id in ids - before
            ),
        )

    def undo(self, n: int = 1) -> tuple[Overlay, tuple[StoredRun | StoredCompression, ...]]:
        """Take the latest ``n`` additions back; the calibration without them, and what they held.

        Raises:
            InputError: where there are fewer.
        """
        removed: list[StoredRun | StoredCompression] = []

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
    def cleared(path: Path) -> Overlay:
        """The calibration at a path with everything taken back; also of a file that is damaged."""
        with calibration_lock(path):
            write_additions(calibration_file(path), ())
        return Overlay.at(path)

    def _changed(self, change: Any) -> tuple[Addition, ...]:
        """The additions after a change of what the file holds now, which may be newer."""
        file = calibration_file(self.path)
        with calibration_lock(self.path):
            before = read_additions(file)
            after: tuple[Addition, ...] = change(before)
            if after != before:
                write_additions(file, after)
        return after

    def _entries(self, *, folders: bool) -> Iterator[Entry]:
        stored = [run for addition in self.additions for run in addition.runs]
        states = self._gates(stored, folders)
        for run in stored:
            measured = run.measured()
            candidate, hardware = run.request.get("candidate"), run.request.get("hardware")
            day = run.date or run.added.date()
            yield Entry(
                id=run.id,
                name=run.name,
                measured=measured,
                source=run.source,
                format=run.format,
                added=run.added,
                engine=_request_part_name(candidate, "engine"),
                version=run.version or run.assumed_version,
                device=_request_part_name(hardware, "device"),
                driver=run.driver,
                machine=run.machine,
                expires=day + datetime.timedelta(days=VALID_DAYS),
                gate=states[run.id],
            )

    def _gates(self, stored: Sequence[StoredRun], folders: bool) -> dict[str, Gate]:
        """The gate of each run: first its own soundness and age, then what the others say."""
        out: dict[str, Gate] = {}
        runs = [run.measured() for run in stored]
        days = [run.added.date() for run in stored]
        drivers = run_checks.driver_expiries(runs, days)
        for stored_run, run, day, driver in zip(stored, runs, days, drivers, strict=True):
            if (
                old := run_checks.expiry_reason(run, stored_run.assumed_version, day, self.today)
                or driver
            ):
                out[stored_run.id] = Gate("expired", old)
            elif unsound := run_checks.unsound_reason(run):
                out[stored_run.id] = Gate("held", unsound)
        sound = [
            (stored_run, run)
            for stored_run, run in zip(stored, runs, strict=True)
            if stored_run.id not in out
        ]
        for stored_run, run in sound:
            peers = [peer for _, peer in sound if peer is not run]
            if reason := run_checks.unconfirmed_version_reason(
                run, stored_run.assumed_version, peers
            ):
                out[stored_run.id] = Gate("held", reason)
        with without_corrections():
            learned = learn_corrections(
                [run for stored_run, run in sound if stored_run.id not in out], folders=folders
            )
        out |= {run.name: Gate("held", run.reason) for run in learned.left_out}
        order = {run.id: place for place, run in enumerate(stored)}
        odd = run_checks.odd_runs(learned, order)
        out |= {name: Gate("held", reason) for name, reason in odd.items()}
        return {run.id: out.get(run.id, run_checks.ACCEPTED) for run in stored}


def _stored_measurement(
    incoming: Incoming, moment: datetime.datetime
) -> StoredRun | StoredCompression:
    if isinstance(incoming.run, MeasuredCompression):
        return StoredCompression.of(incoming.run, incoming.source, moment)
    return StoredRun.of(incoming.run, incoming.source, incoming.format, moment)


def _build_addition(
    moment: datetime.datetime, fresh: Iterable[StoredRun | StoredCompression]
) -> Addition:
    runs: list[StoredRun] = []
    compressions: list[StoredCompression] = []
    for measurement in fresh:
        compressions.append(measurement) if isinstance(
            measurement, StoredCompression
        ) else runs.append(measurement)
    return Addition(added=moment, runs=tuple(runs), compressions=tuple(compressions))


def _request_part_name(part: Any, name: str) -> str:
    """A name in a part of a request; that of a device which is given as a profile."""
    value = part.get(name) if isinstance(part, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("name")
    return "" if value is None else str(value)
