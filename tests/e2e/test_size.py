"""Choosing hardware in a real Chromium: from a model and its traffic to a bundle."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.request.link import from_query
from recipe_core.request.open_hardware import size_request
from recipe_core.request.size import Market
from recipe_core.sizing.size import size
from tests.fixtures.command_line import recipe
from tests.fixtures.wizard import (
    LLAMA_70B,
    QUESTIONS,
    SIZE,
    TRAINING,
    choose,
    fits_sideways,
    open_tab,
    query,
    settled,
    unfold,
    wait_for_query,
)

pytestmark = pytest.mark.browser

MODEL = "meta-llama/Llama-3.1-70B-Instruct"
LIMITED = f"{LLAMA_70B}&objective.limits.tpot_ms=40"
PARTS = ("Growth", "Availability", "Buy or rent")
MOST_TABS = 120
"""Presses of a key after which a control counts as out of reach."""


def fill(page: Any, label: str, text: str) -> None:
    box = page.get_by_role("textbox", name=label)
    box.fill(text)
    box.press("Enter")


def sized(page: Any) -> None:
    """Wait until every device is sized and drawn."""
    page.get_by_role("button", name="Take").wait_for()
    settled(page, SIZE)


def test_from_an_empty_wizard_to_the_bundle_of_the_cheapest_hardware(
    page: Any, address: str, tmp_path: Path
) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    choose(page, "Model", "llama3.170b", MODEL)
    wait_for_query(page, "model", MODEL)
    page.get_by_role("link", name="Any hardware: find it for me").click()
    sized(page)
    assert query(page)["model"] == MODEL
    fill(page, "Requests in flight", "32")
    wait_for_query(page, "workload.concurrency", "32")
    fill(page, "Per token", "40")
    wait_for_query(page, "objective.limits.tpot_ms", "40")
    sized(page)
    request, _ = from_query(query(page))
    cheapest = size(size_request(request, Market())).choice.hardware
    page.get_by_role("button", name="Take").click()
    settled(page, QUESTIONS["recipe"])
    assert query(page)["objective.confidence"] == "0.9"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download bundle").click()
    bundle = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(bundle)
    with zipfile.ZipFile(bundle) as archive:
        written = parse_yaml(archive.read("recipe.yaml").decode(), "recipe.yaml")
    assert cheapest.device in str(written)
    assert query(page)["hardware.offer"] == cheapest.offer
    checked = recipe("check", str(bundle))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_hardware_is_taken_from_the_keyboard(page: Any, address: str) -> None:
    page.goto(f"{address}/size?{LIMITED}")
    sized(page)
    page.get_by_role("slider", name="Confidence").focus()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if "Take" in page.evaluate("document.activeElement.textContent"):
            break
    page.keyboard.press("Enter")
    settled(page, QUESTIONS["recipe"])
    assert query(page)["objective.optimize"] == "cost"


def test_back_returns_to_what_was_chosen_from(page: Any, address: str) -> None:
    page.goto(f"{address}/size?{LIMITED}&any=%7B%22vendors%22%3A%5B%22amd%22%5D%7D")
    sized(page)
    page.get_by_role("button", name="Compare its splits").click()
    settled(page, QUESTIONS["compare"])
    page.go_back()
    sized(page)
    assert query(page)["any"] == '{"vendors":["amd"]}'


def opened(page: Any, address: str, link: str) -> None:
    """The page with all that is folded open."""
    page.goto(f"{address}/size?{link}")
    sized(page)
    for part in PARTS:
        if page.locator("summary").filter(has_text=part).count():
            unfold(page, part)
            sized(page)
    unfold(page, "More filters")
    sized(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_part_has_a_serious_violation(
    open_page: Callable[..., Any], address: str, scheme: str
) -> None:
    pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is missing: not tested",
    )
    from tests.e2e.test_accessibility import violations

    page = open_page(color_scheme=scheme)
    opened(page, address, LIMITED)
    found = {"parts": violations(page)}
    for tab in ("Cost against a limit", "Confidence"):
        open_tab(page, tab, SIZE)
        found[tab] = violations(page)
    assert not any(found.values()), found


@pytest.mark.parametrize("link", [LIMITED, TRAINING], ids=["serving", "training"])
def test_no_part_scrolls_a_narrow_page_sideways(
    open_page: Callable[..., Any], address: str, link: str
) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    opened(page, address, link)
    fits_sideways(page)
