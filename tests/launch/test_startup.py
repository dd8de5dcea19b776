"""One time limit of a start, which grows with the weights, wherever something waits for it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from recipe_core.launch.process import Launch
from recipe_core.launch.startup import limit_s, startup_rates, weights_s
from recipe_core.targets import supervise, target_files
from recipe_core.targets.context import Context
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.targets import context, with_parameters

WEIGHTS = 690 * 10**9
"""DeepSeek-R1's checkpoint."""


def launch() -> Launch:
    return context().launch


def large(**parameters: Any) -> Context:
    return with_parameters(replace(context(), weights_bytes=WEIGHTS), **parameters)


def test_the_limit_grows_with_what_is_fetched_and_read() -> None:
    assert limit_s(launch(), WEIGHTS, "org/model", None) == 1800 + 6900 + 2760  # 100 MB/s
    assert limit_s(launch(), WEIGHTS, "/data/model", None) == 1800 + 2760  # a folder is only read
    assert limit_s(launch(), 10**6, "org/model", None) == 1801
    for model in ("org/model", "/data/model"):  # a stated rate counts
        slow, fast = (weights_s(WEIGHTS, model, rate) for rate in (50, 1000))
        assert slow - fast == pytest.approx(WEIGHTS / 50e6 - WEIGHTS / 1000e6)


def test_the_assumed_rates_have_sources() -> None:
    rates = startup_rates()
    for rate in (rates.fetch_bytes_per_s, rates.read_bytes_per_s):
        assert rate.source in rates.sources


@pytest.mark.parametrize("parameters", [{}, {"storage_mb_per_s": 40}], ids=["default", "stated"])
def test_every_target_waits_equally_long(parameters: dict[str, Any]) -> None:
    value = large(**parameters)
    files = target_files(value)
    limit = supervise.start_s(value)
    assert limit == limit_s(launch(), WEIGHTS, value.model, parameters.get("storage_mb_per_s"))
    service = next(text for path, text in files.items() if path.endswith("skypilot/task.yaml"))
    assert f"initial_delay_seconds: {limit}" in service
    compose = next(text for path, text in files.items() if path.endswith("compose.yaml"))
    assert f"start_period: {limit}s" in compose
    pod = next(text for path, text in files.items() if path.endswith("kubernetes/deployment.yaml"))
    failures = re.search(r"startupProbe:.*?failureThreshold: (\d+)", pod, re.DOTALL)
    assert failures is not None
    assert 0 <= int(failures[1]) * supervise.PROBE_S - limit < supervise.PROBE_S


def test_the_launcher_waits_as_long_as_the_targets() -> None:
    bundle = bundle_for_request(make_request())
    launch_json = json.loads(bundle.files["launch.json"])
    service = bundle.files["targets/skypilot/task.yaml"].decode()
    waits = re.search(r"initial_delay_seconds: (\d+)", service)
    assert waits is not None
    assert launch_json["startup_timeout_s"] == int(waits[1]) > 1800
