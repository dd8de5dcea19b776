"""The folder of a command's experiments: one command at a time, and nothing stays running."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from recipe_core.base.errors import InputError
from recipe_core.bundle.contents import RUN_FOLDER
from recipe_core.bundle.runs import refuse_running
from recipe_core.calibration.trials.guard import guarded_folder, stop_all
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.signals import interruptible, uninterrupted


@dataclass(frozen=True, slots=True)
class Workplace:
    """The workplace of a command: ``folder`` keeps its record, ``work`` the bundles under test.

    The name of ``work`` is new in each run: it marks what the run starts. ``stopped``: processes
    that a killed run had left.
    """

    folder: Path
    work: Path
    stopped: int = 0

    def clear(self, name: str) -> Path:
        place = self.work / name
        shutil.rmtree(place, ignore_errors=True)
        return place


def _new_name() -> str:
    return uuid.uuid4().hex[:12]


@contextmanager
def workplace(
    bundle: Path,
    command: str,
    *,
    name: Callable[[], str] = _new_name,
    guard: Callable[[Path], AbstractContextManager[None]] = guarded_folder,
    stop: Callable[[Path], int] = stop_all,
) -> Iterator[Workplace]:
    """``BUNDLE/run/COMMAND/``, for one process at a time; servers of a killed one are stopped.

    SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt inside. However it is left, what the
    experiments started is stopped; where this process is killed, a guard does it.
    ``name`` marks a run, ``guard`` keeps watch over its folder, ``stop`` stops what one started.

    Raises:
        InputError: where the bundle runs, or another process experiments with it.
    """
    place = bundle / RUN_FOLDER / command
    with _lock_workplace(place, command), interruptible():
        stopped = sum(_clear_killed_run(work, stop) for work in sorted(place.glob("work-*")))
        refuse_running(bundle)
        work = place / f"work-{name()}"
        work.mkdir()
        try:
            with guard(work):
                try:
                    yield Workplace(place, work, stopped)
                finally:
                    with uninterrupted():
                        stop(work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _clear_killed_run(work: Path, stop: Callable[[Path], int]) -> int:
    """Stop what a killed run started and remove its bundles; returns how many processes ran."""
    stopped = stop(work)
    shutil.rmtree(work, ignore_errors=True)
    return stopped


@contextmanager
def _lock_workplace(place: Path, command: str) -> Iterator[None]:
    try:
        with state.exclusive(place):
            yield
    except LauncherError as error:
        if "another launcher" not in error.message:
            raise InputError(error.message, field="bundle", hint=error.hint) from None
        raise InputError(
            f"another `recipe {command}` works on this bundle.",
            field="bundle",
            hint="Wait until it is done, or end it.",
        ) from None
