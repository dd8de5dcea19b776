"""``python -m recipe_core.calibration.trials.guard FOLDER``: stop the experiments of a dead owner.

It reads its standard input, which only the owner holds open: the kernel closes it even when the
owner is killed. The word ``done`` dismisses it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recipe_core.base.resources import PACKAGE
from recipe_core.calibration.trials.leftovers import mark_of, stop_all

DONE = b"done"


def watch(work: Path) -> None:
    """Wait for the owner's word or death."""
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
