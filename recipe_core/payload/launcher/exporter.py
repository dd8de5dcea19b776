"""The launcher's own ``/healthz`` and Prometheus ``/metrics``, beside those of the engine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING

from . import heartbeat
from .errors import LauncherError
from .health import sum_given_values, tpot_s

if TYPE_CHECKING:
    from .recovery import Recovery

# How long a client may take for its request line; a supervisor has no time to lose.
_TIMEOUT_S = 5.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of what is known; times in seconds, None is left out.

    ``up``: whether requests are welcome; ``reason``: why not. ``restarts`` by cause since the
    launcher took the bundle up, ``servers``: whether each is healthy. Tokens are those of the
    engine's counters over its restarts.
    """

    up: bool
    reason: str = ""
    name: str = ""
    choice: str = "first"
    restarts: Mapping[str, int] = field(default_factory=dict)
    servers: Mapping[str, bool] = field(default_factory=dict)
    tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    cache_usage: float | None = None
    predicted_tpot_s: float | None = None
    tpot_s: float | None = None


def render_exposition(snapshot: Snapshot) -> str:
    """The snapshot in Prometheus' text format."""
    lines: list[str] = []
    for name, kind, text, samples in _metrics(snapshot):
        finite = [(labels, value) for labels, value in samples if math.isfinite(value)]
        if finite:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{_labels(labels)} {_format_sample_value(value)}" for labels, value in finite
            ]
    return "\n".join(lines) + "\n"


_Samples = list[tuple[dict[str, str], float]]


def _metrics(now: Snapshot) -> Iterator[tuple[str, str, str, _Samples]]:
    choice = {"recipe": now.name, "choice": now.choice}
    restarts: _Samples = [
        ({"cause": cause}, count) for cause, count in sorted(now.restarts.items())
    ]
    servers: _Samples = [({"server": name}, well) for name, well in sorted(now.servers.items())]
    yield "recipe_up", "gauge", "1 while requests are welcome.", [({}, now.up)]
    yield "recipe_choice_info", "gauge", "The recipe and which of its choices runs.", [(choice, 1)]
    yield "recipe_restarts_total", "counter", "Restarts by their cause.", restarts
    yield "recipe_server_healthy", "gauge", "1 while the server answers.", servers
    for name, kind, text, value in (
        ("tokens_total", "counter", "Tokens that the engine generated.", now.tokens),
        ("requests_running", "gauge", "Requests that run.", now.running),
        ("requests_waiting", "gauge", "Requests that wait.", now.waiting),
        ("cache_usage_ratio", "gauge", "Share of the cache in use.", now.cache_usage),
        ("predicted_tpot_seconds", "gauge", "Time per token as planned.", now.predicted_tpot_s),
        ("tpot_seconds", "gauge", "Time per token of late.", now.tpot_s),
    ):
        yield f"recipe_{name}", kind, text, [] if value is None else [({}, value)]


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    plain = value.encode("utf-8", errors="replace").decode()
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_sample_value(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


class Exporter:
    """Answers on an address from a thread of its own until it is closed.

    ``source`` is called for every request, from several threads. Port 0 takes any that is free.
    """

    def __init__(self, host: str, port: int, source: Callable[[], Snapshot]) -> None:
        """Listen.

        Raises:
            LauncherError: where the address cannot be listened on.
        """
        handler = type("Handler", (_Handler,), {"source": staticmethod(source)})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise LauncherError(
                f"metrics cannot be served on {host}:{port}: {error.strerror or error}.",
                field="--metrics-port",
                hint="Choose a free port.",
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="exporter", kwargs={"poll_interval": 0.1}
        )
        self._thread.daemon = True
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_TIMEOUT_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Bind without looking the address up by name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's business."""


class _Handler(BaseHTTPRequestHandler):
    source: Callable[[], Snapshot]
    timeout = _TIMEOUT_S
    server_version = "recipe"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        status, text = self._page(self.path.partition("?")[0])
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", _TEXT)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(payload)

    def _page(self, path: str) -> tuple[int, str]:
        if path not in ("/healthz", "/metrics"):
            return 404, "There are /healthz and /metrics.\n"
        try:
            now = self.source()
        except Exception as error:  # the caller hears of it
            return 500, f"{type(error).__name__}: {error}\n"
        if path == "/metrics":
            return 200, render_exposition(now)
        return (200, "serving\n") if now.up else (503, f"{now.reason or 'down'}\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Every scrape would be a line."""


class Teller:
    """Tells about a keeper; ``port``: of its pages on the loopback, None for none."""

    def __init__(self, keeper: Recovery, port: int | None) -> None:
        self.keeper, self.metrics_port = keeper, port
        self.tokens: dict[int, tuple[float, float]] = {}  # before its restart, and by its counter
        self._exporter: Exporter | None = None
        self._exports_at = 0.0

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def count(self) -> None:
        for group, observation in self.keeper.probe.look.observations.items():
            if observation.tokens is not None:
                before, last = self.tokens.get(group, (0.0, 0.0))
                before += last if observation.tokens < last else 0.0
                self.tokens[group] = before, observation.tokens

    def tell(self) -> None:
        heartbeat.notify_status(self.keeper.summary())

    def export(self) -> None:
        """Serve ``/healthz`` and ``/metrics``; where the port is taken, try again later."""
        now = self.keeper.clock.monotonic()
        if self._exporter is not None or self.metrics_port is None or now < self._exports_at:
            return
        try:
            self._exporter = Exporter("127.0.0.1", self.metrics_port, self.snapshot)
        except LauncherError as error:
            if not self._exports_at:
                self.keeper.progress.say(str(error))
            self._exports_at = now + 30 * self.keeper.limits.poll_s

    def snapshot(self) -> Snapshot:
        """Return what the exporter shows."""
        look, tracks = self.keeper.probe.look, list(self.keeper.tracks.values())
        figures = list(look.figures.values())
        paces = [pace for track in tracks if (pace := tpot_s(track)) is not None]
        serves = self.keeper.serves()
        down = "" if serves else f"not serving: {self.keeper.summary()}"
        return Snapshot(
            up=serves and not self.keeper.refusing,
            reason=self.keeper.refusing or down,
            name=self.keeper.plan.name,
            choice=self.keeper.plan.choice,
            restarts=dict(self.keeper.causes),
            servers={p.name: look.healthy.get(p.name, False) for p in self.keeper.plan.answering},
            tokens=sum(map(sum, self.tokens.values())) if self.tokens else None,
            running=sum_given_values([server.running for server in figures]),
            waiting=sum_given_values([server.waiting for server in figures]),
            cache_usage=max((f.cache_usage for f in figures if f.cache_usage), default=None),
            tpot_s=max(paces, default=None),
            predicted_tpot_s=self.keeper.probe.target.tpot_s,
        )
