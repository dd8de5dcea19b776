"""Figures of engines (``tests/data/engine_metrics.yaml``), the launcher's own, words to systemd."""

import math
import os
import socket
import uuid
from dataclasses import replace

import pytest
import yaml

from recipe_core.payload.launcher import heartbeat
from recipe_core.payload.launcher.errors import LauncherError
from recipe_core.payload.launcher.exporter import Exporter, Snapshot, render_exposition
from recipe_core.payload.launcher.exposition import (
    MAX_CHARS,
    Figures,
    Sample,
    engine_figures,
    parse_exposition,
)
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.serve import Server

ENGINES = yaml.safe_load((DATA / "engine_metrics.yaml").read_text())

# The text format, and each engine's own names in it


def test_lines_become_samples():
    samples = parse_exposition(table("launcher_monitoring", "exposition"))
    assert samples["http_requests_total"] == [
        Sample("http_requests_total", {"method": "post", "code": "200"}, 1027.0),
        Sample("http_requests_total", {"method": "post", "code": "400"}, 3.0),
    ]
    (odd,) = samples["msdos_file_access_time_seconds"]
    assert odd.labels == {"path": r"C:\DIR\FILE.TXT", "error": 'Cannot find "FILE"\n{x}'}
    assert samples["metric_without_timestamp_and_labels"][0].value == 12.47
    assert samples["weird"][0].value == math.inf
    assert math.isnan(samples["not_a_number"][0].value)
    assert samples["foo_bucket"] == [Sample("foo_bucket", {"le": "0.1"}, 8.0)]


@over(
    "text",
    ["", "<html>502 Bad Gateway</html>", "a{b 1", 'a{b="c} 1', "a", "1 2", "a one", '{"a": 1}'],
)
def test_what_is_no_sample_is_left_out(text):
    assert parse_exposition(text) == {}
    assert engine_figures(text) == Figures()


def test_odd_text_takes_no_time():
    """A parser that is quadratic in it would not come to an end."""
    for before, piece in (('a{b="', "\\"), ("a{", 'b="c",'), ("", "a{"), ("", "x ")):
        parse_exposition(before + piece * 200_000)
    assert parse_exposition("a" * MAX_CHARS + "\nb 1\n") == {}


def test_each_engines_figures():
    for engine in ENGINES.values():
        assert engine_figures(engine["text"]) == Figures(*engine["figures"])
    later = ENGINES["tensorrt-llm"]["text"] + 'trtllm_generation_tokens_total{model_name="m"} 70\n'
    figures = engine_figures(later + "num_requests_running 3\n")
    assert (figures.generation_tokens, figures.running) == (70, 3)
    # Speculation makes steps of several tokens.
    drafts = 'vllm:spec_decode_num_drafts_total{engine="0"} 40\n'
    figures = engine_figures(ENGINES["vllm"]["text"] + drafts)
    assert (figures.tpot_sum_s, figures.tpot_count) == (0.05, 2)
    figures = engine_figures(table("launcher_monitoring", "older_vllm"))
    assert (figures.cache_usage, figures.tpot_sum_s, figures.tpot_count) == (0.1, 3, 100)
    no_number = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2'
    assert engine_figures(no_number).running == 2


WHOLE = Snapshot(**table("launcher_monitoring", "snapshot"))


@pytest.fixture
def serve():
    started = []

    def start(source):
        started.append(Exporter("127.0.0.1", 0, source))
        return started[-1].port

    yield start
    for exporter in started:
        exporter.close()


def get(port, path, method="GET"):
    status, body, _ = Server(port, process=None, log=None).ask(method, path)
    return status, body.decode()


def test_every_metric_has_its_kind_and_labels():
    text = render_exposition(WHOLE)
    samples = parse_exposition(text)
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
    wanted = {"recipe_up": 1, "recipe_tokens_total": 12_345}
    wanted |= {"recipe_predicted_tpot_seconds": 0.0125, "recipe_tpot_seconds": 0.013}
    assert {name: values[name] for name in wanted} == wanted
    assert "recipe_requests_waiting" not in values  # an engine without the figure
    assert "recipe_tpot_seconds" not in parse_exposition(
        render_exposition(replace(WHOLE, tpot_s=float("nan")))
    )


def test_health_follows_the_source(serve):
    now = [WHOLE]
    port = serve(lambda: now[0])
    assert get(port, "/healthz") == (200, "serving\n")
    now[0] = replace(WHOLE, up=False, reason="draining: 2 requests run")
    assert get(port, "/healthz?probe=1") == (503, "draining: 2 requests run\n")
    status, text = get(port, "/metrics")
    assert status == 200
    assert "recipe_up 0\n" in text
    assert get(port, "/")[0] == 404
    assert get(port, "/healthz", "HEAD") == (503, "")
    assert get(port, "/metrics", "POST")[0] == 501

    def fail():
        raise RuntimeError("no state")

    port = serve(fail)
    with socket.create_connection(("127.0.0.1", port)):  # a silent client holds nobody up
        assert get(port, "/healthz") == (500, "RuntimeError: no state\n")


def test_a_taken_port_names_the_option_and_is_free_afterwards():
    exporter = Exporter("127.0.0.1", 0, lambda: WHOLE)
    raised = refusal(Exporter, "127.0.0.1", exporter.port, lambda: WHOLE, kind=LauncherError)
    assert raised.field == "--metrics-port"
    assert str(exporter.port) in raised.message
    exporter.close()
    Exporter("127.0.0.1", exporter.port, lambda: WHOLE).close()


# sd_notify(3): datagrams to a socket by path or abstract name; nothing without one


@pytest.fixture(autouse=True)
def no_watchdog(monkeypatch):
    for name in ("WATCHDOG_PID", "WATCHDOG_USEC", "NOTIFY_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_every_message(tmp_path, monkeypatch, kind):
    name = f"recipe-{uuid.uuid4().hex}"
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path if kind == "path" else f"\0{name}")
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", path if kind == "path" else f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        for sent, message in (
            (heartbeat.notify_ready("serves m-8b"), b"READY=1\nSTATUS=serves m-8b"),
            # No line of the text becomes a word of ours.
            (
                heartbeat.notify_status("restarts server-0\nREADY=1"),
                b"STATUS=restarts server-0 READY=1",
            ),
            (heartbeat.notify_stopping(), b"STOPPING=1"),
            (heartbeat.notify_watchdog(), b"WATCHDOG=1"),
        ):
            assert sent
            assert systemd.recv(4096) == message
        assert not heartbeat.notify_status("  ")


def test_the_watchdog_is_for_one_process_and_nothing_happens_without_systemd(monkeypatch):
    for period, owner, seconds in (
        ("30000000", None, 15.0),
        ("30000000", str(os.getpid()), 15.0),
        ("30000000", "1", None),
        *((period, None, None) for period in ("", "0", "soon", "-5")),
    ):
        monkeypatch.setenv("WATCHDOG_USEC", period)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        if owner:
            monkeypatch.setenv("WATCHDOG_PID", owner)
        assert heartbeat.watchdog_period() == seconds
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    assert (heartbeat.notify_ready(), heartbeat.notify_watchdog()) == (False, False)
    for address in ("", "relative", "/no/such/socket", "@no-such-name"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert (heartbeat.notify_ready(), heartbeat.notify_watchdog()) == (False, False)
    # Children do not speak for the service.
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    assert heartbeat.drop_notify_variables({"PATH": "/", **dict.fromkeys(names, "1")}) == {
        "PATH": "/"
    }
