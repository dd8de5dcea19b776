"""The last step in a real Chromium: a link, settings, a bundle, a report that opens offline."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import recipe
from tests.fixtures.wizard import (
    LLAMA_70B,
    PAGES,
    fits_sideways,
    open_tab,
    query,
    settled,
    unfold,
    wait_for_query,
)

pytestmark = pytest.mark.browser

TABS = (
    "Deploy",
    "Files",
    "Option provenance",
    "Other engines",
    "Fallbacks",
    "API and CLI",
)
EVERY_FIGURE_DRAWN = """
[...document.querySelectorAll('figure')].every(f => f.querySelector('.js-plotly-plot .main-svg'))
"""
TRAINING = "workload.kind=training&workload.tokens=1e9&hardware.nodes=2"


def opened(page: Any, address: str, link: str) -> None:
    page.goto(f"{address}/recipe?{link}")
    settled(page, PAGES["recipe"])


def fill(page: Any, label: str, text: str) -> None:
    box = page.get_by_role("textbox", name=label, exact=True)
    box.fill(text)
    box.press("Enter")


def saved(page: Any, button: str, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    target = folder / waiting.value.suggested_filename
    waiting.value.save_as(target)
    return target


def test_a_place_is_filled_in_and_the_bundle_and_the_report_are_taken(
    page: Any, address: str, tmp_path: Path
) -> None:
    opened(page, address, f"{LLAMA_70B}&hardware.device=mi300x")
    unfold(page, "Deployment settings")
    fill(page, "Namespace", "team-llm")
    page.get_by_text("Set: namespace team-llm.").wait_for()
    fill(page, "Port", "9123")
    page.get_by_text("--port 9123").first.wait_for()
    page.get_by_role("radio", name="Kubernetes", exact=True).click()
    page.get_by_text("namespace: team-llm").first.wait_for()
    settled(page, PAGES["recipe"])
    assert "team-llm" not in page.url
    bundle = saved(page, "Download bundle", tmp_path)
    with zipfile.ZipFile(bundle) as archive:
        assert b"namespace: team-llm" in archive.read("targets/kubernetes/deployment.yaml")
        assert b'"port": 9123' in archive.read("launch.json")
    checked = recipe("check", str(bundle))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    report = saved(page, "Report with charts", tmp_path)
    assert report.stat().st_size < 6_000_000


@pytest.mark.parametrize("link", [LLAMA_70B, TRAINING], ids=["serving", "training"])
def test_a_report_opens_from_a_file_without_any_request(
    open_page: Callable[..., Any], address: str, tmp_path: Path, link: str
) -> None:
    page = open_page()
    opened(page, address, link)
    report = saved(page, "Report with charts", tmp_path)
    alone = open_page(offline=True, viewport={"width": 390, "height": 844})
    asked: list[str] = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(report.as_uri())
    alone.wait_for_function(EVERY_FIGURE_DRAWN)
    assert alone.locator("figure").count() >= 4
    assert asked == [report.as_uri()]
    assert alone.get_by_text("Edit in Chart Studio").count() == 0
    assert alone.locator("[data-title*='Chart Studio'], [data-title*='cloud']").count() == 0
    assert alone.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_file_is_found_and_read_from_the_keyboard(page: Any, address: str) -> None:
    opened(page, address, LLAMA_70B)
    open_tab(page, "Files", PAGES["recipe"])
    page.get_by_text("# llama-3.1-70b").first.wait_for()
    page.get_by_role("radio", name="README.md").focus()
    page.keyboard.press("ArrowDown")
    page.get_by_text("schema_version").first.wait_for()
    fill(page, "Find", "sbatch job-name")
    page.get_by_text("1 of ").wait_for()
    page.get_by_text("#!/bin/bash").first.wait_for()


def test_another_engine_is_one_click(page: Any, address: str) -> None:
    opened(page, address, LLAMA_70B)
    open_tab(page, "Other engines", PAGES["recipe"])
    page.get_by_role("button", name="Switch to SGLang").click()
    wait_for_query(page, "candidate.engine", "sglang")
    settled(page, PAGES["recipe"])
    assert query(page)["options.engines"] == "vllm,sglang"
    open_tab(page, "Deploy", PAGES["recipe"])
    page.get_by_text("sglang serve").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_tab_has_a_serious_violation(
    open_page: Callable[..., Any], address: str, scheme: str
) -> None:
    pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is missing: not tested",
    )
    from tests.e2e.test_accessibility import violations

    page = open_page(color_scheme=scheme)
    opened(page, address, "model=meta-llama%2FLlama-3.1-405B-Instruct&hardware.nodes=2")
    found = {}
    for tab in TABS:
        open_tab(page, tab, PAGES["recipe"])
        if tab == "Deploy":
            unfold(page, "Deployment settings")
            page.get_by_role("radio", name="Compose").click()
            page.get_by_text("is not available").wait_for()
            settled(page, PAGES["recipe"])
        found[tab] = violations(page)
    assert not any(found.values()), found


@pytest.mark.parametrize("tab", TABS)
def test_no_tab_scrolls_a_narrow_page_sideways(
    open_page: Callable[..., Any], address: str, tab: str
) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    opened(page, address, TRAINING)
    open_tab(page, tab, PAGES["recipe"])
    fits_sideways(page)
