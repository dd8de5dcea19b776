"""The launcher's own /healthz and /metrics."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from recipe_core.launcher.errors import LauncherError
from recipe_core.launcher.exporter import Exporter, Snapshot, render
from recipe_core.launcher.exposition import parse
from tests.fixtures.patience import PATIENCE

WHOLE = Snapshot(
    up=True,
    name="m-8b",
    choice="1-fewer-gpus",
    restarts={"device-memory": 2, "hung": 1},
    servers={"server-0": True, 'se"rv\\er\n': False},
    tokens=12_345.0,
    running=3,
    predicted_tpot_s=0.0125,
    tpot_s=0.013,
    more={"world_size": 4},
)


@pytest.fixture
def serve() -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(source: Callable[[], Snapshot], host: str = "127.0.0.1") -> Exporter:
        started.append(Exporter(host, 0, source))
        return started[-1]

    yield start
    for exporter in started:
        exporter.close()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_every_metric_has_its_kind_and_labels():
    text = render(WHOLE)
    samples = parse(text)
    restarts = {s.labels["cause"]: s.value for s in samples["recipe_restarts_total"]}
    assert restarts == {"device-memory": 2, "hung": 1}
    healthy = {s.labels["server"]: s.value for s in samples["recipe_server_healthy"]}
    assert healthy == {"server-0": 1, 'se"rv\\er\n': 0}
    (choice,) = samples["recipe_choice_info"]
    assert choice.labels == {"recipe": "m-8b", "choice": "1-fewer-gpus"}
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert set(kinds) == set(samples)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    values = {name: each[0].value for name, each in samples.items()}
    assert values["recipe_up"] == 1
    assert values["recipe_tokens_total"] == 12_345
    assert values["recipe_predicted_tpot_seconds"] == 0.0125
    assert values["recipe_tpot_seconds"] == 0.013
    assert values["recipe_world_size"] == 4
    assert "recipe_requests_waiting" not in values  # an engine without the figure
    assert "recipe_tpot_seconds" not in parse(render(replace(WHOLE, tpot_s=float("nan"))))


def test_health_follows_the_source(serve):
    now = [WHOLE]
    exporter = serve(lambda: now[0])
    assert get(exporter.port, "/healthz") == (200, "serving\n")
    now[0] = replace(WHOLE, up=False, reason="draining: 2 requests run")
    assert get(exporter.port, "/healthz?probe=1") == (503, "draining: 2 requests run\n")
    status, text = get(exporter.port, "/metrics")
    assert status == 200
    assert "recipe_up 0\n" in text
    assert get(exporter.port, "/")[0] == 404
    assert get(exporter.port, "/healthz", "HEAD") == (503, "")
    assert get(exporter.port, "/metrics", "POST")[0] == 501


def test_a_source_that_fails_is_an_answer_too(serve):
    def fail() -> Snapshot:
        raise RuntimeError("no state")

    exporter = serve(fail)
    with socket.create_connection(("127.0.0.1", exporter.port)):  # a silent client holds nobody up
        assert get(exporter.port, "/healthz") == (500, "RuntimeError: no state\n")


def test_a_taken_port_names_the_option_and_is_free_afterwards():
    exporter = Exporter("127.0.0.1", 0, lambda: WHOLE)
    with pytest.raises(LauncherError) as raised:
        Exporter("127.0.0.1", exporter.port, lambda: WHOLE)
    assert raised.value.field == "--metrics-port"
    assert str(exporter.port) in raised.value.message
    exporter.close()
    Exporter("127.0.0.1", exporter.port, lambda: WHOLE).close()
