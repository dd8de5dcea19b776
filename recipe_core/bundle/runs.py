"""Starts of a bundle, by its ``run/``: whether something runs, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from recipe_core.base.errors import InputError
from recipe_core.bundle.contents import MAX_FILE_BYTES, MAX_STATE_BYTES, RUN_FOLDER, STATE
from recipe_core.payload.launcher import state, supervisor
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.files import read_object
from recipe_core.payload.launcher.supervisor import Progress

_LOCK = "lock"
# Nodes whose locks are taken beside those that have run: each is an open file.
_MAX_NODES = 256


def has_runs(folder: Path) -> bool:
    """Return whether a bundle's ``run/`` holds anything but locks that nobody needs."""
    run = folder / RUN_FOLDER
    if run.is_symlink() or not run.is_dir():
        return run.is_symlink() or run.exists()
    return any(
        name != _LOCK or Path(parent) not in _launcher_folders(run)
        for parent, folders, names in os.walk(run)
        for name in [*names, *(n for n in folders if Path(parent, n).is_symlink())]
    )


def remove_idle_run(folder: Path) -> None:
    """Remove a ``run/`` that holds nothing but locks; one with anything else stays.

    Raises:
        OSError: when it cannot be removed.
    """
    run = folder / RUN_FOLDER
    if run.is_symlink() or not run.is_dir() or has_runs(folder):
        return
    for parent, _, names in os.walk(run, topdown=False):
        for name in names:
            Path(parent, name).unlink()
        Path(parent).rmdir()


def kept_text(folder: Path) -> str | None:
    """Say what a bundle's ``run/`` holds, in words; None where there is nothing."""
    if not has_runs(folder):
        return None
    run = folder / RUN_FOLDER
    checkpoints = sum(
        path.is_dir() and path.name.rpartition("-")[2].isdigit()
        for path in (run / "checkpoints").glob("*-*")
    )
    parts = [f"{checkpoints} checkpoint{'s' * (checkpoints != 1)}"] if checkpoints else []
    if (run / "measurement.json").is_file():
        parts.append("measurement.json")
    return f"kept {RUN_FOLDER}/{' with ' * bool(parts)}{' and '.join(parts)}"


@contextmanager
def lock_runs(folder: Path, nodes: Iterable[str], target: Path) -> Iterator[None]:
    """Hold the locks of a bundle's runs, so that no launcher starts or stops it meanwhile.

    ``target`` is what errors call it.

    Raises:
        InputError: while a launcher holds one.
        OSError: when ``run/`` cannot be written.
    """
    run = folder / RUN_FOLDER
    with ExitStack() as stack:
        try:
            for run_folder in (run, *(run / node for node in sorted(nodes))):
                stack.enter_context(state.exclusive(run_folder))
        except LauncherError as error:
            raise _launcher_refusal(error, target) from None
        try:
            yield
        finally:
            with suppress(OSError):
                remove_idle_run(folder)


def node_folders(folder: Path) -> set[str]:
    """The folders of the nodes of a bundle that runs on several: started ones and planned ones."""
    names = {path.name for path in (folder / RUN_FOLDER).glob("node-*")}
    try:
        if (folder / "launch.json").stat().st_size > MAX_FILE_BYTES:
            return names
        planned = read_object(folder / "launch.json").get("nodes")
    except (LauncherError, OSError):
        return names
    if isinstance(planned, int) and 1 < planned <= _MAX_NODES:
        names |= {f"node-{number}" for number in range(planned)}
    return names


def _launcher_folders(run: Path) -> set[Path]:
    return {run, *run.glob("node-*")}


def refuse_running(folder: Path) -> None:
    """Look at every state that a bundle's ``run/`` records.

    Raises:
        InputError: for the first of which a process still runs, and for a damaged one: what it
            started is unknown.
    """
    run = folder / RUN_FOLDER
    for parent, _, names in os.walk(run):
        if STATE not in names or Path(parent, STATE).stat().st_size > MAX_STATE_BYTES:
            continue  # the launcher's own are smaller: ``refuse_odd_runs`` has looked
        try:
            current = state.load_state(Path(parent))
        except LauncherError as error:
            if Path(parent) in _launcher_folders(run):
                raise _launcher_refusal(error, folder) from None
            continue  # a file of the program that ran, which only has the same name
        if current is not None and (running := _running_process(current)):
            raise InputError(
                f"{folder} is running ({running}).",
                field="output",
                hint=f"Stop it first: recipe down {folder}",
            )


def stop_bundle_processes(folder: Path) -> list[str]:
    """Stop every process that a bundle's ``run/`` records of this boot; returns their names.

    What another machine records in a shared folder stays.

    Raises:
        InputError: while a launcher is at it, and for a damaged state.
    """
    try:
        return supervisor.stop_all_recorded(folder / RUN_FOLDER, Progress())
    except LauncherError as error:
        raise _launcher_refusal(error, folder) from None


def _launcher_refusal(error: LauncherError, target: Path) -> InputError:
    return InputError(f"{target}: {error.message}", field="output", hint=error.hint)


def _running_process(current: state.State) -> str | None:
    """A process of a recorded start that still runs, in words.

    Of an earlier boot none does; else a marked process counts even where its server has ended.
    """
    if not current.here:
        return None
    pids = {server.pid for server in current.servers if server.alive}
    pids |= {pid for pid, _ in current.family()}
    return f"process {min(pids)}" if pids else None
