"""Heavy requests at a server: does it still answer others, and does it stop when nobody waits?

A server of its own has one worker. Times are noted, not judged: what does not depend on the machine
is.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fixtures.serve import ANSWER_S, Server, recipe_serve
from tests.nightly.attack.harness import Order, Tally

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


def report(statuses: list[int], seconds: list[float]) -> str:
    """Statuses of plans and times of GETs in a line."""
    counts, ordered = dict(Counter(statuses)), sorted(seconds) or [0.0]
    middle, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    times = ", ".join(f"{1e3 * value:.0f}" for value in (middle, p99, ordered[-1]))
    return f"{counts}, {len(seconds)} GETs in {times} ms (median, p99, slowest)"


def attack(order: Order) -> Tally:
    """Plans at once, one that is too large, and one that nobody waits for."""
    found = Tally()
    with (
        tempfile.TemporaryDirectory() as folder,
        recipe_serve(Path(folder), "--workers", "1") as server,
    ):
        began = server.resident_mb()
        for what, bodies in {"one heavy plan": [HEAVY], "many": [LIGHT] * order.count}.items():
            statuses, seconds = answered_beside(server, bodies)
            found.tried.update({"plans": len(statuses), "GETs beside them": len(seconds)})
            found.notes.append(f"beside {what}: {report(statuses, seconds)}")
            if 200 not in statuses or set(statuses) - {200, 429, 503}:
                found.findings.append(f"plans beside {what} got {sorted(set(statuses))}")
            if len(seconds) < 6:  # were they behind the plans, none would come before
                found.findings.append(f"only {len(seconds)} GETs were answered beside {what}")
        status, answer, _ = server.ask("POST", "/api/v1/plan", UNBOUNDED)
        if status != 422 or json.loads(answer)["error"]["field"] != "options.loads":
            found.findings.append(f"five million candidates: {status} {answer.decode()[:300]}")
        leave(server)
        left = time.monotonic()
        if plan(server, LIGHT) != 200:
            found.findings.append("no plan after a caller that left")
        found.notes.append(f"worker free {time.monotonic() - left:.1f} s after its caller left")
        found.notes.append(f"memory of the server: {began} MB, then {server.resident_mb()} MB")
    return found
