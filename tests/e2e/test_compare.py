"""The comparison in a real browser: what is taken away, filters, the frontier."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fixtures.wizard import LLAMA_70B, QUESTIONS, open_tab, settled

pytestmark = pytest.mark.browser
QUESTION = QUESTIONS["compare"]
BESIDE = "options.hardware=%5B%7B%22device%22%3A%22mi300x%22%2C%22per_node%22%3A8%7D%5D"


def opened(page: Any, address: str, query: str) -> Any:
    page.goto(f"{address}/compare?{query}")
    settled(page, QUESTION)
    return page


def saved(page: Any, press: Any) -> tuple[str, bytes]:
    """Name and content of what a click downloads."""
    with page.expect_download() as download:
        press()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_a_chart_is_saved_as_picture_and_page(page: Any, address: str) -> None:
    opened(page, address, LLAMA_70B)
    chart = page.get_by_test_id("stPlotlyChart").first

    def camera() -> None:
        chart.hover()
        chart.locator(".modebar-btn[data-title^='Download']").click()

    name, picture = saved(page, camera)
    assert name == "llama-3.1-70b-instruct-8x-h100-sxm-tradeoff.png"
    assert picture.startswith(b"\x89PNG")
    menu = page.get_by_role("button", name="Export").first
    menu.click()
    page.get_by_role("radio", name="SVG").click()
    settled(page, QUESTION)
    name, html = saved(page, lambda: page.get_by_role("button", name="Interactive chart").click())
    assert name.endswith("-tradeoff.html")
    assert b"Output per GPU" in html
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Interactive chart").wait_for(state="hidden")
    name, picture = saved(page, camera)
    assert name.endswith("-tradeoff.svg")
    assert b"<svg" in picture[:200]


def test_the_filtered_table_is_saved(page: Any, address: str) -> None:
    opened(page, address, f"{LLAMA_70B}&{BESIDE}")
    devices = page.get_by_role("combobox", name="Device", exact=True)
    devices.scroll_into_view_if_needed()  # a list closes where the page moves below it
    settled(page, QUESTION)
    devices.press("ArrowDown")
    page.get_by_role("option", name="MI300X").click()
    page.get_by_text("splits pass the filters").wait_for()
    page.keyboard.press("Escape")
    settled(page, QUESTION)
    page.get_by_role("button", name="Export").nth(1).click()
    menu = page.get_by_test_id("stPopoverBody")
    name, text = saved(page, lambda: menu.get_by_role("button", name="CSV").click())
    assert name == "llama-3.1-70b-instruct-8x-h100-sxm-splits.csv"
    frame = pd.read_csv(io.BytesIO(text))
    assert set(frame["Device"]) == {"MI300X"}
    _, parquet = saved(page, lambda: menu.get_by_role("button", name="Parquet").click())
    assert pd.read_parquet(io.BytesIO(parquet))["Split"].tolist() == frame["Split"].tolist()


def test_every_device_has_a_line_of_its_frontier(page: Any, address: str) -> None:
    opened(page, address, f"{LLAMA_70B}&{BESIDE}&objective.limits.tpot_ms=40")
    panel = open_tab(page, "Frontier", QUESTION)
    legend = panel.locator(".legendtext")
    assert legend.all_text_contents() == ["H100 SXM5", "MI300X", "This split at its load"]
    panel.get_by_text("MI300X over H100 SXM5").wait_for()
