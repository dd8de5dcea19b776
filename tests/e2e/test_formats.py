"""Formats in a real Chromium: judged, drawn, and put into the request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.wizard import FORMATS, QUESTIONS, fits_sideways, settled, wait_for_query

pytestmark = pytest.mark.browser

ASKED = (
    "model=Qwen%2FQwen3-8B&hardware.per_node=1&objective.optimize=cost"
    "&objective.limits.accuracy_recovery=0.97"
)


def test_the_best_format_goes_into_the_request(page: Any, address: str) -> None:
    page.goto(f"{address}/formats?{ASKED}")
    settled(page, FORMATS)
    assert page.locator(".js-plotly-plot").count() == 2
    page.set_viewport_size({"width": 390, "height": 900})
    settled(page, FORMATS)
    fits_sideways(page)
    page.get_by_role("button", name="Use ").first.click()
    page.get_by_role("heading", level=1, name=QUESTIONS["compare"]).wait_for()
    wait_for_query(page, "objective.optimize", "cost")
