"""The frame around the pages in a real Chromium, while one page takes the place of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.wizard import LLAMA_70B, PAGES, QUESTIONS, settled

pytestmark = pytest.mark.browser

LINKS = {
    "Compare": "compare",
    "Check a command": "check",
    "Traffic and goals": "objective",
    "Model": "",
}
TPOT = "objective.limits.tpot_ms"
COUNT_STEP_BUTTONS = """
window.most = {Next: 0, Back: 0}
new MutationObserver(() => {
  const buttons = [...document.querySelectorAll('button')]
    .filter(button => button.checkVisibility())
  const count = name => buttons.filter(button => button.innerText.includes(name)).length
  for (const name in window.most)
    window.most[name] = Math.max(window.most[name], count(name))
}).observe(document, {subtree: true, childList: true, attributes: true, characterData: true})
"""


def test_no_change_shows_a_button_of_the_frame_twice(page: Any, address: str) -> None:
    """Counted at every change of the document, from a plan that no other test asks for.

    The run that makes a plan draws more than the next one, which a step then cuts short.
    """
    page.add_init_script(COUNT_STEP_BUTTONS)
    page.goto(f"{address}/?{LLAMA_70B}&workload.concurrency=97")
    settled(page, QUESTIONS[""])
    for question in list(QUESTIONS.values())[1:]:
        page.get_by_role("button", name="Next").click()
        settled(page, question)
    for question in list(QUESTIONS.values())[-2::-1]:
        page.get_by_role("button", name="Back").click()
        settled(page, question)
    for name, step in LINKS.items():
        page.get_by_role("link", name=name).first.click()
        settled(page, PAGES[step])
    assert page.evaluate("window.most") == {"Next": 1, "Back": 1}


@pytest.mark.parametrize(
    ("width", "height", "most"), [(1440, 900, 120), (390, 844, 200)], ids=["wide", "phone"]
)
def test_the_bar_stays_at_the_foot_and_moves_nothing_when_the_answer_changes(
    open_page: Callable[..., Any], address: str, width: int, height: int, most: int
) -> None:
    """From a limit that many splits keep to one that none does, and back."""
    page = open_page(viewport={"width": width, "height": height})
    places = []
    for limit in ("70", "1", "35"):
        page.goto(f"{address}/objective?{LLAMA_70B}&hardware.per_node=8&{TPOT}={limit}")
        settled(page, QUESTIONS["objective"])
        bar = page.get_by_test_id("stBottom").bounding_box()
        assert bar["y"] + bar["height"] == height
        assert bar["height"] <= most
        places.append([round(place["y"]) for place in boxes(page)])
        assert page.get_by_role("button", name="Next").bounding_box()["y"] < height
    assert places[0] == places[1] == places[2]


def boxes(page: Any) -> list[Any]:
    """Where the headings of the page stand."""
    return [one.bounding_box() for one in page.get_by_role("heading").all()]


def test_a_wide_window_shows_tiles_and_half_of_the_tradeoff(
    open_page: Callable[..., Any], address: str
) -> None:
    page = open_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}/compare?{LLAMA_70B}&{TPOT}=40&objective.optimize=cost")
    settled(page, QUESTIONS["compare"])
    bar = page.get_by_test_id("stBottom").bounding_box()
    chart = page.locator(".st-key-frontier .js-plotly-plot .nsewdrag").first.bounding_box()
    tiles = [tile.bounding_box() for tile in page.get_by_test_id("stMetric").all()]
    assert all(tile["y"] + tile["height"] < bar["y"] for tile in tiles)
    assert chart["y"] + chart["height"] / 2 < bar["y"]


def test_hardware_that_nobody_knows_is_found_and_taken(page: Any, address: str) -> None:
    page.goto(f"{address}/hardware?{LLAMA_70B}&{TPOT}=40")
    settled(page, QUESTIONS["hardware"])
    page.get_by_role("link", name="Any hardware: find it for me").click()
    settled(page, PAGES["size"])
    page.get_by_role("button", name="Take").first.click()
    settled(page, QUESTIONS["recipe"])
    page.get_by_text("keeps the limit").first.wait_for()


def test_what_helps_is_in_the_details_of_the_bar(page: Any, address: str) -> None:
    page.goto(f"{address}/objective?{LLAMA_70B}&hardware.per_node=8&{TPOT}=1")
    settled(page, QUESTIONS["objective"])
    page.get_by_text("None of 32 splits holds a load").wait_for()
    page.get_by_role("button", name="Why?").click()
    page.get_by_role("button", name="Allow").first.click()
    page.get_by_text("may miss the limit").first.wait_for()


def test_the_first_page_judges_no_hardware_that_nobody_chose(page: Any, address: str) -> None:
    page.goto(f"{address}/?{LLAMA_70B}")
    settled(page, QUESTIONS[""])
    page.get_by_text("No hardware is chosen yet").wait_for()
    page.get_by_text("8 × H100 SXM5 assumed until you choose").wait_for()
    page.get_by_role("link", name="Hardware").first.click()
    settled(page, QUESTIONS["hardware"])
    page.get_by_text("hold the load").first.wait_for()
