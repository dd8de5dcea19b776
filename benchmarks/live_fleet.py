"""Replicas of a bundle behind HAProxy: started, drained and counted (for `live_scaling.py`).

Each replica is a copy of the bundle that its own launcher starts on a port of its own. HAProxy
queues what no replica has room for, and logs how long each request waited and was served.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
SLOTS = 2
"""Requests that a replica serves at once; the proxy holds the others back."""
HOST = "127.0.0.1"
PROMPT = "The cook says: take two onions and cut them into thin rings. " * 2
LOGGED = 0.95
"""Share of the requests whose line of the proxy's log is waited for."""
READY_S = 600.0
"""Longest that a replica may take to start, on the busiest machine."""

CONFIGURATION = """\
global
    stats socket {socket} mode 600 level admin
    log stdout format raw local0
defaults
    mode http
    log global
    log-format "served %Tw %Ta %s %sc %ST"
    balance leastconn
    retries 3
    option redispatch
    timeout connect 10s
    timeout client 900s
    timeout server 900s
    timeout queue 900s
frontend gateway
    bind {host}:{port}
    default_backend replicas
backend replicas
    server-template replica 1-{max_replicas} {host}:9 disabled maxconn {slots}
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: seconds at its client, in the server, and requests in the server at its end."""

    latency_s: float
    service_s: float
    beside: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at a moment; ``arrived`` and ``waiting`` are the proxy's counts."""

    at_s: float
    ready: int
    starting: int
    draining: int
    ordered: int
    running: int
    waiting: int
    arrived: int


@dataclass(slots=True)
class Replica:
    """A copy of the bundle, and where it stands: starting, ready, draining or gone."""

    number: int
    folder: Path
    port: int
    up: subprocess.Popen[bytes]
    ordered_at: float
    state: str = "starting"
    down: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Its name in the proxy."""
        return f"replica{self.number}"


@dataclass
class LiveFleet:
    """Replicas of ``bundle`` behind a proxy; everything ends with the block."""

    bundle: Path
    model: Path
    work: Path
    max_replicas: int
    replicas: list[Replica] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    start_times_s: list[float] = field(default_factory=list)
    ordered: int = 0
    _arrived_before: int = 0

    def __enter__(self) -> Self:
        self.port, self._socket = free_port(), self.work / "proxy.sock"
        configuration = self.work / "haproxy.cfg"
        configuration.write_text(
            CONFIGURATION.format(
                socket=self._socket,
                host=HOST,
                port=self.port,
                max_replicas=3 * self.max_replicas,
                slots=SLOTS,
            )
        )
        self._log = (self.work / "proxy.log").open("wb")
        self._proxy = subprocess.Popen(
            ["haproxy", "-f", str(configuration)], stdout=self._log, stderr=subprocess.STDOUT
        )
        until(lambda: self._socket.exists() and bool(self._ask("show info")))
        launch = json.loads((self.bundle / "launch.json").read_text())
        self.path = str(launch["api"]["path"])
        served = filled(launch["api"]["model"], str(self.model))
        options = filled(launch["api"]["body"], str(self.model))
        self.body = {**options, "model": served, "prompt": PROMPT}
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.up.kill()
            replica.up.wait()
            if replica.state != "gone":
                self._launcher(replica, "down").wait()
        self._proxy.terminate()
        self._proxy.wait()
        self._log.close()

    def want(self, count: int) -> None:
        """Order replicas, or drain the newest, until so many are there or on their way."""
        self.ordered = count
        present = [r for r in self.replicas if r.state in ("starting", "ready")]
        for _ in range(count - len(present)):
            self._order()
        for replica in present[count:]:
            self._drain(replica)

    def settle(self) -> None:
        """Take in replicas that have started; end those that have drained."""
        for replica in self.replicas:
            if replica.state == "starting" and replica.up.poll() is not None:
                self._started(replica)
            elif replica.state == "draining" and not self._running(replica):
                replica.down = self._launcher(replica, "down")
                replica.state = "ending"
            elif replica.state == "ending" and replica.down and replica.down.poll() is not None:
                self._ask(f"set server replicas/{replica.name} state maint")
                shutil.rmtree(replica.folder, ignore_errors=True)
                replica.state = "gone"

    def wait_ready(self, count: int) -> None:
        """Wait until so many replicas answer."""
        until(lambda: self.settle() or self._count("ready") >= count)

    def sample(self, at_s: float) -> Sample:
        """The fleet now."""
        rows = self._statistics()
        backend = rows["BACKEND"]
        return Sample(
            at_s=at_s,
            ready=self._count("ready"),
            starting=self._count("starting"),
            draining=self._count("draining") + self._count("ending"),
            ordered=self.ordered,
            running=sum(int(rows[r.name]["scur"]) for r in self.replicas if r.state != "gone"),
            waiting=int(backend["qcur"]),
            arrived=int(backend["stot"]) - self._arrived_before,
        )

    def begin(self) -> None:
        """Forget what was probed: the run begins."""
        self.answers.clear()
        backend = self._statistics()["BACKEND"]
        self._arrived_before = int(backend["stot"])
        self._read_from = (self.work / "proxy.log").stat().st_size

    def probe(self, together: int, count: int, tokens: int) -> float:
        """Mean seconds of a request while ``together`` are in the server."""
        self.ask(tokens)  # the first one compiles
        with ThreadPoolExecutor(together) as pool:
            latencies = list(pool.map(lambda _: self.ask(tokens)[0], range(count * together)))
        return sum(latencies) / len(latencies)

    def ask(self, tokens: int) -> tuple[float, bool]:
        """Send a request through the proxy: its seconds, and whether it was answered."""
        began = time.monotonic()
        body = json.dumps({**self.body, "max_tokens": tokens, "stream": False})
        connection = http.client.HTTPConnection(HOST, self.port, timeout=900)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", self.path, body=body, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return time.monotonic() - began, answer.status == 200
        except (OSError, http.client.HTTPException):
            return time.monotonic() - began, False
        finally:
            connection.close()

    def served(self) -> list[tuple[float, int, bool]]:
        """Of every request of the run: seconds in the server, others in it, whether answered."""
        with (self.work / "proxy.log").open("rb") as log:
            log.seek(self._read_from)
            lines = [line.split() for line in log.read().decode().splitlines()]
        rows = [words for words in lines if words and words[0] == "served"]
        return [
            (max(int(total) - max(int(wait), 0), 1) / 1e3, int(beside), status == "200")
            for _, wait, total, _, beside, status in rows
        ]

    def _order(self) -> None:
        numbers = {r.number for r in self.replicas if r.state != "gone"}
        number = next(n for n in range(1, 3 * self.max_replicas + 1) if n not in numbers)
        folder = self.work / f"replica-{number}-{len(self.replicas)}"
        shutil.copytree(self.bundle, folder)
        replica = Replica(number, folder, free_port(), subprocess.Popen(["true"]), time.monotonic())
        replica.up = self._launcher(
            replica,
            "up",
            "--port",
            str(replica.port),
            "--model",
            str(self.model),
            "--strict",
            "--no-keep",
            "--timeout",
            str(READY_S),
        )
        self.replicas.append(replica)

    def _started(self, replica: Replica) -> None:
        if replica.up.returncode:
            raise RuntimeError((replica.folder.parent / f"{replica.folder.name}.log").read_text())
        self.start_times_s.append(time.monotonic() - replica.ordered_at)
        self._ask(f"set server replicas/{replica.name} addr {HOST} port {replica.port}")
        self._ask(f"set server replicas/{replica.name} state ready")
        replica.state = "ready"

    def _drain(self, replica: Replica) -> None:
        if replica.state == "starting":  # it is ended before it was of use
            replica.up.kill()
            replica.up.wait()
        self._ask(f"set server replicas/{replica.name} state drain")
        replica.state = "draining"

    def _launcher(self, replica: Replica, *words: str) -> subprocess.Popen[bytes]:
        log = (replica.folder.parent / f"{replica.folder.name}.log").open("ab")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with log:
            return subprocess.Popen(
                [sys.executable, str(replica.folder / "launch.py"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def _count(self, state: str) -> int:
        return sum(replica.state == state for replica in self.replicas)

    def _running(self, replica: Replica) -> int:
        return int(self._statistics()[replica.name]["scur"])

    def _statistics(self) -> dict[str, dict[str, str]]:
        lines = self._ask("show stat replicas 6 -1").lstrip("# ").splitlines()
        names = lines[0].split(",")
        rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]
        return {row["svname"]: row for row in rows}

    def _ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as control:
            try:
                control.connect(str(self._socket))
            except OSError:
                return ""
            control.sendall(f"{command}\n".encode())
            parts = []
            while part := control.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()


@dataclass
class Clients:
    """Clients that send requests at given moments."""

    began: float
    count: int
    latencies: list[tuple[float, bool]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Since the first moment."""
        return time.monotonic() - self.began

    @property
    def done(self) -> bool:
        """Return whether every request has ended."""
        return len(self.latencies) >= self.count


@contextmanager
def send(fleet: LiveFleet, at_s: Any, tokens: int) -> Iterator[Clients]:
    """Send a request at every moment of ``at_s``, each by a client of its own."""
    clients = Clients(time.monotonic(), len(at_s))

    def send_request() -> None:
        clients.latencies.append(fleet.ask(tokens))

    def all_of_them() -> None:
        for moment in at_s:
            time.sleep(max(clients.began + float(moment) - time.monotonic(), 0.0))
            threading.Thread(target=send_request, daemon=True).start()

    sender = threading.Thread(target=all_of_them, daemon=True)
    sender.start()
    yield clients
    sender.join()
    # the proxy drops a line of its log now and then
    until(lambda: len(fleet.served()) >= LOGGED * clients.count)
    service = fleet.served()
    typical = sum(request[0] for request in service) / len(service)
    for n, (latency_s, ok) in enumerate(clients.latencies):
        service_s, beside, _ = service[n] if n < len(service) else (typical, SLOTS - 1, ok)
        clients.answers.append(Answer(latency_s, service_s, min(beside + 1, SLOTS), ok))


def filled(value: Any, model: str) -> Any:
    """The API's fields with the model's name in them."""
    if isinstance(value, str):
        return value.replace("${model}", model)
    if isinstance(value, list):
        return [filled(item, model) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, model) for key, item in value.items()}
    return value


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Any, seconds: float = READY_S) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the state that was waited for did not come")
        time.sleep(0.1)
