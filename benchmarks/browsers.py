"""A real browser for benchmarks: the server as a person starts it, Chromium, processor time."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox", "--disable-gpu"]}
"""Without a GPU a browser draws with its processor; told to use one, as Debian's default flags do,
it emulates one, at more processor time.
"""
SETTLED = """
    document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'
    && !document.querySelector('[data-testid=stSkeleton]')
    && [...document.querySelectorAll('[data-testid=stPlotlyChart]')]
        .every(chart => chart.querySelector('.main-svg'))
"""
"""A script that has run to its end and whose charts, tables and widgets are drawn."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it is, since when, and its process."""

    base: str
    started: float
    process: subprocess.Popen[bytes]

    def processor_s(self) -> float:
        """Processor time of the server so far (seconds; Linux)."""
        return _ticks(self.process.pid) / os.sysconf("SC_CLK_TCK")

    def family_processor_s(self) -> float:
        """Processor time of the server and of the processes that it started (seconds; Linux)."""
        return sum(map(_ticks, _family(self.process.pid))) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> dict[str, int]:
        """Memory that the server, and its workers together, hold resident (Linux)."""
        server, *workers = map(_resident_bytes, _family(self.process.pid))
        return {"server": server, "workers": sum(workers)}


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process, with what it shares with others."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _ticks(pid: int) -> int:
    """Processor time of a process, in ticks of the clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _family(pid: int) -> Iterator[int]:
    """A process and all that it and its children started and that still run."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


@contextlib.contextmanager
def served(environment: dict[str, str] | None = None) -> Iterator[Server]:
    """``recipe serve`` on a free port, from the moment that it accepts connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "recipe_core", "serve", "--port", str(port)]
    environment = {**(os.environ if environment is None else environment), "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, process)
        yield Server(f"http://127.0.0.1:{port}", started, process)
    finally:
        process.terminate()
        process.wait(10)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a port accepts connections."""
    for _ in range(3000):
        if process.poll() is not None:
            raise SystemExit("the app did not start")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise SystemExit("the app did not answer in 30 s")


def browser_processor_s(answer: dict[str, Any]) -> float:
    """Processor time of all processes of a Chromium, from what it answers to
    SystemInfo.getProcessInfo (seconds).
    """
    return float(sum(process["cpuTime"] for process in answer["processInfo"]))


def quantile(values: list[float], share: float) -> float:
    """The value that this share of the values does not exceed, rounded to a millisecond."""
    return round(sorted(values)[int(share * (len(values) - 1))], 3)
