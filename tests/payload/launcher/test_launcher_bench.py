"""bench: streams and requests, the arithmetic of figures, and measurements of a fake engine."""

import argparse
import io
import json
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from itertools import count

import pytest

from recipe_core.payload.launcher.api import Api, pooled_request_body, request_body
from recipe_core.payload.launcher.bench import (
    Options,
    measure_serving,
    plan_traffic,
    request_figures,
)
from recipe_core.payload.launcher.client import Endpoint, Sample, _Stream, read_stream, send_prompt
from recipe_core.payload.launcher.errors import RequestError
from recipe_core.payload.launcher.load import (
    Prompts,
    Traffic,
    calibrate_prompt_words,
    draw_lengths,
    drive,
)
from recipe_core.payload.launcher.machine import Machine
from recipe_core.payload.launcher.measurement import FIGURES, expected_bands, predicted_figures
from recipe_core.payload.launcher.plan import Workload, load_plan
from recipe_core.payload.launcher.preflight import Preflight
from recipe_core.payload.launcher.supervisor import Progress
from tests.fixtures.fake_server import Answering, Handler, Server
from tests.fixtures.fake_world import FakeClock
from tests.fixtures.rows import over, table

CHECKED = Preflight((), Machine("cpu", (), "CPU", 1, 1, 1), "1.0")
ROWS = partial(table, "launcher_bench")


@over("size", [1, 2, 3, 7, 1000])
def test_any_chunking_gives_the_same_events(size):
    def events(stream):
        pieces = (stream[start : start + size] for start in range(0, len(stream), size))
        return list(read_stream([*pieces, b"\n\n"]))

    stream = (
        ': hello\n\ndata: {"a": "é€"}\r\n\r\nevent: x\ndata: one\ndata:two\n\n\n'
        "id: 3\n\ndata: [DONE]\n\n"
    ).encode()
    assert events(stream) == ['{"a": "é€"}', "one\ntwo", "[DONE]"]
    assert events(b"data: a\n\ndata: b") == ["a", "b"]  # the last without a blank line


class Body(io.BytesIO):
    """Gives what ``http.client`` would."""

    def read1(self, size=-1):
        return super().read1(min(size or 11, 11))


def read(events):
    """A stream and its sample: each read of 11 bytes takes a second."""
    texts = (event if isinstance(event, str) else json.dumps(event) for event in events)
    stream = _Stream(0.0, clock=count(1.0).__next__)
    return stream, stream.read(Body("".join(f"data: {text}\n\n" for text in texts).encode()))


@over("events expected", ROWS("streams"))
def test_streams(events, expected):
    stream, sample = read(events)
    for name, value in expected.items():
        found = getattr(stream if name in ("chunks", "ended") else sample, name)
        assert (name, found) == (name, value)


@over("data message", ROWS("broken_streams"))
def test_broken_streams(data, message):
    with pytest.raises(RequestError, match=message):
        read(data)


def test_body_fields_of_the_recipe_win_and_null_removes():
    fields = {"ignore_eos": True, "stream_options": None, "temperature": 1.0}
    asked = {"model": "m", "prompt": "hello", "max_tokens": 7, "stream": True}
    wanted = asked | {"temperature": 1.0, "ignore_eos": True}
    assert request_body(Api("/v1/completions", "m", fields), "hello", 7) == wanted
    chat = request_body(Api("/v1/chat/completions", "m", {}), "hello", 7)
    assert chat["messages"] == [{"role": "user", "content": "hello"}]


POOLED = ROWS("pooled")


@pytest.fixture
def pooling():
    class Pooling(Answering):
        def do_POST(self):  # noqa: N802 - the name in the base class
            self.answer(400 if b"bad" in self.body() else 200, POOLED[self.path][1])

        def end_headers(self):
            if self.path in ("/embed", "/rerank"):
                self.send_header("x-compute-tokens", "4")
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Pooling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda path: Endpoint(*server.server_address, Api(path, "a", {}))
        server.shutdown()


def test_a_text_is_a_result_with_the_servers_own_count_of_tokens(pooling):
    for path, (tokens, data) in POOLED.items():
        if tokens is not None:
            clock = iter([1.0, 3.0]).__next__
            sample = send_prompt(pooling(path), "some words", 1, clock=clock)
            assert (sample.prompt_tokens, sample.output_tokens) == (tokens, 1), path
            assert (sample.ttft_s, sample.latency_s, sample.tpot_s) == (2.0, 2.0, None)
            assert ("score" in sample.text) == ("score" in json.dumps(data))
    with pytest.raises(RequestError, match="HTTP 400"):
        send_prompt(pooling("/embed"), "bad", 1)
    with pytest.raises(RequestError, match="the server sent"):
        send_prompt(pooling("/v2/models/odd/infer"), "words", 1)
    # What it is scored against is an input of its own.
    asked = pooled_request_body(Api("/v2/models/a/infer", "a", {"query": "why"}), "because")
    named = [(place["name"], place["data"]) for place in asked["inputs"]]
    assert named == [("query", ["why"]), ("text", ["because"])]


@over("change requests in_flight", ROWS("counts"))
def test_how_many_requests(change, requests, in_flight):
    unset = dict.fromkeys(("request_rate", "batch", "requests"))
    usual = {"mode": "closed", "input_tokens": 1, "output_tokens": 1, "concurrency": 4, **unset}
    traffic = plan_traffic(Workload(**{**usual, **change}), Options())
    assert (traffic.requests, traffic.in_flight) == (requests, in_flight)


def sample(started, first, last, tokens):
    return Sample(started, first, last, 10, tokens, "")


def test_figures():
    found = request_figures([sample(0.0, 1.0, 3.0, 11), sample(1.0, 3.0, 5.0, 5)])
    assert found["ttft_s"] == found["ttft_p50_s"] == 1.5
    assert found["tpot_s"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["request_latency_s"] == 3.5
    assert found["output_tokens_per_s"] == pytest.approx(16 / 5)
    assert request_figures([sample(0.0, 1.0, 1.0, 1)])["tpot_s"] is None  # a single token
    assert predicted_figures({"serving": None}, "serving") == dict.fromkeys(FIGURES["serving"])
    bands = {"a": [1, 2], "b": [1, None], "c": None, "d": [1, float("nan")]}
    assert expected_bands({"bands": bands}) == {"a": (1.0, 2.0)}


def test_calibration_meets_the_target():
    for fixed, per_word in ((0, 1.0), (12, 1.0), (3, 1.37), (0, 3.9), (25, 0.8)):
        found = calibrate_prompt_words(lambda words, f=fixed, p=per_word: f + round(words * p), 512)
        assert found.tokens is not None
        assert abs(found.tokens - 512) <= max(2, per_word)
    assert calibrate_prompt_words(lambda words: None, 100).tokens is None

    def refuse(words):
        raise RequestError("no")

    with pytest.raises(RequestError):
        calibrate_prompt_words(refuse, 2)
    # Prompts differ and repeat.
    texts = [Prompts(20, seed=1).text(index) for index in range(50)]
    assert len({" ".join(text.split()[:4]) for text in texts}) == 50
    assert texts[3] == Prompts(20, seed=1).text(3)


def test_lengths_are_drawn_as_they_are_stated_and_even_a_few_meet_their_mean():
    for count_, spread in ((9, 0.1), (64, 0.1), (500, 0.8)):
        drawn = draw_lengths(1000, spread, (), count_, "7 in")
        assert drawn == draw_lengths(1000, spread, (), count_, "7 in")
        assert sum(drawn) / count_ == pytest.approx(1000, rel=spread / count_**0.5 / 4)
        low, high = 1000 * (1 - spread), 1000 * (1 + spread)
        assert low - 1 <= min(drawn) < low + 3 * spread * 1000 / count_ + 1
        assert high - 3 * spread * 1000 / count_ - 1 < max(drawn) <= high + 1
        assert drawn != tuple(sorted(drawn))
        assert drawn != draw_lengths(1000, spread, (), count_, "8 in")
    assert draw_lengths(40, 0.0, (), 5, "1 in") == (40,) * 5
    shares = (1, 10, 100, 1000)  # a quarter of all requests each
    drawn = draw_lengths(278, 0.0, shares, 40, "1 out")
    assert sorted(drawn) == [length for length in shares for _ in range(10)]
    assert set(draw_lengths(1, 0.9, (), 30, "")) == {1, 2}  # never none


def test_requests_arrive_at_random_at_the_rate_that_is_asked_for():
    clock, naps, lines = FakeClock(), [], []

    def sleep(seconds):
        naps.append(seconds)
        clock.sleep(seconds)

    def driven():
        clock.at = 0.0
        timed = {"limit_s": None, "clock": clock.monotonic, "sleep": sleep}
        traffic = Traffic("open", 200, 200, rate=0.5, seed=3)
        return drive(traffic, lambda _: sample(0.0, 1.0, 2.0, 2), tell=lines.append, **timed)

    outcome = driven()
    assert len(outcome.samples) == 200
    assert outcome.wall_s == clock.at == pytest.approx(200 / 0.5, rel=0.2)
    assert max(naps) == 0.5  # short, so that progress is told
    assert lines[0].endswith("of 200 requests answered")
    before, naps[:] = naps[:], []
    driven()
    assert naps == before

    def broken(index):  # a bug in sending is a failed request
        raise KeyError("oops")

    outcome = drive(Traffic("closed", 3, 2), broken, limit_s=None, tell=str)
    assert outcome.errors == ["KeyError: 'oops'"] * 3


def test_bench_on_a_running_server(bundle):
    bundle.run("up")
    shown = bundle.says(0, "bench")
    assert "time per output token" in shown
    assert "w0 w1" in shown
    data = bundle.read("measurement.json")
    assert (data["metrics"]["requests"], data["metrics"]["failed"]) == (9, 0)
    assert (data["workload"]["input_tokens"], data["workload"]["output_tokens"]) == (40, 8)
    assert data["ratio"]["tpot_s"] == pytest.approx(data["metrics"]["tpot_s"] / 0.002, rel=1e-3)
    assert data["predicted"]["output_tokens_per_s"] is None
    assert data["ratio"]["output_tokens_per_s"] is None
    assert len(data["recipe_digest"]) == 64
    late = bundle.says(1, "bench", "--duration-limit", "0.000001")
    assert "the time limit passed before the first answer" in late
    assert bundle.up  # it was running before, it runs on


def test_bench_starts_and_stops_its_own(make_bundle):
    bundle = make_bundle()
    data = bundle.answers("--json", "bench", "--requests", "4", "--concurrency", "2")
    assert data == bundle.read("measurement.json")
    assert data["metrics"]["requests"] == 4
    assert data["notes"] == ["the prediction is for 3 requests at once, the measurement for 2"]
    assert not bundle.up
    refusing = make_bundle("--behave", "refuse")
    assert "the model is asleep" in refusing.says(1, "bench")
    assert not refusing.up
    assert not (refusing.root / "run" / "measurement.json").exists()


@pytest.fixture
def measured(bundle):
    """Measures a server in a thread: with options, how it behaves, and another API or workload."""
    behaviour = argparse.Namespace(behave="ok", orders=None, delay=0, context=10_000)
    asked = []

    class Quick(Handler):
        options = behaviour

        def log_message(self, *_):
            pass

        def complete(self, body):
            words = (body.get("prompt") or body["messages"][0]["content"]).split()
            asked.append((len(words), body["max_tokens"]))
            super().complete(body)

    server = Server(("127.0.0.1", bundle.port), Quick)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def measurement_of(options, path="/v1/completions", behave=(), **workload):
        vars(behaviour).update(behave)
        bundle.edit(lambda data: data["api"].update(path=path))
        bundle.edit(lambda data: data["workload"].update(workload))
        plan, clock = load_plan(bundle.root), count().__next__
        return measure_serving(plan, CHECKED, options, Progress(quiet=True), clock=clock)

    measurement_of.asked = asked
    yield measurement_of
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(("change", "expected"), ROWS("modes"))
def test_modes(measured, change, expected):
    work = measured(Options(requests=10), **change)["workload"]
    assert {key: work[key] for key in expected} == expected


@over(
    "stated, prompts, answers, said",
    [
        ({}, (40, 40), (8, 8), {"input_spread": 0.0, "output_spread": 0.0}),
        (
            {"input_spread": 0.25, "output_spread": 0.5},
            (30, 50),
            (4, 12),
            {"input_spread": 0.25, "output_spread": 0.5},
        ),
        (
            {
                "input_spread": None,
                "output_spread": None,
                "output_lengths": [2, 4, 6, 40],
                "max_context": 60,
            },
            (40, 40),
            (2, 20),
            {"input_spread": 0.0},
        ),
    ],
)
def test_what_is_sent_varies_as_the_recipe_says_and_the_result_states_it(
    measured, stated, prompts, answers, said
):
    data = measured(Options(requests=32), **stated)
    sent = measured.asked[-33:-1]  # after calibration and warm-up, before what people judge
    tokens = [words + 5 for words, _ in sent]  # as the server counts
    outputs = [output for _, output in sent]
    assert (min(tokens), max(tokens)) == pytest.approx(prompts, abs=1)
    assert (min(outputs), max(outputs)) == answers
    work = data["workload"]
    assert work["input_tokens"] == pytest.approx(sum(tokens) / 32, abs=0.01)
    assert work["output_tokens"] == pytest.approx(sum(outputs) / 32, abs=0.01)
    assert said.items() <= work.items()
    if "output_lengths" in stated:  # a request keeps to the context
        mean = sum(outputs) / 32
        cv = (sum((output - mean) ** 2 for output in outputs) / 32) ** 0.5 / mean
        assert work["output_cv"] == pytest.approx(cv, abs=1e-3)
        assert "output_spread" not in work
    again = measured(Options(requests=32))
    assert sorted(measured.asked[-33:-1]) == sorted(sent)
    other = measured(Options(requests=32, seed=2))
    assert again["workload"]["input_tokens"] == work["input_tokens"]
    varies = min(outputs) < max(outputs)
    assert (sorted(measured.asked[-33:-1]) != sorted(sent)) == (varies and len(set(tokens)) > 1)
    assert other["metrics"]["requests"] == 32


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
