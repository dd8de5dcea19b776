"""Three small real models behind a real HAProxy: planned shares and latencies, and one move.

Each model has two replicas, every one a process of its own (``transformers serve``). The router has
no retries: a request that meets a server which is gone fails, and the test with it.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from scipy.stats import chisquare

from recipe_core.fleets.moves import plan_moves
from tests.fixtures.needs import TORCH, needs
from tests.fixtures.patience import PATIENCE, comes, until
from tests.fixtures.ports import free_port
from tests.fleets.test_moves import answer_of, place
from tests.life import tiny_model

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
TRANSFORMERS = Path(sys.executable).with_name("transformers")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.engine,
    needs("three real models behind a router", *TORCH, "fastapi", "uvicorn"),
    pytest.mark.skipif(HAPROXY is None, reason="NOT TESTED: HAProxy; apt-get install haproxy"),
]
LAYERS = {"chat": 2, "rag": 6, "code": 12}
POOLS = {"chat": ("x", "y", "z"), "rag": ("x", "y"), "code": ("x", "y")}
# Shares of each model's requests by pool, as a plan has them.
SHARES = {
    "chat": {"x": 0.75, "y": 0.25},
    "rag": {"x": 0.6, "y": 0.4},
    "code": {"x": 0.5, "y": 0.5},
}
TOKENS = 8
ROUNDS = 60


@dataclass
class Replica:
    """A server of one model in one pool."""

    model: str
    pool: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = None

    def start(self):
        words = [TRANSFORMERS, "serve", self.folder, "--device", "cpu", "--host", "127.0.0.1"]
        cache = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(self.folder / "hub")}
        with (self.folder / f"log-{self.pool}").open("wb") as log:
            self.process = subprocess.Popen(
                [*map(str, words), "--port", str(self.port)],
                env=os.environ | cache | {"OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def answers(self):
        assert self.process.poll() is None, (self.folder / f"log-{self.pool}").read_text()
        with suppress(OSError, http.client.HTTPException):
            return ask(self.port, self.model, self.folder)[0] == 200
        return False

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def ask(port, model, folder, prefix=""):
    """Status, the server that answered by the router, and seconds of a completion."""
    body = {"model": str(folder), "prompt": "Where is the salt?", "max_tokens": TOKENS}
    body |= {"generation_config": json.dumps({"eos_token_id": -1, "do_sample": False})}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    begin = time.perf_counter()
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{prefix}/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        status, content = answer.status, answer.read()
        seconds = time.perf_counter() - begin
        if status == 200:
            assert json.loads(content)["usage"]["completion_tokens"] == TOKENS
        return status, answer.getheader("x-server"), seconds
    finally:
        connection.close()


@dataclass
class Router:
    """HAProxy with a backend a model, driven by its socket."""

    port: int
    control: Path

    def tell(self, command):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.control))
            client.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: client.recv(65536), b"")).decode().strip()

    def order(self, command):
        """A command that answers nothing unless something is wrong."""
        assert self.tell(command) == "", command

    def sessions(self, model, pool):
        """Requests that a server has or that wait for it."""
        head, *rows = self.tell("show stat").lstrip("# ").splitlines()
        for row in rows:
            cells = dict(zip(head.split(","), row.split(","), strict=True))
            if (cells["pxname"], cells["svname"]) == (model, pool):
                return int(cells["scur"]) + int(cells["qcur"] or 0)
        raise LookupError((model, pool))

    def weigh(self, model, weights):
        """Give the servers of a model their shares; one without is drained."""
        highest = max(weights.values())
        for pool in POOLS[model]:
            share = weights.get(pool, 0.0)
            if share:
                self.order(f"set server {model}/{pool} state ready")
                self.order(f"set server {model}/{pool} weight {round(256 * share / highest)}")
            else:
                self.order(f"set server {model}/{pool} state drain")


@contextmanager
def router(folder, replicas):
    """HAProxy before all replicas, those of pool z without requests."""
    made = Router(free_port(), folder / "haproxy.sock")
    lines = [
        f"global\n    stats socket {made.control} mode 600 level admin",
        "defaults\n    mode http\n    timeout connect 5s\n    timeout client 5m",
        "    timeout server 5m\n    retries 0",
        f"frontend models\n    bind 127.0.0.1:{made.port}",
    ]
    lines += [f"    use_backend {model} if {{ path_beg /{model}/ }}" for model in LAYERS]
    for model in LAYERS:
        lines.append(f"backend {model}\n    balance roundrobin")
        lines.append(f"    http-request replace-path ^/{model}(/.*)$ \\1")
        lines.append("    http-response set-header x-server %s")
        for replica in replicas.values():
            if replica.model == model:
                lines.append(f"    server {replica.pool} 127.0.0.1:{replica.port} weight 1")
    path = folder / "haproxy.cfg"
    path.write_text("\n".join(lines) + "\n")
    words = [HAPROXY, "-f", str(path)]
    checked = subprocess.run([*words, "-c"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen([*words, "-db"], stderr=subprocess.PIPE) as process:
        try:
            assert comes(made.control.exists), process.stderr.read()
            yield made
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Replicas that answer, by model and pool, and the router; pool z has none that runs."""
    folder = tmp_path_factory.mktemp("live")
    replicas = {}
    for model, layers in LAYERS.items():
        with mock.patch.dict(tiny_model.CONFIG, num_hidden_layers=layers):
            weights = tiny_model.write_model(folder / model)
        for pool in POOLS[model]:
            replicas[model, pool] = Replica(model, pool, weights)
    with ExitStack() as stack:
        for replica in replicas.values():
            stack.callback(replica.stop)
            if replica.pool != "z":
                replica.start()
        for replica in replicas.values():
            assert replica.pool == "z" or comes(replica.answers), replica
        yield replicas, stack.enter_context(router(folder, replicas))


def plan(pools_of_chat):
    """An answer of a plan: two replicas a model with their weights, chat in some pools."""
    models = {}
    for model, shares in SHARES.items():
        pools = pools_of_chat if model == "chat" else ("x", "y")
        pairs = zip(pools, shares.values(), strict=True)
        models[model] = (1.0, [place(pool, 1, 4 * share, weight=share) for pool, share in pairs])
    return answer_of(models, dict.fromkeys(("x", "y", "z"), (3, ())))


def weights_of(weights):
    return {name.partition(" ")[0]: share for name, share in weights.items()}


def test_shares_and_latencies_are_those_of_the_plan(live):
    replicas, haproxy = live
    running = {key: replica for key, replica in replicas.items() if key[1] != "z"}
    before, through, counts = defaultdict(list), defaultdict(list), Counter()
    for _ in range(ROUNDS // 4):
        for key, replica in running.items():
            before[key].append(ask(replica.port, replica.model, replica.folder)[2])
    for placed in plan(("x", "y")).models:
        haproxy.weigh(placed.name, {p.pool: p.weight for p in placed.placements})
    for _ in range(ROUNDS):
        for model in LAYERS:
            folder = replicas[model, "x"].folder
            status, pool, seconds = ask(haproxy.port, model, folder, f"/{model}")
            assert status == 200
            counts[model, pool] += 1
            through[model, pool].append(seconds)
    for model, shares in SHARES.items():
        requests = [counts[model, pool] for pool in shares]
        expected = [ROUNDS * share for share in shares.values()]
        assert sum(requests) == ROUNDS
        assert chisquare(requests, expected).pvalue > 0.05, (model, requests, expected)
    # Of each server the fastest: others on this machine slow that least.
    planned = {key: min(before[key]) for key in running}
    measured = {key: min(through[key]) for key in running}
    for key in running:
        assert 0.5 < measured[key] / planned[key] < 2.0, (key, measured, planned)
    # They tell the models apart: one has six times the layers of another.
    for latencies in (planned, measured):
        assert latencies["code", "x"] > 1.5 * latencies["chat", "x"]


class Clients:
    """Threads that send requests to every model until they are told to end."""

    def __init__(self, port, replicas):
        self.port, self.replicas = port, replicas
        self.over, self.results = threading.Event(), []
        self.threads = [threading.Thread(target=self._send, args=(m,)) for m in [*LAYERS, "chat"]]

    def _send(self, model):
        folder = self.replicas[model, "x"].folder
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                status, pool, _ = ask(self.port, model, folder, f"/{model}")
            except (AssertionError, OSError, http.client.HTTPException) as error:
                status, pool = repr(error), None
            self.results.append((begin, model, pool, status))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def answered(self, model, pool, since=0.0):
        """Requests that a server answered which were sent after a time."""
        rows = [row for row in self.results if row[0] >= since and row[1] == model]
        return sum(row[2] == pool and row[3] == 200 for row in rows)


def test_a_move_of_the_plan_fails_no_request(live):
    replicas, haproxy = live
    moves = plan_moves(plan(("x", "y")), plan(("x", "z")))
    kinds = [(step.kind, step.model, step.pool) for step in moves.steps]
    assert kinds == [("start", "chat", "z"), ("stop", "chat", "y")]
    for placed in plan(("x", "y")).models:
        haproxy.weigh(placed.name, {p.pool: p.weight for p in placed.placements})
    with Clients(haproxy.port, replicas) as clients:
        until(lambda: clients.answered("chat", "y") >= 3)
        for step in moves.steps:
            replica = replicas[step.model, step.pool]
            if step.kind == "start":
                replica.start()
                assert comes(replica.answers)
                haproxy.weigh(step.model, weights_of(step.weights))
                until(lambda: clients.answered("chat", "z") >= 3)
            else:
                haproxy.weigh(step.model, weights_of(step.weights))
                drained = time.monotonic()
                until(lambda r=replica: haproxy.sessions(r.model, r.pool) == 0)
                replica.stop()
        until(lambda: clients.answered("chat", "z", drained) >= 5)
        until(lambda: clients.answered("chat", "x", drained) >= 5)
    failed = [row for row in clients.results if row[3] != 200]
    assert failed == []
    assert len(clients.results) > 50
    assert clients.answered("chat", "y", drained) == 0
    assert replicas["chat", "y"].process.poll() is not None


def test_a_server_that_stops_before_it_drains_fails_requests(live):
    """The order of the steps is what keeps requests whole: turned round, some fail."""
    replicas, haproxy = live
    haproxy.weigh("rag", {"x": 0.5, "y": 0.5})
    with Clients(haproxy.port, replicas) as clients:
        until(lambda: clients.answered("rag", "y") >= 3)
        replicas["rag", "y"].stop()
        until(lambda: any(row[3] != 200 for row in clients.results))
        haproxy.weigh("rag", {"x": 1.0})
    assert {row[1] for row in clients.results if row[3] != 200} == {"rag"}
