"""How long tests wait for a state: a busy machine needs long."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

PATIENCE = 120.0
"""Seconds until a state that has not come is taken for one that never comes."""


def serving(url: str, server: Popen[bytes], log: Path) -> None:
    """Wait until a server that was just started answers at a URL."""

    def answers() -> bool:
        if server.poll() is not None:
            pytest.fail(f"the server ended:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    if not comes(answers):
        pytest.fail(f"the server does not answer at {url}:\n{log.read_text()}")


def comes(state: Callable[[], bool]) -> bool:
    """Whether a state comes while there is patience."""
    end = time.monotonic() + PATIENCE
    while not (reached := state()) and time.monotonic() < end:
        time.sleep(0.1)
    return reached
