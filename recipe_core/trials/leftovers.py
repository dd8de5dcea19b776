"""Find and stop what an experiment started, also when the process that started it was killed.

Everything that an experiment starts inherits a variable with the name of its folder, which no
other run of a command shares: launchers, their keepers, servers and their workers. So nothing
depends on a record that was not written in time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from recipe_core.launcher import procs

MARK = "RECIPE_TRIAL_ID"
"""The variable in the environment of everything that an experiment starts."""
LAUNCHER_S, DOWN_S, GRACE_S = 45.0, 90.0, 20.0
"""Seconds that a launcher may take to stop what it starts, that `down` may take, and that a process
has between SIGTERM and SIGKILL."""
PYTHON = (sys.executable, "-B", "-X", f"pycache_prefix={os.devnull}")
"""Python that neither reads nor writes compiled copies: only what digests cover is run."""


def environment_of(work: Path) -> dict[str, str]:
    """The environment in which experiments of a folder start things."""
    return {**os.environ, MARK: work.name}


def marked(work: Path) -> list[procs.Identity]:
    """Living processes that experiments of this folder started, by pid and start tick."""
    entry = f"{MARK}={work.name}".encode()
    return [identity for identity in _living() if entry in _bytes(identity[0], "environ")]


def _living() -> Iterator[procs.Identity]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            stat = procs.read_stat(int(path.name))
            if stat is not None and stat.state not in "ZX":
                yield stat.pid, stat.started


def _bytes(pid: int, name: str) -> list[bytes]:
    """The words of a process' command line or environment; none where it is gone or another's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def stop_all(work: Path) -> int:
    """Stop everything that experiments of a folder started; returns how many processes ran.

    Launchers first, which stop what they are starting; then each bundle by its own `down`; then
    whatever still has the mark.
    """
    running = marked(work)
    if not running:
        return 0
    _end([identity for identity in running if _is_launcher(identity[0])], LAUNCHER_S)
    for state in sorted(work.glob("*/run/state.json")) + sorted(work.glob("*/run/*/state.json")):
        down(next(folder for folder in state.parents if (folder / "launch.py").is_file()))
    _end(marked(work), GRACE_S)
    return len(running)


def down(folder: Path) -> None:
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
    return any(word.endswith(b"launch.py") for word in _bytes(pid, "cmdline"))


def _end(members: list[procs.Identity], grace_s: float) -> None:
    """SIGTERM, and SIGKILL for those that are still there after ``grace_s`` seconds."""
    procs.send(members, signal.SIGCONT)  # a stopped process takes no SIGTERM
    procs.send(members, signal.SIGTERM)
    if _gone(members, grace_s):
        return
    procs.send(members, signal.SIGKILL)
    _gone(members, procs.KILLED_S)


def _gone(members: list[procs.Identity], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while left := [member for member in members if procs.alive(*member)]:
        for pid, _ in left:
            procs.reap(pid)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
