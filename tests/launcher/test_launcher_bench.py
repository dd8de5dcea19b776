"""bench: real requests to a fake engine, and the arithmetic behind the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from recipe_core.launcher import metrics
from recipe_core.launcher.bench import Options, plan_traffic
from recipe_core.launcher.client import Sample
from recipe_core.launcher.errors import RequestError
from recipe_core.launcher.load import Traffic, drive
from recipe_core.launcher.plan import Workload
from recipe_core.launcher.prompts import Prompts, calibrate
from tests.fixtures.bundles import Bundle


def measurement(bundle: Bundle) -> dict[str, Any]:
    return dict(json.loads((bundle.root / "run" / "measurement.json").read_text()))


def test_bench_on_a_running_server(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    bundle.run("up")
    capsys.readouterr()
    assert bundle.run("bench") == 0
    out = capsys.readouterr().out
    assert "time per output token" in out
    assert "w0 w1" in out
    data = measurement(bundle)
    assert data["metrics"]["requests"] == 9
    assert data["metrics"]["failed"] == 0
    assert data["workload"]["input_tokens"] == 40
    assert data["workload"]["output_tokens"] == 8
    assert 0.001 < data["metrics"]["tpot_s"] < 0.05
    assert data["ratio"]["tpot_s"] == pytest.approx(data["metrics"]["tpot_s"] / 0.002, rel=1e-3)
    assert data["predicted"]["output_tokens_per_s"] is None
    assert data["ratio"]["output_tokens_per_s"] is None
    assert len(data["recipe_digest"]) == 64
    assert bundle.up  # it was running before, it runs on


def test_bench_starts_and_stops_its_own(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.run("--json", "bench", "--requests", "4", "--concurrency", "2") == 0
    data = json.loads(capsys.readouterr().out)
    assert data == measurement(bundle)
    assert data["metrics"]["requests"] == 4
    assert data["notes"] == ["the prediction is for 3 requests at once, the measurement for 2"]
    assert not bundle.up


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"mode": "open", "request_rate": 40.0},
            {"concurrency": None, "request_rate": 40.0, "requests": 10},
        ),
        ({"mode": "static", "batch": 4}, {"concurrency": 4, "batch": 4, "requests": 10}),
        ({"mode": "offline", "requests": 20}, {"concurrency": 10, "requests": 10}),
    ],
)
def test_modes(bundle: Bundle, change: dict[str, Any], expected: dict[str, Any]) -> None:
    bundle.edit(lambda data: data["workload"].update(change))
    assert bundle.run("bench", "--requests", "10") == 0
    work = measurement(bundle)["workload"]
    assert {key: work[key] for key in expected} == expected


def test_chat_path(bundle: Bundle) -> None:
    bundle.edit(lambda data: data["api"].update(path="/v1/chat/completions"))
    assert bundle.run("bench", "--requests", "2") == 0


def test_all_requests_fail(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--behave", "refuse")
    assert bundle.run("bench") == 1
    assert "the model is asleep" in capsys.readouterr().err
    assert not bundle.up
    assert not (bundle.root / "run" / "measurement.json").exists()


def test_some_requests_fail_and_are_counted(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--behave", "flaky", "--delay", "0")
    bundle.edit(lambda data: data["workload"].update(input_tokens=60))
    code = bundle.run("bench", "--requests", "40")
    out = capsys.readouterr().out
    assert code == 0
    data = measurement(bundle)["metrics"]
    assert data["failed"] > 0
    assert data["failed"] + data["requests"] == 40
    assert "out of plates" in out


def test_prompt_longer_than_the_context_is_reported(
    make_bundle: Callable[..., Bundle], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle("--context", "20")
    assert bundle.run("bench", "--requests", "2") == 0  # calibration settles below the limit
    assert "tokens instead of 40" in capsys.readouterr().out


def test_duration_limit_skips_and_says_so(make_bundle: Callable[..., Bundle]) -> None:
    bundle = make_bundle("--delay", "0.03")
    assert bundle.run("bench", "--requests", "200", "--duration-limit", "0.6") == 0
    data = measurement(bundle)
    assert data["metrics"]["skipped"] == 200 - data["metrics"]["requests"] > 0
    assert "time limit" in data["notes"][0]


def workload(**change: Any) -> Workload:
    base = {
        "mode": "closed",
        "input_tokens": 1,
        "output_tokens": 1,
        "concurrency": 4,
        "request_rate": None,
        "batch": None,
        "requests": None,
    }
    return Workload(**{**base, **change})


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
def test_how_many_requests(change: dict[str, Any], requests: int, in_flight: int) -> None:
    traffic = plan_traffic(workload(**change), Options())
    assert (traffic.requests, traffic.in_flight) == (requests, in_flight)


def sample(started: float, first: float, last: float, tokens: int) -> Sample:
    return Sample(started, first, last, 10, tokens, "")


def test_figures() -> None:
    found = metrics.figures([sample(0.0, 1.0, 3.0, 11), sample(1.0, 3.0, 5.0, 5)])
    assert found["ttft_s"] == 1.5
    assert found["ttft_p50_s"] == 1.5
    assert found["tpot_s"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["request_latency_s"] == 3.5
    assert found["output_tokens_per_s"] == pytest.approx(16 / 5)


def test_one_token_has_no_time_per_token() -> None:
    assert metrics.figures([sample(0.0, 1.0, 1.0, 1)])["tpot_s"] is None


def test_expected_may_say_little() -> None:
    assert metrics.predictions({"serving": None}) == dict.fromkeys(metrics.FIGURES)
    assert metrics.bands(
        {"bands": {"a": [1, 2], "b": [1, None], "c": None, "d": [1, float("nan")]}}
    ) == {"a": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("fixed", "per_word"), [(0, 1.0), (12, 1.0), (3, 1.37), (0, 3.9), (25, 0.8)]
)
def test_calibration_meets_the_target(fixed: int, per_word: float) -> None:
    found = calibrate(lambda words: fixed + round(words * per_word), 512)
    assert found.tokens is not None
    assert abs(found.tokens - 512) <= max(2, per_word)


def test_calibration_without_usage_and_with_refusals() -> None:
    assert calibrate(lambda words: None, 100).tokens is None
    with pytest.raises(RequestError):
        calibrate(_refuse, 2)


def _refuse(words: int) -> int:
    raise RequestError("no")


def test_prompts_differ_and_repeat() -> None:
    texts = [Prompts(20, seed=1).text(index) for index in range(50)]
    assert len({" ".join(text.split()[:4]) for text in texts}) == 50
    assert texts[3] == Prompts(20, seed=1).text(3)


def test_a_bug_in_sending_is_a_failed_request() -> None:
    def broken(index: int) -> Sample:
        raise KeyError("oops")

    outcome = drive(Traffic("closed", 3, 2), broken, limit_s=None, tell=str)
    assert outcome.errors == ["KeyError: 'oops'"] * 3
