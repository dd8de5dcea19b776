"""Ports for servers that tests start."""

from __future__ import annotations

import os
import random
import socket

RANGE = 3000
FIRST = 10_000 + RANGE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 5)
"""A range for each worker, below ports of the system and of tests/slurm.py."""


def free_port() -> int:
    """A port that nothing listens on now and that no other worker is given."""
    for port in random.sample(range(FIRST, FIRST + RANGE), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port from {FIRST} to {FIRST + RANGE} is free")
