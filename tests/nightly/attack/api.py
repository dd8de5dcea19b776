"""The API under generated cases and hostile bodies: ``python -m tests.nightly.attack.api``.

Schemathesis makes cases from the OpenAPI document and holds answers against it. Hostile bodies are
requests that a client would send, damaged: wrong types and sizes in any place, deep, repeated and
cut documents, numbers and texts that JSON writes and others do not read. Every answer has a status
that the document tells, errors have the one shape, and the server lives on.
"""

from __future__ import annotations

import argparse
import copy
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fixtures.serve import Server, recipe_serve
from tests.nightly.attack.load import LIGHT, plan

CONFIG = Path(__file__).with_name("schemathesis.toml")
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
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**40), 1e308, -1e-308, 0.1, "",
    " ", "0", "NaN", "../../etc/passwd", "/etc/passwd", "~root", "\x00", "\ud800", "é" * 999,
    "x" * 100_000, "${HF_TOKEN}", "$(id)", "`id`", "-x", "--trust-remote-code", "'; --", "{{7*7}}",
    "<script>alert(1)</script>", "\r\nSet-Cookie: a=b", "http://127.0.0.1:1/", [], [[]], [None], {},
    {"": {}}, {"$ref": "#"}, {"__class__": "x"}, [0] * 5000, {str(n): n for n in range(5000)},
]  # fmt: skip
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


@dataclass
class Found:
    """What was tried, and what failed with the number of its case."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside plain values."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def mutated(body: dict[str, Any], rng: random.Random) -> str:
    """A body with up to three of its values replaced, removed or added, as JSON."""
    out = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        paths = list(places(out))
        if not paths:
            break
        *parents, key = rng.choice(paths)
        owner: Any = out
        for step in parents:
            owner = owner[step]
        action = rng.random()
        if action < 0.7:
            owner[key] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.85:
            del owner[key]
        elif isinstance(owner, dict):
            owner[str(rng.choice(VALUES))[:50]] = copy.deepcopy(rng.choice(VALUES))
    return json.dumps(out)


def whole_bodies(server: Server) -> dict[str, list[dict[str, Any]]]:
    """The bodies that are damaged, recipes among them."""
    recipe = json.loads(server.ask("POST", "/api/v1/recipe", LIGHT)[1])
    return BODIES | {
        "build": [*BODIES["build"], recipe],
        "recipe": [*BODIES["recipe"], recipe],
        "resolve": [*BODIES["resolve"], {"recipe": recipe, "hardware": "mi300x:8"}],
        "diff": [*BODIES["diff"], {"before": recipe, "after": LIGHT}],
    }


def hostile(
    number: int, seed: int, bodies: dict[str, list[dict[str, Any]]]
) -> tuple[str, bytes, dict[str, str]]:
    """The route, the bytes and the headers of one case."""
    rng = random.Random(f"{seed}:{number}")
    route = rng.choice(list(bodies))
    body = rng.choice(bodies[route])
    headers = {"Content-Type": "application/json"}
    kind = rng.random()
    if kind < 0.6:
        return route, mutated(body, rng).encode(), headers
    if kind < 0.9:
        text = rng.choice(DAMAGE)(json.dumps(body), rng)
        return route, text.encode(errors="surrogatepass"), headers
    if kind < 0.95:
        noise = bytearray(json.dumps(body).encode())
        for _ in range(rng.randint(1, 8)):
            noise[rng.randrange(len(noise))] = rng.randrange(256)
        return route, bytes(noise), headers
    odd = rng.choice(["text/plain", "application/xml", "", "application/json; charset=utf-16"])
    return route, json.dumps(body).encode(), {"Content-Type": odd}


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


def attack(server: Server, count: int, seed: int) -> Found:
    """Send hostile bodies one after the other."""
    found, bodies = Found(), whole_bodies(server)
    for number in range(count):
        route, data, sent = hostile(number, seed, bodies)
        try:
            status, content, headers = server.ask(
                "POST", f"/api/v1/{route}", data, sent | {"Connection": "close"}
            )
            found.statuses[status] += 1
            problem = judge(status, content, headers)
        except (OSError, http.client.HTTPException) as error:
            problem = repr(error)
        if problem:
            found.failures.append(f"seed {seed} case {number} /{route}: {problem}: {data[:200]!r}")
    if plan(server, LIGHT) != 200:
        found.failures.append("the server does not plan any more")
    if "Traceback" in (log := server.log.read_text(errors="replace")):
        found.failures.append("a traceback in the server's log:\n" + log[-3000:])
    return found


def generated(server: Server, examples: int, seed: int, phases: str) -> tuple[int, str]:
    """Schemathesis' exit code and report; all its checks."""
    words = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run",
        f"http://127.0.0.1:{server.port}/api/v1/openapi.json", "--checks", "all",
        "--max-examples", str(examples), "--seed", str(seed), "--phases", phases,
        "--generation-database", "none", "--suppress-health-check", "all",
        # a connection a case: the server answers kept ones only after the client's delayed ACK
        "-H", "Connection: close",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3500, help="hostile bodies")
    parser.add_argument("--examples", type=int, help="generated cases an operation, or count / 35")
    parser.add_argument("--phases", default="examples,coverage,fuzzing")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, recipe_serve(Path(folder)) as server:
        began = server.resident_mb()
        found = attack(server, chosen.count, chosen.seed)
        print(f"{chosen.count} hostile bodies: {dict(sorted(found.statuses.items()))}")
        print(f"{len(found.failures)} failures", *found.failures, sep="\n")
        print(f"memory of the server: {began} MB, then {server.resident_mb()} MB")
        examples = chosen.examples or max(1, chosen.count // 35)
        code, text = generated(server, examples, chosen.seed, chosen.phases)
        print(text[text.find("SUMMARY") :] if code == 0 else text)
    return 1 if found.failures or code else 0


if __name__ == "__main__":
    raise SystemExit(main())
