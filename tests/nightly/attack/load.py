"""Heavy requests at a server: does it still answer others, and does it stop when nobody waits?

``python -m tests.nightly.attack.load --count 200`` starts a server of its own with one worker.
Times are printed, not judged: a test judges what does not depend on the machine.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fixtures.serve import ANSWER_S, Server, recipe_serve

LIGHT = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
}
LARGE = LIGHT | {"hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 8}}
LOADS = list(range(1, 257))
HEAVY = LARGE | {"options": {"loads": LOADS, "max_batched_tokens": [2048, 4096, 8192]}}
"""Some 270,000 candidates, under the limit."""
UNBOUNDED = LARGE | {
    "options": {"loads": LOADS, "max_batched_tokens": [64 * n for n in range(1, 65)]}
}
"""Nearly five million candidates."""


def plan(server: Server, body: Any) -> int:
    """The status of a plan."""
    return server.ask("POST", "/api/v1/plan?top=1", body)[0]


def answered_beside(server: Server, bodies: list[Any]) -> tuple[list[int], list[float]]:
    """Statuses of plans sent at once, and seconds of each GET that was answered meanwhile."""
    plan(server, LIGHT)
    server.ask("GET", "/api/v1/models")
    with ThreadPoolExecutor(len(bodies)) as pool:
        plans = [pool.submit(plan, server, body) for body in bodies]
        seconds = []
        while not all(answer.done() for answer in plans):
            for path in ("/api/v1/models", "/_stcore/health"):
                began = time.monotonic()
                status = server.ask("GET", path)[0]
                seconds.append(time.monotonic() - began)
                assert status == 200
            time.sleep(0.02)
        return [answer.result() for answer in plans], seconds


def leave(server: Server) -> None:
    """Ask for a heavy plan and leave in the midst of it; any moment will do."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
    body = json.dumps(HEAVY).encode()
    connection.request("POST", "/api/v1/plan", body, {"Content-Type": "application/json"})
    time.sleep(1.0)
    connection.close()


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
    with (
        tempfile.TemporaryDirectory() as folder,
        recipe_serve(Path(folder), "--workers", "1") as server,
    ):
        began = server.resident_mb()
        statuses, seconds = answered_beside(server, [HEAVY])
        print(f"beside one heavy plan ({statuses[0]}): {report(seconds)}")
        statuses, seconds = answered_beside(server, [LIGHT] * count)
        print(
            f"beside {count} plans at once {dict(collections.Counter(statuses))}: {report(seconds)}"
        )
        status, answer, _ = server.ask("POST", "/api/v1/plan", UNBOUNDED)
        print(f"five million candidates: {status} {answer.decode()[:300]}")
        leave(server)
        left = time.monotonic()
        assert plan(server, LIGHT) == 200
        print(f"worker free {time.monotonic() - left:.1f} s after its caller left")
        print(f"memory of the server: {began} MB, then {server.resident_mb()} MB")


if __name__ == "__main__":
    main()
