"""From the first page to a bundle by a few clicks, and the tour by keyboard alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_core.request.examples import examples
from recipe_core.request.link import link_query
from tests.fixtures.wizard import NO_PLAYWRIGHT, PAGES, QUESTIONS, query, settled

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect

pytestmark = pytest.mark.browser

MOST_CLICKS = 5
TOUR = ("", "objective", "hardware", "compare", "recipe", "check")


class Counted:
    """Clicks, as a person makes them, and how many."""

    def __init__(self, page: Any) -> None:
        self.page, self.clicks = page, 0

    def click(self, role: str, name: str) -> None:
        self.page.get_by_role(role, name=name).first.click()
        self.clicks += 1


@pytest.mark.parametrize("name", ["chat-70b", "lora"])
def test_a_case_becomes_a_bundle_in_a_few_clicks(
    page: Any, address: str, tmp_path: Path, name: str
) -> None:
    example, hand = examples()[name], Counted(page)
    page.goto(address)
    settled(page, QUESTIONS[""])
    hand.click("link", example.title)
    settled(page, QUESTIONS["compare"])
    assert link_query(example.asked).items() <= query(page).items()
    hand.click("button", "Next")
    settled(page, QUESTIONS["recipe"])
    with page.expect_download() as waiting:
        hand.click("button", "Download bundle")
    bundle = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(bundle)
    assert hand.clicks <= MOST_CLICKS
    checked = subprocess.run(
        [sys.executable, "-m", "recipe_core", "check", str(bundle)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_the_tour_takes_the_enter_key_alone(page: Any, address: str) -> None:
    page.goto(address)
    settled(page, QUESTIONS[""])
    page.get_by_role("button", name="Take the tour").focus()
    page.keyboard.press("Enter")
    for number, step in enumerate(TOUR, 1):
        expect(page.get_by_role("status").filter(has_text=f"Tour, stop {number}")).to_be_visible()
        settled(page, PAGES[step])
        if number == 1:  # the button that began it is gone: the next one is a Tab away
            page.get_by_role("button", name="Next stop").focus()
        if number < len(TOUR):
            expect(page.get_by_role("button", name="Next stop")).to_be_focused()
            page.keyboard.press("Enter")
    page.get_by_role("button", name="End tour").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Tour, stop")).to_have_count(0)


def test_a_name_without_a_model_offers_those_like_it(page: Any, address: str) -> None:
    page.goto(f"{address}/?model=Qwen%2FQwen3-8B")
    settled(page, QUESTIONS[""])
    box = page.get_by_role("combobox", name="Model")
    box.click()
    box.fill("llama70x")
    page.get_by_role("option", name="Add: llama70x").click()
    page.get_by_text("No model is called “llama70x”.").wait_for()
    assert query(page)["model"] == "Qwen/Qwen3-8B"
