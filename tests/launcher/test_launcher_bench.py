"""bench: real requests to a fake engine, and the arithmetic behind the figures."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from recipe_core.launcher import metrics
from recipe_core.launcher.bench import Options, measure, plan_traffic
from recipe_core.launcher.client import Sample
from recipe_core.launcher.errors import RequestError
from recipe_core.launcher.load import Traffic, drive
from recipe_core.launcher.machine import Machine
from recipe_core.launcher.plan import Workload, load_plan
from recipe_core.launcher.preflight import Preflight
from recipe_core.launcher.prompts import Prompts, calibrate
from recipe_core.launcher.supervisor import Progress
from tests.fixtures.bundles import Bundle
from tests.fixtures.fake_server import Handler, Server

CHECKED = Preflight((), Machine("cpu", (), "CPU", 1, 1, 1), "1.0")


def measurement(bundle: Bundle) -> dict[str, Any]:
    return dict(json.loads((bundle.root / "run" / "measurement.json").read_text()))


def test_bench_on_a_running_server(bundle, capsys):
    bundle.run("up")
    capsys.readouterr()
    assert bundle.run("bench") == 0
    out = capsys.readouterr().out
    assert "time per output token" in out
    assert "w0 w1" in out
    data = measurement(bundle)
    assert (data["metrics"]["requests"], data["metrics"]["failed"]) == (9, 0)
    assert (data["workload"]["input_tokens"], data["workload"]["output_tokens"]) == (40, 8)
    assert data["ratio"]["tpot_s"] == pytest.approx(data["metrics"]["tpot_s"] / 0.002, rel=1e-3)
    assert data["predicted"]["output_tokens_per_s"] is None
    assert data["ratio"]["output_tokens_per_s"] is None
    assert len(data["recipe_digest"]) == 64
    assert bundle.run("bench", "--duration-limit", "0.000001") == 1
    assert "the time limit passed before the first answer" in capsys.readouterr().err
    assert bundle.up  # it was running before, it runs on


def test_bench_starts_and_stops_its_own(make_bundle, capsys):
    bundle = make_bundle()
    assert bundle.run("--json", "bench", "--requests", "4", "--concurrency", "2") == 0
    data = json.loads(capsys.readouterr().out)
    assert data == measurement(bundle)
    assert data["metrics"]["requests"] == 4
    assert data["notes"] == ["the prediction is for 3 requests at once, the measurement for 2"]
    assert not bundle.up
    refusing = make_bundle("--behave", "refuse")
    assert refusing.run("bench") == 1
    assert "the model is asleep" in capsys.readouterr().err
    assert not refusing.up
    assert not (refusing.root / "run" / "measurement.json").exists()


@pytest.fixture
def measured(bundle: Bundle) -> Iterator[Callable[..., dict[str, Any]]]:
    """Measures a server in a thread: with options, how it behaves, and another API or workload."""
    behaviour = argparse.Namespace(behave="ok", orders=None, delay=0, context=10_000)
    handler = type("Quick", (Handler,), {"options": behaviour, "log_message": lambda *_: None})
    server = Server(("127.0.0.1", bundle.port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def measurement_of(
        options: Options, path: str = "/v1/completions", behave: Any = (), **workload: Any
    ) -> dict[str, Any]:
        vars(behaviour).update(behave)
        bundle.edit(lambda data: data["api"].update(path=path))
        bundle.edit(lambda data: data["workload"].update(workload))
        plan, clock = load_plan(bundle.root), count().__next__
        return measure(plan, CHECKED, options, Progress(quiet=True), clock=clock)

    yield measurement_of
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"mode": "open", "request_rate": 40.0},
            {"concurrency": None, "request_rate": 40.0, "requests": 10},
        ),
        ({"mode": "static", "batch": 4}, {"concurrency": 4, "batch": 4, "requests": 10}),
        ({"mode": "offline", "requests": 20}, {"concurrency": 10, "requests": 10}),
        ({"path": "/v1/chat/completions"}, {"requests": 10}),
    ],
)
def test_modes(measured, change, expected):
    work = measured(Options(requests=10), **change)["workload"]
    assert {key: work[key] for key in expected} == expected


def test_failures_limits_and_other_lengths_are_counted_and_noted(measured):
    data = measured(Options(requests=40), behave={"behave": "flaky"}, input_tokens=60)
    assert data["metrics"]["failed"] > 0
    assert data["metrics"]["failed"] + data["metrics"]["requests"] == 40
    assert "out of plates" in data["notes"][0]
    data = measured(Options(requests=200, limit_s=50), behave={"behave": "ok"})
    assert data["metrics"]["skipped"] == 200 - data["metrics"]["requests"] > 0
    assert "time limit" in data["notes"][0]
    data = measured(Options(requests=2), behave={"context": 20}, input_tokens=40)
    assert "tokens instead of 40" in " ".join(data["notes"])  # calibration ends below the limit


@pytest.mark.parametrize(
    ("change", "requests", "in_flight"),
    [
        ({"concurrency": 1}, 8, 1),
        ({"concurrency": 16}, 48, 16),
        ({"concurrency": 100}, 256, 100),
        ({"concurrency": 300}, 600, 300),
        ({"mode": "static", "batch": 5}, 15, 5),
        ({"mode": "offline", "requests": 100}, 100, 100),
        ({"mode": "offline", "requests": 100_000}, 512, 512),
        ({"mode": "open", "request_rate": 2.0}, 40, 40),
    ],
)
def test_how_many_requests(change, requests, in_flight):
    unset = dict.fromkeys(("request_rate", "batch", "requests"))
    usual = {"mode": "closed", "input_tokens": 1, "output_tokens": 1, "concurrency": 4, **unset}
    traffic = plan_traffic(Workload(**{**usual, **change}), Options())
    assert (traffic.requests, traffic.in_flight) == (requests, in_flight)


def sample(started: float, first: float, last: float, tokens: int) -> Sample:
    return Sample(started, first, last, 10, tokens, "")


def test_figures():
    found = metrics.figures([sample(0.0, 1.0, 3.0, 11), sample(1.0, 3.0, 5.0, 5)])
    assert found["ttft_s"] == found["ttft_p50_s"] == 1.5
    assert found["tpot_s"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["request_latency_s"] == 3.5
    assert found["output_tokens_per_s"] == pytest.approx(16 / 5)
    assert metrics.figures([sample(0.0, 1.0, 1.0, 1)])["tpot_s"] is None  # a single token
    assert metrics.predictions({"serving": None}) == dict.fromkeys(metrics.FIGURES)
    bands = {"a": [1, 2], "b": [1, None], "c": None, "d": [1, float("nan")]}
    assert metrics.bands({"bands": bands}) == {"a": (1.0, 2.0)}


def test_calibration_meets_the_target():
    for fixed, per_word in ((0, 1.0), (12, 1.0), (3, 1.37), (0, 3.9), (25, 0.8)):
        found = calibrate(lambda words, f=fixed, p=per_word: f + round(words * p), 512)
        assert found.tokens is not None
        assert abs(found.tokens - 512) <= max(2, per_word)
    assert calibrate(lambda words: None, 100).tokens is None

    def refuse(words: int) -> int:
        raise RequestError("no")

    with pytest.raises(RequestError):
        calibrate(refuse, 2)


def test_prompts_differ_and_repeat():
    texts = [Prompts(20, seed=1).text(index) for index in range(50)]
    assert len({" ".join(text.split()[:4]) for text in texts}) == 50
    assert texts[3] == Prompts(20, seed=1).text(3)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.naps = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps.append(seconds)


def test_requests_arrive_at_random_at_the_rate_that_is_asked_for():
    clock, again, lines = Clock(), Clock(), list[str]()

    def send(index: int) -> Sample:
        return sample(0.0, 1.0, 2.0, 2)

    traffic = Traffic("open", 200, 200, rate=0.5, seed=3)
    outcome = drive(
        traffic, send, limit_s=None, tell=lines.append, clock=lambda: clock.now, sleep=clock.sleep
    )
    assert len(outcome.samples) == 200
    assert outcome.wall_s == clock.now == pytest.approx(200 / 0.5, rel=0.2)
    assert max(clock.naps) == 0.5  # short, so that progress is told
    assert lines[0].endswith("of 200 requests answered")
    drive(traffic, send, limit_s=None, tell=str, clock=lambda: again.now, sleep=again.sleep)
    assert again.naps == clock.naps


def test_a_bug_in_sending_is_a_failed_request():
    def broken(index: int) -> Sample:
        raise KeyError("oops")

    outcome = drive(Traffic("closed", 3, 2), broken, limit_s=None, tell=str)
    assert outcome.errors == ["KeyError: 'oops'"] * 3
