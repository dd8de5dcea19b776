"""``python -m recipe_core.calibration.trials.guard FOLDER``: stop the experiments of a dead owner.

It reads its standard input, which only the owner holds open: the kernel closes it even when the
owner is killed. The word ``done`` dismisses it.

Everything that an experiment starts inherits a variable with the mark of its folder, which no
other run of a command shares, and no copy of the folder: launchers, their keepers, servers and
their workers. So nothing depends on a record that was not written in time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from recipe_core.base.resources import PACKAGE
from recipe_core.payload.launcher import procs

# The variable in the environment of everything that an experiment starts.
MARK = "RECIPE_TRIAL_ID"
# Seconds that a launcher may take to stop what it starts, that `down` may take, and that a process
# has between SIGTERM and SIGKILL.
LAUNCHER_S, DOWN_S, GRACE_S = 45.0, 90.0, 20.0
# Python that neither reads nor writes compiled copies: only what digests cover is run.
PYTHON = (sys.executable, "-B", "-X", f"pycache_prefix={os.devnull}")


def environment_of(work: Path) -> dict[str, str]:
    return {**os.environ, MARK: mark_of(work)}


@cache
def mark_of(work: Path) -> str:
    """Say what marks the experiments of a folder: its name, device and inode, which a copy has not.

    It is remembered, as the folder may be removed before its experiments are stopped.

    Raises:
        OSError: where the folder is not there, and never was.
    """
    status = work.stat()
    return f"{work.name}-{status.st_dev:x}-{status.st_ino:x}"


def marked_processes(work: Path, processes: procs.Processes = procs.HERE) -> list[procs.Identity]:
    """Living processes that experiments of this folder started, by pid and start tick."""
    try:
        mark = mark_of(work)
    except OSError:
        return []
    running = [stat for stat in processes.running() if stat.pid != os.getpid()]
    return [
        (stat.pid, stat.started)
        for stat in running
        if processes.marked(stat.pid, mark, variable=MARK)
    ]


def take_bundle_down(folder: Path) -> None:
    """A bundle's own `down`; where that fails, the mark finds its processes all the same."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [*PYTHON, str(folder / "launch.py"), "down"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOWN_S,
            check=False,
        )


def _is_launcher(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it is gone, or another's
        return False
    return any(word.endswith(b"launch.py") for word in words)


def stop_all(
    work: Path,
    *,
    processes: procs.Processes = procs.HERE,
    is_launcher: Callable[[int], bool] = _is_launcher,
    take_down: Callable[[Path], None] = take_bundle_down,
) -> int:
    """Stop everything that experiments of a folder started; returns how many processes ran.

    Launchers first, which stop what they are starting; then each bundle by its own `down`; then
    whatever still has the mark.
    """
    running = marked_processes(work, processes)
    if not running:
        return 0
    launchers = [identity for identity in running if is_launcher(identity[0])]
    _end_processes(launchers, LAUNCHER_S, processes)
    for state in sorted(work.glob("*/run/state.json")) + sorted(work.glob("*/run/*/state.json")):
        folder = next(folder for folder in state.parents if (folder / "launch.py").is_file())
        take_down(folder)
    _end_processes(marked_processes(work, processes), GRACE_S, processes)
    return len(running)


def _end_processes(
    members: list[procs.Identity], grace_s: float, processes: procs.Processes
) -> None:
    """SIGTERM, and SIGKILL for those that are still there after ``grace_s`` seconds."""
    processes.send(members, signal.SIGCONT)  # a stopped process takes no SIGTERM
    processes.send(members, signal.SIGTERM)
    if _wait_until_gone(members, grace_s, processes):
        return
    processes.send(members, signal.SIGKILL)
    _wait_until_gone(members, procs.KILLED_S, processes)


def _wait_until_gone(
    members: list[procs.Identity], wait_s: float, processes: procs.Processes
) -> bool:
    deadline = processes.clock.monotonic() + wait_s
    while alive := [member for member in members if processes.alive(*member)]:
        for pid, _ in alive:
            processes.reap(pid)
        if processes.clock.monotonic() >= deadline:
            return False
        processes.clock.sleep(0.05)
    return True


DONE = b"done"


def watch(work: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark_of(work)  # while the folder is there
    if sys.stdin.buffer.read() != DONE:
        stop_all(work)


@contextmanager
def guarded_folder(work: Path) -> Iterator[None]:
    """Keep a guard over the experiments of a folder while this process lives."""
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    guard = subprocess.Popen(
        [sys.executable, "-m", "recipe_core.calibration.trials.guard", str(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # somebody ended the guard; nothing is left to guard
            guard.communicate(DONE)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
