"""The API under hostile bodies.

They are requests that a client would send, damaged: wrong types and sizes in any place, deep,
repeated and cut documents, numbers and texts that JSON writes and others do not read. Every answer
has a status that the document tells, errors have the one shape, and the server lives on.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.serve import Server, recipe_serve
from tests.nightly.attack.harness import Order, Tally
from tests.nightly.attack.hostile_bundles import edit, mutate
from tests.nightly.attack.load import LIGHT, plan

TOLD = {200, 202, 400, 401, 404, 405, 409, 413, 421, 422, 429, 503}
TRAINING = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "mi300x", "per_node": 8, "nodes": 2},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 256, "tokens": 1e9},
}
TRACE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,20\n1.5,200,30\n3,150,40\n"
OVER_TIME = LIGHT | {
    "workload": {"over_time": {"rates": [1.0, 2.0], "days": 0.1}},
    "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}},
}
COMMAND = {"command": "vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 8192", "hardware": "h100-sxm"}
BODIES: dict[str, list[dict[str, Any]]] = {
    "plan": [LIGHT, TRAINING],
    "estimate": [LIGHT, TRAINING, LIGHT | {"candidate": {"tp": 8, "pp": 1, "dp": 1}}],
    "compress": [LIGHT, LIGHT | {"options": {"compression": {"technique": "int4_weight_only"}}}],
    "check": [LIGHT, TRAINING, COMMAND],
    "build": [LIGHT, {"request": LIGHT, "parameters": {"port": 9000}, "for": ["mi300x:8"]}],
    "recipe": [LIGHT, {"request": LIGHT, "environment": {"A": "b"}, "options": {}}],
    "resolve": [{"recipe": LIGHT, "hardware": "mi300x:8"}],
    "diff": [{"before": LIGHT, "after": LIGHT | {"candidate": {"tp": 4, "pp": 1, "dp": 2}}}],
    "trace": [{"name": "a.csv", "text": TRACE}],
    "simulate": [{"request": OVER_TIME, "policies": ["fixed"], "days": 0.1}],
    "convert": [COMMAND, {"document": {"argv": ["vllm", "serve", "Qwen/Qwen3-8B"]}}],
}
DAMAGE: list[Callable[[str, random.Random], str]] = [
    lambda text, rng: text[: rng.randrange(len(text))],
    lambda text, rng: text + rng.choice(["}", "]", ",", "x", "\x00", "{}"]),
    lambda text, rng: re.sub(r"\d+", rng.choice(["NaN", "Infinity", "-Infinity", "1e999"]), text),
    lambda text, _: re.sub(r"\d+", "9" * 5000, text, count=1),
    lambda text, _: text.replace('"', "'"),
    lambda text, _: text[0] + '"model": "a", "model": "b", ' + text[1:],
    lambda text, rng: "[" * (depth := rng.choice([70, 900, 100_000])) + "]" * depth,
    lambda text, rng: '{"a":' * (depth := rng.choice([70, 900, 100_000])) + "1" + "}" * depth,
    lambda text, rng: text.replace(rng.choice(['"h', '"v', '"m', '"Q']), '"\\ud800', 1),
    lambda text, _: "\ufeff" + text,
    lambda text, _: json.dumps([json.loads(text)]),
    lambda text, _: json.dumps(json.loads(text), ensure_ascii=True).replace(":", ":" + " " * 50),
]


def hostile(
    number: int, seed: int, bodies: dict[str, list[dict[str, Any]]]
) -> tuple[str, bytes, dict[str, str]]:
    """The route, the bytes and the headers of one case."""
    rng = random.Random(f"{seed}:{number}")
    route, kind, form = rng.choice(list(bodies)), rng.random(), "application/json"
    body = rng.choice(bodies[route])
    text = json.dumps(edit(rng, body) if kind < 0.6 else body)
    if 0.6 <= kind < 0.9:
        text = rng.choice(DAMAGE)(text, rng)
    data = text.encode(errors="surrogatepass")
    if 0.9 <= kind < 0.95:
        data = mutate(rng, data)
    if kind >= 0.95:
        form = rng.choice(["text/plain", "application/xml", "", f"{form}; charset=utf-16"])
    return route, data, {"Content-Type": form}


def judge(status: int, content: bytes, headers: dict[str, str]) -> str | None:
    """What is wrong with an answer; None for nothing."""
    if status not in TOLD:
        return f"status {status}"
    if b"Traceback" in content:
        return "a traceback"
    if status in (429, 503) and "retry-after" not in {name.lower() for name in headers}:
        return "no Retry-After"
    if status in (200, 202):
        return None
    try:
        problem = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return "an error of another shape"
    return None if set(problem) == {"code", "field", "message", "hint"} else "an error's fields"


class InProcess:
    """The API without a server: what `ask` answers there, and no log."""

    def __init__(self) -> None:
        from starlette.testclient import TestClient

        from recipe_core.doors.api import create_api

        self.client = TestClient(create_api(folders=False), raise_server_exceptions=False)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Any = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of an answer; a body that is not bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        place = path.removeprefix("/api/v1")
        answer = self.client.request(method, place, content=data, headers=sent)
        return answer.status_code, answer.content, dict(answer.headers)


@contextmanager
def _asked(order: Order) -> Iterator[Server | InProcess]:
    if order.short:
        yield InProcess()
        return
    with tempfile.TemporaryDirectory() as folder, recipe_serve(Path(folder)) as server:
        yield server


def attack(order: Order) -> Tally:
    """Send hostile bodies one after the other; counts statuses."""
    with _asked(order) as server:
        return sent(server, order)


def sent(server: Server | InProcess, order: Order) -> Tally:
    """Send hostile bodies to a server; findings have the number that repeats each."""
    found = Tally()
    recipe = json.loads(server.ask("POST", "/api/v1/recipe", LIGHT)[1])
    whole = {
        "build": [recipe],
        "recipe": [recipe],
        "resolve": [{"recipe": recipe, "hardware": "mi300x:8"}],
        "diff": [{"before": recipe, "after": LIGHT}],
    }
    bodies = {route: known + whole.get(route, []) for route, known in BODIES.items()}
    for number in order.indices():
        route, data, headers = hostile(number, order.seed, bodies)
        headers |= {"Connection": "close"}
        try:
            answer = server.ask("POST", f"/api/v1/{route}", data, headers)
            found.tried[str(answer[0])] += 1
            problem = judge(*answer)
        except (OSError, http.client.HTTPException) as error:
            problem = repr(error)
        if problem:
            found.findings.append(f"case {number} /{route}: {problem}: {data[:200]!r}")
    if plan(server, LIGHT) != 200:
        found.findings.append("the server does not plan any more")
    if isinstance(server, Server):
        if "Traceback" in (log := server.log.read_text(errors="replace")):
            found.findings.append("a traceback in the server's log:\n" + log[-3000:])
        found.notes.append(f"memory of the server: {server.resident_mb()} MB")
    return found
