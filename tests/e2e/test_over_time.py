"""Replicas over time in a real Chromium: from a trace to the autoscaler that was simulated."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import parse_yaml
from tests.fixtures.wizard import (
    OVER_TIME,
    QUESTIONS,
    fits_sideways,
    query,
    settled,
    unfold,
    wait_for_query,
)

pytestmark = pytest.mark.browser

LIMITED = "objective.limits.ttft_ms=2000&objective.limits.tpot_ms=50"
SHORT = f"{LIMITED}&workload.over_time.rates=1,4,2&workload.over_time.days=0.125"
OBJECT = "targets/kubernetes-keda/scaledobject.yaml"


def trace(path: Path) -> Path:
    """A trace in Mooncake's form: an hour, busy in its middle."""
    seconds = sorted([n * 4.0 for n in range(900)] + [1200.0 + n for n in range(1200)])
    rows = (
        {
            "timestamp": round(1000 * at),
            "input_length": 1024,
            "output_length": 64 + n % 64,
            "hash_ids": [0, n + 1],
        }
        for n, at in enumerate(seconds)
    )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def simulated(page: Any) -> None:
    """Simulate KEDA alone, and wait until its answer is drawn."""
    page.get_by_test_id("stButtonGroup").get_by_text("KEDA", exact=True).click()
    page.get_by_role("button", name="Simulate", exact=True).click()
    page.get_by_role("button", name="Use KEDA").wait_for()
    settled(page, OVER_TIME)


def test_from_a_trace_to_the_object_that_was_simulated(
    page: Any, address: str, tmp_path: Path
) -> None:
    page.goto(f"{address}/over_time?{LIMITED}")
    settled(page, OVER_TIME)
    page.get_by_role("radio", name="A trace").click()
    page.locator("input[type=file]").set_input_files(trace(tmp_path / "mine.jsonl"))
    page.get_by_role("button", name="Use this trace").click()
    wait_for_query(page, "workload.mode", "open")
    settled(page, OVER_TIME)
    simulated(page)
    page.get_by_role("button", name="Use KEDA").click()
    wait_for_query(page, "options.scaling.policy", "keda")
    settled(page, OVER_TIME)
    asked = query(page)
    page.get_by_role("link", name="To the recipe").click()
    page.get_by_role("heading", level=1, name=QUESTIONS["recipe"]).wait_for()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download bundle").click()
    bundle = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(bundle)
    with zipfile.ZipFile(bundle) as archive:
        written = parse_yaml(archive.read(OBJECT).decode(), OBJECT)["spec"]
    assert written["maxReplicaCount"] == int(asked["options.scaling.max_replicas"])
    assert written["minReplicaCount"] == int(asked.get("options.scaling.min_replicas", 1))
    behaviour = written["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    if "options.scaling.down_delay_s" in asked:
        down_s = behaviour["scaleDown"]["stabilizationWindowSeconds"]
        assert down_s == float(asked["options.scaling.down_delay_s"])
    targets = [str(one["target"]) for one in json.loads(asked["options.scaling.triggers"])]
    thresholds = [one["metadata"]["threshold"] for one in written["triggers"]]
    assert [float(text) for text in thresholds] == [float(text) for text in targets]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_part_of_the_answer_has_a_violation(
    open_page: Callable[..., Any], address: str, scheme: str
) -> None:
    pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is missing: not tested",
    )
    from tests.e2e.test_accessibility import look

    page = open_page(color_scheme=scheme)
    page.goto(f"{address}/over_time?{SHORT}")
    settled(page, OVER_TIME)
    simulated(page)
    unfold(page, "What is written into the bundle")
    settled(page, OVER_TIME)
    assert look(page, OVER_TIME) == {}
    fits_sideways(page)
