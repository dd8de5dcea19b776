"""Heavy requests at a server: does it still answer others, and does it stop when nobody waits?

``python -m tests.nightly.attack.load --count 200`` starts a server of its own with one worker.
Times are printed, not judged: a test judges what does not depend on the machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.paths import ROOT

PATIENCE_S = 300.0
LIGHT = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
}
HEAVY = LIGHT | {
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 8},
    "options": {
        "loads": list(range(1, 257)),
        "max_batched_tokens": [2048, 4096, 8192],
    },
}
"""Some 270,000 candidates, under the limit."""
UNBOUNDED = LIGHT | {
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 8},
    "options": {"loads": list(range(1, 257)), "max_batched_tokens": [64 * n for n in range(1, 65)]},
}
"""Nearly five million candidates."""


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        data = None if body is None else json.dumps(body).encode()
        try:
            sent = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def plan(self, body: Any) -> int:
        """The status of a plan."""
        return self.ask("POST", "/api/v1/plan?top=1", body)[0]

    def resident_mb(self) -> int:
        """Memory of the server's own process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+)", text)
        assert match
        return int(match[1]) // 1024


@contextlib.contextmanager
def serving(*options: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on a port that is free, ended afterwards."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        words = [sys.executable, "-m", "recipe_core", "serve", "--port", str(port), *options]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = os.environ | {"PYTHONPATH": paths} | (environment or {})
        with (
            log.open("wb") as output,
            subprocess.Popen(words, cwd=folder, env=own, stdout=output, stderr=output) as process,
        ):
            server = Server(port, process, log)
            try:
                _wait_until_ready(server)
                yield server
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(server.log.read_text())
        with contextlib.suppress(OSError):
            if server.ask("GET", "/_stcore/health")[0] == 200:
                return
        time.sleep(0.2)
    raise RuntimeError("the server did not start")


def answered_beside(server: Server, bodies: list[Any]) -> tuple[list[int], list[float]]:
    """Statuses of plans sent at once, and seconds of each GET that was answered meanwhile."""
    server.plan(LIGHT)
    server.ask("GET", "/api/v1/models")
    with ThreadPoolExecutor(len(bodies)) as pool:
        plans = [pool.submit(server.plan, body) for body in bodies]
        seconds = []
        while not all(plan.done() for plan in plans):
            for path in ("/api/v1/models", "/_stcore/health"):
                began = time.monotonic()
                status = server.ask("GET", path)[0]
                seconds.append(time.monotonic() - began)
                assert status == 200
            time.sleep(0.02)
        return [plan.result() for plan in plans], seconds


def seconds_until_free(server: Server) -> float:
    """How long after a caller has left a heavy plan the only worker takes another."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    body = json.dumps(HEAVY).encode()
    connection.request("POST", "/api/v1/plan", body, {"Content-Type": "application/json"})
    started = threading.Event()
    started.wait(1.0)  # in the midst of it; any moment will do
    connection.close()
    began = time.monotonic()
    assert server.plan(LIGHT) == 200
    return time.monotonic() - began


def report(seconds: list[float]) -> str:
    """Times of GETs in a line."""
    if not seconds:
        return "no GET was sent in that time"
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    return (
        f"{len(seconds)} GETs: median {statistics.median(seconds) * 1e3:.0f} ms, "
        f"p99 {p99 * 1e3:.0f} ms, slowest {ordered[-1] * 1e3:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="plans at once")
    count = parser.parse_args().count
    with serving("--workers", "1") as server:
        began = server.resident_mb()
        statuses, seconds = answered_beside(server, [HEAVY])
        print(f"beside one heavy plan ({statuses[0]}): {report(seconds)}")
        statuses, seconds = answered_beside(server, [LIGHT] * count)
        print(
            f"beside {count} plans at once {dict(collections.Counter(statuses))}: {report(seconds)}"
        )
        status, answer, _ = server.ask("POST", "/api/v1/plan", UNBOUNDED)
        print(f"five million candidates: {status} {answer.decode()[:300]}")
        print(f"worker free {seconds_until_free(server):.1f} s after its caller left")
        print(f"memory of the server: {began} MB, then {server.resident_mb()} MB")


if __name__ == "__main__":
    main()
